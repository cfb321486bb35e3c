"""OLMo 2 preference mix (allenai/olmo-2-1124-7b-preference-mix): 378,341 text-only pairs (revision of January 2025)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from data.preference import Preference
from data.sources import tulu_preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.files import FilesConfig
from data.storage.rows import Row, optional
from data.storage.tables import open_rows


class OlmoPreferenceConfig(FilesConfig):
    """The pairs as they are; the margin is the difference of the ratings, where both are there."""

    type: Literal["olmo_preference"]
    hub: str | None = "allenai/olmo-2-1124-7b-preference-mix"

    def open(self, cache: Path) -> Source:
        """Open the parquet files."""
        located = self.locate(["*.parquet"])
        rows = open_rows(located.files, cache, ("chosen", "rejected"))
        return TableSource(self.label, "ODC-BY, parts non-commercial", located.revision, rows, convert, self.settings)


def convert(row: Row, record: str) -> Preference:
    """Columns as in the Tulu mixture, with chosen_rating, rejected_rating, chosen_model, rejected_model."""
    ratings = [optional(row, name, (int, float), record) for name in ("chosen_rating", "rejected_rating")]
    margin = None if None in ratings else float(ratings[0] or 0) - float(ratings[1] or 0)
    return replace(tulu_preference.convert(row, record), margin=margin)
