"""UltraFeedback binarized (HuggingFaceH4/ultrafeedback_binarized): 61k text-only pairs.

Each pair has the two scores. The source `trl` reads trl-lib/ultrafeedback_binarized.
"""

from typing import Literal

from pydantic import NonNegativeFloat

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_turns, split_conversations
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.pairs import score_gap
from mmrm.data.sources.shared.ties import TIED_RANKS, TiedComparisonsConfig


class UltraFeedbackBinarizedConfig(TiedComparisonsConfig):
    """A source of the pairs of UltraFeedback binarized."""

    FILES = ("*{split}*.parquet",)
    COLUMNS = ("chosen", "rejected", "score_chosen", "score_rejected")
    LICENCE = "MIT"

    type: Literal["ultrafeedback_binarized"]
    hub: str | None = "HuggingFaceH4/ultrafeedback_binarized"
    split: Literal["train_prefs", "test_prefs"] = "train_prefs"
    """The data set's own split."""
    minimum_gap: NonNegativeFloat = 0
    """Smallest difference of the two scores, which are between 1 and 10. It does not apply to
    ties."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row, with the difference of the two scores as its margin.

        The columns are chosen and rejected (whole conversations, as lists of turns {role,
        content}), score_chosen and score_rejected.

        Raises:
            LeftOut: If the difference of the scores is below `minimum_gap`, or they are equal and
                ties are left out.
            RecordError: If the rejected response has the higher score, or a column another form.
        """
        shared_turns, chosen, rejected = split_conversations(
            row.value("chosen", list), row.value("rejected", list)
        )
        chosen_score = float(row.value("score_chosen", int | float))
        rejected_score = float(row.value("score_rejected", int | float))
        if chosen_score < rejected_score:
            raise RecordError(
                f"'score_chosen' is {chosen_score}, and 'score_rejected' is {rejected_score}. The "
                "chosen response must not have the lower score. Correct the row, or remove it."
            )
        prompt = prompt_from_turns(shared_turns)
        responses = text_responses(chosen, rejected)
        if chosen_score == rejected_score:
            self.check_tie(f"both responses have the score {chosen_score}.")
            return Preference(row.identity, prompt, responses, margin=0.0, ranks=TIED_RANKS)
        margin = score_gap(chosen_score, rejected_score, self.minimum_gap)
        return Preference(row.identity, prompt, responses, margin=margin)
