"""The first reading of a source: every row once, in parallel, resumable; afterwards a source opens in a moment.

The facts of each block of rows are written as one small file under a temporary name and then renamed, so that a kill
loses at most the blocks in progress. When all blocks stand they become one memory-mapped array.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from data.config.section import Section
from data.errors import UserError
from data.preparation.row_index import BAD, REASONS, ROW, RowIndex, facts_of
from data.sources.shared.base import Source
from data.storage.code import code_digest
from data.storage.files import digest, whole_file, worker_processes, write_whole

BLOCK = 8192
"""Rows of one unit of work: some seconds for records with images."""
EXAMPLES = 5
"""Messages about bad records that a block keeps for the data card."""
ADAPTERS = Path(__file__).resolve().parents[1] / "sources"


class BadRecordConfig(Section):
    """What a record that cannot be used does to a run: it is skipped and counted, up to a limit, or stops it."""

    policy: Literal["strict", "skip"] = "skip"
    limit: float = Field(default=0.01, ge=0, le=1)
    """Under `skip`: the largest share of a source's rows that may be bad before the run stops after all."""


@dataclass(frozen=True)
class Reading:
    """How sources are read for the first time, and where what was found is kept."""

    bad: BadRecordConfig
    cache: Path
    workers: int


@dataclass(frozen=True)
class Prepared:
    """A source that was read through."""

    folder: Path
    messages: list[str]
    """About some of its bad records."""
    content: str
    """Changes with the records, and only with them: what was found in all rows, as 16 hexadecimal digits."""

    @property
    def facts(self) -> RowIndex:
        """The memory-mapped facts; opened anew each time, so that the object pickles small."""
        return RowIndex(np.load(self.folder / "rows.npy", mmap_mode="r"), np.load(self.folder / "sizes.npy", mmap_mode="r"))


def prepared(source: Source, reading: Reading) -> Prepared:
    """Return what was found in all rows of `source`.

    Reads the source if that has not been done yet; processes that ask at the same time (the ranks of a node) wait.

    Raises: UserError beyond the limit; under `strict` the first RecordError.
    """
    key = f"{code()} {source.fingerprint()} {len(source)}"
    folder = reading.cache / "facts" / f"{source.name}-{digest(key)}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "summary.json").exists():
            try:
                _read_blocks(source, reading, folder)
            except UserError:  # what is then corrected may be images, of which the source's fingerprint does not tell
                for block in folder.glob("*.npz"):
                    block.unlink()
                raise
            _join(folder, len(source))
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    read = Prepared(folder, summary["messages"], summary["content"])
    _check(source, reading.bad, _bad_rows(read.facts.rows), read.messages)
    return read


def code() -> str:
    """Return a digest of the code that turns files into facts, so that a change of it reads the data anew."""
    adapters = (f"data.sources.{file.stem}" for file in sorted(ADAPTERS.glob("[a-z]*.py")))
    return code_digest("data.preparation.scan", "data.preparation.row_index", *adapters)


def _read_blocks(source: Source, reading: Reading, folder: Path) -> None:
    """Read all blocks that are not there yet, with a progress bar."""
    starts = range(0, len(source), BLOCK)
    missing = [start for start in starts if not _block_file(folder, start).exists()]
    done = [_Block.load(folder, start) for start in sorted(set(starts) - set(missing))]
    found_bad, messages = sum(block.bad for block in done), [message for block in done for message in block.messages]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        rows_done = sum(block.rows for block in done)
        task = progress.add_task(f"reading {source.name}", total=len(source), completed=rows_done)
        for block in _blocks(_Job(source, reading, folder), missing, reading.workers):
            found_bad += block.bad
            messages += block.messages
            _check(source, reading.bad, found_bad, messages)
            progress.advance(task, block.rows)


