"""What judging has found so far: shown as it comes, and kept in a file, so that a killed evaluation continues.

A line of the file is `[key, what was found]`; the first holds the fingerprint of judge, rows, protocol and scoring code. A key
is a digest of the item's content, never a name that two items could share.
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

Found = TypeVar("Found")

JOURNAL = "journal.jsonl"
LINE_SECONDS, BAR_SECONDS = 60.0, 0.2
"""Between two lines on a console that is no terminal (a log file), and between two drawings of the bar on one that is."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Where judging shows and keeps what it finds; all of it is the first rank's, and any number of ranks may go on."""

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
        """Judge the items whose contents have the digests `keys`; `kind` is the type of what is found of an item.

        Several items may belong to one row, and several may have equal contents. All ranks must call together; each gets
        what was found before.
        """
        from mmrm.models.distributed import gather, rank

        writes = rank() == 0 and self.file is not None
        names = [self.part + key for key in numbered(keys)]
        known: dict[str, Any] = (
            gather(self._known(set(names)) if writes else {})[0] if self.file else {}
        )
        adapter = TypeAdapter(kind)
        found = {
            index: adapter.validate_python(known[name])
            for index, name in enumerate(names)
            if name in known
        }
        with ExitStack() as stack:
            file = (
                stack.enter_context(self.file.open("a", encoding="ascii"))
                if writes and self.file
                else None
            )
            shown = (
                stack.enter_context(showing(self.title, self.console, rows))
                if rank() == 0 and self.console
                else None
            )
            yield Judging(names, adapter, rows, file, shown, found)

    def _known(self, wanted: set[str]) -> dict[str, Any]:
        """Return what the file holds of the items, by key, and leave a file of whole lines under the fingerprint."""
        assert self.file is not None
        lines = (
            self.file.read_text(encoding="ascii", errors="replace").split("\n")
            if self.file.is_file()
            else []
        )
        held: dict[str, Any] = {}
        broken = 0
        for line in filter(None, lines):
            try:
                key, value = json.loads(line)
                held[key] = value
            except (ValueError, TypeError):
                broken += 1
        stale = held.pop("", None) != self.mark
        if stale or broken:
            kept = {"": self.mark} | ({} if stale else held)
            write_whole(
                self.file, "".join(json.dumps([key, value]) + "\n" for key, value in kept.items())
            )
        known = {} if stale else {key: value for key, value in held.items() if key in wanted}
        said = (
            [
                f"{len(known):,} of {len(wanted):,} are there, judged before the evaluation was stopped"
            ]
            if known
            else []
        )
        said += (
            [f"{len(held):,} belong to another judge, protocol, rows or code and are judged anew"]
            if stale and held
            else []
        )
        said += [f"{broken:,} half-written dropped"] if broken else []
        if said and self.console:
            self.console.print(
                f"{self.title}: judgements in {self.file}: {'; '.join(said)}.",
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
class Judging(Generic[Found]):
    """A journal while items are judged."""

    keys: Sequence[str]
    kind: TypeAdapter[Found]
    rows: int
    file: IO[str] | None
    shown: Shown | None
    found: dict[int, Found]
    """By the item's index, on every rank."""
    before: int = field(init=False)

    def __post_init__(self) -> None:
        self.before = len(self.found)

    def add(self, new: Mapping[int, Found]) -> None:
        """Take what was found of some items; all ranks' together."""
        self.found.update(new)
        if self.file is not None:
            items = ((self.keys[index], self.kind.dump_python(one)) for index, one in new.items())
            self.file.writelines(json.dumps(item) + "\n" for item in items)
            self.file.flush()
        if self.shown is not None and self.keys:
            done, before = (
                count * self.rows // len(self.keys) for count in (len(self.found), self.before)
            )
            self.shown.update(done, done - before)


@dataclass(slots=True)
class Shown:
    """Rows done, rows a second and the time left: a bar on a terminal, else a line every so often."""

    title: str
    console: Console
    rows: int
    bar: Progress | None
    started: float
    last: float

    def update(self, done: int, now: int) -> None:
        """Show that `done` rows are done, `now` of them since the start."""
        moment = time.monotonic()
        if moment - self.last < (LINE_SECONDS if self.bar is None else BAR_SECONDS):
            return
        self.last, rate = moment, now / (moment - self.started)
        left = timedelta(seconds=round((self.rows - done) / rate)) if rate else "unknown time"
        line = f"{self.title}: {done:,} of {self.rows:,} rows, {rate:,.2f} rows/s, {left} left"
        if self.bar is None:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self.bar.update(self.bar.task_ids[0], completed=done, description=line, refresh=True)


@contextmanager
def showing(title: str, console: Console, rows: int) -> Iterator[Shown]:
    """Show how far the judging of `rows` rows is while the block runs."""
    started = time.monotonic()
    if not console.is_terminal:
        yield Shown(title, console, rows, None, started, started)
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
        yield Shown(title, console, rows, bar, started, started)


SILENT = Journal()
"""Shows and keeps nothing."""
