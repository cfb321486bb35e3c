"""HPDv3 (MizzenAI/HPDv3): 1.17M pairs of pictures made of a text, compared by people.

The rows are in the form that the authors' trainer reads: hpsv3 1.0.0, its README and
hpsv3/dataset/pairwise_dataset.py. `path1` is the better picture. The images are in parts of a
tar.gz, which have to be joined and unpacked: `cat images.tar.gz.* | gunzip | tar -xv`.
"""

from typing import Literal

from pydantic import Field

from mmrm.data.errors import LeftOut
from mmrm.data.preference import Preference, Response
from mmrm.data.sources.shared.conversation import prompt_from_question
from mmrm.data.sources.shared.file_source import ImageFilesConfig, SourceRow


class Hpdv3Config(ImageFilesConfig):
    """A source of the pairs of pictures in HPDv3.

    The prompt is the text from which the pictures were made, and a response is a picture.
    """

    FILES = ("*{split}*.json", "*{split}*.jsonl")
    LICENCE = "MIT"

    type: Literal["hpdv3"]
    hub: str | None = "MizzenAI/HPDv3"
    split: Literal["train", "test"] = "train"
    """The part of the data set. The names of its files contain this word."""
    minimum_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """Pairs with a lower `confidence` are left out. The authors train on 0.95 and more. A pair
    without a confidence is kept, as in their trainer."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row with the columns prompt, path1, path2 and confidence.

        Raises:
            LeftOut: If the confidence is lower than the recipe asks for.
        """
        confidence = row.optional_number("confidence")
        if confidence is not None and confidence < self.minimum_confidence:
            raise LeftOut(
                "not_asked_for",
                f"the confidence {confidence} is below {self.minimum_confidence}.",
            )
        return Preference(
            row.identity,
            prompt_from_question(row.text("prompt"), 0),
            responses=(
                Response((row.image(row.text("path1")),)),
                Response((row.image(row.text("path2")),)),
            ),
        )
