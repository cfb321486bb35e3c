"""The rubric form of a judgement: criteria for the prompt, checks of both responses, the verdict.

<rubric>
1. The answer names the colour of the car.
2. The answer is polite.
</rubric>
<eval>
1. The car is red. Response 1: yes. Response 2: no.
2. Response 1: yes. Response 2: yes.
</eval>
<answer>1</answer>

The tags are those of Proxy-GRM (arXiv 2603.16600). Its judges fill them with free text. Here the
lines have a fixed form, so that a program can read them. The reader is strict: a text that is not
in this form has no rubric. There are newlines after the tags, so that a given block of criteria
ends where a token ends, and a judge continues it as it would continue its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RUBRIC_TAGS = ("<rubric>", "</rubric>", "<eval>", "</eval>")
"""The tags around criteria and checks, in their order."""
MOST_CRITERIA = 99
"""The largest number of criteria of a rubric."""

CHECK_ENDINGS = {
    "Response 1: yes. Response 2: yes.": (True, True),
    "Response 1: yes. Response 2: no.": (True, False),
    "Response 1: no. Response 2: yes.": (False, True),
    "Response 1: no. Response 2: no.": (False, False),
}
"""Whether Response 1 and Response 2 meet a criterion, by the end of the line of its check."""
ENDING_OF_CHECK = {meets: ending for ending, meets in CHECK_ENDINGS.items()}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking both responses by one criterion."""

    meets: tuple[bool, bool]
    """Whether Response 1 and Response 2 meet the criterion."""
    reason: str = ""
    """A text of one line before the result; it may be empty."""


@dataclass(frozen=True, slots=True)
class Rubric:
    """The criteria for a prompt, and the check of both responses by each of them."""

    criteria: tuple[str, ...]
    checks: tuple[Check, ...]
    """One check for each criterion, in order."""


def write_criteria(criteria: Sequence[str]) -> str:
    """Return the block of criteria with which a judgement in rubric form begins.

    It ends with a newline. Required are 1 to MOST_CRITERIA texts of one line each, for which
    `fault_of_criterion` finds no fault.
    """
    return _block("rubric", criteria)


def write_rubric(rubric: Rubric) -> str:
    """Return the blocks of criteria and of checks, which are the rationale of a judgement."""
    lines: list[str] = []
    for check in rubric.checks:
        ending = ENDING_OF_CHECK[check.meets]
        lines.append(f"{check.reason} {ending}" if check.reason else ending)
    return write_criteria(rubric.criteria) + _block("eval", lines)


def read_criteria(text: str) -> tuple[str, ...] | None:
    """Return the criteria of a text that is one block of criteria; None if it is anything else."""
    return _lines_of_block("rubric", text)


def read_rubric(text: str) -> Rubric | None:
    """Return the criteria and the checks of a text that is these two blocks and nothing else.

    Returns None if a tag is missing, repeated or out of place, a line has no number or a wrong one,
    a check does not end with its results in their form, or there are more or fewer checks than
    criteria.
    """
    end_of_criteria = text.find("</rubric>") + len("</rubric>")
    criteria = read_criteria(text[:end_of_criteria])
    lines = _lines_of_block("eval", text[end_of_criteria:])
    if criteria is None or lines is None or len(criteria) != len(lines):
        return None
    checks: list[Check] = []
    for line in lines:
        check = _read_check(line)
        if check is None:
            return None
        checks.append(check)
    return Rubric(criteria, tuple(checks))


def fault_of_criterion(criterion: str) -> str | None:
    """Return the reason why a text cannot be a criterion of a rubric; None if it can be one."""
    if not criterion.strip() or criterion != criterion.strip():
        return "it is empty, or has blanks at its ends"
    if len(criterion.splitlines()) > 1:
        return "it has several lines"
    tags = [tag for tag in (*RUBRIC_TAGS, "<answer>", "</answer>") if tag in criterion]
    if tags:
        return f"it contains the tag {tags[0]}"
    return None


def better_by_checks(rubric: Rubric) -> Literal[1, 2] | None:
    """Return the response that meets more criteria, 1 or 2; None if both meet equally many."""
    num_first = sum(check.meets[0] for check in rubric.checks)
    num_second = sum(check.meets[1] for check in rubric.checks)
    if num_first == num_second:
        return None
    return 1 if num_first > num_second else 2


def _block(tag: str, lines: Sequence[str]) -> str:
    """Return numbered lines between an opening and a closing tag, with a newline at the end."""
    numbered = [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
    return "\n".join([f"<{tag}>", *numbered, f"</{tag}>", ""])


def _lines_of_block(tag: str, text: str) -> tuple[str, ...] | None:
    """Return the lines of a text that `_block` may have written, without their numbers.

    White space around the block and at the ends of lines is ignored, and so are empty lines. The
    result is None if the text is not in this form, or a line would be no criterion.
    """
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    block = text.strip()
    if not block.startswith(opening) or not block.endswith(closing):
        return None
    lines: list[str] = []
    for line in block[len(opening) : -len(closing)].splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        number = f"{len(lines) + 1}. "
        content = stripped.removeprefix(number).strip()
        if not stripped.startswith(number) or fault_of_criterion(content) is not None:
            return None
        lines.append(content)
    if not 1 <= len(lines) <= MOST_CRITERIA:
        return None
    return tuple(lines)


def _read_check(line: str) -> Check | None:
    """Return the check of a line without its number; None if it does not end with its results."""
    for ending, meets in CHECK_ENDINGS.items():
        if line.endswith(ending):
            return Check(meets, line.removesuffix(ending).strip())
    return None
