"""TRL's preference formats, from the hub or a local copy: trl-lib/rlaif-v, trl-lib/ultrafeedback_binarized and a user's own.

Explicit prompt:  {"images": […], "prompt": [{"role": "user", "content": …}], "chosen": [{assistant}], "rejected": [{assistant}]}
Implicit prompt:  `chosen` and `rejected` hold the whole conversations; what they share is the prompt.
Standard:         `prompt`, `chosen`, `rejected` are texts; without `prompt` the text that the two share is the prompt.
Images lie in `images` (a list) or `image`. Other columns are not read.
"""

from collections.abc import Sequence
from typing import Any, Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import (
    implicit,
    messages,
    response,
    split_prefix,
    user_turn,
)
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class TrlConfig(FormatConfig):
    """A data set in one of TRL's preference formats."""

    FILES = ("*{split}*.parquet", "*{split}*.jsonl", "*{split}*.json", "*{split}*.arrow")
    COLUMNS = ("chosen", "rejected")

    type: Literal["trl"]
    split: str = "train"
    """Files are read whose name holds this word; for a single local file it does not count."""

    def convert(self, row: SourceRow) -> Preference:
        """Columns as above."""
        images = row.all_images(row.columns.get("images")) or row.all_images(
            row.columns.get("image")
        )
        turns, chosen, rejected = split_pair(row)
        return Preference(
            row.identity,
            messages(turns, len(images)),
            chosen,
            rejected,
            images,
            margin=row.number("margin"),
        )


def split_pair(row: SourceRow) -> tuple[Sequence[Any], str, str]:
    """Return the turns of the prompt, the chosen and the rejected response of a row in any of TRL's preference formats."""
    chosen, rejected = row.value("chosen", str | list), row.value("rejected", str | list)
    prompt = row.optional("prompt", str | list)
    if prompt is not None:
        return user_turn(prompt), response(chosen), response(rejected)
    if not (isinstance(chosen, str) and isinstance(rejected, str)):
        return implicit(chosen, rejected)
    start = split_prefix(chosen, rejected)
    if chosen[:start].endswith(" "):  # TRL's rule: the blank belongs to the responses
        start -= 1
    if not chosen[:start].strip():
        raise RecordError(
            "there is no 'prompt', and the two responses share no beginning that could be it."
        )
    return user_turn(chosen[:start]), chosen[start:], rejected[start:]
