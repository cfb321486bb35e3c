"""Records of all sorts in random arrangements over two ranks, under ZeRO-2 and ZeRO-3: no rank waits, losses as on one rank."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.train import worker
from tests.train.ranks import RanksError, run_ranks
from tools.attack.outcomes import Tally

KINDS = "tilsm"
"""A text, one picture, a long text, the shortest one, three pictures; see `tests.train.worker.Written`."""
STAGES = ("zero2", "zero3")
TOGETHER = 5
"""Arrangements that one start of the ranks trains on, one after the other."""
NEAR = 2e-5


def arrangements(count: int, seed: int) -> list[tuple[str, int]]:
    """Return records of one to three steps, whose last may be short of some, and a token budget."""
    generator = random.Random(f"{seed}/arrangements")
    found = []
    for _ in range(count):
        some = generator.sample(KINDS, generator.randint(1, len(KINDS)))  # sometimes one sort alone
        length = generator.randint(4, 11)
        found.append(
            ("".join(generator.choices(some, k=length)), generator.choice((1, 150, 400, 10**6)))
        )
    return found


def descend_all(recipe: Path, cases: list[tuple[str, list[tuple[str, str, int]]]]) -> None:
    """Train on each arrangement in each way; runs on every rank."""
    from mmrm.train.runs.environment import run_environment

    with run_environment(seed=0, deterministic=False, deepspeed=True):
        for kinds, ways in cases:
            worker.descend_each(recipe, kinds, ways)


def attack(tally: Tally, folder: Path, count: int, seed: int, only: str | None = None) -> None:
    """Train on `count` arrangements on one rank, and on two under ZeRO-2 and ZeRO-3."""
    recipe = worker.prepare(folder)
    found = [
        (f"{kinds} in rows of {budget}", kinds, budget)
        for kinds, budget in arrangements(count, seed)
    ]
    found = [case for case in found if only in (None, case[0])]
    for start in range(0, len(found), TOGETHER):
        part = list(enumerate(found[start : start + TOGETHER], start))
        alone = [
            (kinds, [(f"{folder}/{number}-none", "none", 10**6)]) for number, (_, kinds, _) in part
        ]
        run_ranks(folder / f"log-{start}-alone", descend_all, recipe, alone, ranks=1)
        ways = [
            (kinds, [(f"{folder}/{number}-{stage}", stage, budget) for stage in STAGES])
            for number, (_, kinds, budget) in part
        ]
        try:
            run_ranks(folder / f"log-{start}", descend_all, recipe, ways, seconds=60.0 * len(part))
        except RanksError as error:
            done = [
                case
                for number, (case, _, _) in part
                if Path(f"{folder}/{number}-{STAGES[-1]}/trainer_state.json").exists()
            ]
            failed = next(case for _, (case, _, _) in part if case not in done)
            last = [line for line in error.printed.splitlines() if "Error" in line][-1:] or [""]
            tally.add(
                "traceback" if error.in_time else "hang",
                failed,
                last[0][:100] or "a rank waits",
                error.printed[-300:],
            )
        for number, (case, _, _) in part:
            if Path(f"{folder}/{number}-{STAGES[-1]}/trainer_state.json").exists():
                wrong = _unlike(folder, number)
                tally.add("silent" if wrong else "worked", case, wrong)


def _unlike(folder: Path, number: int) -> str:
    """Return what tells the two ranks' training from that of one; empty if nothing does."""
    alone = folder / f"{number}-none"
    for stage in STAGES:
        there = folder / f"{number}-{stage}"
        pairs: list[tuple[Any, Any]] = list(
            zip(worker.lines(alone), worker.lines(there), strict=True)
        )
        if any(abs(one["loss"] - other["loss"]) > NEAR for one, other in pairs):
            return f"another loss under {stage}"
        if worker.difference(alone, there) > NEAR:
            return f"other weights under {stage}"
    return ""
