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
"""The name of the journal in the folder of a result."""
LINE_SECONDS = 60.0
"""Seconds between two progress lines on a console that is no terminal, such as a log file."""
BAR_SECONDS = 0.2
"""Seconds between two updates of the progress bar on a terminal."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Shows the progress of judging on a console, and keeps the results in a file.

    Only the first rank prints and writes. A killed evaluation can continue from the file on another
    number of ranks.
    """

    title: str = ""
    """The text before the figures of the progress, such as the name of the benchmark."""
    console: Console | None = None
    """None shows no progress."""
    file: Path | None = None
    """None keeps no results."""
    fingerprint: str = ""
    """Fingerprint of judge, rows, protocol and code. Results under another fingerprint are
    ignored."""
    key_prefix: str = ""
    """Beginning of every key. It names the part of the work if several parts share the file."""

    def of(self, part: str) -> Journal:
        """Return a journal for one part of the work, which keeps its results in the same file.

        `part` is the name of the part, such as that of a member of an ensemble. It is added to the
        title of the progress and to the keys in the file.
        """
        return replace(self, title=f"{self.title}, {part}", key_prefix=f"{self.key_prefix}{part}/")

    def remove(self) -> None:
        """Remove the journal's file, which is not needed once the results are stored elsewhere."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    @contextmanager
    def judging(self, keys: Sequence[str], kind: Any, rows: int) -> Iterator[Judging[Any]]:
        """Open the journal for the block in which items are judged.

        An item is a comparison or a response, so several items may belong to one row of a
        benchmark. Items may have equal contents. All ranks must call together; each gets the
        results that the file already holds.

        Args:
            keys: A digest of each item's content.
            kind: The type of an item's result, from which and into which pydantic converts JSON.
            rows: The number of rows that the items belong to, for the progress.
        """
        from mmrm.models.distributed import gather, rank

        is_first_rank = rank() == 0
        journal_keys = [self.key_prefix + key for key in numbered(keys)]
        result_by_key: dict[str, Any] = {}
        if self.file is not None:
            # Only the first rank reads the file, and all ranks get what it has read.
            read_on_this_rank = self._read_results(journal_keys) if is_first_rank else {}
            result_by_key = gather(read_on_this_rank)[0]
        adapter = TypeAdapter(kind)
        results: dict[int, Any] = {}
        for index, key in enumerate(journal_keys):
            if key in result_by_key:
                results[index] = adapter.validate_python(result_by_key[key])
        with ExitStack() as stack:
            file: IO[str] | None = None
            progress: ProgressBar | None = None
            if is_first_rank and self.file is not None:
                file = stack.enter_context(self.file.open("a", encoding="ascii"))
            if is_first_rank and self.console is not None:
                progress = stack.enter_context(progress_bar(self.title, self.console, rows))
            yield Judging(journal_keys, adapter, rows, file, progress, results)

    def _read_results(self, wanted_keys: Sequence[str]) -> dict[str, Any]:
        """Return the results in the file that have one of the keys, and print their number.

        The file is repaired: afterwards it holds only complete lines. If it has another
        fingerprint, it is emptied, and no result is returned.
        """
        assert self.file is not None
        lines: list[str] = []
        if self.file.is_file():
            lines = self.file.read_text(encoding="ascii", errors="replace").split("\n")
        stored: dict[str, Any] = {}
        num_broken = 0
        for line in filter(None, lines):
            try:
                key, value = json.loads(line)
                stored[key] = value
            except (ValueError, TypeError):
                num_broken += 1
        # The fingerprint is stored under the empty key.
        is_stale = stored.pop("", None) != self.fingerprint
        if is_stale or num_broken:
            kept = {"": self.fingerprint}
            if not is_stale:
                kept.update(stored)
            kept_lines = [json.dumps([key, value]) + "\n" for key, value in kept.items()]
            write_whole(self.file, "".join(kept_lines))
        results: dict[str, Any] = {}
        if not is_stale:
            distinct_keys = set(wanted_keys)
            results = {key: value for key, value in stored.items() if key in distinct_keys}
        facts: list[str] = []
        if results:
            facts.append(
                f"{len(results):,} of {len(wanted_keys):,} are there, judged before the evaluation "
                "was stopped"
            )
        if is_stale and stored:
            facts.append(
                f"{len(stored):,} belong to another judge, protocol, rows or code and are judged "
                "anew"
            )
        if num_broken:
            facts.append(f"{num_broken:,} half-written dropped")
        if facts and self.console:
            self.console.print(
                f"{self.title}: judgements in {self.file}: {'; '.join(facts)}.",
                markup=False,
                soft_wrap=True,
            )
        return results


def numbered(keys: Sequence[str]) -> list[str]:
    """Return distinct keys: a key that repeats an earlier key gets the suffix -2, -3 and so on."""
    count_by_key: Counter[str] = Counter()
    distinct_keys = []
    for key in keys:
        count_by_key[key] += 1
        number = count_by_key[key]
        distinct_keys.append(key if number == 1 else f"{key}-{number}")
    return distinct_keys


@dataclass(slots=True)
class Judging(Generic[ResultT]):
    """An open journal, which takes the results of items while they are judged.

    An item is a comparison of two responses, or a response. The open journal writes new results to
    the journal's file and shows the progress, both on the first rank only.
    """

    keys: Sequence[str]
    """The key of each item in the file."""
    adapter: TypeAdapter[ResultT]
    """Converts results to plain values."""
    num_rows: int
    """Number of rows that the items belong to."""
    file: IO[str] | None
    """None if no results are kept, and on ranks other than the first."""
    progress: ProgressBar | None
    """None if no progress is shown, and on ranks other than the first."""
    results: dict[int, ResultT]
    """Results by the item's index, on every rank."""
    num_before: int = field(init=False)
    """Number of results that the journal held when it was opened."""

    def __post_init__(self) -> None:
        self.num_before = len(self.results)

    def add(self, new_results: Mapping[int, ResultT]) -> None:
        """Write new results to the journal's file, and show the progress.

        Args:
            new_results: The results that all ranks have computed, by the index of the item.
        """
        self.results.update(new_results)
        if self.file is not None:
            for index, result in new_results.items():
                line = [self.keys[index], self.adapter.dump_python(result)]
                self.file.write(json.dumps(line) + "\n")
            self.file.flush()
        if self.progress is not None and self.keys:
            # A row may have several items, so rows are counted by the share of items.
            num_rows_done = len(self.results) * self.num_rows // len(self.keys)
            num_rows_before = self.num_before * self.num_rows // len(self.keys)
            self.progress.update(num_rows_done, num_rows_done - num_rows_before)


