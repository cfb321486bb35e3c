"""HelpSteer3 (nvidia/HelpSteer3): 38,459 text-only pairs rated by people from -3 to 3.

The configuration `preference` is read. A rating below zero prefers response 1, and a rating above
zero response 2. Zero is a tie.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, positions_of_pair, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_turns
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.pairs import score_gap
from mmrm.data.sources.shared.ties import TIED_RANKS, TiedComparisonsConfig


class HelpSteer3Config(TiedComparisonsConfig):
    """A source of the pairs of HelpSteer3."""

    FILES = ("preference/{split}*", "*preference/{split}*.parquet")
    COLUMNS = ("context", "response1", "response2", "overall_preference")
    LICENCE = "CC-BY-4.0"

    type: Literal["helpsteer3"]
    hub: str | None = "nvidia/HelpSteer3"
    split: Literal["train", "validation"] = "train"
    """The data set's own split."""
    minimum_gap: int = Field(default=1, ge=1, le=3)
    """Smallest size of the overall rating. It does not apply to ties."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row, whose margin is the size of its rating.

        The columns context, response1, response2, overall_preference and domain are read. A
        negative overall_preference prefers response1.

        Raises:
            LeftOut: If the rating is smaller in size than `minimum_gap`, or is 0 and ties are left
                out.
            RecordError: If the rating is not between -3 and 3, or a column has another form.
        """
        rating = row.value("overall_preference", int)
        if not -3 <= rating <= 3:
            raise RecordError(
                f"'overall_preference' is {rating}, and ratings of HelpSteer3 are between -3 and "
                "3. Correct the value, or remove the row."
            )
        record = Preference(
            row.identity,
            prompt_from_turns(row.value("context", list)),
            responses=text_responses(row.text("response1"), row.text("response2")),
            category=row.text_or_empty("domain"),
        )
        if rating == 0:
            self.check_tie("both responses are rated equally good.")
            return replace(record, ranks=TIED_RANKS, margin=0.0)
        positions = positions_of_pair(rating < 0)
        responses = tuple(record.responses[position] for position in positions)
        margin = score_gap(rating, 0, self.minimum_gap)
        return replace(record, responses=responses, positions=positions, margin=margin)
