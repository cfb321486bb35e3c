"""LLaVA-Critic (lmms-lab/llava-critic-113k): 40,154 comparisons written for a judge.

The configuration `pairwise` is read. The two responses are cut out of the judge's prompt, which
comes in three templates, and the verdict out of the judge's answer. Answers that call both
responses equally good are ties. If the template speaks of Response 1 and 2, the answer becomes the
rationale.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, positions_of_pair, text_responses
from mmrm.data.rationales import with_chosen_first
from mmrm.data.sources.shared.conversation import MARKER, prompt_from_question
from mmrm.data.sources.shared.file_source import SourceRow, field
from mmrm.data.sources.shared.ties import TIED_RANKS, TiedComparisonsConfig

# The groups of the patterns are atomic, `(?>…)`: a text that repeats one mark and lacks the next
# one is read only once. All three patterns are for `match`.
FIRST_NAME = r"(?:Response 1|Response A|The first response)"
SECOND_NAME = r"(?:Response 2|Response B|The second response)"
BRACKETS = re.compile(
    r"(?>.*?^Question: \[)"
    rf"(?>(?P<question>.*?)\]\s*^{FIRST_NAME}: \[)"
    rf"(?>(?P<response_1>.*?)\]\s*^{SECOND_NAME}: \[)"
    r"(?P<response_2>.*)\]",
    re.DOTALL | re.MULTILINE,
)
ARENA = re.compile(
    r"(?>.*?<\|User Prompt\|>)(?>(?P<question>.*?)<\|The Start of Assistant A's Answer\|>)"
    r"(?>(?P<response_1>.*?)<\|The End of Assistant A's Answer\|>)"
    r"(?>.*?<\|The Start of Assistant B's Answer\|>)"
    r"(?P<response_2>.*?)<\|The End of Assistant B's Answer\|>",
    re.DOTALL,
)
LLAVA_BENCH = re.compile(
    r"(?>.*?\[Question\])(?>(?P<question>.*?)\[Assistant 1\])"
    r"(?>(?P<response_1>.*?)\[End of Assistant 1\])"
    r"(?>.*?\[Assistant 2\])(?P<response_2>.*?)\[End of Assistant 2\]",
    re.DOTALL,
)
BETTER = re.compile(r"The better response: \[?(first|second|1|2|A|B)\b", re.IGNORECASE)
EQUALLY_GOOD = re.compile(r"equally good", re.IGNORECASE)
ARENA_VERDICT = re.compile(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]")
ARENA_WINNER = {"A>>B": 1, "A>B": 1, "A=B": 0, "B>A": 2, "B>>A": 2}
TWO_SCORES = re.compile(r"\s*(\d+(?:\.\d+)?)[ ,]+(\d+(?:\.\d+)?)\s*(?:\n|$)")


@dataclass(frozen=True, slots=True)
class Template:
    """A form of the judge's prompt, and the function that reads the verdict of an answer to it."""

    prompt: re.Pattern[str]
    """Has the groups `question`, `response_1` and `response_2`."""
    winner: Callable[[str], int | None]
    """Returns the response that an answer prefers: 1, 2, 0 for a tie, None without a verdict."""


