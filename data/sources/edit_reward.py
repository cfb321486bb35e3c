"""EditReward-Data (TIGER-Lab/EditReward-Data): 200k pairs of edits of a picture, rated by people.

The rows are in the form that the authors' trainer reads: TIGER-AI-Lab/EditReward edb027e,
EditReward/TRAIN_README.md and EditReward/dataset/pairwise_edit_dataset.py. `path1` is the better
edit unless `tie_case` is true. The form of the files on the hub was not confirmed. A row of another
form is refused.
"""

from math import nan
from typing import Literal

from mmrm.data.preference import Preference, Response
from mmrm.data.sources.shared.conversation import prompt_from_question
from mmrm.data.sources.shared.file_source import ImageFilesConfig, SourceRow
from mmrm.data.sources.shared.ties import TIED_RANKS, TiedComparisonsConfig

RATINGS = {
    "instruction_following": "dim1",
    "visual_quality": "dim2",
    "overall": "overall",
}
"""The names of the attributes, and what their columns are called."""


class EditRewardConfig(TiedComparisonsConfig, ImageFilesConfig):
    """A source of the pairs of edited pictures in EditReward-Data.

    The prompt is the picture before the edit with the instruction, and a response is the picture
    after the edit.
    """

    FILES = ("*.json", "*.jsonl")

    type: Literal["edit_reward"]
    hub: str | None = "TIGER-Lab/EditReward-Data"

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row with the columns prompt, path_src, path1 and path2.

        The ratings become the attributes of the record: instruction_following and visual_quality
        from 1 to 4, and overall from 2 to 8. A missing rating is unknown.

        Raises:
            LeftOut: If both edits are equally good, and ties are left out.
        """
        attributes: dict[str, tuple[float, ...]] = {}
        for name, column in RATINGS.items():
            ratings = [
                row.optional_number(f"model1_{column}_score"),
                row.optional_number(f"model2_{column}_score"),
            ]
            if any(rating is not None for rating in ratings):
                attributes[name] = tuple(nan if rating is None else rating for rating in ratings)
        is_tie = bool(row.optional_value("tie_case", bool))
        if is_tie:
            self.check_tie("its column tie_case is true.")
        return Preference(
            row.identity,
            prompt_from_question(row.text("prompt"), 1),
            responses=(
                Response((row.image(row.text("path1")),)),
                Response((row.image(row.text("path2")),)),
            ),
            images=(row.image(row.text("path_src")),),
            ranks=TIED_RANKS if is_tie else (0, 1),
            attributes=attributes,
        )
