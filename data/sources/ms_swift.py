"""Preference files as ms-swift reads them.

    {"messages": [{"role": "user", "content": "<image>What is this?"},
                  {"role": "assistant", "content": "A cat."}],
     "rejected_response": "A dog.", "images": ["1.jpg"], "margin": 1.0}

The last turn of `messages` is the chosen response. In place of `rejected_response` a row may hold
`rejected_messages`, the whole other conversation.

A response may have images: `<image>` in the last turn of `messages` is the place of the last images
of `images`, and `rejected_images` lists all images of the rejected conversation, those of the prompt
first.
"""

from collections.abc import Sequence
from typing import Any, Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.sources.shared.conversation import split_turns
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow
from mmrm.data.sources.shared.responses import (
    ReadRow,
    WrittenResponse,
    num_listed_images,
    read_row,
    written_pair,
)


class MsSwiftConfig(FormatConfig):
    """A source of preference files in the format of ms-swift."""

    FILES = ("*.jsonl", "*.json", "*.parquet")
    COLUMNS = ("messages",)
    RESPONSES_WITH_IMAGES = True

    type: Literal["ms_swift"]

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row, whose chosen response is the last turn of `messages`.

        The rejected response is `rejected_response`, or the last turn of `rejected_messages`. The
        columns images and margin are read as well.
        """
        images = row.all_images(row.columns.get("images"))
        turns = row.value("messages", list)
        rejected_turns = row.optional_value("rejected_messages", list)
        if rejected_turns is None:
            prompt_turns = turns[:-1]
            chosen: Sequence[Any] = turns[-1:]
            rejected: str | Sequence[Any] = row.text("rejected_response")
        else:
            prompt_turns, chosen, rejected = split_turns(turns, rejected_turns)
        if row.columns.get("rejected_images") is None:
            read = read_row(row, prompt_turns, written_pair(row, chosen, rejected), images)
        else:
            read = _read_with_two_lists(row, prompt_turns, chosen, rejected, images)
        return Preference(
            row.identity,
            read.prompt,
            read.responses,
            read.images,
            margin=row.optional_number("margin"),
        )


def _read_with_two_lists(
    row: SourceRow,
    prompt_turns: Sequence[Any],
    chosen: Any,
    rejected: Any,
    images: tuple[EncodedImage, ...],
) -> ReadRow:
    """Return the prompt and the responses of a row with a list of images for each conversation.

    Args:
        row: The row, whose column `rejected_images` is read.
        prompt_turns: The turns of the prompt.
        chosen: The chosen response, a list of one turn.
        rejected: The rejected response, a text or a list of one turn.
        images: The images of the chosen conversation: those of the prompt, and then those of the
            chosen response.

    Raises:
        RecordError: The two conversations begin with different images.
    """
    rejected_images = row.all_images(row.columns["rejected_images"])
    num_of_prompt = max(0, len(images) - num_listed_images(row, chosen))
    num_of_rejected_prompt = max(0, len(rejected_images) - num_listed_images(row, rejected))
    if images[:num_of_prompt] != rejected_images[:num_of_rejected_prompt]:
        raise RecordError(
            "the prompt has other images in 'rejected_images' than in 'images'. Required are two "
            "responses to one prompt: the same images first, and then those of the response. "
            "Correct the row, or remove it."
        )
    written = [
        WrittenResponse("the chosen response", chosen, images[num_of_prompt:]),
        WrittenResponse(
            "the rejected response", rejected, rejected_images[num_of_rejected_prompt:]
        ),
    ]
    return read_row(row, prompt_turns, written, images[:num_of_prompt])
