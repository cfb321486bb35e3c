"""Preference files as ms-swift reads them.

    {"messages": [{"role": "user", "content": "<image>What is this?"}, {"role": "assistant", "content": "A cat."}],
     "rejected_response": "A dog.", "images": ["1.jpg"], "margin": 1.0}

The last turn of `messages` is the chosen response. In place of `rejected_response` a row may hold `rejected_messages`,
the whole other conversation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import implicit, marked, messages, response
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import all_encoded
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class MsSwiftConfig(FilesConfig):
    """Files of such records."""

    type: Literal["ms_swift"]
    images: str | None = None
    """The folder that image paths are relative to and may not leave; None takes the folder of the file."""
    licence: str = "not stated"

    def open(self, cache: Path) -> Source:
        """Open the files."""
        located = self.locate(["*.jsonl", "*.json", "*.parquet"])
        root = Path(self.images).expanduser() if self.images else located.root
        rows = open_rows(located.files, cache, ("messages",))
        return TableSource(self.label, self.licence, located.revision, rows, _Convert(root), self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, row: Row, record: str) -> Preference:
        images = all_encoded(row.get("images") or None, self.root, record)
        turns, chosen, rejected = _split(row, record)
        margin = optional(row, "margin", (int, float), record)
        return Preference(
            identity=record,
            prompt=marked(messages(turns, 0, record), len(images), record),
            chosen=chosen,
            rejected=rejected,
            images=images,
            margin=None if margin is None else float(margin),
        )


def _split(row: Row, record: str) -> tuple[list[Any], str, str]:
    turns = field(row, "messages", list, record)
    other = optional(row, "rejected_messages", list, record)
    if other is not None:
        shared, chosen, rejected = implicit(turns, other, record)
        return list(shared), chosen, rejected
    return turns[:-1], response(turns[-1:], record), field(row, "rejected_response", str, record)
