"""Stanford Human Preferences (stanfordnlp/SHP): 348k text-only pairs.

The responses are answers on Reddit, compared by their votes. Each domain has a folder with
train.json, validation.json and test.json (JSON lines). One assumption was not confirmed at the
source: labels = 1 prefers answer A. The scores must agree with the label, or the row is refused.
"""

from typing import Literal

from pydantic import Field

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference, positions_of_pair, text, text_responses
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow
from mmrm.data.sources.shared.pairs import score_gap


class ShpConfig(FilesConfig):
    """A source of pairs of Reddit answers with different numbers of votes."""

    FILES = ("*{split}.json", "*{split}*.parquet")
    COLUMNS = ("history", "human_ref_A", "human_ref_B", "labels")

    type: Literal["shp"]
    hub: str | None = "stanfordnlp/SHP"
    split: Literal["train", "validation", "test"] = "train"
    """The data set's own split."""
    minimum_ratio: float = Field(default=1, ge=1)
    """Smallest ratio of the two answers' votes (the card advises 2 or more)."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row, whose chosen response is the answer with more votes.

        The prompt is in the column history, and the answers are in human_ref_A and human_ref_B.
        The columns labels, score_A, score_B, score_ratio and domain are read as well.

        Raises:
            LeftOut: If the answers have equally many votes, or the ratio of votes is too small.
            RecordError: If the label contradicts the votes, or a column has another form.
        """
        label = row.value("labels", int)
        votes_of_a = row.value("score_A", int)
        votes_of_b = row.value("score_B", int)
        margin = score_gap(votes_of_a, votes_of_b, 0)
        is_a_labelled = label == 1
        if label not in (0, 1) or is_a_labelled != (votes_of_a > votes_of_b):
            raise RecordError(
                f"'labels' is {label}, and the answers have {votes_of_a} and {votes_of_b} votes. "
                "The label must be 1 if answer A has more votes, and 0 if answer B has. Correct "
                "the row, or remove it."
            )
        ratio = float(row.value("score_ratio", int | float))
        if ratio < self.minimum_ratio:
            raise LeftOut("small_gap", f"the ratio of votes {ratio} is below {self.minimum_ratio}.")
        chosen = row.text("human_ref_A")
        rejected = row.text("human_ref_B")
        if not is_a_labelled:
            chosen, rejected = rejected, chosen
        return Preference(
            row.identity,
            (text("user", row.text("history")),),
            responses=text_responses(chosen, rejected),
            margin=margin,
            category=row.text_or_empty("domain"),
            positions=positions_of_pair(is_a_labelled),
        )
