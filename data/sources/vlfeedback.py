"""VLFeedback (MMInstruction/VLFeedback): 80,258 prompts with four responses, each rated on three aspects.

Ratings are texts. A response's score is the mean of its aspects; every two responses of different score are a pair.
The parquet branch holds the images; the original JSON lines name them in `img_path`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.preference import Preference
from data.sources.shared.base import Source
from data.sources.shared.conversation import question
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import encoded, row_image
from data.sources.shared.pairs import Pairing, PairSource, Scored, items, mean_rating
from data.storage.rows import Row, field
from data.storage.tables import open_rows


class VlFeedbackConfig(FilesConfig):
    """Pairs by score."""

    type: Literal["vlfeedback"]
    hub: str | None = "MMInstruction/VLFeedback"
    images: str | None = None
    """The folder of the images that `img_path` names; not needed for the parquet branch."""
    pairs: Pairing = "all"
    minimum_gap: float = Field(default=0, ge=0)
    """Smallest difference of the mean ratings (1 to 5)."""

    def open(self, cache: Path) -> Source:
        """Open the parquet files, or the JSON lines."""
        located = self.locate(["*.parquet", "*.jsonl"], branch="refs/convert/parquet")
        rows = open_rows(located.files, cache, ("prompt", "completions"))
        read = _Read(Path(self.images).expanduser() if self.images else located.root)
        return PairSource(self.label, "not stated", located.revision, rows, read, self.pairs, self.minimum_gap, self.settings)


class _Read:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, row: Row, record: str) -> tuple[Preference, list[Scored]]:
        image = (
            row_image(row, "image", record)
            if row.get("image")
            else encoded(field(row, "img_path", str, record), self.root, record)
        )
        blank = Preference(record, (question(field(row, "prompt", str, record), 1, record),), "", "", (image,))
        completions = items(field(row, "completions", (list, dict), record), record)
        return blank, [Scored(field(one, "response", str, record), mean_rating(one, record)) for one in completions]
