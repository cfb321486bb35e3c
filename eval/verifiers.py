r"""Rules that compare a response with a known answer, for rewards, preference pairs and selection.

All rules read the response's final answer: the text in its last `<answer>…</answer>`, or else in
its last `\boxed{…}`, or else the complete response. They fail closed: a response whose answer
cannot be read is wrong.
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
IGNORED_AT_ENDS = " \t\n.,;:!?\"'`*$()[]{}“”‘’"
"""Characters that may be around an answer without being part of it."""
LETTER = r"[\s*_$\"'(\[{]*+(?:\\text\{)?+([A-Z])(?![\w'’])"
"""A capital letter, with the characters that may be before it. All repetitions are possessive,
because backtracking cannot help: the remaining pattern matches none of these characters."""
STATED_CHOICE = re.compile(
    r"(?i:\b(?:answer|option|choice)\b\**+\s*+(?:is|:|=)?+\**+\s*+(?:(?:option|choice)\b)?+)"
    + LETTER
)
"""`the answer is (B)`, `Answer: B`, `option B`, with the words in any case and a capital letter."""
LETTER_ALONE = re.compile(rf"{LETTER}[\s*_$\"'.:)\]}}]*$")
"""A capital letter alone, such as `(B).`"""
LETTER_LABEL = re.compile(r"[\s*(\[]*+([A-Z])\**+[.:)\]]")
"""A letter that labels the text behind it, as in `B. Paris` and `(B) Paris`."""
NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?!\d))?"
)
"""A number, or the empty text. A hyphen after a letter or digit, as in `2024-05`, is no minus
sign."""
FRACTION = re.compile(rf"((?>{NUMBER.pattern}))\s*+/\s*+({NUMBER.pattern})")
"""The first number is atomic, because behind a shorter one the rest of the number would follow, not
the slash."""
TEXT_WITHOUT_FRACTION = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+(?=\d{3},)|\d+|\s+|.", re.DOTALL)
"""Text that can be skipped if no fraction begins at its start, because none begins inside of it
either. This is the integer part of a number, whose endings are all followed by the same characters,
or a run of blanks. `1234,567` is the text 1 and the number 234,567."""
LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
LONGEST_NUMBER = 400
"""Characters of the longest number that is read."""


def final_answer(response: str) -> str:
    r"""Return the part of a response that is compared with the known answer.

    This is the text in the last `<answer>…</answer>`. Without such a tag it is the text in the last
    `\boxed{…}`, and without a box the complete response.
    """
    tagged = contents_between(response, OPENING_TAG, CLOSING_TAG)
    if tagged:
        return tagged[-1]
    box = response.rfind(BOXED)
    if box < 0:
        return response
    start = box + len(BOXED)
    depth = 1  # the number of braces that are open
    for position, character in enumerate(response[start:], start):
        if character == "{":
            depth += 1
        if character == "}":
            depth -= 1
        if depth == 0:
            return response[start:position]
    return response[start:]  # the box is not closed


def exact(response: str, answer: str) -> bool:
    """Return True if the final answer of a response equals the known `answer`.

    They are compared in the Unicode form NFKC, regardless of case, white space, and punctuation or
    brackets at the ends.
    """
    return _normalised(final_answer(response)) == _normalised(answer)


def _normalised(content: str) -> str:
    """Return a text in the Unicode form NFKC and lower case, without punctuation at its ends."""
    return " ".join(compatibility_form(content).casefold().split()).strip(IGNORED_AT_ENDS)


def multiple_choice(response: str, answer: str) -> bool:
    """Return True if the response chooses the letter of `answer` (`B`, `(B)`, `B. Paris`).

    The final answer of the response is read. It chooses a letter if it is this letter alone, else by
    the last `the answer is B` (also with option, choice, or a colon), else by a letter that labels
    its beginning (`B. Paris`). A letter elsewhere in a sentence is no choice, because `A` and `I`
    are words.
    """
    correct_letter = _choice(answer)
    return correct_letter is not None and _choice(final_answer(response)) == correct_letter


def _choice(content: str) -> str | None:
    """Return the letter that a text chooses, as a capital, or None if it chooses none.

    See `multiple_choice` for the three ways in which a text chooses a letter.
    """
    letter_alone = LETTER_ALONE.match(content)
    is_one_character = len(content.strip(IGNORED_AT_ENDS)) == 1
    # A small letter is a choice only if the text holds nothing else.
    if letter_alone is None and is_one_character:
        letter_alone = LETTER_ALONE.match(content.upper())
    if letter_alone is not None:
        return letter_alone[1]
    stated_letters = STATED_CHOICE.findall(content)
    if stated_letters:
        return str(stated_letters[-1])
    label = LETTER_LABEL.match(content)
    return None if label is None else label[1]


def numeric(response: str, answer: str, tolerance: float = 1e-6) -> bool:
    r"""Return True if the last number of the final answer equals the number in `answer`.

    They may differ by `tolerance` times the size of the number in `answer`. Digits with or without
    thousands commas, decimals, exponents, fractions (`3/4`, `\frac{3}{4}`) and both minus signs are
    read. Units, currencies and the percent sign are ignored, so that 50 % is 50. If one of the
    texts has no number, the result is False.
    """
    stated_number = _last_number(final_answer(response))
    correct_number = _last_number(answer)
    if stated_number is None or correct_number is None:
        return False
    if stated_number == correct_number:
        return True
    allowed_difference = tolerance * abs(correct_number)
    return math.isclose(stated_number, correct_number, rel_tol=0, abs_tol=allowed_difference)


@dataclass(frozen=True, slots=True)
class _WrittenNumber:
    """A number in a text, as a fraction of two texts. A number without a slash is divided by 1."""

    end: int
    """Position in the text behind the number."""
    numerator: str
    denominator: str


def _last_number(content: str) -> float | None:
    """Return the last number in a text, where a fraction such as `3/4` is one number.

    Returns None if the text has no number, or if the last one is longer than LONGEST_NUMBER, too
    large for a float, or a division by zero.
    """
    # The typographic minus sign and fraction slash become a hyphen and an ordinary slash.
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
    # The denominator of a fraction is also in the list, as a number that ends at the same position.
    # The fraction was added later, so the last number at the last position is the fraction.
    last_end = max(number.end for number in numbers)
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
    """Yield the matches of all fractions in a text, such as `3/4`, in linear time.

    The matches are those of `FRACTION.finditer(text)`, which would take quadratic time for a long
    number, because it begins at every digit.
    """
    last_slash = text.rfind("/")
    position = 0
    while position <= last_slash:
        fraction = FRACTION.match(text, position)
        if fraction is not None:
            yield fraction
            position = fraction.end()
            continue
        text_to_skip = TEXT_WITHOUT_FRACTION.match(text, position)
        assert text_to_skip is not None, "a slash follows, so there is a character to skip"
        position = text_to_skip.end()


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


def is_right_answer(response: str, truth: Truth) -> bool:
    """Return True if a response is right by the rule of `truth`, for one of its known answers."""
    verify = VERIFIERS[truth.rule]
    return any(verify(response, answer) for answer in truth.answers)


RECORDED: Literal["recorded"] = "recorded"
"""The value of `--verifier` that uses the verdicts in the records."""
ANSWER_COLUMN = "answer"
"""The column of the known answer in the files of eval/sample.py."""


@dataclass(frozen=True, slots=True)
class ResponseVerifier:
    """Decides which responses of a record are right: by a rule, or by the verdicts in the record.

    A record may already have verdicts, as eval/sample.py writes them: `right`, a boolean for each
    response, and `verifier`, the rule that the source of the question declares. A response has one
    verdict only, so these verdicts are kept, and a rule that contradicts them is refused. An
    answer that was cut off, for example, is recorded as wrong whatever its text states.
    """

    rule: Rule | Literal["recorded"]
    """The value of `--verifier`; `recorded` takes the verdicts in the record."""
    answer_column: str
    """The column of the known answer."""
    tolerance: float | None
    """The tolerance of `numeric`; None takes that rule's default."""

    def right(self, columns: Mapping[str, Any], responses: Sequence[str]) -> list[bool]:
        """Return a boolean for each response of a record: True if it is right.

        Args:
            columns: The values of the record by column.
            responses: The responses of the record.

        Raises:
            RecordError: If the record has neither verdicts nor a known answer.
            UserError: If the rule contradicts the verdicts or the rule in the record.
        """
        self.refuse_other_rule(columns)
        recorded = recorded_verdicts(columns, len(responses))
        if self.rule == RECORDED:
            if recorded is None:
                return self._verify_by_declared_rule(columns, responses)
            return recorded
        # With other options the verdicts are computed again, and must equal the recorded ones.
        if recorded is not None and self._made_recorded_verdicts(columns):
            return recorded
        verdicts = self._verify(columns, responses, self.rule)
        if recorded is None:
            return verdicts
        for response, verdict, recorded_verdict in zip(responses, verdicts, recorded, strict=True):
            if verdict != recorded_verdict:
                raise UserError(
                    f"--verifier {self.rule} contradicts the verdicts in the column `right`: "
                    f"the response {response!r:.60} is recorded as {_word(recorded_verdict)}, and "
                    f"this option makes it {_word(verdict)}. A response has one verdict in all "
                    f"files. Use --verifier {RECORDED} to keep the verdicts, or remove the column "
                    "`right` from the file to verify the responses again."
                )
        return verdicts

    def refuse_other_rule(self, columns: Mapping[str, Any]) -> None:
        """Raise UserError if a record's column `verifier` names another rule than this one's."""
        declared = declared_rule(columns)
        if declared is None or self.rule in (RECORDED, declared):
            return
        raise UserError(
            f"--verifier {self.rule} contradicts the records: one of them declares `verifier: "
            f"{declared}` (known answer {columns.get(ANSWER_COLUMN)!r:.60}). The source of a "
            "question declares how its answers are verified, and responses that are right by that "
            f"rule can be wrong by another one. Use --verifier {RECORDED} to keep what the records "
            "declare, or declare another `verifier` in the source and sample the answers again."
        )

    def _made_recorded_verdicts(self, columns: Mapping[str, Any]) -> bool:
        """Return True if eval/sample.py made a record's verdicts with the options of this verifier.

        It verifies by the rule in the column `verifier`, with the answers in the column
        `answer` and the default tolerance.
        """
        is_same_rule = declared_rule(columns) == self.rule
        is_same_answer = self.answer_column == ANSWER_COLUMN
        return is_same_rule and is_same_answer and self.tolerance is None

    def _verify_by_declared_rule(
        self, columns: Mapping[str, Any], responses: Sequence[str]
    ) -> list[bool]:
        """Return the verdicts by the rule in the column `verifier` of a record.

        Raises:
            RecordError: If the record declares no rule, or has no known answer.
        """
        declared = declared_rule(columns)
        if declared is None:
            raise RecordError(
                "there are no verdicts: `right` is missing, and so is `verifier`. --verifier "
                f"{RECORDED} takes the verdicts that eval/sample.py or eval/score.py --verifier "
                "wrote; name a rule to verify the responses by the known answer."
            )
        return self._verify(columns, responses, declared)

    def _verify(
        self, columns: Mapping[str, Any], responses: Sequence[str], rule: Rule
    ) -> list[bool]:
        """Return a verdict on each response by a rule and the known answers in the record.

        Args:
            columns: The values of the record by column.
            responses: The responses of the record.
            rule: The rule that compares a response with a known answer.

        Raises:
            RecordError: If the record has no known answer.
        """
        value = columns.get(self.answer_column)
        answers = value if isinstance(value, list) else [value]
        if not answers or not all(map(_is_answer, answers)):
            raise RecordError(
                f"{self.answer_column!r} is {value!r:.60}; the verifier needs the known answer "
                "there: a text, a number, or a list of them."
            )
        verify = VERIFIERS[rule]
        # A tolerance is given only for the rule `numeric`; see `verifier_from_options`.
        if self.tolerance is not None:
            verify = partial(numeric, tolerance=self.tolerance)
        verdicts = []
        for response in responses:
            verdicts.append(any(verify(response, str(answer)) for answer in answers))
        return verdicts


def _is_answer(value: Any) -> bool:
    """Return True if `value` is a number, or a text that is not empty. A boolean is no number."""
    if isinstance(value, bool) or value == "":
        return False
    return isinstance(value, str | int | float)


def declared_rule(columns: Mapping[str, Any]) -> Rule | None:
    """Return the rule in a record's column `verifier`, or None if it holds no rule's name."""
    declared = columns.get("verifier")
    for rule in VERIFIERS:
        if rule == declared:
            return rule
    return None


def recorded_verdicts(columns: Mapping[str, Any], num_responses: int) -> list[bool] | None:
    """Return the verdicts in a record's column `right`, or None if it is missing or holds no list.

    Raises:
        RecordError: If the list does not hold one boolean for each of the `num_responses`
            responses.
    """
    recorded = columns.get("right")
    if not isinstance(recorded, list):
        return None
    are_booleans = all(isinstance(verdict, bool) for verdict in recorded)
    if len(recorded) != num_responses or not are_booleans:
        raise RecordError(
            f"`right` is {recorded!r:.60}; required is a list of {num_responses} booleans, one for "
            "each response, as eval/sample.py writes it."
        )
    return recorded


def _word(is_right: bool) -> str:
    return "right" if is_right else "wrong"
