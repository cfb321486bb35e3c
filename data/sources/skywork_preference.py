"""Skywork-Reward-Preference (Skywork/Skywork-Reward-Preference-80K-v0.2): 77k text-only pairs.

Whole conversations under `chosen` and `rejected`. Version 0.1 holds items of RewardBench; 0.2 does not.
"""

from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import implicit, messages
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class SkyworkPreferenceConfig(FilesConfig):
    """The pairs as they are."""

    FILES = ("*.parquet", "*.jsonl")
    COLUMNS = ("chosen", "rejected")

    type: Literal["skywork_preference"]
    hub: str | None = "Skywork/Skywork-Reward-Preference-80K-v0.2"

    def convert(self, row: SourceRow) -> Preference:
        """Columns chosen, rejected (lists of {content, role}), source."""
        shared, chosen, rejected = implicit(row.value("chosen", list), row.value("rejected", list))
        return Preference(
            row.identity, messages(shared), chosen, rejected, category=row.label("source")
        )
