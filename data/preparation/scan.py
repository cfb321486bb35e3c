"""The first reading of a source: every row once, in parallel, with the result kept in the cache.

The index of each block of rows is written as one small file under a temporary name and then
renamed. A kill therefore loses only the blocks in progress, and the next reading takes the others
from their files. When all blocks are there they become one memory-mapped array, and the source
opens in a moment.
"""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.recfunctions import repack_fields
from pydantic import Field
from rich.markup import escape
from rich.progress import track

from mmrm.data.config.section import Section
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.preparation.attribute_ranges import (
    AttributeRanges,
    add_ranges,
    ranges_from_lists,
)
from mmrm.data.preparation.faults import count_faults, fault_messages
from mmrm.data.preparation.row_index import (
    CONTENT_FIELDS,
    MAX_FAULTS_PER_BLOCK,
    NUM_SHORTCUT_COLUMNS,
    ROW,
    RowIndex,
    index_rows,
)
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import digest, parallel_results, whole_file, write_whole
from mmrm.data.storage.output_lock import waiting_lock

ROWS_PER_BLOCK = 8192
"""Number of rows in one unit of work; records with images take some seconds."""
MAX_FAULTS = 10 * MAX_FAULTS_PER_BLOCK
"""Number of different faults of skipped records that are kept of a source."""
NUM_EXAMPLES = 5
"""Number of faults in the message about too many bad records."""


class BadRecordConfig(Section):
    """The policy on records that cannot be used: skip a limited share of them, or stop."""

    policy: Literal["strict", "skip"] = "skip"
    """Skip and count such a record, or stop at the first one."""
    limit: float = Field(default=0.01, ge=0, le=1)
    """Under `skip`: the largest share of a source's rows that may be skipped. With more, the run
    stops."""


def scan(source: Source, policy: BadRecordConfig, cache: Path, workers: int) -> RowIndex:
    """Return the row index of `source`: for each row, lengths, keys, and if it can be used.

    The first call reads every row and writes the index into the cache. Later calls open it. If
    several processes call this at the same time, such as the ranks of a node, one of them reads and
    the others wait.

    Args:
        source: A source that is not generated.
        policy: The policy on records that cannot be used.
        cache: The folder for derived files.
        workers: The largest number of processes that read.

    Raises:
        UserError: More rows cannot be used than the policy allows.
        RecordError: The first record that cannot be used, under `strict`.
    """
    key = digest(f"{reading_code_digest()} {source.fingerprint()} {len(source)}")
    folder = cache / "row_index" / f"{source.name}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with waiting_lock(folder / "lock"):
        if not (folder / "summary.json").exists():
            try:
                _read(source, policy, folder, workers)
            except UserError:
                # Forget the blocks that were read. The user may correct image files, and those do
                # not change the source's fingerprint.
                for block_file in folder.glob("*.npz"):
                    block_file.unlink()
                raise
    index = RowIndex.open(folder)
    _refuse_too_many(source, policy, index.skipped, index.faults)
    return index


def reading_code_digest() -> str:
    """Return a digest of the code that reads the data.

    It is part of the name under which the result is cached, so that changed code reads again.
    """
    source_files = sorted(Path(__file__).parents[1].glob("sources/[a-z]*.py"))
    source_modules = [f"mmrm.data.sources.{file.stem}" for file in source_files]
    return code_digest("mmrm.data.preparation.scan", *source_modules)


