"""The journal of an evaluation: it shows the progress, and keeps the results in a file.

A killed evaluation continues from the file. Each line of the file is `[key, result]`.
The first line holds the fingerprint of judge, rows, protocol and scoring code. A key is a digest of
the item's content, never a name that two items could share.
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
"""Seconds between two progress lines on a console that is no terminal, such as a log file."""
BAR_SECONDS = 0.2
"""Seconds between two updates of the progress bar on a terminal."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The console that shows the progress of judging, and the file that keeps its results.

    Only the first rank prints and writes. A run with another number of ranks can continue from the
    file.
    """

    title: str = ""
    console: Console | None = None
    """None shows no progress."""
    file: Path | None = None
    """None keeps no results."""
    mark: str = ""
    """Fingerprint of judge, rows, protocol and code. Results under another fingerprint are ignored."""
    part: str = ""
    """Prefix of every key. It names the judge if several judges share the file."""

    def of(self, part: str) -> Journal:
        """Return the journal of the judge `part`, one of several judges that share the file."""
        return replace(self, title=f"{self.title}, {part}", part=f"{self.part}{part}/")

    def remove(self) -> None:
        """Remove the file; it is not needed once the results are stored elsewhere."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    @contextmanager
    def judging(self, keys: Sequence[str], kind: Any, rows: int) -> Iterator[Judging[Any]]:
        """Open the journal while the items with the digests `keys` are judged.

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
                progress = stack.enter_context(progress_bar(self.title, self.console, rows))
            yield Judging(names, adapter, rows, file, progress, found)

    def _known(self, wanted: set[str]) -> dict[str, Any]:
        """Return the results of the keys `wanted` that are in the file, by key.

        Afterwards the file holds only complete lines, under the journal's fingerprint.
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
    """Return distinct keys: a key that repeats an earlier key gets the suffix -2, -3 and so on."""
    times: Counter[str] = Counter()
    names = []
    for key in keys:
        times[key] += 1
        names.append(key if times[key] == 1 else f"{key}-{times[key]}")
    return names


@dataclass(slots=True)
class Judging(Generic[ResultT]):
    """An open journal: the known results of the items, and the file and bar that new results go to."""

    keys: Sequence[str]
    kind: TypeAdapter[ResultT]
    rows: int
    file: IO[str] | None
    progress: ProgressBar | None
    found: dict[int, ResultT]
    """Results by the item's index, on every rank."""
    num_before: int = field(init=False)
    """Number of results that the journal held when it was opened."""

    def __post_init__(self) -> None:
        self.num_before = len(self.found)

    def add(self, new: Mapping[int, ResultT]) -> None:
        """Add new results of all ranks, by the item's index, to the file and to the progress bar."""
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
    """Progress as rows done, rows per second and remaining time.

    It is a bar on a terminal, and otherwise a line every LINE_SECONDS.
    """

    title: str
    console: Console
    rows: int
    bar: Progress | None
    started: float
    last: float

    def update(self, num_done: int, num_now: int) -> None:
        """Show that `num_done` rows are done, of which `num_now` were done since the start."""
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
def progress_bar(title: str, console: Console, rows: int) -> Iterator[ProgressBar]:
    """Provide the progress bar for the judging of `rows` rows while the block runs."""
    started = time.monotonic()
    if not console.is_terminal:
        yield ProgressBar(title, console, rows, None, started, started)
        return
    # The bar has no thread, because loader workers are forked while it is visible.
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
"""A journal that shows no progress and keeps no results."""
