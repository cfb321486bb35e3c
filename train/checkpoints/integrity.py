"""Sizes and SHA-256 digests of a checkpoint's files.

They are written when a checkpoint is complete, and compared on resume. Any other loading of a
checkpoint compares only the files that it reads: `data/storage/manifest.py`. Every rank reads the
files that it wrote itself. The ranks of the first node share the other files (weights, and
optimizer states that are not divided), so that 8 ranks read 100 GB in an eighth of the time.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mmrm.data.errors import CheckpointError, SpecialFileError
from mmrm.data.regular_files import read_bytes
from mmrm.data.storage.files import content_digest, write_whole
from mmrm.data.storage.manifest import COMPLETE, FileEntry, Manifest, parse_manifest
from mmrm.models.distributed import gather, rank, world_size

RANK_IN_NAME = re.compile(r"(?:pp_rank_|rng_state_|rollouts-)(\d+)")
"""The rank in the names of files that each rank writes for itself: ZeRO partitions of DeepSpeed,
states of random generators of transformers, rollouts of this project."""


def mark_complete(checkpoint: Path) -> None:
    """Write the file `complete`, the list of a checkpoint's files with their sizes and digests.

    All ranks must call together, after each has written its files.
    """
    own_names = _names_for_this_rank(_file_names(checkpoint))
    own_entries = {name: _entry(checkpoint / name) for name in own_names}
    entries: dict[str, FileEntry] = {}
    for entries_of_rank in gather(own_entries):
        entries |= entries_of_rank
    if rank() == 0:
        write_whole(checkpoint / COMPLETE, Manifest(checkpoint.name, entries).to_json())


def damage(checkpoint: Path) -> list[str]:
    """Compare a complete checkpoint with its file `complete`, the list of its files.

    All ranks must call together. A file that was added later is no damage, nor is a folder that was
    renamed to something else than `checkpoint-N`.

    Returns:
        A line for each fault, the same on all ranks. The list is empty if there is no damage, and
        for a checkpoint of an earlier version, whose `complete` is an empty file.
    """
    # Only the first rank reads the list, so that all ranks compare with the same one.
    own_content = read_bytes(checkpoint / COMPLETE) if rank() == 0 else b""
    content = gather(own_content)[0]
    try:
        manifest = parse_manifest(content)
    except CheckpointError as error:
        return [str(error)]
    if manifest is None:
        return []  # an earlier version wrote no list
    lines = []
    if checkpoint.name.startswith("checkpoint-") and checkpoint.name != manifest.folder:
        lines.append(f"{COMPLETE} was written for {manifest.folder}")
    own_lines = []
    for name in _names_for_this_rank(sorted(manifest.entries)):
        change = _compare(checkpoint / name, manifest.entries[name])
        if change:
            own_lines.append(change)
    for lines_of_rank in gather(own_lines):
        lines += lines_of_rank
    return lines


def _file_names(checkpoint: Path) -> list[str]:
    """Return the names of a checkpoint's files that a run reads when it continues, sorted.

    A name is the file's path inside the checkpoint. Results of evaluations and the model card are
    not among them, because later commands may write these again.
    """
    names = []
    for path in checkpoint.rglob("*"):
        name = str(path.relative_to(checkpoint))
        if path.is_file() and not is_written_later(name):
            names.append(name)
    return sorted(names)


def is_written_later(name: str) -> bool:
    """Return True if a file of a checkpoint has no digest, because later commands may write it.

    Args:
        name: The file's path inside the checkpoint.
    """
    return name.startswith("eval/") or name in (COMPLETE, "README.md")


def _names_for_this_rank(names: list[str]) -> list[str]:
    """Return the names of the files that this rank reads; each file is read by one rank.

    A rank reads the files that it wrote itself. The ranks of the first node share the other files.
    """
    num_ranks_of_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own_names = []
    for index, name in enumerate(names):
        match = RANK_IN_NAME.search(name)
        # Modulo, because the run may have had more ranks when it wrote the checkpoint.
        reader = int(match[1]) % world_size() if match else index % num_ranks_of_node
        if reader == rank():
            own_names.append(name)
    return own_names


def _entry(path: Path) -> FileEntry:
    """Return the size and the digest of a file."""
    return FileEntry(path.stat().st_size, content_digest(path))


def _compare(path: Path, entry: FileEntry) -> str:
    """Compare a file with its entry, the size and digest with which it was written.

    Returns:
        A text about the difference, or about an error of reading. It is empty if there is neither.
    """
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"{path.name} has {size:,} bytes, {entry.size:,} were written"
        if content_digest(path) != entry.sha256:
            return f"{path.name} has other contents than were written"
    except SpecialFileError as error:
        return f"{path.name}: {error}"
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    return ""
