"""The search itself: blocks of training rows, looked up in worker processes; what is found goes into one file a block."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from data.errors import RecordError
from data.preference import Preference, validate
from data.preparation.row_index import pair_key
from data.sources.shared.base import Source
from data.storage.files import worker_processes, write_whole
from eval.contamination.index import Match, OverlapIndex, excerpt, questions, table_of
from eval.contamination.report import Line

BLOCK = 1024
"""Rows of one unit of work: some seconds for records with pictures."""


@dataclass(frozen=True, slots=True)
class Search:
    """Everything that a worker needs."""

    sources: Sequence[Source]
    index: OverlapIndex
    folder: Path

    def blocks(self) -> list[tuple[int, int]]:
        """Return (number of the source, first row) of all blocks."""
        return [(number, start) for number, source in enumerate(self.sources) for start in range(0, len(source), BLOCK)]

    def part(self, block: tuple[int, int]) -> Path:
        """Return the file of a block's matches."""
        return self.folder / f"{block[0]}-{block[1]}.jsonl"

    def rows(self, block: tuple[int, int]) -> range:
        """Return the rows of a block."""
        return range(block[1], min(block[1] + BLOCK, len(self.sources[block[0]])))

    def run(self, block: tuple[int, int]) -> int:
        """Look up the records of a block, write the matches, return the number of rows."""
        source = self.sources[block[0]]
        found: list[Line] = []
        unusable = 0
        for row in self.rows(block):
            try:
                record = validate(source.record(row))
                found += [self._line(record, source, match) for match in self.index.matches(record)]
            except RecordError:
                unusable += 1
        rows = self.rows(block)
        lines = [{"source": source.name, "records": len(rows), "unusable": unusable}, *found]
        write_whole(self.part(block), "".join(json.dumps(line) + "\n" for line in lines))
        return len(rows)

    def _line(self, record: Preference, source: Source, match: Match) -> Line:
        hit = match.hit
        shown = f"{record.chosen} | {record.rejected}" if table_of(hit.kind) == "pair" else questions(record.prompt)[-1]
        return {
            "record": record.identity,
            "source": source.name,
            "fingerprint": f"{pair_key(record):016x}",
            "context": match.context,
            "excerpt": excerpt(shown),
            **hit._asdict(),
        }


def run(search: Search, workers: int, console: Console) -> list[Path]:
    """Run all blocks that are not there yet, with their progress and rate; return the files of all, in the order of the rows."""
    search.folder.mkdir(parents=True, exist_ok=True)
    missing = [block for block in search.blocks() if not search.part(block).exists()]
    total = sum(map(len, search.sources))
    before = total - sum(len(search.rows(block)) for block in missing)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.monotonic()
    # no thread of its own: worker processes are forked while the bar is shown
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("looking for overlap", total=total, completed=before)
        done = before
        for rows in _rows_done(search, missing, workers):
            done += rows
            rate = (done - before) / (time.monotonic() - started)
            progress.update(task, completed=done, description=f"{rate:,.0f} records/s", refresh=True)
    return [search.part(block) for block in search.blocks()]


def _rows_done(search: Search, missing: Sequence[tuple[int, int]], workers: int) -> Iterator[int]:
    """Run the blocks and yield the number of rows of each as it is done; with one worker in this process."""
    if workers <= 1 or len(missing) <= 1:
        yield from map(search.run, missing)
        return
    with worker_processes(workers, _begin, (search,)) as pool:
        for future in as_completed([pool.submit(_work, block) for block in missing]):
            yield future.result()


_search: list[Search] = []
"""The search of this worker process: handed over once, since its index is large."""


def _begin(search: Search) -> None:
    _search[:] = [search]


def _work(block: tuple[int, int]) -> int:
    return _search[0].run(block)
