r"""Rules that compare a response with a known answer, for rewards, preference pairs and selection.

All rules read the response's final answer: the text in its last `<answer>…</answer>`, or else in
its last `\boxed{…}`, or else the complete response. They fail closed: a response whose answer cannot
be read is wrong.
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
"""Characters that may be around an answer without being part of it."""
LETTER = r"[\s*_$\"'(\[{]*+(?:\\text\{)?+([A-Z])(?![\w'’])"
"""A capital letter, with the characters that may be before it. All repetitions are possessive, because
backtracking cannot help: the remaining pattern matches none of these characters."""
CONCLUDED = re.compile(
    r"(?i:\b(?:answer|option|choice)\b\**+\s*+(?:is|:|=)?+\**+\s*+(?:(?:option|choice)\b)?+)"
    + LETTER
)
"""`the answer is (B)`, `Answer: B`, `option B`, with the words in any case and a capital letter."""
ONLY = re.compile(rf"{LETTER}[\s*_$\"'.:)\]}}]*$")
"""A capital letter alone, such as `(B).`"""
LABEL = re.compile(r"[\s*(\[]*+([A-Z])\**+[.:)\]]")
"""A letter that labels the text behind it, as in `B. Paris` and `(B) Paris`."""
NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?!\d))?"
)
"""A number, or the empty text. A hyphen after a letter or digit, as in `2024-05`, is no minus
sign."""
FRACTION = re.compile(rf"((?>{NUMBER.pattern}))\s*+/\s*+({NUMBER.pattern})")
"""The first number is atomic, because behind a shorter one the rest of the number would follow, not
the slash."""
NO_FRACTION = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+(?=\d{3},)|\d+|\s+|.", re.DOTALL)
"""Text that can be skipped if no fraction begins at its start, because none begins inside of it
either. This is the integer part of a number, whose endings are all followed by the same characters,
or a run of blanks. `1234,567` is the text 1 and the number 234,567."""
LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
LONGEST_NUMBER = 400
"""Characters of the longest number that is read."""


def final_answer(response: str) -> str:
    """Return the text that a response states as its answer."""
    tagged = contents_between(response, OPENING_TAG, CLOSING_TAG)
    if tagged:
        return tagged[-1]
    box = response.rfind(BOXED)
    if box < 0:
        return response
    start = box + len(BOXED)
    depth = 1
    for position, character in enumerate(response[start:], start):
        if character == "{":
            depth += 1
        if character == "}":
            depth -= 1
        if depth == 0:
            return response[start:position]
    return response[start:]


def exact(response: str, answer: str) -> bool:
    """Return True if the final answer equals `answer`.

    They are compared in the Unicode form NFKC, without regard to case, white space and the
    characters of AROUND at the ends.
    """
    return _plain(final_answer(response)) == _plain(answer)


def _plain(content: str) -> str:
    """Return a text in the form in which `exact` compares it."""
    return " ".join(compatibility_form(content).casefold().split()).strip(AROUND)


def multiple_choice(response: str, answer: str) -> bool:
    """Return True if the response chooses the letter of `answer` (`B`, `(B)`, `B. Paris`).

    The choice is read in this order: a final answer that is a letter; the last `the answer is B`
    (also with option, choice, or a colon); a letter that labels the beginning (`B. Paris`). A
    letter elsewhere in a sentence is no choice, because `A` and `I` are words.
    """
    correct_letter = _choice(answer)
    return correct_letter is not None and _choice(final_answer(response)) == correct_letter


def _choice(content: str) -> str | None:
    """Return the letter that a text chooses, or None."""
    only = ONLY.match(content)
    is_one_character = len(content.strip(AROUND)) == 1
    if only is None and is_one_character:
        only = ONLY.match(content.upper())
    if only is not None:
        return only[1]
    concluded = CONCLUDED.findall(content)
    if concluded:
        return str(concluded[-1])
    label = LABEL.match(content)
    return None if label is None else label[1]


def numeric(response: str, answer: str, tolerance: float = 1e-6) -> bool:
    r"""Return True if the last number of the final answer equals the number in `answer`.

    They may differ by `tolerance` times the size of the number in `answer`. Digits with or without
    thousands commas, decimals, exponents, fractions (`3/4`, `\frac{3}{4}`) and both minus signs are
    read. Units, currencies and the percent sign are ignored, so that 50 % is 50.
    """
    stated = _number(final_answer(response))
    correct = _number(answer)
    if stated is None or correct is None:
        return False
    allowed = tolerance * abs(correct)
    return stated == correct or math.isclose(stated, correct, rel_tol=0, abs_tol=allowed)


@dataclass(frozen=True, slots=True)
class _WrittenNumber:
    """A number in a text; a number without a slash has the denominator 1."""

    end: int
    """Position in the text behind the number."""
    numerator: str
    denominator: str


def _number(content: str) -> float | None:
    """Return the last number in a text.

    The result is None without a number, for a number beyond every float, and for a division by
    zero.
    """
    text = compatibility_form(content).replace("−", "-").replace("⁄", "/")
    text = LATEX_FRACTION.sub(r" \1/\2 ", text)
    numbers = []
    for match in NUMBER.finditer(text):
        if _has_digit(match[0]):
            numbers.append(_WrittenNumber(match.end(), match[0], "1"))
    for match in _fractions(text):
        if _has_digit(match[1]) and _has_digit(match[2]):
            numbers.append(_WrittenNumber(match.end(), match[1], match[2]))
    if not numbers:
        return None
    last_end = max(number.end for number in numbers)
    # A fraction ends with its denominator. It is the later one in the list.
    last = [number for number in numbers if number.end == last_end][-1]
    if max(len(last.numerator), len(last.denominator)) > LONGEST_NUMBER:
        return None
    try:
        numerator = Fraction(last.numerator.replace(",", ""))
        denominator = Fraction(last.denominator.replace(",", ""))
        return float(numerator / denominator)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _fractions(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of `FRACTION.finditer(text)` in linear time.

    `finditer` would begin at every digit of a long number.
    """
    last_slash = text.rfind("/")
    position = 0
    while position <= last_slash:
        fraction = FRACTION.match(text, position)
        if fraction is not None:
            yield fraction
            position = fraction.end()
            continue
        skipped = NO_FRACTION.match(text, position)
        assert skipped is not None, "a slash follows, so there is a character to skip"
        position = skipped.end()


