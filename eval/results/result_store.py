"""Results of a sweep on disk, each in a folder named by its fingerprint, and what stands out: the best of each benchmark."""

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
STEP = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of the results; one writes (the first rank), all may read."""

    folder: Path

    def place(self, fingerprint: str) -> Path:
        """Return the folder of a result, there or not."""
        return self.folder / fingerprint

    def has(self, fingerprint: str) -> bool:
        """Say whether the result is there; a folder gets its name when everything is in it."""
        return self.place(fingerprint).is_dir()

    def begin(self, fingerprint: str) -> Path:
        """Return a folder to fill; of what a killed sweep left in it only the journal of its judgements stays."""
        unfinished = self.folder / f"{fingerprint}.part"
        unfinished.mkdir(parents=True, exist_ok=True)
        for path in unfinished.rglob("*"):
            if path.is_file() and path.name != JOURNAL:
                path.unlink()
        return unfinished

    def finish(self, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Say what the filled folder is of, and give it its name in one step."""
        unfinished = self.folder / f"{fingerprint}.part"
        for journal in unfinished.rglob(JOURNAL):
            journal.unlink()
        write_json(unfinished / ABOUT, about)
        unfinished.replace(self.place(fingerprint))

    def result(self, fingerprint: str, benchmark: str) -> Result:
        """Return a result that is there."""
        return read_result(self.place(fingerprint) / f"{benchmark}.json")

    def predictions(self, fingerprint: str, benchmark: str) -> list[dict[str, Any]]:
        """Return the lines of its predictions.jsonl."""
        return read_predictions(self.place(fingerprint) / benchmark / OWN)


def step_of(checkpoint: Path) -> int | None:
    """Return N of a folder `checkpoint-N`, None for any other name."""
    found = STEP.fullmatch(checkpoint.name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Standing:
    """A judge on a benchmark, where its result lies, and how far it is behind the best."""

    judge: Path
    benchmark: str
    fingerprint: str
    result: Result
    behind: Difference | None = None
    """accuracy(best) - accuracy(this) with its interval; None for the best itself."""

    @property
    def run(self) -> str:
        """The run folder of a checkpoint; any other judge is a run of its own."""
        return str(self.judge.parent if self.step is not None else self.judge)

    @property
    def step(self) -> int | None:
        """N of `checkpoint-N`."""
        return step_of(self.judge.resolve())

    @property
    def words(self) -> str:
        """Whether the rows tell it from the best."""
        if self.behind is None:
            return "best"
        return "worse" if self.behind.distinguishable else "not distinguishable"


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole sweep."""

    label: str
    """The protocol in one line."""
    standings: dict[str, list[Standing]]
    """By benchmark, in the order in which the judges were given."""
    broken: dict[str, str]
    """Judges that could not be loaded, and why."""
    comparisons: int = 1
    """Pairs of judges, over all benchmarks, for which the intervals of the distances hold together."""


def summarise(
    entries: Sequence[Standing], broken: dict[str, str], store: Store, label: str
) -> Summary:
    """Return the summary of all entries, each now beside the best; every entry of a benchmark must be of the same rows.

    Intervals hold for all pairs of judges on all benchmarks together: the best is known only after looking at every pair.
    """
    standings: dict[str, list[Standing]] = {}
    for entry in entries:
        standings.setdefault(entry.benchmark, []).append(entry)
    comparisons = sum(math.comb(len(found), 2) for found in standings.values())
    for name, found in standings.items():
        best = max(found, key=lambda entry: entry.result.micro.accuracy or 0.0)
        first = store.predictions(best.fingerprint, name)
        for place, entry in enumerate(found):
            if entry is not best:
                others = store.predictions(entry.fingerprint, name)
                found[place] = replace(entry, behind=difference(first, others, comparisons))
    return Summary(label, standings, broken, comparisons)
