"""TRL's preference formats, from the hub or a local copy: trl-lib/rlaif-v, trl-lib/ultrafeedback_binarized and a user's own.

Explicit prompt:  {"images": […], "prompt": [{"role": "user", "content": …}], "chosen": [{assistant}], "rejected": [{assistant}]}
Implicit prompt:  `chosen` and `rejected` hold the whole conversations; what they share is the prompt.
Standard:         `prompt`, `chosen`, `rejected` are texts; without `prompt` the text that the two share is the prompt.
Images lie in `images` (a list) or `image`. Other columns are not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from data.errors import RecordError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import implicit, messages, response, split_prefix
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import all_encoded
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class TrlConfig(FilesConfig):
    """A data set in one of TRL's preference formats."""

    type: Literal["trl"]
    split: str = "train"
    """Files are read whose name holds this word; for a single local file it does not count."""
    images: str | None = None
    """The folder that image paths are relative to and may not leave; None takes the data set's folder."""
    licence: str = "not stated"

    def open(self, cache: Path) -> Source:
        """Open the files; raise UserError if they are missing or lack a column."""
        located = self.locate([f"*{self.split}*{kind}" for kind in (".parquet", ".jsonl", ".json", ".arrow")])
        root = Path(self.images).expanduser() if self.images else located.root
        rows = open_rows(located.files, cache, ("chosen", "rejected"))
        return TableSource(self.label, self.licence, located.revision, rows, _Convert(root), self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, row: Row, record: str) -> Preference:
        images = all_encoded(row["images"] if row.get("images") is not None else row.get("image"), self.root, record)
        turns, chosen, rejected = split(row, record)
        margin = optional(row, "margin", (int, float), record)
        return Preference(
            identity=record,
            prompt=messages(turns, len(images), record),
            chosen=chosen,
            rejected=rejected,
            images=images,
            margin=None if margin is None else float(margin),
        )


def split(row: Row, record: str) -> tuple[list[Any], str, str]:
    """Return the turns of the prompt, the chosen and the rejected response of a row in any of TRL's preference formats."""
    chosen, rejected = field(row, "chosen", (str, list), record), field(row, "rejected", (str, list), record)
    prompt = optional(row, "prompt", (str, list), record)
    if prompt is not None:
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return turns, response(chosen, record), response(rejected, record)
    if isinstance(chosen, str) and isinstance(rejected, str):
        start = _shared_text(chosen, rejected)
        if not chosen[:start].strip():
            raise RecordError(f"{record}: there is no 'prompt', and the two responses share no beginning that could be it.")
        return [{"role": "user", "content": chosen[:start]}], chosen[start:], rejected[start:]
    shared, chosen_text, rejected_text = implicit(chosen, rejected, record)
    return list(shared), chosen_text, rejected_text


def _shared_text(chosen: str, rejected: str) -> int:
    """Return the length of the shared beginning, without a blank at its end (TRL's rule)."""
    shared = split_prefix(chosen, rejected)
    return shared - 1 if shared and chosen[shared - 1] == " " else shared
