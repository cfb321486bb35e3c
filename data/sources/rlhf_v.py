"""RLHF-V (openbmb/RLHF-V-Dataset): 5.7k pairs of corrected answers; parquet with image structs.

Not confirmed at the source: that the column `text` is a JSON text {"question", "chosen", "rejected"}. Anything else is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from data.errors import RecordError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import question
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import row_image
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class RlhfVConfig(FilesConfig):
    """The pairs as they are."""

    type: Literal["rlhf_v"]
    hub: str | None = "openbmb/RLHF-V-Dataset"

    def open(self, cache: Path) -> Source:
        """Open the parquet files."""
        located = self.locate(["*.parquet"])
        rows = open_rows(located.files, cache, ("image", "text"))
        return TableSource(self.label, "CC-BY-NC-4.0", located.revision, rows, convert, self.settings)


def convert(row: Row, record: str) -> Preference:
    """Columns image and text; the text is read as JSON."""
    content = field(row, "text", str, record)
    try:
        pair = json.loads(content)
    except ValueError as error:
        raise RecordError(
            f"{record}: 'text' is no JSON ({error}); expected is an object of question, chosen, rejected."
        ) from error
    if not isinstance(pair, dict):
        raise RecordError(
            f"{record}: 'text' is a JSON {type(pair).__name__}; expected is an object of question, chosen, rejected."
        )
    return Preference(
        identity=record,
        prompt=(question(field(pair, "question", str, record), 1, record),),
        chosen=field(pair, "chosen", str, record),
        rejected=field(pair, "rejected", str, record),
        images=(row_image(row, "image", record),),
        category=optional(row, "origin_dataset", str, record) or "",
    )
