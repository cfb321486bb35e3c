"""Stanford Human Preferences (stanfordnlp/SHP): 348k text-only pairs of Reddit answers, by their votes.

One folder a domain with train.json, validation.json and test.json (JSON lines).
Not confirmed at the source: that labels = 1 prefers answer A. The scores must agree with the label, or the row is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.errors import LeftOut, RecordError
from data.preference import Preference, text
from data.sources.shared.base import Source, TableSource
from data.sources.shared.files import FilesConfig
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows

COLUMNS = ("history", "human_ref_A", "human_ref_B", "labels")


class ShpConfig(FilesConfig):
    """Pairs by votes."""

    type: Literal["shp"]
    hub: str | None = "stanfordnlp/SHP"
    split: Literal["train", "validation", "test"] = "train"
    minimum_ratio: float = Field(default=1, ge=1)
    """Smallest ratio of the two answers' votes (the card advises 2 or more)."""

    def open(self, cache: Path) -> Source:
        """Open the files of all domains."""
        located = self.locate([f"*{self.split}.json", f"*{self.split}*.parquet"])
        rows = open_rows(located.files, cache, COLUMNS)
        return TableSource(self.label, "not stated", located.revision, rows, _Convert(self.minimum_ratio), self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, minimum_ratio: float) -> None:
        self.minimum_ratio = minimum_ratio

    def __call__(self, row: Row, record: str) -> Preference:
        label = field(row, "labels", int, record)
        votes = field(row, "score_A", int, record), field(row, "score_B", int, record)
        if votes[0] == votes[1]:
            raise LeftOut("tie", f"{record}: both answers have {votes[0]} votes.")
        if label not in (0, 1) or (label == 1) != (votes[0] > votes[1]):
            raise RecordError(f"{record}: the label is {label} and the votes are {votes}; expected is 1 where A has more votes.")
        ratio = float(field(row, "score_ratio", (int, float), record))
        if ratio < self.minimum_ratio:
            raise LeftOut("small_gap", f"{record}: the ratio of votes {ratio} is below {self.minimum_ratio}.")
        answers = [field(row, name, str, record) for name in ("human_ref_A", "human_ref_B")]
        return Preference(
            identity=record,
            prompt=(text("user", field(row, "history", str, record)),),
            chosen=answers[1 - label],
            rejected=answers[label],
            margin=float(abs(votes[0] - votes[1])),
            category=optional(row, "domain", str, record) or "",
        )
