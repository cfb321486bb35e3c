"""The first reading of a source: every row once, in parallel, resumable; afterwards a source opens in a moment.

The index of each block of rows is written as one small file under a temporary name and then renamed, so that a kill
loses at most the blocks in progress. When all blocks are there they become one memory-mapped array.
"""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.markup import escape
from rich.progress import track

from mmrm.data.config.section import Section
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.preparation.faults import count_faults, told
from mmrm.data.preparation.row_index import EXAMPLES, ROW, RowIndex, index_rows
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import digest, mapped, whole_file, write_whole
from mmrm.data.storage.output_lock import waiting_lock

BLOCK = 8192
"""Rows of one unit of work: some seconds for records with images."""


class BadRecordConfig(Section):
    """What a record that cannot be used does to a run: it is skipped and counted, up to a limit, or stops it."""

    policy: Literal["strict", "skip"] = "skip"
    """Skip and count such a record, or stop at the first one."""
    limit: float = Field(default=0.01, ge=0, le=1)
    """Under `skip`: the largest share of a source's rows that may be skipped before the run stops after all."""


def scan(source: Source, policy: BadRecordConfig, cache: Path, workers: int) -> RowIndex:
    """Return the row index of `source`.

    Reads the source if that has not been done yet; processes that ask at the same time (the ranks of a node) wait.

    Raises: UserError beyond the limit; under `strict` the first RecordError.
    """
    folder = (
        cache
        / "row_index"
        / f"{source.name}-{digest(f'{code()} {source.fingerprint()} {len(source)}')}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    with waiting_lock(folder / "lock"):
        if not (folder / "summary.json").exists():
            try:
                _read(source, policy, folder, workers)
            except UserError:  # what is then corrected may be images, of which the source's fingerprint does not tell
                for block in folder.glob("*.npz"):
                    block.unlink()
                raise
    index = RowIndex.open(folder)
    _check(source, policy, index.skipped, index.faults)
    return index


def code() -> str:
    """Return a digest of the code that turns files into a row index, so that a change of it reads the data again."""
    adapters = (
        f"mmrm.data.sources.{file.stem}"
        for file in sorted(Path(__file__).parents[1].glob("sources/[a-z]*.py"))
    )
    return code_digest("mmrm.data.preparation.scan", *adapters)


def _read(source: Source, policy: BadRecordConfig, folder: Path, workers: int) -> None:
    """Read all blocks with a progress bar, and make two arrays and a summary of them."""
    starts = range(0, len(source), BLOCK)
    rows = np.lib.format.open_memmap(
        folder / "rows.npy", mode="w+", dtype=ROW, shape=(len(source),)
    )
    sizes: list[npt.NDArray[np.uint32]] = []
    faults: dict[str, int] = {}
    skipped, content = 0, hashlib.blake2b(digest_size=8)
    with mapped(partial(_read_block, source, policy, folder), starts, workers) as blocks:
        shown = track(
            blocks,
            escape(f"reading {source.name}"),
            len(starts),
            console=plain_console(stderr=True),
        )
        for start, block in zip(starts, shown, strict=True):
            rows[start : start + BLOCK] = block.rows
            content.update(block.rows.tobytes())
            sizes.append(block.sizes)
            faults = count_faults([*faults.items(), *block.faults.items()], 10 * EXAMPLES)
            skipped += block.skipped
            _check(source, policy, skipped, faults)
    rows.flush()
    np.save(folder / "sizes.npy", np.concatenate(sizes))
    summary = json.dumps({"content": content.hexdigest(), "faults": faults})
    write_whole(folder / "summary.json", summary)
    for leftover in [*folder.glob("*.npz"), *folder.glob("*.tmp")]:
        leftover.unlink()


def _read_block(source: Source, policy: BadRecordConfig, folder: Path, start: int) -> RowIndex:
    """Return the index of the rows from `start` on: from its file if an earlier reading got so far."""
    file = folder / f"{start}.npz"
    if file.exists():
        with np.load(file) as arrays:
            return RowIndex(arrays["rows"], arrays["sizes"], json.loads(str(arrays["faults"])))
    block = index_rows(
        source, range(start, min(start + BLOCK, len(source))), policy.policy == "strict"
    )
    with whole_file(file, "wb") as opened:
        np.savez(
            opened, rows=block.rows, sizes=block.sizes, faults=np.array(json.dumps(block.faults))
        )
    return block


def _check(source: Source, policy: BadRecordConfig, found: int, faults: dict[str, int]) -> None:
    allowed = 0 if policy.policy == "strict" else int(policy.limit * len(source))
    if found > allowed:
        raise UserError(
            f"{source.name}: {found:,} of {len(source):,} rows are bad so far; the recipe allows {allowed:,} "
            f"(bad_records: {{policy: {policy.policy}, limit: {policy.limit}}}). Correct the data, or raise the limit. "
            "The first of them:\n"
            + "\n".join(f"- {message}" for message in told(faults)[:EXAMPLES])
        )
