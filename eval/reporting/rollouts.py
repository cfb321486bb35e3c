"""Judgements of an RL run as a report shows them: some prompts of its rollout tables, early, halfway and late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

TABLES = "completions"
"""The folder in which trl keeps a table of rollouts for every line of the log."""
STAGES = 3
"""Tables shown: the first, the last and those at equal distances between them."""
PROMPTS = 4
"""Prompts shown of a table: the first one, then those whose judgements earned most differently."""
JUDGEMENTS = 4
"""Different judgements shown of a prompt, from the best to the worst paid."""

Row = Mapping[str, Any]


def rollouts(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return what the rollout tables of a run folder hold, cut to what a person reads; a run that is not RL has none.

    Each entry has `step`, the number of `prompts` in the table, and those that are `shown`, by `_prompt`. A table that was cut
    off is named in `problems`.
    """
    steps = {file: file.stem.rpartition("_")[2] for file in (folder / TABLES).glob("completions_*.parquet")}
    files = {int(step): file for file, step in steps.items() if step.isdecimal()}
    found = []
    for step in _spread(sorted(files), STAGES):
        try:
            rows = parquet.read_table(files[step]).to_pylist()
        except (pyarrow.ArrowInvalid, OSError) as error:
            problems.append(f"{files[step]} is left out, it is no table: {error}. Was the run killed while it was saving?")
            continue
        if rows:
            prompts = [_prompt(list(block)) for _, block in groupby(rows, _identity)]
            rest = sorted(prompts[1:], key=lambda one: one["shown"][-1]["judgement"] - one["shown"][0]["judgement"])
            found.append({"step": step, "prompts": len(prompts), "shown": [prompts[0], *rest[: PROMPTS - 1]]})
    return found


def _prompt(block: Sequence[Row]) -> dict[str, Any]:
    """Return a prompt with its different judgements, the best paid first; of many the best, the worst and some between.

    Each judgement that is `shown` is a row of the table with its `text`, and how many `times` the prompt has it.
    """
    texts = [_text(row["completion"]) for row in block]
    times = Counter(texts)
    different = [{**row, "text": text, "times": times[text]} for text, row in dict(zip(texts, block, strict=True)).items()]
    record, winner, request = _identity(block[0])
    return {
        "record": record,
        "winner": winner,
        "request": request,
        "judgements": len(block),
        "different": len(different),
        "right": sum(row["result"] > 0 for row in block),
        "shown": _spread(sorted(different, key=lambda row: -row["judgement"]), JUDGEMENTS),
    }


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return up to `most` of the items: the first, the last and those at equal distances between them."""
    places = {round((len(items) - 1) * part / (most - 1)) for part in range(most)} if items else ()
    return [items[place] for place in sorted(places)]


def _identity(row: Row) -> tuple[str, int, str]:
    """Return the record, its better response as the judge was shown them (1 or 2), and what the judge was asked."""
    return row["record"], row["winner"], _text(row["prompt"])


def _text(messages: Iterable[Row]) -> str:
    return "\n".join(message["content"] for message in messages)
