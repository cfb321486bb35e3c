"""The results of a sweep on disk, and their comparison with the best judge on each benchmark.

Each result is in a folder that is named by its fingerprint.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmrm.data.storage.files import write_json
from mmrm.eval.journal import JOURNAL
from mmrm.eval.results.intervals import Difference
from mmrm.eval.results.predictions import OWN, difference, read_predictions
from mmrm.eval.results.result import Result, read_result

ABOUT = "about.json"
"""Name of the file that describes the judge and the rows of a result."""
STEP = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of the results. The first rank writes it, and all ranks may read it."""

    folder: Path

    def place(self, fingerprint: str) -> Path:
        """Return the folder of a result, which need not exist."""
        return self.folder / fingerprint

    def has(self, fingerprint: str) -> bool:
        """Return True if the result exists; a folder gets its name when it is complete."""
        return self.place(fingerprint).is_dir()

    def begin(self, fingerprint: str) -> Path:
        """Return a folder to write a result into.

        Of the files that a killed sweep left in it, only the journal of its judgements is kept.
        """
        unfinished = self.folder / f"{fingerprint}.part"
        unfinished.mkdir(parents=True, exist_ok=True)
        for path in unfinished.rglob("*"):
            if path.is_file() and path.name != JOURNAL:
                path.unlink()
        return unfinished

    def finish(self, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Write the description of a complete folder, and give the folder its name."""
        unfinished = self.folder / f"{fingerprint}.part"
        for journal in unfinished.rglob(JOURNAL):
            journal.unlink()
        write_json(unfinished / ABOUT, about)
        unfinished.replace(self.place(fingerprint))

    def result(self, fingerprint: str, benchmark: str) -> Result:
        """Return a result that exists."""
        return read_result(self.place(fingerprint) / f"{benchmark}.json")

    def predictions(self, fingerprint: str, benchmark: str) -> list[dict[str, Any]]:
        """Return the lines of the predictions.jsonl of a result."""
        return read_predictions(self.place(fingerprint) / benchmark / OWN)


def step_of(checkpoint: Path) -> int | None:
    """Return N of a folder `checkpoint-N`; None for any other name."""
    match = STEP.fullmatch(checkpoint.name)
    return None if match is None else int(match[1])


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of a judge on a benchmark, compared with the best result."""

    judge: Path
    benchmark: str
    fingerprint: str
    result: Result
    behind: Difference | None = None
    """accuracy(best) - accuracy(this) with its interval; None for the best."""

    @property
    def run(self) -> str:
        """The run folder of a checkpoint; any other judge counts as a run."""
        return str(self.judge.parent if self.step is not None else self.judge)

    @property
    def step(self) -> int | None:
        """N of `checkpoint-N`; None for other judges."""
        return step_of(self.judge.resolve())

    @property
    def words(self) -> str:
        """The comparison with the best in words."""
        if self.behind is None:
            return "best"
        return "worse" if self.behind.distinguishable else "not distinguishable"


@dataclass(frozen=True, slots=True)
class Summary:
    """All results of a sweep."""

    label: str
    """The protocol in one line."""
    standings: dict[str, list[Standing]]
    """Standings by benchmark, in the order of the judges on the command line."""
    broken: dict[str, str]
    """Judges that could not be loaded, each with the reason."""
    comparisons: int = 1
    """Number of pairs of judges on all benchmarks; the intervals of `behind` hold for all
    together."""


def summarise(
    entries: Sequence[Standing], broken: dict[str, str], store: Store, label: str
) -> Summary:
    """Return the summary of all entries, each compared with the best on its benchmark.

    All entries of a benchmark must be of the same rows. Intervals hold for all pairs of judges on
    all benchmarks together, because the best is known only after looking at every pair.
    """
    standings: dict[str, list[Standing]] = {}
    for entry in entries:
        standings.setdefault(entry.benchmark, []).append(entry)
    comparisons = sum(math.comb(len(of_benchmark), 2) for of_benchmark in standings.values())
    for benchmark, of_benchmark in standings.items():
        best = max(of_benchmark, key=lambda entry: entry.result.micro.accuracy or 0.0)
        best_predictions = store.predictions(best.fingerprint, benchmark)
        for index, entry in enumerate(of_benchmark):
            if entry is not best:
                predictions = store.predictions(entry.fingerprint, benchmark)
                behind = difference(best_predictions, predictions, comparisons)
                of_benchmark[index] = replace(entry, behind=behind)
    return Summary(label, standings, broken, comparisons)
