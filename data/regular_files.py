"""Functions that open regular files only.

Reading a FIFO or a device that a folder of data contains would never end. Files that a user named,
or that were found in a folder, are therefore opened by these functions.
"""

import io
import os
import stat
from pathlib import Path
from typing import TextIO

from mmrm.data.errors import SpecialFileError

OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for opening. O_NONBLOCK makes opening a FIFO return at once instead of waiting for a
writer."""


def require_regular(path: Path) -> os.stat_result:
    """Return the status of the regular file at `path`, as `os.stat` does; links are followed.

    Raises: SpecialFileError if the path is no regular file, such as a folder or a device, or a link
    that cannot be followed. OSError if there is no file, or its status cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        if path.is_symlink():
            raise SpecialFileError(
                f"{path} is a link to {path.readlink()}, which cannot be followed "
                f"({error.strerror}). Required is a regular file. Correct or remove the link."
            ) from error
        raise
    _refuse_special(path, status.st_mode)
    return status


def open_descriptor(path: Path) -> int:
    """Open the regular file at `path` for reading, and return its file descriptor.

    The caller has to close it. Raises the errors of `require_regular`.
    """
    require_regular(path)
    # Another process may have replaced the file since, so the opened file is checked too.
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        _refuse_special(path, os.fstat(descriptor).st_mode)
    except SpecialFileError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: Path) -> io.BufferedReader:
    """Open the regular file at `path` for reading bytes.

    Raises: SpecialFileError if the path is no regular file; OSError if it cannot be opened.
    """
    return os.fdopen(open_descriptor(path), "rb")


def open_regular_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> TextIO:
    """Open the regular file at `path` for reading text, with the arguments of `open`.

    Raises: SpecialFileError if the path is no regular file; OSError if it cannot be opened.
    """
    return io.TextIOWrapper(open_regular(path), encoding=encoding, errors=errors)


def read_bytes(path: Path) -> bytes:
    """Return the content of the regular file at `path`.

    Raises: SpecialFileError if the path is no regular file; OSError if it cannot be read.
    """
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of the regular file at `path`.

    Raises: SpecialFileError if the path is no regular file; OSError if it cannot be read; an error
    of decoding if its bytes are no text in `encoding` and `errors` is "strict".
    """
    with open_regular_text(path, encoding, errors) as file:
        return file.read()


def kind_of_file(mode: int) -> str:
    """Return the kind of a file in words, such as "a folder", by its mode (`st_mode` of `stat`)."""
    kinds = (
        (stat.S_ISREG, "a regular file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO (a named pipe)"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    )
    for is_of_kind, words in kinds:
        if is_of_kind(mode):
            return words
    return "a special file"


def _refuse_special(path: Path, mode: int) -> None:
    """Raise SpecialFileError unless `mode` (`st_mode` of `stat`) is that of a regular file.

    `path` is named in the message.
    """
    if stat.S_ISREG(mode):
        return
    by_link = f", by a link to {path.readlink()}" if path.is_symlink() else ""
    raise SpecialFileError(
        f"{path} is {kind_of_file(mode)}{by_link}. Required is a regular file, because reading "
        "anything else may never end. Correct the path, or replace it by a regular file."
    )