def _read(source: Source, policy: BadRecordConfig, folder: Path, workers: int) -> None:
    """Read every row of `source`, and write its row index into `folder`.

    The files are `rows.npy`, `shortcuts.npy`, `sizes.npy`, `videos.npy` and `summary.json`. Rows are
    read in blocks; a block that an earlier, interrupted reading finished is taken from its file.
    `summary.json` is written last, so a folder that has one is complete.

    Raises:
        UserError: More rows cannot be used than the policy allows.
        RecordError: The first record that cannot be used, under `strict`.
    """
    block_starts = range(0, len(source), ROWS_PER_BLOCK)
    rows = np.lib.format.open_memmap(
        folder / "rows.npy", mode="w+", dtype=ROW, shape=(len(source),)
    )
    shortcuts = np.lib.format.open_memmap(
        folder / "shortcuts.npy",
        mode="w+",
        dtype=np.int8,
        shape=(len(source), NUM_SHORTCUT_COLUMNS),
    )
    sizes: list[npt.NDArray[np.uint32]] = []
    videos: list[npt.NDArray[np.float64]] = []
    faults: dict[str, int] = {}
    attributes: AttributeRanges = {}
    num_skipped = 0
    content_hash = hashlib.blake2b(digest_size=8)
    with parallel_results(
        partial(_read_block, source, policy, folder), block_starts, workers
    ) as blocks:
        progress = track(
            blocks,
            description=escape(f"reading {source.name}"),
            total=len(block_starts),
            console=plain_console(stderr=True),
        )
        for start, block in zip(block_starts, progress, strict=True):
            rows[start : start + ROWS_PER_BLOCK] = block.rows
            shortcuts[start : start + ROWS_PER_BLOCK] = block.shortcuts
            content_hash.update(repack_fields(block.rows[CONTENT_FIELDS]).tobytes())
            sizes.append(block.sizes)
            videos.append(block.videos)
            add_ranges(attributes, block.attributes)
            faults = count_faults([*faults.items(), *block.faults.items()], MAX_FAULTS)
            num_skipped += block.skipped
            # Stop at the first block that exceeds the limit instead of reading on for hours.
            _refuse_too_many(source, policy, num_skipped, faults)
    rows.flush()
    shortcuts.flush()
    np.save(folder / "sizes.npy", np.concatenate(sizes))
    np.save(folder / "videos.npy", np.concatenate(videos))
    summary = {
        "content": content_hash.hexdigest(),
        "faults": faults,
        "attributes": attributes,
    }
    write_whole(folder / "summary.json", json.dumps(summary))
    for leftover in [*folder.glob("*.npz"), *folder.glob("*.tmp")]:
        leftover.unlink()


def _read_block(source: Source, policy: BadRecordConfig, folder: Path, start: int) -> RowIndex:
    """Return the row index of the block of rows that begins at row `start`.

    It is read from the block's file in `folder`, or else made from the rows and written there.
    """
    file = folder / f"{start}.npz"
    if file.exists():
        with np.load(file) as arrays:
            faults_of_block = json.loads(str(arrays["faults"]))
            attributes = ranges_from_lists(json.loads(str(arrays["attributes"])))
            return RowIndex(
                arrays["rows"],
                arrays["sizes"],
                arrays["videos"],
                faults_of_block,
                attributes=attributes,
                shortcuts=arrays["shortcuts"],
            )
    rows = range(start, min(start + ROWS_PER_BLOCK, len(source)))
    block = index_rows(source, rows, strict=policy.policy == "strict")
    faults = np.array(json.dumps(block.faults))
    attribute_lists = np.array(json.dumps(block.attributes))
    with whole_file(file, "wb") as block_file:
        np.savez(
            block_file,
            rows=block.rows,
            sizes=block.sizes,
            videos=block.videos,
            faults=faults,
            attributes=attribute_lists,
            shortcuts=block.shortcuts,
        )
    return block


def _refuse_too_many(
    source: Source, policy: BadRecordConfig, num_skipped: int, faults: dict[str, int]
) -> None:
    """Raise UserError if more rows of a source were skipped than the policy allows.

    Args:
        source: The source.
        policy: The policy; "strict" allows none.
        num_skipped: Number of rows that could not be used.
        faults: Messages about them for the error, each with its number of rows.
    """
    num_allowed = 0 if policy.policy == "strict" else int(policy.limit * len(source))
    if num_skipped <= num_allowed:
        return
    examples = "\n".join(f"- {message}" for message in fault_messages(faults)[:NUM_EXAMPLES])
    raise UserError(
        f"{source.name}: {num_skipped:,} of {len(source):,} rows are bad so far, and the recipe "
        f"allows {num_allowed:,} (bad_records: {{policy: {policy.policy}, limit: {policy.limit}}})."
        f" Correct the data, or raise the limit. The first of them:\n{examples}"
    )
