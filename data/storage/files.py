"""Files that are there whole or not at all, and short names for what is in them.

Processes that read blocks of records side by side.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def stamp(path: Path) -> str:
    """Return a file's name, size and times of change as 16 hexadecimal digits.

    `cp -p` and the like set the time of the contents; that of the inode nobody can set.
    """
    status = path.stat()
    return digest(f"{path.name} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}")


def content_digest(content: bytes | Path) -> str:
    """Return the SHA-256 of bytes, or of a file (read in pieces), in hexadecimal digits: what tells two images apart."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(text: str) -> str:
    """Return 16 hexadecimal digits."""
    return f"{hash64(text):016x}"


def hash64(text: str) -> int:
    """Return a hash of 64 bits that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it at `path` in one step: a kill leaves the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    write(temporary)
    temporary.replace(path)


@contextmanager
def worker_processes(
    count: int, initializer: Callable[..., None] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of `count` processes; whatever ends the block early (an error, a signal) cancels what has not begun."""
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=initializer, initargs=initargs) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
