"""UltraFeedback binarized (HuggingFaceH4/ultrafeedback_binarized): 61k text-only pairs with the two scores.

For trl-lib/ultrafeedback_binarized take the source `trl`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.errors import RecordError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import implicit, messages
from data.sources.shared.files import FilesConfig
from data.sources.shared.pairs import by_score
from data.storage.rows import Row, field
from data.storage.tables import open_rows

COLUMNS = ("chosen", "rejected", "score_chosen", "score_rejected")


class UltraFeedbackBinarizedConfig(FilesConfig):
    """Pairs whose scores differ."""

    type: Literal["ultrafeedback_binarized"]
    hub: str | None = "HuggingFaceH4/ultrafeedback_binarized"
    split: Literal["train_prefs", "test_prefs"] = "train_prefs"
    minimum_gap: float = Field(default=0, ge=0)

    def open(self, cache: Path) -> Source:
        """Open the parquet files of the split."""
        located = self.locate([f"*{self.split}*.parquet"])
        rows = open_rows(located.files, cache, COLUMNS)
        return TableSource(self.label, "MIT", located.revision, rows, _Convert(self.minimum_gap), self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, minimum_gap: float) -> None:
        self.minimum_gap = minimum_gap

    def __call__(self, row: Row, record: str) -> Preference:
        shared, chosen, rejected = implicit(field(row, "chosen", list, record), field(row, "rejected", list, record), record)
        scores = [float(field(row, name, (int, float), record)) for name in ("score_chosen", "score_rejected")]
        if scores[0] < scores[1]:
            raise RecordError(f"{record}: the chosen response has the lower score ({scores[0]} < {scores[1]}).")
        _, _, gap = by_score(scores[0], chosen, scores[1], rejected, self.minimum_gap, record)
        return Preference(record, messages(shared, 0, record), chosen, rejected, margin=gap)
