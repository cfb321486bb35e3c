"""UltraFeedback (openbmb/UltraFeedback): 64k text-only prompts with four responses, each rated on four aspects.

`pairs: all` is what BaseReward calls Ultra-All (300k), `pairs: hardest` Ultra-Hard (63k: of each prompt the pair with
the largest gap). A response's score is the mean of its aspects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.preference import Preference, text
from data.sources.shared.base import Source
from data.sources.shared.files import FilesConfig
from data.sources.shared.pairs import Pairing, PairSource, Scored, items, mean_rating
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class UltraFeedbackConfig(FilesConfig):
    """Pairs by score."""

    type: Literal["ultrafeedback"]
    hub: str | None = "openbmb/UltraFeedback"
    pairs: Pairing = "hardest"
    minimum_gap: float = Field(default=0, ge=0)
    """Smallest difference of the mean ratings (1 to 5)."""

    def open(self, cache: Path) -> Source:
        """Open the JSON lines, or parquet files."""
        located = self.locate(["*.jsonl", "*.parquet"])
        rows = open_rows(located.files, cache, ("instruction", "completions"))
        return PairSource(self.label, "MIT", located.revision, rows, read, self.pairs, self.minimum_gap, self.settings)


def read(row: Row, record: str) -> tuple[Preference, list[Scored]]:
    """Columns source, instruction, models, completions, correct_answers, incorrect_answers."""
    prompt = (text("user", field(row, "instruction", str, record)),)
    blank = Preference(record, prompt, "", "", category=optional(row, "source", str, record) or "")
    completions = items(field(row, "completions", (list, dict), record), record)
    return blank, [Scored(field(one, "response", str, record), mean_rating(one, record)) for one in completions]
