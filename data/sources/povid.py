"""POVID (YiyangAiLab/POVID_preference_data_for_VLLMs): 17k pairs.

The rejected answer is the chosen one with a hallucination put in. The layout was not confirmed at
the source: a JSON list of {id, image, conversations, rejected_conversations}, whose two
conversations share the question, with images named as in COCO. A row of another form is refused.
"""

from typing import Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.conversation import turn_text, turns_from_sharegpt, with_image_parts
from mmrm.data.sources.shared.file_source import ImageFilesConfig, SourceRow


class PovidConfig(ImageFilesConfig):
    """A source of the pairs of POVID, which are read unchanged."""

    FILES = ("*.json",)
    LICENCE = "CC-BY-4.0"

    type: Literal["povid"]
    hub: str | None = "YiyangAiLab/POVID_preference_data_for_VLLMs"
    images: str
    """The folder of the COCO images; the set holds only their names."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row with the columns image and two whole conversations.

        `conversations` ends with the chosen answer, and `rejected_conversations` with the rejected
        one. The turns before are the prompt.
        """
        chosen_turns = turns_from_sharegpt(row.value("conversations", list))
        rejected_turns = turns_from_sharegpt(row.value("rejected_conversations", list))
        if len(chosen_turns) < 2 or chosen_turns[:-1] != rejected_turns[:-1]:
            raise RecordError(
                "'conversations' and 'rejected_conversations' must be the same up to their last "
                "turn, and differ in that turn only. Correct the row, or remove it."
            )
        image = row.image(row.text("image"))
        return Preference(
            row.identity,
            with_image_parts(chosen_turns[:-1], 1),
            text_responses(turn_text(chosen_turns[-1]), turn_text(rejected_turns[-1])),
            (image,),
        )
