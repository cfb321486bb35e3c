"""Tulu 3 preference mixture (allenai/llama-3.1-tulu-3-8b-preference-mixture): 271k text-only pairs, some multi-turn.

BaseReward names 65k pairs of it without saying which: `cap: 65000` draws as many.
"""

from typing import Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import messages, response
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class TuluPreferenceConfig(FilesConfig):
    """The pairs as they are."""

    COLUMNS = ("chosen", "rejected")
    LICENCE = "ODC-BY, parts non-commercial"

    type: Literal["tulu_preference"]
    hub: str | None = "allenai/llama-3.1-tulu-3-8b-preference-mixture"

    def convert(self, row: SourceRow) -> Preference:
        """Columns id, prompt, chosen, rejected (whole conversations of {content, role}), source."""
        chosen, rejected = row.value("chosen", list), row.value("rejected", list)
        if chosen[:-1] != rejected[:-1]:
            raise RecordError(
                "'chosen' and 'rejected' differ before the last turn; expected is one context for both."
            )
        texts = response(chosen[-1:]), response(rejected[-1:])
        return Preference(row.identity, messages(chosen[:-1]), *texts, category=row.label("source"))
