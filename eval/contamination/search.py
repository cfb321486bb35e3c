"""The search for overlap: blocks of training rows are looked up in worker processes.

The matches of each block are written to a separate file, so that a search that was stopped
continues with the missing blocks.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.row_index import pair_key
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.files import parallel_results, write_whole
from mmrm.eval.contamination.index import Hit, OverlapIndex, excerpt, questions, table_of
from mmrm.eval.contamination.overlap_report import Line

BLOCK = 1024
"""Rows of one unit of work: some seconds for records with images."""


class Block(NamedTuple):
    """Rows of one source."""

    source: int
    """The index of the source."""
    rows: range


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the entries of an index in some sources. Worker processes receive a copy."""

    sources: Sequence[Source]
    index: OverlapIndex
    folder: Path
    """The folder of the files of matches."""

    def file(self, block: Block) -> Path:
        """Return the file of a block's matches."""
        return self.folder / f"{block.source}-{block.rows.start}.jsonl"

    def search_block(self, block: Block) -> int:
        """Look up the records of a block, write their matches, and return the number of rows."""
        source = self.sources[block.source]
        matches: list[Line] = []
        num_unusable = 0
        for row in block.rows:
            try:
                record = validate(source.record(row))
                hits = self.index.matches(record)
            except RecordError:
                num_unusable += 1
                continue
            for hit, context in hits:
                matches.append(_line(record, source.name, hit, context))
        head = {"source": source.name, "records": len(block.rows), "unusable": num_unusable}
        lines = [json.dumps(line) + "\n" for line in (head, *matches)]
        write_whole(self.file(block), "".join(lines))
        return len(block.rows)


def _line(record: Preference, source: str, hit: Hit, context: str) -> Line:
    """Return the line of a match: an entry of the index, and its context in the record."""
    responses = f"{record.chosen} | {record.rejected}"
    is_pair = table_of(hit.kind) == "pair"
    text = responses if is_pair else questions(record.prompt)[-1]
    return {
        "record": record.identity,
        "source": source,
        "fingerprint": f"{pair_key(record):016x}",
        "context": context,
        "excerpt": excerpt(text),
        "kind": hit.kind,
        "entry": hit.entry,
        "similarity": hit.similarity,
    }


def run_search(search: Search, workers: int, console: Console) -> list[Path]:
    """Search all blocks whose file is missing, and return the files of all, in the order of rows.

    The console shows the progress and the rate.
    """
    blocks = _blocks(search.sources)
    missing = [block for block in blocks if not search.file(block).exists()]
    total = sum(len(source) for source in search.sources)
    num_before = total - sum(len(block.rows) for block in missing)
    num_done = num_before
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    # The bar has no thread, because worker processes are forked while it is shown.
    progress = Progress(*columns, console=console, auto_refresh=False)
    with progress, parallel_results(search.search_block, missing, workers) as results:
        task = progress.add_task("looking for overlap", total=total, completed=num_before)
        for num_rows in results:
            num_done += num_rows
            rate = (num_done - num_before) / (time.monotonic() - started)
            progress.update(
                task, completed=num_done, description=f"{rate:,.0f} records/s", refresh=True
            )
    return [search.file(block) for block in blocks]


def _blocks(sources: Sequence[Source]) -> list[Block]:
    """Return the rows of all sources in blocks."""
    blocks = []
    for number, source in enumerate(sources):
        for start in range(0, len(source), BLOCK):
            blocks.append(Block(number, range(start, min(start + BLOCK, len(source)))))
    return blocks
