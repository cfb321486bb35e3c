"""HelpSteer3 (nvidia/HelpSteer3, configuration `preference`): 38,459 text-only pairs rated by people from -3 to 3.

A rating below zero prefers response 1, above zero response 2; zero is a tie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.errors import LeftOut, RecordError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import messages
from data.sources.shared.files import FilesConfig
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class HelpSteer3Config(FilesConfig):
    """The pairs that are no tie."""

    type: Literal["helpsteer3"]
    hub: str | None = "nvidia/HelpSteer3"
    split: Literal["train", "validation"] = "train"
    minimum_gap: int = Field(default=1, ge=1, le=3)
    """Smallest size of the overall rating."""

    def open(self, cache: Path) -> Source:
        """Open the JSON lines of the split."""
        located = self.locate([f"preference/{self.split}*", f"*preference/{self.split}*.parquet"])
        rows = open_rows(located.files, cache, ("context", "response1", "response2", "overall_preference"))
        return TableSource(self.label, "CC-BY-4.0", located.revision, rows, _Convert(self.minimum_gap), self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, minimum_gap: int) -> None:
        self.minimum_gap = minimum_gap

    def __call__(self, row: Row, record: str) -> Preference:
        rating = field(row, "overall_preference", int, record)
        if not -3 <= rating <= 3:
            raise RecordError(f"{record}: the overall preference is {rating}; expected is -3 to 3.")
        if rating == 0:
            raise LeftOut("tie", f"{record}: the overall preference is 0.")
        if abs(rating) < self.minimum_gap:
            raise LeftOut("small_gap", f"{record}: the overall preference {rating} is smaller than {self.minimum_gap}.")
        first, second = field(row, "response1", str, record), field(row, "response2", str, record)
        return Preference(
            identity=record,
            prompt=messages(field(row, "context", list, record), 0, record),
            chosen=first if rating < 0 else second,
            rejected=second if rating < 0 else first,
            margin=float(abs(rating)),
            category=optional(row, "domain", str, record) or "",
        )
