"""Tulu 3 preference mixture (allenai/llama-3.1-tulu-3-8b-preference-mixture): 271k text-only pairs, some multi-turn.

BaseReward names 65k pairs of it without saying which: `cap: 65000` draws as many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from data.errors import RecordError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import messages, response
from data.sources.shared.files import FilesConfig
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows


class TuluPreferenceConfig(FilesConfig):
    """The pairs as they are."""

    type: Literal["tulu_preference"]
    hub: str | None = "allenai/llama-3.1-tulu-3-8b-preference-mixture"

    def open(self, cache: Path) -> Source:
        """Open the parquet files."""
        located = self.locate(["*.parquet"])
        rows = open_rows(located.files, cache, ("chosen", "rejected"))
        return TableSource(self.label, "ODC-BY, parts non-commercial", located.revision, rows, convert, self.settings)


def convert(row: Row, record: str) -> Preference:
    """Columns id, prompt, chosen, rejected (whole conversations of {content, role}), source."""
    chosen, rejected = field(row, "chosen", list, record), field(row, "rejected", list, record)
    if chosen[:-1] != rejected[:-1]:
        raise RecordError(f"{record}: 'chosen' and 'rejected' differ before the last turn; expected is one context for both.")
    return Preference(
        identity=record,
        prompt=messages(chosen[:-1], 0, record),
        chosen=response(chosen[-1:], record),
        rejected=response(rejected[-1:], record),
        category=optional(row, "source", str, record) or "",
    )
