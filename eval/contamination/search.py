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
from mmrm.eval.contamination.overlap_report import Match

BLOCK = 1024
"""Rows of one unit of work: some seconds for records with images."""


class Block(NamedTuple):
    """Successive rows of one source, which one worker process searches."""

    source: int
    """The index of the source."""
    rows: range


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the images, questions and responses of benchmarks in training records.

    Worker processes receive a copy of it.
    """

    sources: Sequence[Source]
    index: OverlapIndex
    folder: Path
    """The folder of the files with the matches of each block."""

    def match_file(self, block: Block) -> Path:
        """Return the path of the file with a block's matches, which exists once it is searched."""
        return self.folder / f"{block.source}-{block.rows.start}.jsonl"

    def search_block(self, block: Block) -> int:
        """Search the records of a block, write their matches, and return the number of rows.

        The matches are written to the block's file (`match_file`).
        The first line of the file has the counts of rows and of records that cannot be used.
        """
        source = self.sources[block.source]
        matches: list[Match] = []
        num_unusable = 0
        for row in block.rows:
            try:
                record = validate(source.record(row))
                hits = self.index.matches(record)
            except RecordError:
                num_unusable += 1
                continue
            for hit, context in hits:
                matches.append(_match(record, source.name, hit, context))
        head = {"source": source.name, "records": len(block.rows), "unusable": num_unusable}
        lines = [json.dumps(line) + "\n" for line in (head, *matches)]
        write_whole(self.match_file(block), "".join(lines))
        return len(block.rows)


def _match(record: Preference, source: str, hit: Hit, context: str) -> Match:
    """Return a match of a record as it is written to the file.

    Args:
        record: The training record.
        source: The name of its source.
        hit: The content of a benchmark that occurs in the record.
        context: The context of this content in the record.
    """
    # People recognise a record by its last question, or by its responses if these are the match.
    text = questions(record.prompt)[-1]
    if table_of(hit.kind) == "pair":
        text = " | ".join(response.text for response in record.responses)
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
    """Search the sources, and return the files with the matches, in the order of the rows.

    Blocks of rows whose file exists already were searched before an interruption, and are skipped.

    Args:
        search: The search.
        workers: The number of processes that search.
        console: The console for the progress and the rate.
    """
    blocks = _blocks(search.sources)
    missing_blocks = [block for block in blocks if not search.match_file(block).exists()]
    num_records = sum(len(source) for source in search.sources)
    num_before = num_records - sum(len(block.rows) for block in missing_blocks)
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
    with progress, parallel_results(search.search_block, missing_blocks, workers) as results:
        task = progress.add_task("looking for overlap", total=num_records, completed=num_before)
        for num_rows in results:
            num_done += num_rows
            rate = (num_done - num_before) / (time.monotonic() - started)
            progress.update(
                task, completed=num_done, description=f"{rate:,.0f} records/s", refresh=True
            )
    return [search.match_file(block) for block in blocks]


def _blocks(sources: Sequence[Source]) -> list[Block]:
    """Return the rows of all sources in blocks of at most BLOCK rows."""
    blocks = []
    for source_index, source in enumerate(sources):
        for start in range(0, len(source), BLOCK):
            rows = range(start, min(start + BLOCK, len(source)))
            blocks.append(Block(source_index, rows))
    return blocks
