"""Shortcuts: properties of a response that say nothing about its quality, and may predict labels.

A reward model that is trained on pairs in which the longer response is mostly the preferred one can
learn to prefer longer responses. The figures of this module tell how far such a property goes along
with the labels, or with the verdicts of a judge.

Each shortcut is a function that measures one response, and a row of SHORTCUTS. Everything is
counted in texts, without a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmrm.data.preference import Preference, texts

LIST_ITEM = re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
"""An item of a Markdown list: a line that begins with -, *, +, • or a number."""
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.MULTILINE)
"""A Markdown heading: a line that begins with one to six #."""
BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")
"""Bold text in Markdown, on one line."""
CODE_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
"""A line that begins or ends a block of code in Markdown."""
WORD = re.compile(r"\w+")
"""A word, in the sense of the overlap of words: letters, digits and underscores."""
REFUSAL_PHRASES = (
    "i can't",
    "i cannot",
    "i can not",
    "i'm unable",
    "i am unable",
    "i'm not able",
    "i am not able",
    "i won't",
    "i'm sorry",
    "i am sorry",
    "i apologize",
    "i apologise",
    "unable to assist",
    "unable to help",
    "as an ai",
    "as a language model",
    "as a large language model",
)
"""Phrases of refusals, in lower case and with plain apostrophes. Occurrences are counted."""
REFUSAL = re.compile("|".join(map(re.escape, REFUSAL_PHRASES)))
UNKNOWN = -2
"""Stands for a sign that is not known, in arrays of signs."""


@dataclass(frozen=True, slots=True)
class MeasuredResponse:
    """A response to a prompt, as a shortcut measures it."""

    text: str
    """The texts of the response, joined."""
    words: frozenset[str]
    """The different words of the response, as `words_of` returns them."""
    words_of_prompt: frozenset[str]
    """The different words of the prompt."""
    position: int | None
    """The position of the response in the order of the record's source, from 0; None if the source
    has no order."""


class Shortcut(NamedTuple):
    """A property of responses that may predict which of them is preferred."""

    description: str
    """Words for the response that has more of the property."""
    measure: Callable[[MeasuredResponse], float | None]
    """Returns the amount that a response has of the property; None if it is not known."""


def words_of(text: str) -> frozenset[str]:
    """Return the different words of a text, in lower case."""
    return frozenset(WORD.findall(text.lower()))


def num_characters(response: MeasuredResponse) -> float:
    """Return the number of characters of a response."""
    return len(response.text)


def num_list_items(response: MeasuredResponse) -> float:
    """Return the number of items of Markdown lists in a response."""
    return len(LIST_ITEM.findall(response.text))


def num_headings(response: MeasuredResponse) -> float:
    """Return the number of Markdown headings in a response."""
    if "#" not in response.text:
        return 0
    return len(HEADING.findall(response.text))


def num_bold_texts(response: MeasuredResponse) -> float:
    """Return the number of bold texts in a response."""
    if "**" not in response.text and "__" not in response.text:
        return 0
    return len(BOLD.findall(response.text))


def num_code_blocks(response: MeasuredResponse) -> float:
    """Return the number of blocks of code in a response; a block without an end counts."""
    num_fences = len(CODE_FENCE.findall(response.text))
    return (num_fences + 1) // 2


def num_table_rows(response: MeasuredResponse) -> float:
    """Return the number of rows of Markdown tables: lines that begin and end with a bar."""
    if "|" not in response.text:
        return 0
    num_rows = 0
    for line in response.text.splitlines():
        cells = line.strip()
        if len(cells) > 1 and cells.startswith("|") and cells.endswith("|"):
            num_rows += 1
    return num_rows


def num_refusals(response: MeasuredResponse) -> float:
    """Return the number of phrases of a refusal in a response, each occurrence counted."""
    return len(REFUSAL.findall(response.text.lower().replace("’", "'")))


def overlap_with_prompt(response: MeasuredResponse) -> float:
    """Return the share of a response's different words that occur in the prompt; 0 without words."""
    if not response.words:
        return 0.0
    return len(response.words & response.words_of_prompt) / len(response.words)


def earliness(response: MeasuredResponse) -> float | None:
    """Return a number that is higher the earlier the source lists a response; None without order."""
    return None if response.position is None else -response.position


SHORTCUTS: dict[str, Shortcut] = {
    "length": Shortcut("the longer response", num_characters),
    "lists": Shortcut("the response with more list items", num_list_items),
    "headings": Shortcut("the response with more headings", num_headings),
    "bold": Shortcut("the response with more bold text", num_bold_texts),
    "code": Shortcut("the response with more blocks of code", num_code_blocks),
    "tables": Shortcut("the response with more rows of tables", num_table_rows),
    "refusals": Shortcut("the response with more phrases of a refusal", num_refusals),
    "prompt_words": Shortcut(
        "the response with a larger share of words of the prompt", overlap_with_prompt
    ),
    "first": Shortcut("the response that is listed first", earliness),
}
"""The shortcuts by name. Signs of a record are in this order."""


def compare(more: float | None, less: float | None) -> int:
    """Return 1 if `more` is larger than `less`, -1 if it is smaller, 0 if they are equal.

    The result is UNKNOWN if one of them is None.
    """
    if more is None or less is None:
        return UNKNOWN
    return (more > less) - (more < less)


def measured_pair(record: Preference) -> tuple[MeasuredResponse, MeasuredResponse]:
    """Return the best and the worst response of a record, as shortcuts measure them."""
    words_of_prompt = words_of("\n".join(texts(record.prompt)))
    position_of_best: int | None = None
    position_of_worst: int | None = None
    if record.positions:
        position_of_best = record.positions[0]
        position_of_worst = record.positions[-1]
    best = record.chosen.text
    worst = record.rejected.text
    return (
        MeasuredResponse(best, words_of(best), words_of_prompt, position_of_best),
        MeasuredResponse(worst, words_of(worst), words_of_prompt, position_of_worst),
    )


def signs(best: MeasuredResponse, worst: MeasuredResponse) -> tuple[int, ...]:
    """Return for each shortcut whether the best response of a record has more of it than the worst.

    The numbers are 1 for more, -1 for less, 0 for equally much, and UNKNOWN, in the order of
    SHORTCUTS.
    """
    comparisons = []
    for shortcut in SHORTCUTS.values():
        comparisons.append(compare(shortcut.measure(best), shortcut.measure(worst)))
    return tuple(comparisons)


def overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """Return how many words two responses share: words of both by words of either, from 0 to 1.

    This is the Jaccard index of their different words. It is 1 for two responses without words.
    """
    all_words = first | second
    if not all_words:
        return 1.0
    return len(first & second) / len(all_words)


def require_shortcuts(names: Sequence[str]) -> None:
    """Raise ValueError if a name is not in SHORTCUTS, or occurs twice."""
    for name in names:
        if name not in SHORTCUTS:
            raise ValueError(f"{name!r} is no shortcut; there are {', '.join(SHORTCUTS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"a shortcut occurs twice in {list(names)}; name each once")
