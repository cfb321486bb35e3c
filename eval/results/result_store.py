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
    """The folder in which a sweep keeps its results, each named by a fingerprint.

    The fingerprint is a digest of the judge, the rows and the protocol. The first rank writes the
    folder, and all ranks may read it.
    """

    folder: Path

    def folder_of(self, fingerprint: str) -> Path:
        """Return the folder of the result with this fingerprint, which need not exist."""
        return self.folder / fingerprint

    def has(self, fingerprint: str) -> bool:
        """Return True if the result with this fingerprint is complete."""
        return self.folder_of(fingerprint).is_dir()

    def begin(self, fingerprint: str) -> Path:
        """Create a folder for a result that is to be written, and return it.

        Of the files that a killed sweep left in it, only the journal is kept, a JSON-lines file of
        the judgements so far.
        """
        unfinished = self.folder / f"{fingerprint}.part"
        unfinished.mkdir(parents=True, exist_ok=True)
        for path in unfinished.rglob("*"):
            if path.is_file() and path.name != JOURNAL:
                path.unlink()
        return unfinished

    def finish(self, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Describe the result that was written into the folder of `begin`, and mark it as complete.

        The folder then gets its final name, by which `has` recognises a complete result.

        Args:
            fingerprint: The result's fingerprint.
            about: The description of the judge and of the rows, which is written to `about.json`.
        """
        unfinished = self.folder / f"{fingerprint}.part"
        for journal in unfinished.rglob(JOURNAL):
            journal.unlink()
        write_json(unfinished / ABOUT, about)
        unfinished.replace(self.folder_of(fingerprint))

    def result(self, fingerprint: str, benchmark: str) -> Result:
        """Return a complete result on a benchmark."""
        return read_result(self.folder_of(fingerprint) / f"{benchmark}.json")

    def predictions(self, fingerprint: str, benchmark: str) -> list[dict[str, Any]]:
        """Return the lines of the predictions.jsonl of a complete result on a benchmark."""
        return read_predictions(self.folder_of(fingerprint) / benchmark / OWN)


def step_of(checkpoint: Path) -> int | None:
    """Return N of a folder `checkpoint-N`; None for any other name."""
    match = STEP.fullmatch(checkpoint.name)
    return None if match is None else int(match[1])


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of a judge on a benchmark, compared with the best result on this benchmark."""

    judge: Path
    benchmark: str
    fingerprint: str
    result: Result
    behind: Difference | None = None
    """The best accuracy minus the accuracy of this judge, with its interval; None for the best
    judge."""

    @property
    def run(self) -> str:
        """The run folder of a judge that is a checkpoint, and the path of any other judge."""
        return str(self.judge.parent if self.step is not None else self.judge)

    @property
    def step(self) -> int | None:
        """N if the judge is a folder `checkpoint-N`, else None."""
        return step_of(self.judge.resolve())

    @property
    def words(self) -> str:
        """The comparison with the best judge in words: "best", "worse" or "not distinguishable"."""
        if self.behind is None:
            return "best"
        return "worse" if self.behind.distinguishable else "not distinguishable"


@dataclass(frozen=True, slots=True)
class Summary:
    """All results of a sweep, which evaluates several judges on several benchmarks."""

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
    """Compare the result of each judge with the best result on the same benchmark.

    Intervals hold for all pairs of judges on all benchmarks together, because the best is known
    only after looking at every pair.

    Args:
        entries: The results, without comparisons. All results on a benchmark are of the same rows.
        broken: Judges that could not be loaded, each with the reason.
        store: The folder with the predictions of all results.
        label: The protocol in one line.
    """
    standings_by_benchmark: dict[str, list[Standing]] = {}
    for entry in entries:
        standings_by_benchmark.setdefault(entry.benchmark, []).append(entry)
    comparisons = 0
    for standings in standings_by_benchmark.values():
        comparisons += math.comb(len(standings), 2)
    for benchmark, standings in standings_by_benchmark.items():
        # An accuracy is None without rows, and counts as 0 then.
        best = max(standings, key=lambda standing: standing.result.micro.accuracy or 0.0)
        best_predictions = store.predictions(best.fingerprint, benchmark)
        for index, standing in enumerate(standings):
            if standing is not best:
                predictions = store.predictions(standing.fingerprint, benchmark)
                behind = difference(best_predictions, predictions, comparisons)
                standings[index] = replace(standing, behind=behind)
    return Summary(label, standings_by_benchmark, broken, comparisons)
