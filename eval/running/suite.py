"""The benchmarks of a run: loaded once, then any number of checkpoints are evaluated on them, each into its own folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data.storage.files import write_whole
from eval.benchmarks.benchmark import Benchmark, LoadedBenchmark
from eval.benchmarks.table import BENCHMARKS, BenchmarkConfig, load
from eval.protocol import Judge, ProtocolConfig
from eval.results.predictions import write_predictions
from eval.results.result import Result
from eval.running.baselines import ablate
from eval.running.evaluation import evaluate
from models.distributed import barrier, rank


@dataclass(frozen=True, slots=True)
class Suite:
    """Benchmarks with their rows, under one protocol."""

    benchmarks: Mapping[str, tuple[Benchmark, LoadedBenchmark]]
    protocol: ProtocolConfig

    @classmethod
    def load(cls, benchmarks: Sequence[BenchmarkConfig], protocol: ProtocolConfig) -> Suite:
        """Load the rows; the first rank alone goes first, so that a download or the embedded edition is made once.

        Raises what `Benchmark.load` raises.
        """
        if rank():
            barrier()
        loaded = {config.name: (BENCHMARKS[config.name], load(config)) for config in benchmarks}
        if not rank():
            barrier()
        return cls(loaded, protocol)

    def run(self, judge: Judge, folder: Path) -> dict[str, Result]:
        """Evaluate `judge` on every benchmark; all ranks call together, and `folder` is filled as `evaluate` says."""
        return {name: self.evaluate(name, judge, folder) for name in self.benchmarks}

    def evaluate(self, name: str, judge: Judge, folder: Path, notes: Callable[[], Sequence[str]] = tuple) -> Result:
        """Evaluate `judge` on one benchmark; the first rank writes `<benchmark>.json` and `<benchmark>/predictions.jsonl`.

        `notes` is asked after judging for what must be said beside the figures.
        """
        benchmark, rows = self.benchmarks[name]
        verdicts = judge.judge(ablate(rows.examples, self.protocol.images, self.protocol.seed))
        origin = replace(rows.origin, notes=(*rows.origin.notes, *notes()))
        result = evaluate(rows.examples, verdicts, benchmark, self.protocol, origin)
        if not rank():
            write_predictions(rows.examples, verdicts, benchmark, self.protocol, folder / name)
            write_result(result, folder / f"{name}.json")
        return result


def write_result(result: Result, path: Path) -> None:
    """Write a result as JSON, whole or not at all."""
    write_whole(path, json.dumps(result.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n")


def headline(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the figures to log and to choose by: `benchmark/accuracy`, `/macro`, `/ties`, `/unparsable` and each group's.

    A group's figure is named `benchmark/group/accuracy`. Shares are fractions of 1; figures without rows are left out.
    """
    found: dict[str, float | None] = {}
    for name, result in results.items():
        micro = result.micro
        found |= {f"{name}/accuracy": micro.accuracy, f"{name}/macro": result.macro}
        found |= {f"{name}/ties": micro.ties / max(micro.n, 1), f"{name}/unparsable": micro.unparsable / max(micro.n, 1)}
        found |= {f"{name}/{group}/accuracy": figure.accuracy for group, figure in result.groups.items()}
    return {name: value for name, value in found.items() if value is not None}