class _Block(NamedTuple):
    """What was found in a block of rows."""

    rows: int
    bad: int
    messages: list[str]

    @classmethod
    def load(cls, folder: Path, start: int) -> _Block:
        """Return what a finished block holds."""
        with np.load(_block_file(folder, start)) as block:
            return cls(len(block["rows"]), _bad_rows(block["rows"]), list(map(str, block["messages"])))


def _block_file(folder: Path, start: int) -> Path:
    return folder / f"{start}.npz"


class _Job:
    """The reading of one block; a class so that it pickles for worker processes."""

    def __init__(self, source: Source, reading: Reading, folder: Path) -> None:
        self.source, self.strict, self.folder = source, reading.bad.policy == "strict", folder

    def read(self, start: int) -> _Block:
        """Read the rows from `start` on, write what was found, return the summary."""
        rows = np.empty(min(BLOCK, len(self.source) - start), ROW)
        sizes: list[tuple[int, int]] = []
        messages: list[str] = []
        for position in range(len(rows)):
            rows[position], its_sizes, error = facts_of(self.source, start + position)
            sizes += its_sizes
            if error is not None and self.strict:
                raise error
            if error is not None and len(messages) < EXAMPLES:
                messages.append(str(error))
        with whole_file(_block_file(self.folder, start), "wb") as file:
            np.savez(file, rows=rows, sizes=np.array(sizes, np.uint32).reshape(-1, 2), messages=np.array(messages, np.str_))
        return _Block(len(rows), _bad_rows(rows), messages)


def _blocks(job: _Job, missing: list[int], workers: int) -> Iterator[_Block]:
    """Read the missing blocks and yield what was found in each; with one worker, or one block, in this process."""
    if workers <= 1 or len(missing) <= 1:
        yield from map(job.read, missing)
        return
    with worker_processes(min(workers, len(missing))) as pool:
        yield from pool.map(job.read, missing)


def _join(folder: Path, rows: int) -> None:
    """Make two arrays and a summary of the blocks, and remove these."""
    starts = range(0, rows, BLOCK)
    images = 0
    messages: list[str] = []
    content = hashlib.blake2b(digest_size=8)
    joined = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", dtype=ROW, shape=(rows,))
    for start in starts:
        with np.load(_block_file(folder, start)) as block:
            joined[start : start + BLOCK] = block["rows"]
            content.update(block["rows"].tobytes())
            images += len(block["sizes"])
            messages += map(str, block["messages"])
    joined.flush()
    _join_sizes(folder, starts, images)
    summary = {"content": content.hexdigest(), "messages": messages[: 10 * EXAMPLES]}
    write_whole(folder / "summary.json", json.dumps(summary))
    for leftover in [*(_block_file(folder, start) for start in starts), *folder.glob("*.tmp")]:
        leftover.unlink()


def _join_sizes(folder: Path, starts: Sequence[int], images: int) -> None:
    joined = np.lib.format.open_memmap(folder / "sizes.npy", mode="w+", dtype=np.uint32, shape=(images, 2))
    position = 0
    for start in starts:
        with np.load(_block_file(folder, start)) as block:
            sizes = block["sizes"]
        joined[position : position + len(sizes)] = sizes
        position += len(sizes)
    joined.flush()


def _bad_rows(rows: npt.NDArray[np.void]) -> int:
    return int(np.isin(rows["reason"], [REASONS.index(reason) for reason in BAD]).sum())


def _check(source: Source, bad: BadRecordConfig, found: int, messages: list[str]) -> None:
    allowed = 0 if bad.policy == "strict" else int(bad.limit * len(source))
    if found > allowed:
        raise UserError(
            f"{source.name}: {found:,} of {len(source):,} rows are bad so far; the recipe allows {allowed:,} "
            f"(bad_records: {{policy: {bad.policy}, limit: {bad.limit}}}). Correct the data, or raise the limit. "
            "The first of them:\n" + "\n".join(f"- {message}" for message in messages[:EXAMPLES])
        )
