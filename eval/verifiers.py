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
from typing import Any

from data.errors import RecordError
from data.preference import Rule, Truth
from data.scanning import compatibility_form, contents_between

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


@dataclass(frozen=True, slots=True)
class Verifying:
    """How the responses of a record are verified."""

    verifier: Rule
    column: str
    """Where the known answer stands."""
    tolerance: float | None
    """Of `numeric`; None takes its own."""

    def right(self, columns: Mapping[str, Any], responses: Sequence[str]) -> list[bool]:
        """Say which responses are right; raise RecordError where the record has no known answer."""
        known = columns.get(self.column)
        answers = known if isinstance(known, list) else [known]
        if not answers or any(
            not isinstance(one, str | int | float) or isinstance(one, bool) or one == ""
            for one in answers
        ):
            raise RecordError(
                f"{self.column!r} is {known!r:.60}; the verifier needs the known answer there: a text, a number, or a list."
            )
        judge = VERIFIERS[self.verifier]
        if self.tolerance is not None:
            judge = partial(numeric, tolerance=self.tolerance)
        return [any(judge(response, str(answer)) for answer in answers) for response in responses]
