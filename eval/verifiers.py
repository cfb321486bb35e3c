r"""Rules that say whether a response gives the known answer: for rewards, preference pairs and rejection sampling.

All read the response's final answer: what stands in its last `<answer>…</answer>`, else in its last `\boxed{…}`, else all of
it. They fail closed: an answer that cannot be read is wrong.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import Rule, Truth
from mmrm.data.scanning import compatibility_form, contents_between

OPENING_TAG = re.compile("<answer>", re.IGNORECASE)
CLOSING_TAG = re.compile("</answer>", re.IGNORECASE)
BOXED = "\\boxed{"
AROUND = " \t\n.,;:!?\"'`*$()[]{}“”‘’"
"""What may stand around an answer without being part of it."""
LETTER = r"[\s*_$\"'(\[{]*+(?:\\text\{)?+([A-Z])(?![\w'’])"
"""A capital letter, and what may stand before it. All repetitions here are possessive: what they
match can be followed by nothing else that they match, so giving some of it back finds no match."""
CONCLUDED = re.compile(
    r"(?i:\b(?:answer|option|choice)\b\**+\s*+(?:is|:|=)?+\**+\s*+(?:(?:option|choice)\b)?+)"
    + LETTER
)
"""`the answer is (B)`, `Answer: B`, `option B`; the words in any case, the letter a capital."""
ONLY = re.compile(rf"{LETTER}[\s*_$\"'.:)\]}}]*$")
LABEL = re.compile(r"[\s*(\[]*+([A-Z])\**+[.:)\]]")
"""`B. Paris`, `(B) Paris`: a letter that labels what follows."""
NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?!\d))?"
)
"""A hyphen after a letter or digit is none of its sign: `2024-05`."""
FRACTION = re.compile(rf"((?>{NUMBER.pattern}))\s*+/\s*+({NUMBER.pattern})")
"""The first number is atomic: a shorter one would be followed by the rest of the number, not by the slash."""
NO_FRACTION = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+(?=\d{3},)|\d+|\s+|.", re.DOTALL)
"""Where no fraction begins, none begins further inside of this either: the whole part of the number,
whose every ending is followed by the same characters, or a run of blanks. `1234,567` is the text 1
and the number 234,567."""
LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
LONGEST_NUMBER = 400
"""Characters; beyond, a number is not read."""


def final_answer(response: str) -> str:
    """Return what the response states as its answer."""
    if tagged := contents_between(response, OPENING_TAG, CLOSING_TAG):
        return tagged[-1]
    start = response.rfind(BOXED)
    if start < 0:
        return response
    begin, depth = start + len(BOXED), 1
    for place, letter in enumerate(response[begin:], begin):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return response[begin:place]
    return response[begin:]


def exact(response: str, answer: str) -> bool:
    """Say whether the final answer is `answer`: Unicode NFKC, case, white space and the signs around it do not count."""
    return _plain(final_answer(response)) == _plain(answer)


def _plain(content: str) -> str:
    return " ".join(compatibility_form(content).casefold().split()).strip(AROUND)


def multiple_choice(response: str, answer: str) -> bool:
    """Say whether the response chooses the letter of `answer` (`B`, `(B)`, `B. Paris`).

    Read are, in this order: a final answer that is a letter; the last `the answer is B` (also option, choice, and a colon); a
    letter that labels the beginning (`B. Paris`). A letter elsewhere in a sentence is no choice: `A` and `I` are words.
    """
    known = _choice(answer)
    return known is not None and _choice(final_answer(response)) == known


def _choice(content: str) -> str | None:
    if only := ONLY.match(content) or (
        ONLY.match(content.upper()) if len(content.strip(AROUND)) == 1 else None
    ):
        return only[1]
    if concluded := CONCLUDED.findall(content):
        return str(concluded[-1])
    label = LABEL.match(content)
    return label[1] if label else None


def numeric(response: str, answer: str, tolerance: float = 1e-6) -> bool:
    r"""Say whether the last number of the final answer is that of `answer`, up to `tolerance` times the size of the latter.

    Read are digits with or without thousands commas, decimals, exponents, fractions (`3/4`, `\frac{3}{4}`) and both minus
    signs; units, currencies and the percent sign are not read, so that 50 % is 50.
    """
    found, known = _number(final_answer(response)), _number(answer)
    if found is None or known is None:
        return False
    return found == known or math.isclose(found, known, rel_tol=0, abs_tol=tolerance * abs(known))


def _number(content: str) -> float | None:
    """Return the last number; None without one, for one beyond every float, and for a fraction of zero."""
    written = LATEX_FRACTION.sub(
        r" \1/\2 ", compatibility_form(content).replace("−", "-").replace("⁄", "/")
    )
    found: list[tuple[int, str, str]] = [
        (one.end(), one[0], "1") for one in NUMBER.finditer(written) if _digits(one[0])
    ]
    found += [
        (one.end(), one[1], one[2])
        for one in _fractions(written)
        if _digits(one[1]) and _digits(one[2])
    ]
    if not found:
        return None
    end = max(last for last, _, _ in found)
    _, above, below = [one for one in found if one[0] == end][-1]
    if max(len(above), len(below)) > LONGEST_NUMBER:
        return None
    try:
        return float(Fraction(above.replace(",", "")) / Fraction(below.replace(",", "")))
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _fractions(written: str) -> Iterator[re.Match[str]]:
    """Yield what `FRACTION.finditer` does, in linear time: it would try every digit of a long number."""
    last_slash = written.rfind("/")
    position = 0
    while position <= last_slash:
        fraction = FRACTION.match(written, position)
        if fraction is not None:
            yield fraction
            position = fraction.end()
        else:
            skipped = NO_FRACTION.match(written, position)
            assert skipped is not None, "a slash follows, so there is a character to skip"
            position = skipped.end()


def _digits(written: str) -> bool:
    return any(letter.isdigit() for letter in written)


VERIFIERS: dict[Rule, Callable[[str, str], bool]] = {
    "exact": exact,
    "multiple_choice": multiple_choice,
    "numeric": numeric,
}
"""Each says of a response and the known answer whether it is right. A new rule is a row here."""


def states(response: str, truth: Truth) -> bool:
    """Say whether a response gives one of the answers of `truth`."""
    return any(VERIFIERS[truth.rule](response, answer) for answer in truth.answers)


RECORDED: Literal["recorded"] = "recorded"
"""The choice of `--verifier` that takes the verdicts that the records hold already."""
ANSWER_COLUMN = "answer"
"""The column of the known answer in the files of eval/sample.py."""


@dataclass(frozen=True, slots=True)
class Verifying:
    """How the responses of a record are verified.

    A record may hold its verdicts already, as eval/sample.py writes them: `right`, a boolean for
    each response, and `verifier`, the rule that the source of the question declares. There is one
    truth about a response: these verdicts are kept, and a verifier that contradicts them is refused.
    An answer that was cut off, for example, is recorded as wrong whatever its text states.
    """

    verifier: Rule | Literal["recorded"]
    column: str
    """The column of the known answer."""
    tolerance: float | None
    """The tolerance of `numeric`; None takes that rule's default."""

    def right(self, columns: Mapping[str, Any], responses: Sequence[str]) -> list[bool]:
        """Return for each response whether it is right.

        Raises: RecordError if the record holds neither verdicts nor a known answer; UserError if
            the verifier contradicts what the record holds.
        """
        self.refuse_other_rule(columns)
        recorded = recorded_verdicts(columns, len(responses))
        if self.verifier == RECORDED:
            return self._recorded(columns, responses) if recorded is None else recorded
        if recorded is not None and self._is_as_declared(columns):
            return recorded
        verdicts = self._verified(columns, responses, self.verifier)
        if recorded is not None and verdicts != recorded:
            index = next(i for i, verdict in enumerate(verdicts) if verdict != recorded[i])
            raise UserError(
                f"--verifier {self.verifier} contradicts the verdicts in the column `right`: the "
                f"response {responses[index]!r:.60} is recorded as {_word(recorded[index])}, and "
                f"this option makes it {_word(verdicts[index])}. A response has one verdict, "
                f"whatever is made of it. Use --verifier {RECORDED} to keep the verdicts, or "
                "remove the column `right` from the file to verify the responses again."
            )
        return verdicts

    def refuse_other_rule(self, columns: Mapping[str, Any]) -> None:
        """Raise UserError if the record declares another rule than the one that is asked for."""
        declared = declared_rule(columns)
        if declared is None or self.verifier in (RECORDED, declared):
            return
        raise UserError(
            f"--verifier {self.verifier} contradicts the records: one of them declares `verifier: "
            f"{declared}` (known answer {columns.get(ANSWER_COLUMN)!r:.60}). The source of a "
            "question declares how its answers are verified, and responses that are right by that "
            f"rule can be wrong by another one. Use --verifier {RECORDED} to keep what the records "
            "declare, or declare another `verifier` in the source and sample the answers again."
        )

    def _is_as_declared(self, columns: Mapping[str, Any]) -> bool:
        """Return True if the options are those by which the recorded verdicts were made."""
        same_answers = self.column == ANSWER_COLUMN
        return declared_rule(columns) == self.verifier and same_answers and self.tolerance is None

    def _recorded(self, columns: Mapping[str, Any], responses: Sequence[str]) -> list[bool]:
        """Return the verdicts by the rule that a record without verdicts declares."""
        declared = declared_rule(columns)
        if declared is None:
            raise RecordError(
                "there are no verdicts: `right` is missing, and so is `verifier`. --verifier "
                f"{RECORDED} takes the verdicts that eval/sample.py or eval/score.py --verifier "
                "wrote; name a rule to verify the responses by the known answer."
            )
        return self._verified(columns, responses, declared)

    def _verified(
        self, columns: Mapping[str, Any], responses: Sequence[str], rule: Rule
    ) -> list[bool]:
        """Compare the responses with the known answer; raise RecordError if there is none."""
        known = columns.get(self.column)
        answers = known if isinstance(known, list) else [known]
        if not answers or any(
            not isinstance(one, str | int | float) or isinstance(one, bool) or one == ""
            for one in answers
        ):
            raise RecordError(
                f"{self.column!r} is {known!r:.60}; the verifier needs the known answer there: a text, a number, or a list."
            )
        judge = VERIFIERS[rule]
        if self.tolerance is not None:
            judge = partial(numeric, tolerance=self.tolerance)
        return [any(judge(response, str(answer)) for answer in answers) for response in responses]


def declared_rule(columns: Mapping[str, Any]) -> Rule | None:
    """Return the rule in a record's column `verifier`; None without one of the known rules."""
    declared = columns.get("verifier")
    return next((rule for rule in VERIFIERS if rule == declared), None)


def recorded_verdicts(columns: Mapping[str, Any], num_responses: int) -> list[bool] | None:
    """Return the verdicts in a record's column `right`; None if it is missing or holds no list.

    Raises: RecordError for a list that is not one boolean for each response.
    """
    recorded = columns.get("right")
    if not isinstance(recorded, list):
        return None
    if len(recorded) != num_responses or not all(isinstance(one, bool) for one in recorded):
        raise RecordError(
            f"`right` is {recorded!r:.60}; required is a list of {num_responses} booleans, one for "
            "each response, as eval/sample.py writes it."
        )
    return recorded


def _word(is_right: bool) -> str:
    return "right" if is_right else "wrong"
