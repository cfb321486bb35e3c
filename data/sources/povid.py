"""POVID (YiyangAiLab/POVID_preference_data_for_VLLMs): 17k pairs; the rejected answer had a hallucination put in.

Not confirmed at the source: the layout, a JSON list of {id, image, conversations, rejected_conversations} whose two
conversations share the question, with images named as in COCO. A row of another form is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from data.errors import RecordError
from data.preference import Message, Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import marked, sharegpt, split_prefix
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import encoded
from data.storage.rows import Row, field
from data.storage.tables import open_rows


class PovidConfig(FilesConfig):
    """The pairs as they are."""

    type: Literal["povid"]
    hub: str | None = "YiyangAiLab/POVID_preference_data_for_VLLMs"
    images: str
    """The folder of the COCO images; the set holds only their names."""

    def open(self, cache: Path) -> Source:
        """Open the list of pairs."""
        located = self.locate(["*.json"])
        rows = open_rows(located.files, cache)
        convert = _Convert(Path(self.images).expanduser())
        return TableSource(self.label, "CC-BY-4.0", located.revision, rows, convert, self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, row: Row, record: str) -> Preference:
        chosen = sharegpt(field(row, "conversations", list, record), record)
        rejected = sharegpt(field(row, "rejected_conversations", list, record), record)
        if len(chosen) < 2 or len(chosen) != len(rejected) or split_prefix(chosen, rejected) < len(chosen) - 1:
            raise RecordError(f"{record}: the two conversations must differ in their last turn only.")
        image = encoded(field(row, "image", str, record), self.root, record)
        return Preference(record, marked(chosen[:-1], 1, record), _said(chosen[-1]), _said(rejected[-1]), (image,))


def _said(turn: Message) -> str:
    return "".join(part["text"] for part in turn["content"] if part["type"] == "text")
