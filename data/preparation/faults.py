"""Messages about records, those of the same fault as one with their count."""

import re
from collections.abc import Iterable, Mapping

VARYING = re.compile(
    r"^[\w.:-]+:\d[\d.]*(?: \([^)]*\))?: "  # which record it is
    r"|(?<= is )(\w+ ).{0,1000}?(?=; required)"  # a value, whose type stays
    r"|(?<=image )'[^']*'|'[^'./\\]*+[./\\][^']*+'|'[^']{40,}'"  # names and paths of files, long texts
    r"|\(?/[^\s,]+|\d[\d,.]*",  # paths, numbers
    re.DOTALL,
)
"""What differs between messages about the same fault of several records."""


def count_faults(messages: Iterable[tuple[str, int]], most: int) -> dict[str, int]:
    """Return `messages` about records, each with how many it stands for, with those of the same fault joined: the first stays.

    Of different faults the first `most` are kept.
    """
    found: dict[str, tuple[str, int]] = {}
    for message, count in messages:
        fault = VARYING.sub(lambda match: match[1] or "", message)
        first, before = found.get(fault, (message, 0))
        if fault in found or len(found) < most:
            found[fault] = first, before + count
    return dict(found.values())


def told(faults: Mapping[str, int]) -> list[str]:
    """Return a message for each of the faults that `count_faults` found."""
    more = {2: "1 more record"}
    return [
        message
        if count == 1
        else f"{message} … and {more.get(count, f'{count - 1:,} more records')} with the same fault"
        for message, count in faults.items()
    ]
