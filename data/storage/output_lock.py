"""Locks on outputs, so that two commands never write one file or folder at the same time.

A lock is an `flock` on a small file in the folder, or next to the file, that a command writes. The
kernel releases it when the process that holds it ends, also by SIGKILL or a crash, so that no lock
is ever judged stale by its age. The lock file names the holder for the message that a second
process gets, and is removed when the holder is done. A lock file that a killed process left behind
is not locked, and the next process takes it over.
"""

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from mmrm.data.errors import InUseError, UserError

FOLDER_LOCK = "lock"
"""The name of the lock file inside a folder that is locked."""
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
"""Error numbers of `flock` on a file system that cannot lock files."""

_held_descriptors: set[int] = set()
"""The file descriptors of the locks that this process holds."""


def _close_in_forked_child() -> None:
    """Close the parent's locks in a forked process.

    A loader's worker lives for some seconds after its run was killed. It must not keep the run's
    folder locked meanwhile: the same command has to be able to resume at once.
    """
    while _held_descriptors:
        os.close(_held_descriptors.pop())


os.register_at_fork(after_in_child=_close_in_forked_child)


@contextmanager
def locked_folder(folder: Path) -> Iterator[int]:
    """Lock a folder for the block, and make it if it does not exist.

    The value of the block is the file descriptor of the lock. A subprocess that inherits it (`pass_fds`) keeps the folder
    locked if this process is killed.

    Raises: InUseError if another process holds the lock; UserError if the folder cannot be written
    or its file system has no locks.
    """
    with _locked(folder / FOLDER_LOCK, folder) as descriptor:
        yield descriptor


@contextmanager
def locked_file(path: Path) -> Iterator[int]:
    """Lock an output file for the block, by a lock file next to it named `<name>.lock`.

    The file itself need not exist. It may also be a folder that the block makes.

    Raises: as `locked_folder` does.
    """
    with _locked(path.with_name(f"{path.name}.lock"), path) as descriptor:
        yield descriptor


@contextmanager
def waiting_lock(lock_file: Path) -> Iterator[int]:
    """Hold a lock for the block. If another process has it, wait until it is released.

    This is for caches, which every rank of a run opens at the same time. The lock file is not
    removed, because a cache has its own folders.

    Raises: UserError if the lock file cannot be written or its file system has no locks.
    """
    with _locked(lock_file, lock_file, wait=True) as descriptor:
        yield descriptor


@contextmanager
def _locked(lock_file: Path, output: Path, *, wait: bool = False) -> Iterator[int]:
    descriptor = _acquire(lock_file, output, wait)
    _held_descriptors.add(descriptor)
    try:
        _write_holder(descriptor)
        yield descriptor
    finally:
        # A forked child that leaves the block has closed its copy and must not remove the file.
        if descriptor in _held_descriptors:
            _held_descriptors.remove(descriptor)
            if not wait:
                # Removed while locked. A process that has opened it already sees that it is gone.
                lock_file.unlink(missing_ok=True)
            os.close(descriptor)


def _acquire(lock_file: Path, output: Path, wait: bool) -> int:
    """Open and lock the lock file, and return its file descriptor."""
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        try:
            lock_file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(
                f"{output} cannot be written: its lock file {lock_file} cannot be opened "
                f"({error.strerror}). Make sure that the folder is one and that you may write "
                "there, or name another output."
            ) from error
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            message = _in_use(descriptor, output)
            os.close(descriptor)
            raise InUseError(message) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in WITHOUT_LOCKS:
                raise
            raise UserError(
                f"{output}: the file system of {lock_file.parent} cannot lock files "
                f"({error.strerror}). Without a lock a second process could write the same output "
                "unnoticed. Name an output on another file system, such as a local disk, or have "
                "this one mounted with locks (Lustre: option `flock`; NFS: without `nolock`)."
            ) from error
        if _is_still_at(lock_file, descriptor):
            return descriptor
        # The previous holder removed the file between our `open` and `flock`: lock the new one.
        os.close(descriptor)


def _is_still_at(lock_file: Path, descriptor: int) -> bool:
    """Return True if the path still names the file that the descriptor has open."""
    try:
        return os.path.samestat(lock_file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    """Write into the lock file which process holds it."""
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _in_use(descriptor: int, output: Path) -> str:
    """Return the message for an output that another process is writing."""
    advice = "Wait until it has ended, or name another output."
    try:
        holder = json.loads(os.pread(descriptor, 1 << 16, 0))
        process = f"process {holder['pid']} on {holder['host']} ({holder['command']})"
        since = holder["since"]
        has_ended = holder["host"] == socket.gethostname() and not _is_alive(holder["pid"])
    except (ValueError, LookupError, TypeError):
        # Locked a moment ago, and its holder is not written yet.
        return f"{output} is in use by another process. {advice}"
    if has_ended:
        return (
            f"{output} is in use: {process} has locked it since {since} and has ended, but a "
            f"process that it started still runs. {advice}"
        )
    return f"{output} is in use: {process} has been writing it since {since}. {advice}"


def _is_alive(pid: int) -> bool:
    """Return True if a process of this machine has the number `pid`."""
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
