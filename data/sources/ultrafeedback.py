"""UltraFeedback (openbmb/UltraFeedback): 64k text-only prompts with four responses.

Each response is rated on four aspects. BaseReward calls `pairs: all` Ultra-All (300k), and `pairs:
hardest` Ultra-Hard (63k: of each prompt the pair with the largest gap). A response's score is the
mean of its aspects. `pairs: none` gives one record for each prompt, with all four responses.
"""

from typing import Literal

from mmrm.data.preference import UNANSWERED, Preference, text
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.pairs import PairsConfig


class UltraFeedbackConfig(PairsConfig):
    """A source of the responses in UltraFeedback, compared by their mean ratings."""

    FILES = ("*.jsonl", "*.parquet")
    COLUMNS = ("instruction", "completions")
    LICENCE = "MIT"

    type: Literal["ultrafeedback"]
    hub: str | None = "openbmb/UltraFeedback"
    pairs: Literal["all", "hardest", "none"] = "hardest"

    def without_responses(self, row: SourceRow) -> Preference:
        """Return the preference record of a row's instruction, with empty texts as responses.

        The column source becomes the category. `convert` of `PairsConfig` adds the responses.
        """
        prompt = (text("user", row.text("instruction")),)
        return Preference(row.identity, prompt, UNANSWERED, category=row.text_or_empty("source"))
