"""The results of judging so far: shown as they come, and kept in a file.

A killed evaluation continues from the file. A line of it is `[key, result]`; the first holds the
fingerprint of judge, rows, protocol and scoring code. A key is a digest of the item's content, never
a name that two items could share.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mmrm.data.storage.files import write_whole

ResultT = TypeVar("ResultT")

JOURNAL = "journal.jsonl"
LINE_SECONDS = 60.0
"""Between two lines on a console that is no terminal, such as a log file."""
BAR_SECONDS = 0.2
"""Between two drawings of the bar on a terminal."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Where judging shows its progress and keeps its results.

    The first rank does both. A run of any other number of ranks may continue from the file.
    """

    title: str = ""
    console: Console | None = None
    """None shows nothing."""
    file: Path | None = None
    """None keeps nothing."""
    mark: str = ""
    """A fingerprint; what the file holds under another one is not taken."""
    part: str = ""
    """Before every key: one of several judges that share the file."""

    def of(self, part: str) -> Journal:
        """Return the journal of one of several judges."""
        return replace(self, title=f"{self.title}, {part}", part=f"{self.part}{part}/")

    def remove(self) -> None:
        """Remove the file: the results are there."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    @contextmanager
    def judging(self, keys: Sequence[str], kind: Any, rows: int) -> Iterator[Judging[Any]]:
        """Give a journal for the items whose contents have the digests `keys`.

        Several items may belong to one row, and several may have equal contents. All ranks must call
        together; each gets the results that the journal holds.

        Args:
            keys: The digests of the items.
            kind: The type of an item's result.
            rows: The number of rows that the items belong to, for the progress.
        """
        from mmrm.models.distributed import gather, rank

        is_first = rank() == 0
        names = [self.part + key for key in numbered(keys)]
        known: dict[str, Any] = {}
        if self.file is not None:
            known = gather(self._known(set(names)) if is_first else {})[0]
        adapter = TypeAdapter(kind)
        found: dict[int, Any] = {}
        for index, name in enumerate(names):
            if name in known:
                found[index] = adapter.validate_python(known[name])
        with ExitStack() as stack:
            file: IO[str] | None = None
            progress: ProgressBar | None = None
            if is_first and self.file is not None:
                file = stack.enter_context(self.file.open("a", encoding="ascii"))
            if is_first and self.console is not None:
                progress = stack.enter_context(showing(self.title, self.console, rows))
            yield Judging(names, adapter, rows, file, progress, found)

    def _known(self, wanted: set[str]) -> dict[str, Any]:
        """Return the results that the file holds of the items, by key.

        Afterwards the file holds whole lines under the journal's fingerprint only.
        """
        assert self.file is not None
        lines: list[str] = []
        if self.file.is_file():
            lines = self.file.read_text(encoding="ascii", errors="replace").split("\n")
        held: dict[str, Any] = {}
        num_broken = 0
        for line in filter(None, lines):
            try:
                key, value = json.loads(line)
                held[key] = value
            except (ValueError, TypeError):
                num_broken += 1
        is_stale = held.pop("", None) != self.mark
        if is_stale or num_broken:
            kept = {"": self.mark}
            if not is_stale:
                kept.update(held)
            write_whole(
                self.file, "".join(json.dumps([key, value]) + "\n" for key, value in kept.items())
            )
        known: dict[str, Any] = {}
        if not is_stale:
            known = {key: value for key, value in held.items() if key in wanted}
        facts: list[str] = []
        if known:
            facts.append(
                f"{len(known):,} of {len(wanted):,} are there, judged before the evaluation was stopped"
            )
        if is_stale and held:
            facts.append(
                f"{len(held):,} belong to another judge, protocol, rows or code and are judged anew"
            )
        if num_broken:
            facts.append(f"{num_broken:,} half-written dropped")
        if facts and self.console:
            self.console.print(
                f"{self.title}: judgements in {self.file}: {'; '.join(facts)}.",
                markup=False,
                soft_wrap=True,
            )
        return known


def numbered(keys: Sequence[str]) -> list[str]:
    """Return the keys with -2, -3 … behind those that repeat an earlier one, so that all differ."""
    times: Counter[str] = Counter()
    names = []
    for key in keys:
        times[key] += 1
        names.append(key if times[key] == 1 else f"{key}-{times[key]}")
    return names


@dataclass(slots=True)
class Judging(Generic[ResultT]):
    """A journal while items are judged."""

    keys: Sequence[str]
    kind: TypeAdapter[ResultT]
    rows: int
    file: IO[str] | None
    progress: ProgressBar | None
    found: dict[int, ResultT]
    """Results by the item's index, on every rank."""
    num_before: int = field(init=False)
    """Results that the journal held before."""

    def __post_init__(self) -> None:
        self.num_before = len(self.found)

    def add(self, new: Mapping[int, ResultT]) -> None:
        """Keep and show the results of some items, those of all ranks together."""
        self.found.update(new)
        if self.file is not None:
            for index, result in new.items():
                line = [self.keys[index], self.kind.dump_python(result)]
                self.file.write(json.dumps(line) + "\n")
            self.file.flush()
        if self.progress is not None and self.keys:
            rows_done = len(self.found) * self.rows // len(self.keys)
            rows_before = self.num_before * self.rows // len(self.keys)
            self.progress.update(rows_done, rows_done - rows_before)


@dataclass(slots=True)
class ProgressBar:
    """Rows done, rows a second and the time left: a bar on a terminal, else a line every so often."""

    title: str
    console: Console
    rows: int
    bar: Progress | None
    started: float
    last: float

    def update(self, num_done: int, num_now: int) -> None:
        """Show that `num_done` rows are done, `num_now` of them since the start."""
        now = time.monotonic()
        if now - self.last < (LINE_SECONDS if self.bar is None else BAR_SECONDS):
            return
        self.last = now
        rate = num_now / (now - self.started)
        left = timedelta(seconds=round((self.rows - num_done) / rate)) if rate else "unknown time"
        line = f"{self.title}: {num_done:,} of {self.rows:,} rows, {rate:,.2f} rows/s, {left} left"
        if self.bar is None:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self.bar.update(
                self.bar.task_ids[0], completed=num_done, description=line, refresh=True
            )


@contextmanager
def showing(title: str, console: Console, rows: int) -> Iterator[ProgressBar]:
    """Show how far the judging of `rows` rows is while the block runs."""
    started = time.monotonic()
    if not console.is_terminal:
        yield ProgressBar(title, console, rows, None, started, started)
        return
    # no thread of its own: loader workers are forked while the bar is shown
    with Progress(
        BarColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        auto_refresh=False,
    ) as bar:
        bar.add_task(title, total=rows)
        yield ProgressBar(title, console, rows, bar, started, started)


SILENT = Journal()
"""Shows and keeps nothing."""
