"""Stanford Human Preferences (stanfordnlp/SHP): 348k text-only pairs of Reddit answers, by their votes.

One folder a domain with train.json, validation.json and test.json (JSON lines).
Not confirmed at the source: that labels = 1 prefers answer A. The scores must agree with the label, or the row is refused.
"""

from typing import Literal

from pydantic import Field

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference, text
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow
from mmrm.data.sources.shared.pairs import gap


class ShpConfig(FilesConfig):
    """Pairs by votes."""

    FILES = ("*{split}.json", "*{split}*.parquet")
    COLUMNS = ("history", "human_ref_A", "human_ref_B", "labels")

    type: Literal["shp"]
    hub: str | None = "stanfordnlp/SHP"
    split: Literal["train", "validation", "test"] = "train"
    """The data set's own split."""
    minimum_ratio: float = Field(default=1, ge=1)
    """Smallest ratio of the two answers' votes (the card advises 2 or more)."""

    def convert(self, row: SourceRow) -> Preference:
        """Columns history, human_ref_A, human_ref_B, labels, score_A, score_B, score_ratio, domain and others."""
        label = row.value("labels", int)
        votes = row.value("score_A", int), row.value("score_B", int)
        margin = gap(*votes, 0)
        if label not in (0, 1) or (label == 1) != (votes[0] > votes[1]):
            raise RecordError(
                f"the label is {label} and the votes are {votes}; expected is 1 where A has more votes."
            )
        ratio = float(row.value("score_ratio", int | float))
        if ratio < self.minimum_ratio:
            raise LeftOut("small_gap", f"the ratio of votes {ratio} is below {self.minimum_ratio}.")
        answers = row.text("human_ref_A"), row.text("human_ref_B")
        return Preference(
            row.identity,
            (text("user", row.text("history")),),
            chosen=answers[1 - label],
            rejected=answers[label],
            margin=margin,
            category=row.label("domain"),
        )
