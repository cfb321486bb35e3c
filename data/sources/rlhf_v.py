"""RLHF-V (openbmb/RLHF-V-Dataset): 5.7k pairs of corrected answers; parquet with image structs.

One assumption was not confirmed at the source: the column `text` is a JSON text {"question",
"chosen", "rejected"}. A row of another form is refused.
"""

from typing import Literal

from mmrm.data.preference import Preference, text_pair
from mmrm.data.sources.shared.conversation import prompt_from_question
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow, field


class RlhfVConfig(FilesConfig):
    """A source of the pairs of RLHF-V, which are read unchanged."""

    COLUMNS = ("image", "text")
    LICENCE = "CC-BY-NC-4.0"

    type: Literal["rlhf_v"]
    hub: str | None = "openbmb/RLHF-V-Dataset"

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row with the columns image, text and origin_dataset.

        `text` is a JSON object with the keys question, chosen and rejected.
        """
        pair = row.json_value("text", dict)
        question = field(pair, "question", str)
        chosen = field(pair, "chosen", str)
        rejected = field(pair, "rejected", str)
        image = row.stored_image("image")
        return Preference(
            row.identity,
            prompt_from_question(question, 1),
            text_pair(chosen, rejected),
            (image,),
            category=row.text_or_empty("origin_dataset"),
        )
