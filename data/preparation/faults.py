"""Counts of messages about records that cannot be used.

Messages that differ only in the record, a value or a path are about the same fault, and are counted
together.
"""

import re
from collections.abc import Iterable, Mapping

VARYING = re.compile(
    r"^[\w.:-]+:\d[\d.]*(?: \([^)]*\))?: "  # which record it is
    r"|(?<= is )(\w+ ).{0,1000}?(?=; required|\. Required)"  # a value, whose type is kept
    r"|(?<=image )'[^']*'|'[^'./\\]*+[./\\][^']*+'|'[^']{40,}'"  # file names, paths, long texts
    r"|\(?/[^\s,]+|\d[\d,.]*",  # paths, numbers
    re.DOTALL,
)
"""The parts that differ between the messages of several records with the same fault."""


def count_faults(messages: Iterable[tuple[str, int]], max_faults: int) -> dict[str, int]:
    """Return the first message about each fault, with the number of records that have the fault.

    Args:
        messages: Messages about records, each with the number of records that have it.
        max_faults: The number of different faults to keep. Further faults are not counted.
    """
    first_messages: dict[str, str] = {}
    counts: dict[str, int] = {}
    for message, count in messages:
        # Group 1 is the type of a value, which belongs to the fault, unlike the value.
        fault = VARYING.sub(lambda match: match[1] or "", message)
        if fault not in counts and len(counts) >= max_faults:
            continue
        first_messages.setdefault(fault, message)
        counts[fault] = counts.get(fault, 0) + count
    return {message: counts[fault] for fault, message in first_messages.items()}


def fault_messages(faults: Mapping[str, int]) -> list[str]:
    """Return a line for each fault: its message, and the number of other records that have it.

    `faults` is a result of `count_faults`.
    """
    lines = []
    for message, count in faults.items():
        if count == 1:
            lines.append(message)
            continue
        others = "1 more record" if count == 2 else f"{count - 1:,} more records"
        lines.append(f"{message} … and {others} with the same fault")
    return lines
