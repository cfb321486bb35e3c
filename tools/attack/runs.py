"""Whole tiny runs that other attacks damage or interrupt, and what a run must be after that: the same as if nothing had been."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.train import worker
from tests.train.ranks import RanksError, run_ranks

SECONDS = 600.0
"""What a run of six steps may take before it counts as hung: far more than ten times its time, since others use the machine."""
Meanwhile = Callable[[Path, list[ForkServerProcess]], None]
"""Is called with what the first rank prints and with the ranks' processes, once they are started."""


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    statuses: list[int | None]
    in_time: bool
    printed: str

    @property
    def traceback(self) -> str:
        """The last line of a traceback; empty if there is none."""
        if "Traceback (most recent call last)" not in self.printed:
            return ""
        lines = [
            line
            for line in self.printed.splitlines()
            if line[:1].isalpha() and ("Error" in line or "Interrupt" in line)
        ]
        return lines[-1] if lines else "a traceback"


class Runs:
    """The runs of one recipe under one DeepSpeed configuration; `whole` is the uninterrupted one, with all its checkpoints."""

    def __init__(self, folder: Path, stage: str, ranks: int) -> None:
        self.folder, self.stage, self.ranks = folder, stage, ranks
        self.recipe = worker.prepare(folder)
        self.whole = folder / "whole"
        run_ranks(
            folder / "server", time.sleep, 0.0, ranks=1
        )  # importing torch is not part of a run's time
        begin = time.monotonic()
        ended = self.run(self.whole)
        self.seconds = time.monotonic() - begin
        assert ended.statuses == [0] * ranks, ended.printed

    def run(self, folder: Path, *arguments: str, meanwhile: Meanwhile | None = None) -> Ended:
        """Start a run into `folder`, or resume it."""
        changes = [
            "evaluation.benchmarks=[]",
            "evaluation.best_metric=null",
            "output.keep_checkpoints=9",
        ]
        command = [
            str(self.recipe),
            f"deepspeed={self.stage}",
            f"output.folder={folder}",
            *changes,
            *arguments,
        ]
        log = folder.with_name(f"{folder.name}-log-{len(list(folder.parent.iterdir()))}")
        watch = None if meanwhile is None else partial(meanwhile, log / "rank0.log")
        try:
            printed = run_ranks(
                log, worker.recipe_run, command, ranks=self.ranks, seconds=SECONDS, meanwhile=watch
            )
        except RanksError as error:
            return Ended(error.statuses, error.in_time, error.printed)
        return Ended([0] * self.ranks, True, printed)

    def unlike(self, folder: Path) -> str:
        """Return what tells a run that has ended from the uninterrupted one; empty if nothing does."""
        if not (worker.ended(folder) / "complete").exists():
            return "the last checkpoint is not complete"
        if worker.difference(worker.ended(folder), worker.ended(self.whole)) != 0.0:
            return "other weights"
        losses = [
            [line["loss"] for line in worker.lines(worker.ended(one))]
            for one in (folder, self.whole)
        ]
        return "" if losses[0] == losses[1] else "another curve"


def kinds(count: int) -> Sequence[tuple[str, int, int]]:
    """Return (stage, ranks, cases) of runs that share `count` cases; the cheaper ones get more of them."""
    return [
        ("none", 1, count - 2 * (count // 4)),
        ("zero2", 2, count // 4),
        ("zero3", 2, count // 4),
    ]