def _has_digit(text: str) -> bool:
    """Return True if a text contains a digit."""
    return any(character.isdigit() for character in text)


VERIFIERS: dict[Rule, Callable[[str, str], bool]] = {
    "exact": exact,
    "multiple_choice": multiple_choice,
    "numeric": numeric,
}
"""Rules by name. Each takes a response and the known answer, and returns True if the response is
right. A new rule is a row here."""


def states(response: str, truth: Truth) -> bool:
    """Return True if a response gives one of the answers of `truth`."""
    verify = VERIFIERS[truth.rule]
    return any(verify(response, answer) for answer in truth.answers)


RECORDED: Literal["recorded"] = "recorded"
"""The value of `--verifier` that uses the verdicts in the records."""
ANSWER_COLUMN = "answer"
"""The column of the known answer in the files of eval/sample.py."""


@dataclass(frozen=True, slots=True)
class ResponseVerifier:
    """The rule that verifies the responses of a record, or the record's own verdicts.

    A record may already have verdicts, as eval/sample.py writes them: `right`, a boolean for each
    response, and `verifier`, the rule that the source of the question declares. A response has one
    verdict only, so these verdicts are kept, and a verifier that contradicts them is refused. An
    answer that was cut off, for example, is recorded as wrong whatever its text states.
    """

    verifier: Rule | Literal["recorded"]
    column: str
    """The column of the known answer."""
    tolerance: float | None
    """The tolerance of `numeric`; None takes that rule's default."""

    def right(self, columns: Mapping[str, Any], responses: Sequence[str]) -> list[bool]:
        """Return True for each response that is right, else False.

        Raises: RecordError if the record has neither verdicts nor a known answer; UserError if the
        verifier contradicts the record.
        """
        self.refuse_other_rule(columns)
        recorded = recorded_verdicts(columns, len(responses))
        if self.verifier == RECORDED:
            return self._recorded(columns, responses) if recorded is None else recorded
        if recorded is not None and self._is_as_declared(columns):
            return recorded
        verdicts = self._verified(columns, responses, self.verifier)
        if recorded is None:
            return verdicts
        for response, verdict, recorded_verdict in zip(responses, verdicts, recorded, strict=True):
            if verdict != recorded_verdict:
                raise UserError(
                    f"--verifier {self.verifier} contradicts the verdicts in the column `right`: "
                    f"the response {response!r:.60} is recorded as {_word(recorded_verdict)}, and "
                    f"this option makes it {_word(verdict)}. A response has one verdict in all "
                    f"files. Use --verifier {RECORDED} to keep the verdicts, or remove the column "
                    "`right` from the file to verify the responses again."
                )
        return verdicts

    def refuse_other_rule(self, columns: Mapping[str, Any]) -> None:
        """Raise UserError if the record declares another rule than the requested one."""
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
        """Return True if the recorded verdicts were made with the same options."""
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
        if not answers or not all(map(_is_answer, answers)):
            raise RecordError(
                f"{self.column!r} is {known!r:.60}; the verifier needs the known answer there: a "
                "text, a number, or a list of them."
            )
        verify = VERIFIERS[rule]
        if self.tolerance is not None:
            verify = partial(numeric, tolerance=self.tolerance)
        verdicts = []
        for response in responses:
            verdicts.append(any(verify(response, str(answer)) for answer in answers))
        return verdicts


def _is_answer(value: Any) -> bool:
    """Return True for a number and for a text that is not empty."""
    if isinstance(value, bool) or value == "":
        return False
    return isinstance(value, str | int | float)


def declared_rule(columns: Mapping[str, Any]) -> Rule | None:
    """Return the rule in a record's column `verifier`; None if it names no known rule."""
    declared = columns.get("verifier")
    for rule in VERIFIERS:
        if rule == declared:
            return rule
    return None


def recorded_verdicts(columns: Mapping[str, Any], num_responses: int) -> list[bool] | None:
    """Return the verdicts in a record's column `right`; None if it is missing or holds no list.

    Raises: RecordError for a list that is not one boolean for each response.
    """
    recorded = columns.get("right")
    if not isinstance(recorded, list):
        return None
    if len(recorded) != num_responses or not all(isinstance(verdict, bool) for verdict in recorded):
        raise RecordError(
            f"`right` is {recorded!r:.60}; required is a list of {num_responses} booleans, one for "
            "each response, as eval/sample.py writes it."
        )
    return recorded


def _word(is_right: bool) -> str:
    return "right" if is_right else "wrong"