class LlavaCriticConfig(TiedComparisonsConfig):
    """A source of the comparisons in LLaVA-Critic."""

    FILES = ("*pairwise*.parquet",)
    COLUMNS = ("conversations", "image")
    LICENCE = "Apache-2.0"

    type: Literal["llava_critic"]
    hub: str | None = "lmms-lab/llava-critic-113k"

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row, with both responses cut out of the judge's prompt.

        The column conversations holds the judge's prompt and its answer as turns {from, value}. The
        column image holds the image.

        Raises:
            LeftOut: If the judge calls both responses equally good, and ties are left out.
            RecordError: If the prompt has an unknown form, the answer has no verdict, or a column
                has another form.
        """
        turns = row.value("conversations", list)
        if len(turns) != 2:
            raise RecordError(
                f"'conversations' has {len(turns)} turns, and must have two: a judge's prompt and "
                "its answer. Correct the row, or remove it."
            )
        prompt = field(turns[0], "value", str).strip()
        judgement = field(turns[1], "value", str).strip()
        # The marker of the one image is at the beginning or at the end of the judge's prompt.
        prompt = prompt.removeprefix(MARKER).removesuffix(MARKER)
        parts, winner = _read_comparison(prompt, judgement)
        chosen = parts["response_1"].strip()
        rejected = parts["response_2"].strip()
        if winner == 0:
            self.check_tie("the judge calls both responses equally good.")
            # The judge's text is no rationale of a preference.
            return Preference(
                row.identity,
                prompt_from_question(parts["question"].strip(), 1),
                responses=text_responses(chosen, rejected),
                images=(row.stored_image("image"),),
                ranks=TIED_RANKS,
            )
        if winner == 2:
            chosen, rejected = rejected, chosen
        # The rationale speaks of Response 1 and 2. If possible, it is rewritten so that Response 1
        # is the chosen one.
        rationale, first_in_rationale = with_chosen_first(judgement, winner)
        if "Response 1: [" not in prompt:  # the template has other names for the responses
            rationale = ""
            first_in_rationale = "chosen"
        return Preference(
            row.identity,
            prompt_from_question(parts["question"].strip(), 1),
            responses=text_responses(chosen, rejected),
            images=(row.stored_image("image"),),
            rationale=rationale or None,
            first_in_rationale=first_in_rationale,
            positions=positions_of_pair(winner == 1),
        )


def _read_comparison(prompt: str, judgement: str) -> tuple[re.Match[str], int]:
    """Return the parts of the judge's prompt and the better response: 1, 2, or 0 for a tie.

    The parts are the groups `question`, `response_1` and `response_2` of a match.

    Raises:
        RecordError: If the prompt is in none of the templates, or the answer holds no verdict.
    """
    for template in TEMPLATES:
        parts = template.prompt.match(prompt)
        if parts is None:
            continue
        winner = template.winner(judgement)
        if winner is None:
            raise RecordError(
                f"the judge's answer ends {judgement[-80:]!r} and holds no verdict in the form of "
                "its template. Correct the row, or remove it."
            )
        return parts, winner
    raise RecordError(
        f"the judge's prompt begins {prompt[:80]!r} and is in none of the three templates of the "
        "data set. Correct the row, or remove it."
    )


def _winner_in_words(judgement: str) -> int | None:
    """Return the response that an answer to the prompt form BRACKETS prefers: 1 or 2.

    The result is 0 if the answer calls both equally good, and None if it has no verdict.
    """
    verdict = BETTER.search(judgement)
    if verdict is None:
        is_tie = EQUALLY_GOOD.search(judgement) is not None
        return 0 if is_tie else None
    is_first = verdict[1].lower() in ("first", "1", "a")
    return 1 if is_first else 2


def _winner_in_arena(judgement: str) -> int | None:
    """Return the response that the last verdict of an answer, such as "[[A>B]]", prefers.

    The result is 1, 2, 0 for a tie, or None if the answer has no verdict.
    """
    verdicts = ARENA_VERDICT.findall(judgement)
    return ARENA_WINNER[verdicts[-1]] if verdicts else None


def _winner_by_scores(judgement: str) -> int | None:
    """Return the response, 1 or 2, with the higher of the two scores that begin an answer.

    The result is 0 for equal scores, and None if the answer does not begin with two scores.
    """
    scores = TWO_SCORES.match(judgement)
    if scores is None:
        return None
    first_score = float(scores[1])
    second_score = float(scores[2])
    if first_score == second_score:
        return 0
    return 1 if first_score > second_score else 2


TEMPLATES = (
    Template(BRACKETS, _winner_in_words),
    Template(ARENA, _winner_in_arena),
    Template(LLAVA_BENCH, _winner_by_scores),
)
"""The templates in the order in which they are tried."""
