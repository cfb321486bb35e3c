"""HelpSteer2 (nvidia/HelpSteer2): 20,324 text-only responses, rated by people on five aspects.

Each aspect is rated from 0 to 4. Two successive rows have the same prompt, and become one record.
The better response is the one of higher helpfulness, which is the overall rating. Earlier turns are
in the text of the prompt, as NeMo-Aligner writes them: a line `<extra_id_1>Assistant` or
`<extra_id_1>User` begins the next turn.
"""

import re
from typing import Any, Literal

from pydantic import Field

from mmrm.data.errors import RecordError
from mmrm.data.preference import UNANSWERED, Preference, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_turns
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.pairs import score_gap
from mmrm.data.sources.shared.ratings import with_ranked_responses
from mmrm.data.sources.shared.ties import TiedComparisonsConfig

ASPECTS = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
"""The columns of ratings. The first one ranks the responses."""
HIGHEST_RATING = 4
TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")
"""The beginning of each turn but the first one in the text of a prompt."""


class HelpSteer2Config(TiedComparisonsConfig):
    """A source of the pairs of HelpSteer2, with all ratings as attributes."""

    FILES = ("{split}.jsonl*", "*{split}*.parquet")
    COLUMNS = ("prompt", "response", *ASPECTS)
    LICENCE = "CC-BY-4.0"
    ROWS_TOGETHER = 2

    type: Literal["helpsteer2"]
    hub: str | None = "nvidia/HelpSteer2"
    split: Literal["train", "validation"] = "train"
    """The data set's own split."""
    minimum_gap: int = Field(default=1, ge=1, le=4)
    """Smallest difference of the helpfulness. It does not apply to ties."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of two successive rows.

        The columns prompt, response, helpfulness, correctness, coherence, complexity and verbosity
        are read. Each holds the values of both rows.

        Raises:
            LeftOut: If the helpfulness differs by less than `minimum_gap`, or is equal and ties are
                left out.
            RecordError: If the prompts differ, or a column has another form.
        """
        prompts = _values_of_both_rows(row, "prompt", str)
        if prompts[0] != prompts[1]:
            raise RecordError(
                "the prompts of two successive rows differ; required are the two responses to a "
                "prompt next to each other. Restore the order of the rows, or remove these."
            )
        responses = _values_of_both_rows(row, "response", str)
        ratings = {name: _ratings_of_both_rows(row, name) for name in ASPECTS}
        helpfulness, other_helpfulness = ratings["helpfulness"]
        margin = 0.0
        if helpfulness == other_helpfulness:
            self.check_tie(f"both responses have the helpfulness {helpfulness}.")
        else:
            margin = score_gap(helpfulness, other_helpfulness, self.minimum_gap)
        prompt = prompt_from_turns(turns_of_text(prompts[0]))
        record = Preference(row.identity, prompt, UNANSWERED, margin=margin)
        ranks = (-helpfulness, -other_helpfulness)
        return with_ranked_responses(record, text_responses(*responses), ranks, ratings)


def turns_of_text(prompt: str) -> list[dict[str, str]]:
    r"""Return the turns {role, content} of a prompt whose text may hold several turns.

    Example: "Hi\n<extra_id_1>Assistant\nHello.\n<extra_id_1>User\nMore" has three turns.
    """
    first_text, *rest = TURN.split(prompt)
    turns = [{"role": "user", "content": first_text}]
    for role, content in zip(rest[::2], rest[1::2], strict=True):
        turns.append({"role": role.lower(), "content": content})
    return turns


def _values_of_both_rows(row: SourceRow, name: str, kind: type) -> list[Any]:
    """Return the two values of a column; raise RecordError if there are not two of type `kind`."""
    values: list[Any] = row.value(name, list)
    has_type = all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    if len(values) != 2 or not has_type:
        raise RecordError(
            f"{name!r} is {values!r:.60}; required is a {kind.__name__} in each of two successive "
            "rows. Correct the rows, or remove them."
        )
    return values


def _ratings_of_both_rows(row: SourceRow, name: str) -> list[int]:
    """Return the two ratings of an aspect; raise RecordError if one is not between 0 and 4."""
    ratings = _values_of_both_rows(row, name, int)
    if not all(0 <= rating <= HIGHEST_RATING for rating in ratings):
        raise RecordError(
            f"{name!r} is {ratings}, and ratings of HelpSteer2 are between 0 and {HIGHEST_RATING}. "
            "Correct the values, or remove the rows."
        )
    return ratings
