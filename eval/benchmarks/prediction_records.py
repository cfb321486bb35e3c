"""Lines of predictions files that were made elsewhere: how they are checked, and which formats all benchmarks share.

A value of the wrong type, count or range is refused with its line: `"rewards": "10"` is no pair of numbers, though the
characters 1 and 0 compare like one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import FileFormat, Record, Records, RowName

Parsed = TypeVar("Parsed")
IDENTITY = re.compile(r"\w+:\d+ \((.*)\)", re.DOTALL)
"""How a benchmark's row is named in `predictions.jsonl`; the id stands in parentheses."""


def parse_records(records: Records, parse: Callable[[Any], Parsed], required: str) -> list[Parsed]:
    """Return what `parse` reads from each record; raises PredictionsError naming the line on which it fails."""
    found = []
    for line, record in enumerate(records, start=1):
        try:
            found.append(parse(record))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            what = "null" if record is None else f"{type(error).__name__} {error}"
            raise PredictionsError(f"line {line}: {what}. Required are {required}.") from error
    if not found:
        raise PredictionsError(
            f"there is no record; a score of nothing would say nothing. Required are {required}."
        )
    return found


def parse_rewards(
    records: Records, parse: Callable[[Record], Parsed], columns: str, ties_right: bool = False
) -> list[tuple[Parsed, bool]]:
    """Return what `parse` reads from the `columns` of each record, and whether the winner's reward (the first) is higher."""

    def judged(record: Record) -> tuple[Parsed, bool]:
        better, other = rewards_of(record["rewards"])
        return parse(record), better >= other if ties_right else better > other

    return parse_records(
        records, judged, f"{columns} and rewards (a list of 2 finite numbers, the winner's first)"
    )


def rewards_of(value: object) -> list[float]:
    """Return a list of two finite numbers; raises ValueError for anything else."""
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_number, value)):
        raise ValueError(f"rewards are {shown(value)}")
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Say whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def one_of(value: Any, allowed: Sequence[Any], name: str) -> Any:
    """Return `value`; raises ValueError unless it is one of these and of the same type (true is not 1)."""
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ValueError(
            f"{name} is {shown(value)}; required is one of {', '.join(map(str, allowed))}"
        )
    return value


def text(record: Record, name: str) -> str:
    """Return the text under `name`; raises KeyError, or ValueError if it is none or not Unicode."""
    value = record[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shown(value)}; required is a text")
    value.encode()  # a UnicodeEncodeError for half a character, which no table can print
    return value


def shown(value: object) -> str:
    """Return a value for a message, not longer than a line."""
    try:
        words = ascii(value)
    except ValueError:  # an integer of more digits than Python writes
        words = "a number of thousands of digits"
    return words if len(words) <= 60 else f"{words[:60]}…"


def row_name(record: Record) -> RowName:
    """Return the row that a line of an official file, or of R1-Reward's, is of; the responses only where the label is there."""
    identity, meta = text(record, "ID" if "ID" in record else "id"), record.get("Meta")
    row = meta if isinstance(meta, dict) and "Output1" in meta else record
    one, two, first = row.get("chosen"), row.get("rejected"), True
    if "response" in row:
        (one, two), first = row["response"], row.get("ranking") == [0, 1]
    elif "Output1" in row:
        label = record.get("Label", row.get("Better"))
        one, two, first = row["Output1"], row.get("Output2"), label in ("A", "Output1")
        if label not in ("A", "B", "Output1", "Output2"):
            return identity, ()
    if not isinstance(one, str) or not isinstance(two, str):
        return identity, ()
    return identity, (one, two) if first else (two, one)


def _own(record: Record) -> Record:
    """Return a line of `predictions.jsonl` as R1-Reward writes a row, with the columns that any benchmark's rules read.

    The votes of a pairwise judge become the number of those for the better response and of those that are not.
    """
    better = one_of(record["better"], (0, 1), "better")
    if record["scores"] is None:
        names = [one_of(vote["names"], (0, 1, None), "a vote's names") for vote in record["votes"]]
        if not names:
            raise ValueError("there are neither scores nor votes")
        right = names.count(better)
        rewards: list[Any] = [right, len(names) - right]
    else:
        one, two = record["scores"]
        rewards = (
            [0, 1]
            if one is None or two is None
            else rewards_of([one, two] if better == 0 else [two, one])
        )
    identity, group = _own_row(record)[0], text(record, "group")
    return {
        "id": identity,
        "ID": identity,
        "Category": group,
        "category": group,
        "image": group,
        "rewards": rewards,
    }


def _own_row(record: Record) -> RowName:
    identity = text(record, "identity")
    named = IDENTITY.fullmatch(identity)
    return named[1] if named else identity, (identity,)


def _own_group(record: Record) -> str:
    return text(record, "group")


def own_format(rules: str, becomes: str = "rewards") -> FileFormat:
    """Return the project's own `predictions.jsonl`, scored by `rules` if none are named."""
    about = (
        "predictions.jsonl of this project's evaluations: identity, group, better, scores or votes"
    )
    return FileFormat(
        about, ("key", "credit", "better"), rules, becomes, _own, _own_row, group=_own_group
    )


def lmms_text(record: Record) -> str:
    """Return the answer that lmms-eval scored: the first one, without the lists that its log may wrap around it."""
    answer = record["filtered_resps"]
    while isinstance(answer, list) and answer:
        answer = answer[0]
    return text({"filtered_resps": answer}, "filtered_resps")


def lmms_format(
    metric: str,
    group: Callable[[Record], str],
    becomes: str = "",
    convert: Callable[[Record], Record] | None = None,
) -> FileFormat:
    """Return lmms-eval's sample log of a task.

    Args:
        metric: the column that holds question_id, category and score of a row.
        group: returns the benchmark's category from what is logged under `metric`.
        becomes: the format that `convert` makes of a line.
        convert: makes a line of another format of this one.
    """
    about = f"*_samples_*.jsonl as lmms-eval logs samples: filtered_resps, target and {metric} (question_id, category, score)"

    def row(record: Record) -> RowName:
        return text(record[metric], "question_id"), ()

    def stated_group(record: Record) -> str:
        return group(record[metric])

    return FileFormat(about, (metric,), "lmms_eval", becomes, convert, row, group=stated_group)
