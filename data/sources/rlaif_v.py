"""RLAIF-V (openbmb/RLAIF-V-Dataset): 83,132 pairs, one image each; parquet with image structs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import question
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import row_image
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows

COLUMNS = ("image", "question", "chosen", "rejected")


class RlaifVConfig(FilesConfig):
    """The pairs as they are."""

    type: Literal["rlaif_v"]
    hub: str | None = "openbmb/RLAIF-V-Dataset"

    def open(self, cache: Path) -> Source:
        """Open the parquet files."""
        located = self.locate(["*.parquet"])
        rows = open_rows(located.files, cache, COLUMNS)
        return TableSource(self.label, "CC-BY-NC-4.0", located.revision, rows, convert, self.settings)


def convert(row: Row, record: str) -> Preference:
    """Columns ds_name, image, question, chosen, rejected, origin_dataset, origin_split, idx, image_path."""
    return Preference(
        identity=record,
        prompt=(question(field(row, "question", str, record), 1, record),),
        chosen=field(row, "chosen", str, record),
        rejected=field(row, "rejected", str, record),
        images=(row_image(row, "image", record),),
        category=optional(row, "origin_dataset", str, record) or "",
    )
