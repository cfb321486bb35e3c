"""Sizes and SHA-256 digests of a checkpoint's files: written when it is complete, compared before a run continues from it.

Every rank reads the files it wrote itself, and the ranks of the first node share the others (weights, optimizer states that are
not divided), so that 100 GB on 8 ranks cost as long as one of them takes for its eighth.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from data.storage.files import content_digest, write_whole
from models.distributed import gather, rank, world_size

COMPLETE = "complete"
"""A JSON file, written last, with every file's size and digest; a checkpoint without it was cut off while it was being saved.
In checkpoints of older versions it is empty, and their files are taken as they are."""
OF_A_RANK = re.compile(r"(?:pp_rank_|rng_state_|rollouts-)(\d+)")
"""What DeepSpeed (ZeRO partitions), transformers and this project call a file that each rank writes for itself."""

Entry = tuple[int, str]
"""Size in bytes and SHA-256."""


def mark_complete(checkpoint: Path) -> None:
    """Write `complete`; all ranks call together, after every rank has written its files."""
    entries: dict[str, Entry] = {}
    for part in gather({name: _entry(checkpoint / name) for name in _own(_files(checkpoint))}):
        entries |= part
    if rank() == 0:
        write_whole(
            checkpoint / COMPLETE,
            json.dumps({"folder": checkpoint.name, "files": entries}, indent=1, sort_keys=True),
        )


def damage(checkpoint: Path) -> list[str]:
    """Return what is wrong with the files of a complete checkpoint, a line each; all ranks call together and get the same.

    A file that was added since is no damage, nor is a folder that was given another name than `checkpoint-N`.
    """
    text = gather((checkpoint / COMPLETE).read_bytes() if rank() == 0 else b"")[0]
    if not text:
        return []
    try:
        mark = json.loads(text)
        noted: dict[str, Entry] = {
            name: (int(size), str(digest)) for name, (size, digest) in mark["files"].items()
        }
        folder = str(mark["folder"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{COMPLETE} cannot be read: {type(error).__name__}: {error}"]
    found = []
    if checkpoint.name.startswith("checkpoint-") and checkpoint.name != folder:
        found.append(f"{COMPLETE} was written for {folder}")
    lines = [_compare(checkpoint / name, noted[name]) for name in _own(sorted(noted))]
    return found + [line for part in gather([line for line in lines if line]) for line in part]


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


def _entry(path: Path) -> Entry:
    return path.stat().st_size, content_digest(path)


def _compare(path: Path, noted: Entry) -> str:
    try:
        size = path.stat().st_size
        if size != noted[0]:
            return f"{path.name} has {size:,} bytes, {noted[0]:,} were written"
        return (
            ""
            if content_digest(path) == noted[1]
            else f"{path.name} has other contents than were written"
        )
    except OSError as error:
        return f"{path.name}: {error.strerror}"
