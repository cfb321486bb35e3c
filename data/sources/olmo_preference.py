"""OLMo 2 preference mix (allenai/olmo-2-1124-7b-preference-mix): 378,341 text-only pairs (revision of January 2025)."""

from dataclasses import replace
from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.tulu_preference import TuluPreferenceConfig


class OlmoPreferenceConfig(TuluPreferenceConfig):
    """The pairs as they are; the margin is the difference of the ratings, where both are there."""

    type: Literal["olmo_preference"]  # type: ignore[assignment]  # another tag of the same form
    hub: str | None = "allenai/olmo-2-1124-7b-preference-mix"

    def convert(self, row: SourceRow) -> Preference:
        """Columns as in the Tulu mixture, with chosen_rating, rejected_rating, chosen_model, rejected_model."""
        chosen, rejected = row.number("chosen_rating"), row.number("rejected_rating")
        return replace(
            super().convert(row),
            margin=None if chosen is None or rejected is None else chosen - rejected,
        )
