"""The format of this project: one object a record, as JSON lines, a JSON list, parquet or Arrow.

    {"images": ["cats/1.png"], "prompt": "Which colour is the cat?", "chosen": "Black.", "rejected": "White."}

`images`: a list of paths (relative to the image folder), data URIs, or structs {bytes, path}; may be missing.
`prompt`: a text, or a list of turns {role, content} whose content is a text or a list of {type: text | image} parts.
Without image parts the images stand before the user's first text. Optional: margin (a number), chosen_critique,
rejected_critique, rationale, source, category.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.errors import RecordError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import messages
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import all_encoded
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows

REQUIRED = ("prompt", "chosen", "rejected")
TEXTS = ("chosen_critique", "rejected_critique", "rationale")
KEYS = frozenset({*REQUIRED, *TEXTS, "images", "margin", "source", "category"})
KINDS = ("*.jsonl", "*.json", "*.parquet", "*.arrow")


class ProjectConfig(FilesConfig):
    """Files in this project's own format."""

    type: Literal["project"]
    images: str | None = None
    """The folder that image paths are relative to and may not leave; None takes the folder of the file."""
    files: list[str] = Field(default_factory=lambda: list(KINDS))
    """Which files of a folder belong to the source."""
    licence: str = "not stated"

    def open(self, cache: Path) -> Source:
        """Open the files; raise UserError if they are missing or hold no such table."""
        located = self.locate(self.files)
        root = Path(self.images).expanduser() if self.images else located.root
        rows = open_rows(located.files, cache, REQUIRED)
        return TableSource(self.label, self.licence, located.revision, rows, _Convert(root), self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, row: Row, record: str) -> Preference:
        unknown = sorted(row.keys() - KEYS)
        if unknown:
            raise RecordError(f"{record}: unknown {', '.join(map(repr, unknown))}; a record may hold {', '.join(sorted(KEYS))}.")
        images = all_encoded(row.get("images"), self.root, record)
        prompt = field(row, "prompt", (str, list), record)
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        margin = optional(row, "margin", (int, float), record)
        return Preference(
            identity=record,
            prompt=messages(turns, len(images), record),
            chosen=field(row, "chosen", str, record),
            rejected=field(row, "rejected", str, record),
            images=images,
            margin=None if margin is None else float(margin),
            **{name: optional(row, name, str, record) for name in TEXTS},
            source=optional(row, "source", str, record) or "",
            category=optional(row, "category", str, record) or "",
        )
