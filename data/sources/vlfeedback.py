"""VLFeedback (MMInstruction/VLFeedback): 80,258 prompts with four responses.

Each response is rated on three aspects. Ratings are texts. A response's score is the mean of its
aspects; every two responses of different score are a pair. `pairs: none` gives one record for each
prompt instead, with all four responses. The parquet branch holds the images; the original JSON
lines name them in `img_path`.
"""

from typing import Literal

from mmrm.data.preference import UNANSWERED, Preference
from mmrm.data.sources.shared.conversation import prompt_from_question
from mmrm.data.sources.shared.file_source import ImageFilesConfig, SourceRow
from mmrm.data.sources.shared.pairs import PairsConfig


class VlFeedbackConfig(PairsConfig, ImageFilesConfig):
    """A source of the responses in VLFeedback, compared by their mean ratings.

    The parquet branch of the data set needs no folder of images.
    """

    FILES = ("*.parquet", "*.jsonl")
    COLUMNS = ("prompt", "completions")
    BRANCH = "refs/convert/parquet"

    type: Literal["vlfeedback"]
    hub: str | None = "MMInstruction/VLFeedback"

    def without_responses(self, row: SourceRow) -> Preference:
        """Return the preference record of a row's prompt and image, with empty texts as responses.

        The image is in the column image, or else in the file that img_path names. `convert` of
        `PairsConfig` adds the responses.
        """
        has_image = bool(row.columns.get("image"))
        image = row.stored_image("image") if has_image else row.image(row.text("img_path"))
        return Preference(
            row.identity,
            prompt_from_question(row.text("prompt"), 1),
            UNANSWERED,
            (image,),
        )
