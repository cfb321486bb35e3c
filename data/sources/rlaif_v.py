"""RLAIF-V (openbmb/RLAIF-V-Dataset): 83,132 pairs, one image each; parquet with image structs."""

from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import question
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class RlaifVConfig(FilesConfig):
    """The pairs as they are."""

    COLUMNS = ("image", "question", "chosen", "rejected")
    LICENCE = "CC-BY-NC-4.0"

    type: Literal["rlaif_v"]
    hub: str | None = "openbmb/RLAIF-V-Dataset"

    def convert(self, row: SourceRow) -> Preference:
        """Columns ds_name, image, question, chosen, rejected, origin_dataset, origin_split, idx, image_path."""
        return Preference(
            row.identity,
            question(row.text("question"), 1),
            row.text("chosen"),
            row.text("rejected"),
            (row.stored_image("image"),),
            category=row.label("origin_dataset"),
        )
