"""Preference files as ms-swift reads them.

    {"messages": [{"role": "user", "content": "<image>What is this?"},
                  {"role": "assistant", "content": "A cat."}],
     "rejected_response": "A dog.", "images": ["1.jpg"], "margin": 1.0}

The last turn of `messages` is the chosen response. In place of `rejected_response` a row may hold
`rejected_messages`, the whole other conversation.

A response may have images: `<image>` in the last turn of `messages` is the place of the last images
of `images`, and `rejected_images` lists all images of the rejected conversation, those of the prompt
first. Videos are in `videos` and `rejected_videos`, and their marker is `<video>`.
"""

from collections.abc import Sequence
from typing import Any, Literal

from mmrm.data.encoded_video import Video
from mmrm.data.errors import RecordError
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.sources.shared.conversation import split_turns
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow
from mmrm.data.sources.shared.responses import (
    ReadRow,
    WrittenResponse,
    num_listed_images,
    num_listed_videos,
    read_row,
    written_pair,
)

LISTS_OF_REJECTED = ("rejected_images", "rejected_videos")
"""Columns that list all images, or videos, of the rejected conversation."""


class MsSwiftConfig(FormatConfig):
    """A source of preference files in the format of ms-swift."""

    FILES = ("*.jsonl", "*.json", "*.parquet")
    COLUMNS = ("messages",)
    RESPONSES_WITH_IMAGES = True
    VIDEOS = True

    type: Literal["ms_swift"]

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row, whose chosen response is the last turn of `messages`.

        The rejected response is `rejected_response`, or the last turn of `rejected_messages`. The
        columns images and margin are read as well.
        """
        images = row.all_images(row.columns.get("images"))
        videos = row.all_videos(row.columns.get("videos"))
        turns = row.value("messages", list)
        rejected_turns = row.optional_value("rejected_messages", list)
        if rejected_turns is None:
            prompt_turns = turns[:-1]
            chosen: Sequence[Any] = turns[-1:]
            rejected: str | Sequence[Any] = row.text("rejected_response")
        else:
            prompt_turns, chosen, rejected = split_turns(turns, rejected_turns)
        has_two_lists = any(row.columns.get(name) is not None for name in LISTS_OF_REJECTED)
        if has_two_lists:
            read = _read_with_two_lists(row, prompt_turns, chosen, rejected, images, videos)
        else:
            written = written_pair(row, chosen, rejected)
            read = read_row(row, prompt_turns, written, images, videos)
        return Preference(
            row.identity,
            read.prompt,
            read.responses,
            read.images,
            margin=row.optional_number("margin"),
            videos=read.videos,
        )


def _read_with_two_lists(
    row: SourceRow,
    prompt_turns: Sequence[Any],
    chosen: Any,
    rejected: Any,
    images: tuple[EncodedImage, ...],
    videos: tuple[Video, ...],
) -> ReadRow:
    """Return the prompt and the responses of a row with lists for each conversation.

    Args:
        row: The row, whose columns `rejected_images` and `rejected_videos` are read. A list that is
            missing is that of the chosen conversation's prompt.
        prompt_turns: The turns of the prompt.
        chosen: The chosen response, a list of one turn.
        rejected: The rejected response, a text or a list of one turn.
        images: The images of the chosen conversation: those of the prompt, and then those of the
            chosen response.
        videos: Its videos in the same order.

    Raises:
        RecordError: The two conversations begin with different images or videos.
    """
    num_images = max(0, len(images) - num_listed_images(row, chosen))
    num_videos = max(0, len(videos) - num_listed_videos(row, chosen))
    rejected_images: Sequence[EncodedImage] = images[:num_images]
    rejected_videos: Sequence[Video] = videos[:num_videos]
    if row.columns.get("rejected_images") is not None:
        rejected_images = row.all_images(row.columns["rejected_images"])
    if row.columns.get("rejected_videos") is not None:
        rejected_videos = row.all_videos(row.columns["rejected_videos"])
    num_rejected_images = max(0, len(rejected_images) - num_listed_images(row, rejected))
    num_rejected_videos = max(0, len(rejected_videos) - num_listed_videos(row, rejected))
    _refuse_other_prompt("images", images[:num_images], rejected_images[:num_rejected_images])
    _refuse_other_prompt("videos", videos[:num_videos], rejected_videos[:num_rejected_videos])
    written = [
        WrittenResponse("the chosen response", chosen, images[num_images:], videos[num_videos:]),
        WrittenResponse(
            "the rejected response",
            rejected,
            tuple(rejected_images[num_rejected_images:]),
            tuple(rejected_videos[num_rejected_videos:]),
        ),
    ]
    return read_row(row, prompt_turns, written, images[:num_images], videos[:num_videos])


def _refuse_other_prompt(name: str, chosen: Sequence[Any], rejected: Sequence[Any]) -> None:
    """Raise RecordError if the two conversations of a row begin with different media.

    Args:
        name: The column of the chosen conversation, "images" or "videos".
        chosen: The images or videos of its prompt.
        rejected: Those of the rejected conversation's prompt.
    """
    if list(chosen) != list(rejected):
        raise RecordError(
            f"the prompt has other {name} in 'rejected_{name}' than in '{name}'. Required are two "
            f"responses to one prompt: the same {name} first, and then those of the response. "
            "Correct the row, or remove it."
        )
