"""TRL's preference formats, such as trl-lib/rlaif-v, from the hub or a local copy.

A row may have one of three forms.

    explicit prompt: {"prompt": [{"role": "user", "content": …}], "chosen": [{assistant}],
                      "rejected": [{assistant}], "images": […]}
    implicit prompt: `chosen` and `rejected` hold the whole conversations, and the turns that they
                     share are the prompt. If there is a `prompt` as well, it must be the first of
                     these turns, or the text of a user's turn among them
    standard:        `prompt`, `chosen` and `rejected` are texts; without `prompt`, the text that
                     the responses share is the prompt

Images are in `images` (a list) or `image`, videos in `videos` or `video`. Responses may have images
and videos, too; see data/sources/shared/responses.py. Other columns are not read. If the columns of a file
have other names, a recipe lists them: columns: {prompt: question}.
"""

from collections.abc import Sequence
from typing import Any, Literal

from mmrm.data.errors import RecordError
from mmrm.data.markers import IMAGE_MARKER
from mmrm.data.preference import Preference, num_image_parts
from mmrm.data.sources.shared.conversation import (
    as_turns,
    common_prefix_length,
    parsed_turns,
    split_turns,
    turn_of_response,
    turn_text,
)
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.renamed_columns import RenamedColumnsConfig
from mmrm.data.sources.shared.responses import read_row, written_pair

OTHER_PROMPT = (
    "'chosen' and 'rejected' are whole conversations that do not begin with 'prompt'. Remove the "
    "column 'prompt' if the turns that they share are the prompt, or leave only the last turn in "
    "'chosen' and 'rejected' if 'prompt' is right."
)
"""The message about a row that has two different prompts."""


class TrlConfig(RenamedColumnsConfig):
    """A source of preference files in one of TRL's formats."""

    FILES = ("*{split}*.parquet", "*{split}*.jsonl", "*{split}*.json", "*{split}*.arrow")
    COLUMNS = ("chosen", "rejected")
    RESPONSES_WITH_IMAGES = True
    VIDEOS = True
    NAMES = ("images", "image", "videos", "video", "prompt", "chosen", "rejected", "margin")

    type: Literal["trl"]
    split: str = "train"
    """Files are read whose name contains this word. A single local file is read in any case."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row in any of TRL's preference formats.

        The columns images (or image), videos (or video), prompt, chosen, rejected and margin are
        read. The columns chosen and rejected are required.
        """
        row = self.with_format_names(row)
        images = row.all_images(row.columns.get("images"))
        if not images:
            images = row.all_images(row.columns.get("image"))
        videos = row.all_videos(row.columns.get("videos"))
        if not videos:
            videos = row.all_videos(row.columns.get("video"))
        turns, chosen, rejected = split_pair(row)
        read = read_row(row, turns, written_pair(row, chosen, rejected), images, videos)
        return Preference(
            row.identity,
            read.prompt,
            read.responses,
            read.images,
            margin=row.optional_number("margin"),
            videos=read.videos,
        )


def split_pair(row: SourceRow) -> tuple[Sequence[Any], Any, Any]:
    """Return the turns of a row's prompt, its chosen response and its rejected response.

    A response is a text, or a list of one turn.

    The row may have any of TRL's preference formats. If it has no prompt, the prompt is the
    beginning that `chosen` and `rejected` share.

    Raises:
        RecordError: If a column has another form, or the responses share no text that could be the
            prompt.
    """
    chosen = row.value("chosen", str | list)
    rejected = row.value("rejected", str | list)
    prompt = row.optional_value("prompt", str | list)
    if prompt is not None:
        has_conversations = any(
            isinstance(response, list) and len(response) > 1 for response in (chosen, rejected)
        )
        if has_conversations:
            turns, chosen_turns, rejected_turns = split_turns(chosen, rejected)
            for turns_of_response in (chosen_turns, rejected_turns):
                turn_of_response(turns_of_response)  # raises if there are several turns
            return with_given_prompt(turns, prompt), chosen_turns, rejected_turns
        return as_turns(prompt), chosen, rejected
    if not (isinstance(chosen, str) and isinstance(rejected, str)):
        return split_turns(chosen, rejected)

    prompt_length = common_prefix_length(chosen, rejected)
    if chosen[:prompt_length].endswith(" "):
        prompt_length -= 1  # as in TRL, the blank belongs to the responses
    shared_text = chosen[:prompt_length]
    if not shared_text.strip():
        raise RecordError(
            "there is no 'prompt', and 'chosen' and 'rejected' share no beginning that could be "
            "the prompt. Add the column 'prompt', or remove the row."
        )
    return as_turns(shared_text), chosen[prompt_length:], rejected[prompt_length:]


def with_given_prompt(turns: Sequence[Any], prompt: str | list[Any]) -> Sequence[Any]:
    """Return the turns that `chosen` and `rejected` share, compared with the column `prompt`.

    A prompt that is a list of turns replaces the equal turns, unless they have more image parts
    than it has: in some files only the prompt holds the image parts, in others only `chosen` and
    `rejected` do.

    Args:
        turns: The turns that both conversations begin with.
        prompt: The column `prompt`: the text of a user's turn, or the first turns.

    Raises:
        RecordError: If the conversations do not begin with the prompt.
    """
    texts_of_turns = _roles_and_texts(turns)
    if isinstance(prompt, str):
        (question,) = _roles_and_texts(as_turns(prompt))
        if question not in texts_of_turns:
            raise RecordError(OTHER_PROMPT)
        return turns
    if _roles_and_texts(prompt) != texts_of_turns[: len(prompt)]:
        raise RecordError(OTHER_PROMPT)
    replaced_turns = turns[: len(prompt)]
    if num_image_parts(parsed_turns(replaced_turns)) > num_image_parts(parsed_turns(prompt)):
        return turns
    return [*prompt, *turns[len(prompt) :]]


def _roles_and_texts(turns: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the role and the text of each turn, without markers of images and outer blanks."""
    parsed = parsed_turns(turns)
    return [(turn["role"], turn_text(turn).replace(IMAGE_MARKER, "").strip()) for turn in parsed]
