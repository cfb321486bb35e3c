"""RLAIF-V (openbmb/RLAIF-V-Dataset): 83,132 pairs, one image each; parquet with image structs."""

from typing import Literal

from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_question
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class RlaifVConfig(FilesConfig):
    """A source of the pairs of RLAIF-V, which are read unchanged."""

    COLUMNS = ("image", "question", "chosen", "rejected")
    LICENCE = "CC-BY-NC-4.0"

    type: Literal["rlaif_v"]
    hub: str | None = "openbmb/RLAIF-V-Dataset"

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row with the columns image, question, chosen and rejected.

        origin_dataset becomes the category. The hub's files also hold ds_name, origin_split, idx
        and image_path, which are not read.
        """
        return Preference(
            row.identity,
            prompt_from_question(row.text("question"), 1),
            text_responses(row.text("chosen"), row.text("rejected")),
            (row.stored_image("image"),),
            category=row.text_or_empty("origin_dataset"),
        )
