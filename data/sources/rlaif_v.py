"""RLAIF-V (openbmb/RLAIF-V-Dataset): 83,132 pairs, one image each; parquet with image structs."""

from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import question
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class RlaifVConfig(FilesConfig):
    """Pairs of RLAIF-V, unchanged."""

    COLUMNS = ("image", "question", "chosen", "rejected")
    LICENCE = "CC-BY-NC-4.0"

    type: Literal["rlaif_v"]
    hub: str | None = "openbmb/RLAIF-V-Dataset"

    def convert(self, row: SourceRow) -> Preference:
        """Read the columns image, question, chosen, rejected and origin_dataset.

        The hub's files also hold ds_name, origin_split, idx and image_path, which are not read.
        """
        return Preference(
            row.identity,
            question(row.text("question"), 1),
            row.text("chosen"),
            row.text("rejected"),
            (row.stored_image("image"),),
            category=row.label("origin_dataset"),
        )
