"""Skywork-Reward-Preference (Skywork/Skywork-Reward-Preference-80K-v0.2): 77k text-only pairs.

Whole conversations under `chosen` and `rejected`. Version 0.1 holds items of RewardBench; 0.2 does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import implicit, messages
from data.sources.shared.files import FilesConfig
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class SkyworkPreferenceConfig(FilesConfig):
    """The pairs as they are."""

    type: Literal["skywork_preference"]
    hub: str | None = "Skywork/Skywork-Reward-Preference-80K-v0.2"

    def open(self, cache: Path) -> Source:
        """Open the parquet files, or JSON lines."""
        located = self.locate(["*.parquet", "*.jsonl"])
        rows = open_rows(located.files, cache, ("chosen", "rejected"))
        return TableSource(self.label, "not stated", located.revision, rows, convert, self.settings)


def convert(row: Row, record: str) -> Preference:
    """Columns chosen, rejected (lists of {content, role}), source."""
    shared, chosen, rejected = implicit(field(row, "chosen", list, record), field(row, "rejected", list, record), record)
    return Preference(record, messages(shared, 0, record), chosen, rejected, category=optional(row, "source", str, record) or "")
