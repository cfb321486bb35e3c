"""UltraFeedback binarized (HuggingFaceH4/ultrafeedback_binarized): 61k text-only pairs with the two scores.

For trl-lib/ultrafeedback_binarized take the source `trl`.
"""

from typing import Literal

from pydantic import NonNegativeFloat

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import implicit, messages
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow
from mmrm.data.sources.shared.pairs import gap


class UltraFeedbackBinarizedConfig(FilesConfig):
    """Pairs whose scores differ."""

    FILES = ("*{split}*.parquet",)
    COLUMNS = ("chosen", "rejected", "score_chosen", "score_rejected")
    LICENCE = "MIT"

    type: Literal["ultrafeedback_binarized"]
    hub: str | None = "HuggingFaceH4/ultrafeedback_binarized"
    split: Literal["train_prefs", "test_prefs"] = "train_prefs"
    """The data set's own split."""
    minimum_gap: NonNegativeFloat = 0
    """Smallest difference of the two scores, which lie between 1 and 10."""

    def convert(self, row: SourceRow) -> Preference:
        """Columns prompt, prompt_id, chosen, rejected (whole conversations), messages, score_chosen, score_rejected."""
        shared, chosen, rejected = implicit(row.value("chosen", list), row.value("rejected", list))
        better, worse = (
            float(row.value(name, int | float)) for name in ("score_chosen", "score_rejected")
        )
        if better < worse:
            raise RecordError(f"the chosen response has the lower score ({better} < {worse}).")
        return Preference(
            row.identity,
            messages(shared),
            chosen,
            rejected,
            margin=gap(better, worse, self.minimum_gap),
        )
