"""Scanners in linear time for texts of models and strangers, where a regular expression would be quadratic.

`<answer>(.*?)</answer>` reads a text to its end once for every `<answer>` that is never closed. A
model that degenerates writes thousands of them.
"""

import re


def contents_between(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> list[str]:
    """Return what stands between each `opening` and the next `closing`, from left to right.

    The result is that of `re.findall(opening + "(.*?)" + closing, text, re.DOTALL)`. Each pattern by
    itself has to run in linear time.
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
