"""Writes the sizes and SHA-256 digests of a checkpoint's files when it is complete, and compares them before a run continues.

Loading a checkpoint for anything else compares only the files that it reads: `data/storage/manifest.py`.
Every rank reads the files it wrote itself, and the ranks of the first node share the others (weights, optimizer states that are
not divided), so that 100 GB on 8 ranks cost as long as one of them takes for its eighth.
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

OF_A_RANK = re.compile(r"(?:pp_rank_|rng_state_|rollouts-)(\d+)")
"""What DeepSpeed (ZeRO partitions), transformers and this project call a file that each rank writes for itself."""


def mark_complete(checkpoint: Path) -> None:
    """Write `complete`; all ranks call together, after every rank has written its files."""
    own_entries = {name: _entry(checkpoint / name) for name in _own(_files(checkpoint))}
    entries: dict[str, FileEntry] = {}
    for entries_of_rank in gather(own_entries):
        entries |= entries_of_rank
    if rank() == 0:
        write_whole(checkpoint / COMPLETE, Manifest(checkpoint.name, entries).to_json())


def damage(checkpoint: Path) -> list[str]:
    """Return what is wrong with the files of a complete checkpoint, a line each; all ranks call together and get the same.

    A file that was added since is no damage, nor is a folder that was given another name than `checkpoint-N`.
    """
    content = gather(read_bytes(checkpoint / COMPLETE) if rank() == 0 else b"")[0]
    try:
        manifest = parse_manifest(content)
    except CheckpointError as error:
        return [str(error)]
    if manifest is None:
        return []
    lines = []
    if checkpoint.name.startswith("checkpoint-") and checkpoint.name != manifest.folder:
        lines.append(f"{COMPLETE} was written for {manifest.folder}")
    own_lines = []
    for name in _own(sorted(manifest.entries)):
        change = _compare(checkpoint / name, manifest.entries[name])
        if change:
            own_lines.append(change)
    for lines_of_rank in gather(own_lines):
        lines += lines_of_rank
    return lines


def _files(checkpoint: Path) -> list[str]:
    """Return what a run reads when it continues: not figures and not the model card, which later commands may write again."""
    names = [str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()]
    return sorted(
        name
        for name in names
        if not name.startswith("eval/") and name not in (COMPLETE, "README.md")
    )


def _own(names: list[str]) -> list[str]:
    """Return those of `names` that this rank reads."""
    shared = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    owners = [
        int(match[1]) % world_size() if (match := OF_A_RANK.search(name)) else n % shared
        for n, name in enumerate(names)
    ]
    return [name for name, owner in zip(names, owners, strict=True) if owner == rank()]


def _entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, content_digest(path))


def _compare(path: Path, noted: FileEntry) -> str:
    """Return the difference of the file at `path` from its noted entry, in words; an empty text if there is none."""
    try:
        size = path.stat().st_size
        if size != noted.size:
            return f"{path.name} has {size:,} bytes, {noted.size:,} were written"
        if content_digest(path) != noted.sha256:
            return f"{path.name} has other contents than were written"
    except SpecialFileError as error:
        return f"{path.name}: {error}"
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    return ""
