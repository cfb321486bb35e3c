"""Judgements of an RL run as a report shows them: some prompts of its rollout tables, early, halfway and late."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

TABLES = "completions"
"""The folder in which trl keeps a table of rollouts for every line of the log."""
NAME = re.compile(r"completions_(\d+)\.parquet")
STAGES = 3
"""Tables shown: the first, the last and those at equal distances between them."""
PROMPTS = 4
"""Prompts shown of a table: the first one, then those whose judgements earned most differently."""
JUDGEMENTS = 4
"""Different judgements shown of a prompt, from the best to the worst paid."""


@dataclass(frozen=True, slots=True)
class RolloutJudgement:
    """A judgement, and what it earned."""

    text: str
    times: int
    """How many of the prompt's judgements are this text."""
    reward: float
    parts: Mapping[str, float]
    """Result, consistency and format as they entered the reward."""
    advantage: float


@dataclass(frozen=True, slots=True)
class RolloutPrompt:
    """A prompt with its judgements."""

    record: str
    request: str
    winner: int
    """The better response as the judge was shown them, 1 or 2."""
    judgements: int
    different: int
    right: int
    shown: tuple[RolloutJudgement, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """Some of what was sampled at one step."""

    step: int
    prompts: int
    asked: tuple[RolloutPrompt, ...]


def rollouts(folder: Path, problems: list[str]) -> tuple[Stage, ...]:
    """Return what the rollout tables of a run folder hold, cut to what a person reads.

    A table that was cut off is named in `problems`; a run that is not RL has none.
    """
    files = sorted((folder / TABLES).glob("completions_*.parquet"), key=step_of)
    found = []
    for file in (files[place] for place in spread(len(files), STAGES)):
        try:
            rows = parquet.read_table(file).to_pylist()
        except (pyarrow.ArrowInvalid, OSError) as error:
            problems.append(f"{file} is left out, it is no table: {error}. Was the run killed while it was saving?")
            continue
        if rows:
            found.append(stage(step_of(file), rows))
    return tuple(found)


def spread(count: int, most: int) -> list[int]:
    """Return up to `most` of `count` places: the first, the last and those at equal distances between them."""
    return sorted({round((count - 1) * part / (most - 1)) for part in range(most)}) if count else []


def step_of(file: Path) -> int:
    """Return the step of a rollout table."""
    name = NAME.fullmatch(file.name)
    return int(name[1]) if name else 0


def stage(step: int, rows: Sequence[Mapping[str, Any]]) -> Stage:
    """Return the first prompt of a table and those whose judgements were paid most differently."""
    prompts = [asked(block) for block in blocks(rows)]
    rest = sorted(prompts[1:], key=lambda one: one.shown[-1].reward - one.shown[0].reward)
    return Stage(step, len(prompts), (*prompts[:1], *rest[: PROMPTS - 1]))


def blocks(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the rows of each prompt; they stand side by side in a table."""
    found: list[list[Mapping[str, Any]]] = []
    for row in rows:
        if found and _identity(found[-1][-1]) == _identity(row):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def asked(block: Sequence[Mapping[str, Any]]) -> RolloutPrompt:
    """Return a prompt with its different judgements, the best paid first; of many the best, the worst and some between."""
    times: dict[str, int] = {}
    for row in block:
        times[_text(row["completion"])] = times.get(_text(row["completion"]), 0) + 1
    different = {_text(row["completion"]): row for row in block}
    ordered = sorted(different.values(), key=lambda row: -row["judgement"])
    first = block[0]
    return RolloutPrompt(
        record=first["record"],
        request=_text(first["prompt"]),
        winner=first["winner"],
        judgements=len(block),
        different=len(ordered),
        right=sum(row["result"] > 0 for row in block),
        shown=tuple(_judged(ordered[place], times) for place in spread(len(ordered), JUDGEMENTS)),
    )


def _judged(row: Mapping[str, Any], times: Mapping[str, int]) -> RolloutJudgement:
    parts = {name: row[name] for name in ("result", "consistency", "format")}
    text = _text(row["completion"])
    return RolloutJudgement(text, times[text], row["judgement"], parts, row["advantage"])


def _identity(row: Mapping[str, Any]) -> tuple[str, int, str]:
    return row["record"], row["winner"], _text(row["prompt"])


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(message["content"] for message in messages)
