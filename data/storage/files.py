"""Atomic files, digests of files and texts, and work in several processes."""

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

Job = TypeVar("Job")
Result = TypeVar("Result")


def stamp(path: Path) -> str:
    """Return a file's name, size and times of change as 16 hexadecimal digits.

    `cp -p` and the like set the time of the contents; that of the inode nobody can set.
    Raises: SpecialFileError unless it is a regular file.
    """
    status = require_regular(path)
    return digest(f"{path.name} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}")


def derived(path: Path, cache: Path, folder: str, suffix: str) -> Path:
    """Return where a file made of `path` lies in the cache: another place for another file, or once the file has changed."""
    return cache / folder / f"{path.stem}-{digest(str(path.resolve()))}-{stamp(path)}{suffix}"


def content_digest(content: bytes | Path) -> str:
    """Return the SHA-256 of bytes, or of a file (read in pieces), in hexadecimal digits: what tells two images apart."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open_regular(content) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SETTLED_NS = 10**8
"""Age, 0.1 s, from which on another change of a file gives it another time. The kernel's clock for
files ticks at least every 10 ms."""
_digests: dict[tuple[int, ...], str] = {}
"""Digests of files that this process has read, by their `_identity`."""


def remembered_digest(path: Path) -> str:
    """Return the SHA-256 of a file like `content_digest`, and read an unchanged file only once.

    A file counts as unchanged if device, inode, size and both times are the same. The digest of a
    file that changed within SETTLED_NS is not remembered, because its next change might not give it
    another time.
    """
    before = require_regular(path)
    known = _digests.get(_identity(before))
    if known is not None:
        return known
    sha256 = content_digest(path)
    after = require_regular(path)
    is_settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > SETTLED_NS
    if is_settled and _identity(after) == _identity(before):
        _digests[_identity(after)] = sha256
    return sha256


def _identity(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def digest(text: str) -> str:
    """Return 16 hexadecimal digits."""
    return f"{hash64(text):016x}"


def hash64(text: str) -> int:
    """Return a hash of 64 bits that is the same in every process."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big"
    )


@contextmanager
def whole_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a temporary file that replaces `path` in one step when the block ends: a kill leaves the old file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two hosts that share a file system may have processes and threads of equal numbers.
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
    """Write `text` to `path` so that a reader finds the old file or the new one, never a part."""
    with whole_file(path) as file:
        file.write(text)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON for people too, in the way of `write_whole`."""
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON value a line, in the way of `write_whole`."""
    with whole_file(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    return json.loads(read_text(path))


UNPACKED = 1 << 33
"""Bytes that one packed table may unpack to: 8 GiB; the largest of a released data set is below one."""


def copy_limited(source: IO[bytes] | GzipFile, target: IO[bytes], packed: Path) -> None:
    """Copy what `packed` unpacks to; raise UserError beyond UNPACKED, before a small file has filled the disk."""
    left = UNPACKED
    while block := source.read(1 << 24):
        left -= len(block)
        if left < 0:
            raise UserError(
                f"{packed}: unpacked, it holds more than {UNPACKED:,} bytes, which only a file made to fill a disk does. If it "
                "is what you expect, unpack it yourself."
            )
        target.write(block)


@contextmanager
def mapped(
    work: Callable[[Job], Result], jobs: Sequence[Job], workers: int
) -> Iterator[Iterator[Result]]:
    """Give the results of `work` in the order of `jobs`, found by up to `workers` processes; in this one if one is enough.

    `work` is handed to each process once. Whatever ends the block early (an error, a signal) cancels what has not begun.
    """
    count = min(workers, len(jobs))
    if count <= 1:
        yield map(work, jobs)
        return
    context = multiprocessing.get_context(
        "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    )
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=_begin, initargs=(work,)
    ) as pool:
        try:
            yield pool.map(_run, jobs)
        finally:
            pool.shutdown(cancel_futures=True)


_work: list[Callable[[Any], Any]] = []
"""The last is the work of this process."""


def _begin(work: Callable[[Any], Any]) -> None:
    _work.append(work)


def _run(job: Any) -> Any:
    return _work[-1](job)
