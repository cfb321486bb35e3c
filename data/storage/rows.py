"""Rows of a table by index, and their columns by name and type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, overload

from data.errors import RecordError

Row = Mapping[str, Any]
"""One row of a table as it was read: column name to value."""


class Rows(Protocol):
    """A table on disk, addressed by row."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def row(self, index: int) -> Row:
        """Return one row; raise RecordError naming file and row if it cannot be read."""
        ...

    def fingerprint(self) -> str:
        """Return a short text that changes when the files change."""
        ...


@overload
def field(row: Row, name: str, kind: type[T], record: str) -> T: ...
@overload
def field(row: Row, name: str, kind: tuple[type[T], type[U]], record: str) -> T | U: ...
def field(row: Row, name: str, kind: type[Any] | tuple[type[Any], ...], record: str) -> Any:
    """Return `row[name]`.

    Raises: RecordError if the column is missing, or its value is not of (one of) the type(s) `kind` or beyond every float.
    """
    if name not in row:
        raise RecordError(f"{record}: there is no {name!r}; found are {', '.join(map(repr, sorted(row)))}.")
    value = row[name]
    if not isinstance(value, kind):
        allowed = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise RecordError(f"{record}: {name!r} is {_shown(value)}; required is {allowed}.")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise RecordError(f"{record}: {name!r} is {_shown(value)}; required is a number of at most {sys.float_info.max:.4g}.")
    return value


@overload
def optional(row: Row, name: str, kind: type[T], record: str) -> T | None: ...
@overload
def optional(row: Row, name: str, kind: tuple[type[T], type[U]], record: str) -> T | U | None: ...
def optional(row: Row, name: str, kind: Any, record: str) -> Any:
    """Return `row[name]`, or None where the column is missing or empty.

    Raises: RecordError if the value is not of (one of) the type(s) `kind`.
    """
    return None if row.get(name) is None else field(row, name, kind, record)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}"


T = TypeVar("T")


U = TypeVar("U")
