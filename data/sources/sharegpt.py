"""ShareGPT preference files, as LLaMA-Factory reads them, and its Alpaca form.

{"conversations": [{"from": "human", "value": "<image>What is this?"}], "chosen": {"from": "gpt", "value": "A cat."},
 "rejected": {"from": "gpt", "value": "A dog."}, "images": ["1.jpg"], "system": "…"}
{"instruction": "…", "input": "…", "chosen": "…", "rejected": "…", "images": ["1.jpg"]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from data.errors import RecordError
from data.preference import Message, Preference, text
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import marked, sharegpt, sharegpt_turn
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import all_encoded
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class ShareGptConfig(FilesConfig):
    """Files of such records."""

    type: Literal["sharegpt"]
    images: str | None = None
    """The folder that image paths are relative to and may not leave; None takes the folder of the file."""
    licence: str = "not stated"

    def open(self, cache: Path) -> Source:
        """Open the files."""
        located = self.locate(["*.json", "*.jsonl", "*.parquet"])
        root = Path(self.images).expanduser() if self.images else located.root
        rows = open_rows(located.files, cache, ("chosen", "rejected"))
        return TableSource(self.label, self.licence, located.revision, rows, ShareGpt(root), self.settings)


class ShareGpt:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, row: Row, record: str) -> Preference:
        """Convert one row of either form."""
        images = all_encoded(row.get("images") or None, self.root, record)
        turns = sharegpt(row["conversations"], record) if "conversations" in row else [text("user", _instruction(row, record))]
        system = optional(row, "system", str, record)
        head: list[Message] = [text("system", system)] if system else []
        return Preference(
            identity=record,
            prompt=marked([*head, *turns], len(images), record),
            chosen=_response(row, "chosen", record),
            rejected=_response(row, "rejected", record),
            images=images,
        )


def _instruction(row: Row, record: str) -> str:
    parts = [field(row, "instruction", str, record), optional(row, "input", str, record) or ""]
    return "\n".join(part for part in parts if part)


def _response(row: Row, name: str, record: str) -> str:
    value: Any = field(row, name, (str, dict), record)
    if isinstance(value, str):
        return value
    turn = sharegpt_turn(value, record)
    if turn["role"] != "assistant":
        raise RecordError(f"{record}: {name!r} is a turn of the {turn['role']}; required is one of the assistant.")
    return field(value, "value", str, record)
