"""TRL's preference formats, such as trl-lib/rlaif-v, from the hub or a local copy.

A row may have one of three forms.

    explicit prompt: {"prompt": [{"role": "user", "content": …}], "chosen": [{assistant}],
                      "rejected": [{assistant}], "images": […]}
    implicit prompt: `chosen` and `rejected` hold the whole conversations, and the turns that they
                     share are the prompt
    standard:        `prompt`, `chosen` and `rejected` are texts; without `prompt`, the text that
                     the responses share is the prompt

Images are in `images` (a list) or `image`. Other columns are not read. If the columns of a file
have other names, a recipe lists them: columns: {prompt: question}.
"""

from collections.abc import Sequence
from typing import Any, Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import (
    as_turns,
    common_prefix_length,
    prompt_from_turns,
    response_text,
    split_conversations,
)
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.renamed_columns import RenamedColumnsConfig


class TrlConfig(RenamedColumnsConfig):
    """A source of preference files in one of TRL's formats."""

    FILES = ("*{split}*.parquet", "*{split}*.jsonl", "*{split}*.json", "*{split}*.arrow")
    COLUMNS = ("chosen", "rejected")
    NAMES = ("images", "image", "prompt", "chosen", "rejected", "margin")

    type: Literal["trl"]
    split: str = "train"
    """Files are read whose name contains this word. A single local file is read in any case."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row in any of TRL's preference formats.

        The columns images (or image), prompt, chosen, rejected and margin are read. The columns
        chosen and rejected are required.
        """
        row = self.with_format_names(row)
        images = row.all_images(row.columns.get("images"))
        if not images:
            images = row.all_images(row.columns.get("image"))
        turns, chosen, rejected = split_pair(row)
        return Preference(
            row.identity,
            prompt_from_turns(turns, len(images)),
            chosen,
            rejected,
            images,
            margin=row.optional_number("margin"),
        )


def split_pair(row: SourceRow) -> tuple[Sequence[Any], str, str]:
    """Return the turns of a row's prompt, its chosen response and its rejected response.

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
        return as_turns(prompt), response_text(chosen), response_text(rejected)
    if not (isinstance(chosen, str) and isinstance(rejected, str)):
        return split_conversations(chosen, rejected)

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
