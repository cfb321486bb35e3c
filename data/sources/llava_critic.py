"""LLaVA-Critic (lmms-lab/llava-critic-113k, configuration `pairwise`): 40,154 comparisons written for a judge.

The two responses are cut out of the judge's prompt, which comes in three templates, and the verdict out of the judge's
answer. Answers that call both equally good are ties. Where the template speaks of Response 1 and 2, the answer becomes
the rationale.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from data.errors import LeftOut, RecordError
from data.preference import Preference
from data.prompts import swapped
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import MARKER, question
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import row_image
from data.storage.rows import Row, field
from data.storage.tables import open_rows

NAMES = r"(?:Response 1|Response A|The first response)", r"(?:Response 2|Response B|The second response)"
BRACKETS = re.compile(
    rf"^Question: \[(?P<question>.*?)\]\s*^{NAMES[0]}: \[(?P<one>.*?)\]\s*^{NAMES[1]}: \[(?P<two>.*)\]", re.DOTALL | re.MULTILINE
)
ARENA = re.compile(
    r"<\|User Prompt\|>(?P<question>.*?)<\|The Start of Assistant A's Answer\|>(?P<one>.*?)<\|The End of Assistant A's Answer\|>"
    r".*?<\|The Start of Assistant B's Answer\|>(?P<two>.*?)<\|The End of Assistant B's Answer\|>",
    re.DOTALL,
)
LLAVA_BENCH = re.compile(
    r"\[Question\](?P<question>.*?)\[Assistant 1\](?P<one>.*?)\[End of Assistant 1\]"
    r".*?\[Assistant 2\](?P<two>.*?)\[End of Assistant 2\]",
    re.DOTALL,
)
BETTER = re.compile(r"The better response: \[?(first|second|1|2|A|B)\b", re.IGNORECASE)
EQUALLY_GOOD = re.compile(r"equally good", re.IGNORECASE)
ARENA_VERDICT = re.compile(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]")
TWO_SCORES = re.compile(r"\s*(\d+(?:\.\d+)?)[ ,]+(\d+(?:\.\d+)?)\s*(?:\n|$)")


class LlavaCriticConfig(FilesConfig):
    """The comparisons without ties."""

    type: Literal["llava_critic"]
    hub: str | None = "lmms-lab/llava-critic-113k"

    def open(self, cache: Path) -> Source:
        """Open the parquet files of the pairwise configuration."""
        located = self.locate(["*pairwise*.parquet"])
        rows = open_rows(located.files, cache, ("conversations", "image"))
        return TableSource(self.label, "Apache-2.0", located.revision, rows, convert, self.settings)


class Comparison(NamedTuple):
    """What a judge's prompt shows, and its verdict: 1, 2, or 0 for a tie."""

    question: str
    one: str
    two: str
    winner: int
    numbered: bool
    """The prompt speaks of Response 1 and Response 2."""


def convert(row: Row, record: str) -> Preference:
    """Columns id, source, conversations of two turns {from, value}, image."""
    turns = field(row, "conversations", list, record)
    if len(turns) != 2:
        raise RecordError(f"{record}: the conversation has {len(turns)} turns; expected are a judge's prompt and its answer.")
    judgement = field(turns[1], "value", str, record)
    found = compared(field(turns[0], "value", str, record).replace(MARKER, ""), judgement, record)
    if found.winner == 0:
        raise LeftOut("tie", f"{record}: the judge calls both responses equally good.")
    second = found.winner == 2
    return Preference(
        identity=record,
        prompt=(question(found.question, 1, record),),
        chosen=found.two if second else found.one,
        rejected=found.one if second else found.two,
        images=(row_image(row, "image", record),),
        rationale=(swapped(judgement.strip()) if second else judgement.strip()) if found.numbered else None,
    )


def compared(prompt: str, judgement: str, record: str) -> Comparison:
    """Read a judge's prompt and answer in any of the three templates.

    Raises: RecordError if it is none of them, or the answer holds no verdict.
    """
    for template, read in ((BRACKETS, _better), (ARENA, _arena), (LLAVA_BENCH, _scores)):
        shown = template.search(prompt)
        if shown is not None:
            winner = read(judgement)
            if winner is None:
                raise RecordError(
                    f"{record}: the judge's answer ends {judgement[-80:]!r}, which holds no verdict of its template."
                )
            asked, one, two = (str(shown[name]).strip() for name in ("question", "one", "two"))
            return Comparison(asked, one, two, winner, "Response 1: [" in prompt)
    raise RecordError(f"{record}: the judge's prompt is none of the three templates; it begins {prompt[:80]!r}.")


def _better(judgement: str) -> int | None:
    verdict = BETTER.search(judgement)
    if verdict is None:
        return 0 if EQUALLY_GOOD.search(judgement) else None
    return 1 if verdict[1].lower() in ("first", "1", "a") else 2


def _arena(judgement: str) -> int | None:
    verdicts = ARENA_VERDICT.findall(judgement)
    return {"A": 1, "B": 2}[verdicts[-1][0]] if verdicts and "=" not in verdicts[-1] else (0 if verdicts else None)


def _scores(judgement: str) -> int | None:
    scores = TWO_SCORES.match(judgement)
    if scores is None:
        return None
    one, two = float(scores[1]), float(scores[2])
    return 0 if one == two else 1 if one > two else 2