@dataclass(slots=True)
class ProgressBar:
    """Shows the number of rows that are done, the rows per second and the remaining time.

    It is a bar on a terminal, and otherwise a line every LINE_SECONDS.
    """

    title: str
    console: Console
    num_rows: int
    """Number of rows in all."""
    bar: Progress | None
    """The bar on a terminal; None on a console that is no terminal."""
    started: float
    """The time at which the work started, in seconds of `time.monotonic`."""
    last_shown: float
    """The time of the last update that was shown."""

    def update(self, num_done: int, num_now: int) -> None:
        """Show the progress, unless the last update was shown a moment ago.

        Args:
            num_done: The number of rows that are done.
            num_now: The number of these that were done since the start of this process. The others
                were done before a kill, and do not count in the rate.
        """
        now = time.monotonic()
        pause = LINE_SECONDS if self.bar is None else BAR_SECONDS
        if now - self.last_shown < pause:
            return
        self.last_shown = now
        rate = num_now / (now - self.started)
        remaining: timedelta | str = "unknown time"
        if rate > 0:
            remaining = timedelta(seconds=round((self.num_rows - num_done) / rate))
        line = (
            f"{self.title}: {num_done:,} of {self.num_rows:,} rows, {rate:,.2f} rows/s, "
            f"{remaining} left"
        )
        if self.bar is None:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self.bar.update(
                self.bar.task_ids[0], completed=num_done, description=line, refresh=True
            )


@contextmanager
def progress_bar(title: str, console: Console, rows: int) -> Iterator[ProgressBar]:
    """Show the progress of judging `rows` rows during the block, which updates the yielded bar."""
    started = time.monotonic()
    if not console.is_terminal:
        yield ProgressBar(title, console, rows, bar=None, started=started, last_shown=started)
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
        yield ProgressBar(title, console, rows, bar, started=started, last_shown=started)


SILENT = Journal()
"""A journal that shows no progress and keeps no results."""
