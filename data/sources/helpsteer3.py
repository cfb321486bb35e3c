"""HelpSteer3 (nvidia/HelpSteer3, configuration `preference`): 38,459 text-only pairs rated by people from -3 to 3.

A rating below zero prefers response 1, above zero response 2; zero is a tie.
"""

from typing import Literal

from pydantic import Field

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import messages
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow
from mmrm.data.sources.shared.pairs import gap


class HelpSteer3Config(FilesConfig):
    """The pairs that are no tie."""

    FILES = ("preference/{split}*", "*preference/{split}*.parquet")
    COLUMNS = ("context", "response1", "response2", "overall_preference")
    LICENCE = "CC-BY-4.0"

    type: Literal["helpsteer3"]
    hub: str | None = "nvidia/HelpSteer3"
    split: Literal["train", "validation"] = "train"
    """The data set's own split."""
    minimum_gap: int = Field(default=1, ge=1, le=3)
    """Smallest size of the overall rating."""

    def convert(self, row: SourceRow) -> Preference:
        """Columns context, response1, response2, overall_preference, domain and others."""
        rating = row.value("overall_preference", int)
        if not -3 <= rating <= 3:
            raise RecordError(f"the overall preference is {rating}; expected is -3 to 3.")
        first, second = row.text("response1"), row.text("response2")
        return Preference(
            row.identity,
            messages(row.value("context", list)),
            chosen=first if rating < 0 else second,
            rejected=second if rating < 0 else first,
            margin=gap(rating, 0, self.minimum_gap),
            category=row.label("domain"),
        )
