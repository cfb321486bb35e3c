"""RLHF-V (openbmb/RLHF-V-Dataset): 5.7k pairs of corrected answers; parquet with image structs.

Not confirmed at the source: that the column `text` is a JSON text {"question", "chosen", "rejected"}. Anything else is refused.
"""

from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import question
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow, field


class RlhfVConfig(FilesConfig):
    """The pairs as they are."""

    COLUMNS = ("image", "text")
    LICENCE = "CC-BY-NC-4.0"

    type: Literal["rlhf_v"]
    hub: str | None = "openbmb/RLHF-V-Dataset"

    def convert(self, row: SourceRow) -> Preference:
        """Columns image and text; the text is read as JSON."""
        pair = row.json("text", dict)
        asked, chosen, rejected = (
            field(pair, name, str) for name in ("question", "chosen", "rejected")
        )
        image = row.stored_image("image")
        return Preference(
            row.identity,
            question(asked, 1),
            chosen,
            rejected,
            (image,),
            category=row.label("origin_dataset"),
        )
