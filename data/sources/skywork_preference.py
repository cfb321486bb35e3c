"""Skywork-Reward-Preference (Skywork/Skywork-Reward-Preference-80K-v0.2): 77k text-only pairs.

`chosen` and `rejected` hold whole conversations. Version 0.1 contains items of RewardBench, and
version 0.2 does not.
"""

from typing import Literal

from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_turns, split_conversations
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class SkyworkPreferenceConfig(FilesConfig):
    """A source of the pairs of Skywork-Reward-Preference, which are read unchanged."""

    FILES = ("*.parquet", "*.jsonl")
    COLUMNS = ("chosen", "rejected")

    type: Literal["skywork_preference"]
    hub: str | None = "Skywork/Skywork-Reward-Preference-80K-v0.2"

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row with the columns chosen, rejected and source.

        `chosen` and `rejected` are whole conversations: lists of turns {role, content}.
        """
        shared_turns, chosen, rejected = split_conversations(
            row.value("chosen", list), row.value("rejected", list)
        )
        return Preference(
            row.identity,
            prompt_from_turns(shared_turns),
            text_responses(chosen, rejected),
            category=row.text_or_empty("source"),
        )
