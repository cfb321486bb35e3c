"""POVID (YiyangAiLab/POVID_preference_data_for_VLLMs): 17k pairs.

The rejected answer is the chosen one with a hallucination put in. The layout was not confirmed at
the source: a JSON list of {id, image, conversations, rejected_conversations}, whose two
conversations share the question, with images named as in COCO. A row of another form is refused.
"""

from typing import Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import marked, sharegpt, text_of
from mmrm.data.sources.shared.file_source import ImageFilesConfig, SourceRow


class PovidConfig(ImageFilesConfig):
    """Pairs of POVID, unchanged."""

    FILES = ("*.json",)
    LICENCE = "CC-BY-4.0"

    type: Literal["povid"]
    hub: str | None = "YiyangAiLab/POVID_preference_data_for_VLLMs"
    images: str
    """The folder of the COCO images; the set holds only their names."""

    def convert(self, row: SourceRow) -> Preference:
        """Read the columns image, conversations and rejected_conversations."""
        chosen = sharegpt(row.value("conversations", list))
        rejected = sharegpt(row.value("rejected_conversations", list))
        if len(chosen) < 2 or chosen[:-1] != rejected[:-1]:
            raise RecordError(
                "'conversations' and 'rejected_conversations' must be the same up to their last "
                "turn, and differ in that turn only. Correct the row, or remove it."
            )
        image = row.image(row.text("image"))
        return Preference(
            row.identity,
            marked(chosen[:-1], 1),
            text_of(chosen[-1]),
            text_of(rejected[-1]),
            (image,),
        )
