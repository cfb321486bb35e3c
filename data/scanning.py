"""Scanners in linear time for texts that models or users write.

A regular expression can take quadratic time: `<answer>(.*?)</answer>` reads a text to its end once
for every `<answer>` that is never closed. A model that degenerates writes thousands of them.
"""

import re
import unicodedata
from itertools import groupby

LATE_MARKS = "\u0f73\u0f75\u0f81\uff9e\uff9f"
"""Characters that are no combining marks, but decompose into characters of which the first is
one."""
LONG_RUN = 32
"""Number of combining marks behind a letter above which they are sorted here. Unicode's Stream-Safe
Text Format allows 30."""


def contents_between(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> list[str]:
    """Return the texts between each `opening` and the next `closing`, from left to right.

    The result is that of `re.findall(opening + "(.*?)" + closing, text, re.DOTALL)`. Each pattern
    by itself has to run in linear time.
    """
    contents = []
    position = 0
    while opened := opening.search(text, position):
        closed = closing.search(text, opened.end())
        if closed is None:
            break  # no later opening can be closed either
        contents.append(text[opened.end() : closed.start()])
        position = closed.end()
    return contents


def compatibility_form(text: str) -> str:
    """Return `unicodedata.normalize("NFKC", text)`, in linear time.

    CPython sorts the combining marks behind a letter by insertion: 100,000 marks of several classes
    take eleven seconds. Here, long runs of marks are decomposed and sorted before it sees them,
    which is the first step of the normalisation anyway.
    """
    if unicodedata.is_normalized("NFKC", text):
        return text
    pieces = []
    for is_mark, characters in groupby(text, _is_mark):
        run = "".join(characters)
        if is_mark and len(run) > LONG_RUN:
            decomposed = "".join(unicodedata.normalize("NFKD", mark) for mark in run)
            run = "".join(sorted(decomposed, key=unicodedata.combining))
        pieces.append(run)
    return unicodedata.normalize("NFKC", "".join(pieces))


def _is_mark(character: str) -> bool:
    """Return True if normalisation may move a character before another one."""
    return unicodedata.combining(character) > 0 or character in LATE_MARKS
