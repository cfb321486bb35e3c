"""LLaVA-Critic (lmms-lab/llava-critic-113k, configuration `pairwise`): 40,154 comparisons written for a judge.

The two responses are cut out of the judge's prompt, which comes in three templates, and the verdict out of the judge's
answer. Answers that call both equally good are ties. Where the template speaks of Response 1 and 2, the answer becomes
the rationale.
"""

import re
from typing import Literal

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference
from mmrm.data.rationales import with_chosen_first
from mmrm.data.sources.shared.conversation import MARKER, question
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow, field

NAMES = (
    r"(?:Response 1|Response A|The first response)",
    r"(?:Response 2|Response B|The second response)",
)
BRACKETS = re.compile(
    rf"(?>.*?^Question: \[)(?>(?P<question>.*?)\]\s*^{NAMES[0]}: \[)(?>(?P<one>.*?)\]\s*^{NAMES[1]}: \[)(?P<two>.*)\]",
    re.DOTALL | re.MULTILINE,
)
"""For `match`, as the other two. The groups are atomic: a text that repeats one mark and lacks the next is read only once."""
ARENA = re.compile(
    r"(?>.*?<\|User Prompt\|>)(?>(?P<question>.*?)<\|The Start of Assistant A's Answer\|>)"
    r"(?>(?P<one>.*?)<\|The End of Assistant A's Answer\|>)(?>.*?<\|The Start of Assistant B's Answer\|>)"
    r"(?P<two>.*?)<\|The End of Assistant B's Answer\|>",
    re.DOTALL,
)
LLAVA_BENCH = re.compile(
    r"(?>.*?\[Question\])(?>(?P<question>.*?)\[Assistant 1\])(?>(?P<one>.*?)\[End of Assistant 1\])"
    r"(?>.*?\[Assistant 2\])(?P<two>.*?)\[End of Assistant 2\]",
    re.DOTALL,
)
BETTER = re.compile(r"The better response: \[?(first|second|1|2|A|B)\b", re.IGNORECASE)
EQUALLY_GOOD = re.compile(r"equally good", re.IGNORECASE)
ARENA_VERDICT = re.compile(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]")
ARENA_WINNER = {"A>>B": 1, "A>B": 1, "A=B": 0, "B>A": 2, "B>>A": 2}
TWO_SCORES = re.compile(r"\s*(\d+(?:\.\d+)?)[ ,]+(\d+(?:\.\d+)?)\s*(?:\n|$)")


class LlavaCriticConfig(FilesConfig):
    """The comparisons without ties."""

    FILES = ("*pairwise*.parquet",)
    COLUMNS = ("conversations", "image")
    LICENCE = "Apache-2.0"

    type: Literal["llava_critic"]
    hub: str | None = "lmms-lab/llava-critic-113k"

    def convert(self, row: SourceRow) -> Preference:
        """Columns id, source, conversations of two turns {from, value}, image."""
        turns = row.value("conversations", list)
        if len(turns) != 2:
            raise RecordError(
                f"the conversation has {len(turns)} turns; expected are a judge's prompt and its answer."
            )
        prompt, judgement = (field(turn, "value", str).strip() for turn in turns)
        # The judge's prompt begins, or ends, with the place of its one image.
        prompt = prompt.removeprefix(MARKER).removesuffix(MARKER)
        for template, verdict in ((BRACKETS, _better), (ARENA, _arena), (LLAVA_BENCH, _scores)):
            if shown := template.match(prompt):
                winner = verdict(judgement)
                break
        else:
            raise RecordError(
                f"the judge's prompt is none of the three templates; it begins {prompt[:80]!r}."
            )
        if winner is None:
            raise RecordError(
                f"the judge's answer ends {judgement[-80:]!r}, which holds no verdict of its template."
            )
        if winner == 0:
            raise LeftOut("tie", "the judge calls both responses equally good.")
        asked, *responses = (str(shown[name]).strip() for name in ("question", "one", "two"))
        rationale, first = with_chosen_first(judgement, winner)
        if "Response 1: [" not in prompt:  # the template has other names for the responses
            rationale = ""
            first = "chosen"
        return Preference(
            row.identity,
            question(asked, 1),
            chosen=responses[winner - 1],
            rejected=responses[2 - winner],
            images=(row.stored_image("image"),),
            rationale=rationale or None,
            first_in_rationale=first,
        )


def _better(judgement: str) -> int | None:
    """Return which response is the better one: 1, 2, 0 for a tie, or None if there is no verdict; so do the next two."""
    verdict = BETTER.search(judgement)
    if verdict is None:
        return 0 if EQUALLY_GOOD.search(judgement) else None
    return 1 if verdict[1].lower() in ("first", "1", "a") else 2


def _arena(judgement: str) -> int | None:
    verdicts = ARENA_VERDICT.findall(judgement)
    return ARENA_WINNER[verdicts[-1]] if verdicts else None


def _scores(judgement: str) -> int | None:
    scores = TWO_SCORES.match(judgement)
    if scores is None:
        return None
    one, two = map(float, scores.groups())
    return 0 if one == two else 1 if one > two else 2
