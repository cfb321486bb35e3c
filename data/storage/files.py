"""Files that are written as a whole, digests of files and texts, and work in several processes."""

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any, Literal, TypeVar
from uuid import uuid4

from mmrm.data.errors import UserError
from mmrm.data.regular_files import open_regular, read_text, require_regular

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


def stamp(path: Path) -> str:
    """Return a digest (16 hexadecimal digits) of a file's name, size and times of change.

    Programs such as `cp -p` set the time at which the content changed. No program can set the time
    at which the inode changed, so both are used.

    Raises: SpecialFileError unless it is a regular file.
    """
    status = require_regular(path)
    return digest(f"{path.name} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}")


def derived(path: Path, cache: Path, folder: str, suffix: str) -> Path:
    """Return the path in the cache for a file that is computed from the file `path`.

    The path differs for every file, and changes if the file changes.

    Args:
        path: The file from which it is computed.
        cache: The folder of the cache.
        folder: The name of the folder in the cache.
        suffix: The ending of the derived file's name.
    """
    name = f"{path.stem}-{digest(str(path.resolve()))}-{stamp(path)}{suffix}"
    return cache / folder / name


def content_digest(content: bytes | Path) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of bytes, or of a file, which is read in pieces."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open_regular(content) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SETTLED_NS = 10**8
"""Age, 0.1 s, from which on another change of a file gives it another time. The kernel's clock for
files ticks at least every 10 ms."""
_digests: dict[tuple[int, ...], str] = {}
"""Digests of files that this process has read, by the `_identity` of the file."""


def remembered_digest(path: Path) -> str:
    """Return the SHA-256 of a file like `content_digest`, and read an unchanged file only once.

    A file counts as unchanged if device, inode, size and both times are the same. The digest of a
    file that changed within SETTLED_NS is not remembered, because its next change might not give it
    another time.
    """
    before = require_regular(path)
    remembered = _digests.get(_identity(before))
    if remembered is not None:
        return remembered
    sha256 = content_digest(path)
    after = require_regular(path)
    is_settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > SETTLED_NS
    if is_settled and _identity(after) == _identity(before):
        _digests[_identity(after)] = sha256
    return sha256


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """Return the numbers by which an unchanged file is recognised."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def digest(text: str) -> str:
    """Return a digest (16 hexadecimal digits) of a text."""
    return f"{hash64(text):016x}"


def hash64(text: str) -> int:
    """Return a 64-bit hash of a text that is the same in every process."""
    content = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


@contextmanager
def whole_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a temporary file that replaces `path` in one step when the block ends.

    If the process is killed before, the old file is left, or none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A process id is not enough: two hosts that share a file system may have equal ones.
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open(mode, encoding="utf-8" if mode == "w" else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the new one, never a part."""
    with whole_file(path) as file:
        file.write(text)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, with `write_whole`."""
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON value a line; the file is replaced as by `write_whole`."""
    with whole_file(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    return json.loads(read_text(path))


UNPACKED = 1 << 33
"""The largest unpacked size of a packed table: 8 GiB. No released data set has a table of one
GiB."""


def copy_limited(source: IO[bytes] | GzipFile, target: IO[bytes], packed: Path) -> None:
    """Copy the unpacked content of the file `packed` from `source` to `target`.

    Raises: UserError beyond UNPACKED bytes, so that a small packed file cannot fill the disk.
    """
    num_bytes = 0
    while block := source.read(1 << 24):
        num_bytes += len(block)
        if num_bytes > UNPACKED:
            raise UserError(
                f"{packed}: unpacked, it holds more than {UNPACKED:,} bytes, as a file does that "
                "was made to fill a disk. If you expect that size, unpack it yourself."
            )
        target.write(block)


@contextmanager
def mapped(
    work: Callable[[JobT], ResultT], jobs: Sequence[JobT], workers: int
) -> Iterator[Iterator[ResultT]]:
    """Give an iterator over `work(job)` for all `jobs`, in their order.

    Up to `workers` processes compute the results, or this process if one is enough. `work` is sent
    to each process once. If the block ends early (by an error or a signal), jobs that have not
    started are cancelled.
    """
    num_processes = min(workers, len(jobs))
    if num_processes <= 1:
        yield map(work, jobs)
        return
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    with ProcessPoolExecutor(
        num_processes, mp_context=context, initializer=_set_work, initargs=(work,)
    ) as pool:
        try:
            yield pool.map(_run_job, jobs)
        finally:
            pool.shutdown(cancel_futures=True)


_work: list[Callable[[Any], Any]] = []
"""The last item is the work of this process; a forked process also has its parent's."""


def _set_work(work: Callable[[Any], Any]) -> None:
    _work.append(work)


def _run_job(job: Any) -> Any:
    return _work[-1](job)
