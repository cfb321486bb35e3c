"""Tulu 3 preference mixture (allenai/llama-3.1-tulu-3-8b-preference-mixture): 271k text-only pairs.

Some have several turns. BaseReward trains on 65k pairs of the mixture, and does not publish which.
`cap: 65000` draws the same number.
"""

from typing import Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_turns, response_text
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class TuluPreferenceConfig(FilesConfig):
    """A source of the pairs of the Tulu 3 mixture, which are read unchanged."""

    COLUMNS = ("chosen", "rejected")
    LICENCE = "ODC-BY, parts non-commercial"

    type: Literal["tulu_preference"]
    hub: str | None = "allenai/llama-3.1-tulu-3-8b-preference-mixture"

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row with the columns chosen, rejected and source.

        `chosen` and `rejected` are whole conversations: lists of turns {role, content} that differ
        in the last turn only.
        """
        chosen = row.value("chosen", list)
        rejected = row.value("rejected", list)
        if chosen[:-1] != rejected[:-1]:
            raise RecordError(
                "'chosen' and 'rejected' differ before their last turn, and both must answer the "
                "same context. Correct the row, or remove it."
            )
        chosen_response = response_text(chosen[-1:])
        rejected_response = response_text(rejected[-1:])
        return Preference(
            row.identity,
            prompt_from_turns(chosen[:-1]),
            text_responses(chosen_response, rejected_response),
            category=row.text_or_empty("source"),
        )
