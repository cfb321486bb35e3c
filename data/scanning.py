"""Scanners in linear time for texts that models or users write.

A regular expression can take quadratic time: `<answer>(.*?)</answer>` reads a text to its end once
for every `<answer>` that is never closed. A model that degenerates writes thousands of them.
"""

import re
import unicodedata
from itertools import groupby

DECOMPOSE_INTO_MARKS = "\u0f73\u0f75\u0f81\uff9e\uff9f"
"""Characters that are no combining marks, but decompose into characters of which the first is
one."""
LONG_SEQUENCE = 32
"""Number of combining marks behind a letter above which they are sorted here. Unicode's Stream-Safe
Text Format allows 30."""


def contents_between(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> list[str]:
    """Return the texts between each match of `opening` and the next match of `closing`, in order.

    The result is that of `re.findall(opening + "(.*?)" + closing, text, re.DOTALL)`, but the time
    is linear in the length of the text, if each of the two patterns alone takes linear time.
    """
    return [text[start:end] for start, end in spans_between(text, opening, closing)]


def spans_between(
    text: str, opening: re.Pattern[str], closing: re.Pattern[str]
) -> list[tuple[int, int]]:
    """Return where the texts of `contents_between` begin and end, in order."""
    spans = []
    position = 0
    while opened := opening.search(text, position):
        closed = closing.search(text, opened.end())
        if closed is None:
            break  # no later opening can be closed either
        spans.append((opened.end(), closed.start()))
        position = closed.end()
    return spans


def compatibility_form(text: str) -> str:
    """Return `unicodedata.normalize("NFKC", text)`, in linear time."""
    if unicodedata.is_normalized("NFKC", text):
        return text
    # Normalisation sorts the combining marks (accents and the like) behind a letter. CPython does
    # so by insertion, which takes eleven seconds for 100,000 marks. Long sequences of marks are
    # therefore decomposed and sorted here, so that CPython finds them in order.
    pieces = []
    for are_marks, characters in groupby(text, _is_combining_mark):
        piece = "".join(characters)
        if are_marks and len(piece) > LONG_SEQUENCE:
            decomposed = "".join(unicodedata.normalize("NFKD", mark) for mark in piece)
            piece = "".join(sorted(decomposed, key=unicodedata.combining))
        pieces.append(piece)
    return unicodedata.normalize("NFKC", "".join(pieces))


def _is_combining_mark(character: str) -> bool:
    """Return True if a character combines with the letter before it, as an accent does.

    The result is also True for a character that normalisation replaces by several ones of which the
    first is a combining mark.
    """
    return unicodedata.combining(character) > 0 or character in DECOMPOSE_INTO_MARKS
