"""OLMo 2 preference mix (allenai/olmo-2-1124-7b-preference-mix): 378,341 text-only pairs.

The number is that of the revision of January 2025.
"""

from dataclasses import replace
from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.tulu_preference import TuluPreferenceConfig


class OlmoPreferenceConfig(TuluPreferenceConfig):
    """A source of the pairs of the OLMo 2 mix, with the difference of two ratings as margin."""

    type: Literal["olmo_preference"]  # type: ignore[assignment]  # another tag of the same form
    hub: str | None = "allenai/olmo-2-1124-7b-preference-mix"

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row with the columns chosen, rejected and source.

        The margin is chosen_rating - rejected_rating, or None if one of these columns is missing.
        """
        chosen_rating = row.optional_number("chosen_rating")
        rejected_rating = row.optional_number("rejected_rating")
        margin = None
        if chosen_rating is not None and rejected_rating is not None:
            margin = chosen_rating - rejected_rating
        return replace(super().convert(row), margin=margin)
