"""The search itself: blocks of training rows, looked up in worker processes; what is found goes into one file a block."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmrm.data.errors import RecordError
from mmrm.data.preference import validate
from mmrm.data.preparation.row_index import pair_key
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.files import mapped, write_whole
from mmrm.eval.contamination.index import OverlapIndex, excerpt, questions, table_of
from mmrm.eval.contamination.overlap_report import Line

BLOCK = 1024
"""Rows of one unit of work: some seconds for records with images."""


class Block(NamedTuple):
    """Rows of one source."""

    source: int
    rows: range


@dataclass(frozen=True, slots=True)
class Search:
    """Everything that a worker needs."""

    sources: Sequence[Source]
    index: OverlapIndex
    folder: Path

    def file(self, block: Block) -> Path:
        """Return the file of a block's matches."""
        return self.folder / f"{block.source}-{block.rows.start}.jsonl"

    def run(self, block: Block) -> int:
        """Look up the records of a block, write the matches, return the number of rows."""
        source = self.sources[block.source]
        found: list[Line] = []
        unusable = 0
        for row in block.rows:
            try:
                record = validate(source.record(row))
                matches = self.index.matches(record)
            except RecordError:
                unusable += 1
                continue
            for hit, context in matches:
                pair = table_of(hit.kind) == "pair"
                line = {
                    "record": record.identity,
                    "source": source.name,
                    "fingerprint": f"{pair_key(record):016x}",
                }
                shown = (
                    f"{record.chosen} | {record.rejected}" if pair else questions(record.prompt)[-1]
                )
                found.append(
                    {**line, "context": context, "excerpt": excerpt(shown), **hit._asdict()}
                )
        lines = [{"source": source.name, "records": len(block.rows), "unusable": unusable}, *found]
        write_whole(self.file(block), "".join(json.dumps(line) + "\n" for line in lines))
        return len(block.rows)


def run(search: Search, workers: int, console: Console) -> list[Path]:
    """Run all blocks that are not there yet, with their progress and rate; return the files of all, in the order of the rows."""
    blocks = [
        Block(number, range(start, min(start + BLOCK, len(source))))
        for number, source in enumerate(search.sources)
        for start in range(0, len(source), BLOCK)
    ]
    missing = [block for block in blocks if not search.file(block).exists()]
    total = sum(map(len, search.sources))
    before = done = total - sum(len(block.rows) for block in missing)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    # no thread of its own: worker processes are forked while the bar is shown
    progress = Progress(*columns, console=console, auto_refresh=False)
    with progress, mapped(search.run, missing, workers) as found:
        task = progress.add_task("looking for overlap", total=total, completed=before)
        for rows in found:
            done += rows
            rate = (done - before) / (time.monotonic() - started)
            progress.update(
                task, completed=done, description=f"{rate:,.0f} records/s", refresh=True
            )
    return list(map(search.file, blocks))
