"""The work of a sweep: which results are missing, and how a judge that cannot be loaded is skipped by all ranks alike."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from data.errors import CheckpointError, EndpointError
from eval.judges.checkpoint import Runtime
from eval.judges.loading import JudgeFor, load_judge
from eval.results.store import Standing, Store, Summary, summarise
from eval.results.tables import percent
from eval.running.fingerprint import fingerprint, judge_digest, rows_digest, scoring_version
from eval.running.suite import Suite
from models.distributed import gather, rank, world_size

Marks = Mapping[str, str]
"""Benchmark to the fingerprint of a judge's result on it."""
BROKEN = (CheckpointError, OSError)
"""What a judge that cannot be used raises."""


@dataclass(slots=True)
class Sweep:
    """Judges, one after another, on the benchmarks of a suite."""

    suite: Suite
    store: Store
    runtime: Runtime
    console: Console
    marks: dict[Path, Marks] = field(default_factory=dict)
    """Of the judges whose results are all in the store."""
    broken: dict[str, str] = field(default_factory=dict)
    """Judges that cannot be used, and why."""

    def fill(self, judges: Sequence[Path]) -> None:
        """Bring every missing result into the store; all ranks call together, and share the work of every judge."""
        rows = {name: rows_digest(loaded.examples) for name, (_, loaded) in self.suite.benchmarks.items()}
        for judge, (digest, problem) in self._digests(judges).items():
            marks = {name: fingerprint(digest, row, self.suite.protocol) for name, row in rows.items()}
            problem = problem or self._complete(judge, digest, marks)
            gc.collect()  # a judge holds itself in cycles, and there is no room for two
            if self.runtime.device.type == "cuda":
                torch.cuda.empty_cache()
            if problem:
                self.broken[str(judge)] = problem
                self._say(f"{judge}: broken, skipped. {problem}")
            else:
                self.marks[judge] = marks

    def summary(self) -> Summary:
        """Return what the store holds for the judges; needs one rank only."""
        entries = [
            Standing(judge, name, mark, self.store.result(mark, name))
            for judge, marks in self.marks.items()
            for name, mark in marks.items()
        ]
        return summarise(entries, self.broken, self.store, self.suite.protocol.label)

    def _digests(self, judges: Sequence[Path]) -> dict[Path, tuple[str, str]]:
        """Return each judge's digest, or "" and what is wrong; ranks share the reading of the files."""
        found = {}
        for judge in judges[rank() :: world_size()]:
            try:
                found[judge] = (judge_digest(judge), "")
            except BROKEN as error:
                found[judge] = ("", str(error))
        whole = {judge: one for part in gather(found) for judge, one in part.items()}
        return {judge: whole[judge] for judge in judges}

    def _complete(self, judge: Path, digest: str, marks: Marks) -> str:
        """Evaluate what is missing of a judge; return what is wrong with it, "" if nothing is."""
        missing = gather([name for name, mark in marks.items() if not self.store.has(mark)])[0]
        for name in marks.keys() - set(missing):
            self._say(f"{judge}, {name}: stored")
        if not missing:
            return ""
        loaded, problem = None, ""
        try:
            loaded = load_judge(judge, self.runtime)
        except BROKEN as error:
            problem = str(error)
        problems = list(filter(None, gather(problem)))
        if loaded is None or problems:
            return problems[0]
        try:
            for name in missing:
                self._evaluate(loaded, judge, name, {"judge_digest": digest, "fingerprint": marks[name]})
        except (EndpointError, CheckpointError) as error:  # raised on all ranks alike
            return str(error)
        return ""

    def _evaluate(self, judge_for: JudgeFor, path: Path, name: str, about: Mapping[str, str]) -> None:
        folder = Path() if rank() else self.store.begin(about["fingerprint"])
        judge = judge_for(self.suite.benchmarks[name][0], self.suite.protocol)
        result = self.suite.evaluate(name, judge, folder, judge.notes)
        if not rank():
            protocol = self.suite.protocol.model_dump()
            whole = {"judge": str(path), "benchmark": name, **about, "protocol": protocol, "scoring": scoring_version()}
            self.store.finish(about["fingerprint"], whole)
            self._say(f"{path}, {name}: {percent(result.micro)}")

    def _say(self, text: str) -> None:
        if not rank():
            self.console.print(text)
