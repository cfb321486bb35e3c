"""Skywork-Reward-Preference (Skywork/Skywork-Reward-Preference-80K-v0.2): 77k text-only pairs.

`chosen` and `rejected` hold whole conversations. Version 0.1 contains items of RewardBench, and
version 0.2 does not.
"""

from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import implicit, messages
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class SkyworkPreferenceConfig(FilesConfig):
    """Pairs of Skywork-Reward-Preference, unchanged."""

    FILES = ("*.parquet", "*.jsonl")
    COLUMNS = ("chosen", "rejected")

    type: Literal["skywork_preference"]
    hub: str | None = "Skywork/Skywork-Reward-Preference-80K-v0.2"

    def convert(self, row: SourceRow) -> Preference:
        """Read the columns chosen and rejected (lists of {content, role}), and source."""
        shared, chosen, rejected = implicit(row.value("chosen", list), row.value("rejected", list))
        return Preference(
            row.identity, messages(shared), chosen, rejected, category=row.label("source")
        )
