"""What a source of preference records is: addressed by index, read lazily, documented by licence and revision."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

from pydantic import Field

from data.config import Section
from data.preference import Preference, RecordError

Row = Mapping[str, Any]
"""One row of a table as it was read: column name to value."""
T = TypeVar("T")
U = TypeVar("U")


class SourceError(ValueError):
    """A source that cannot be opened; the message says what was found, what is required and what to do."""


class LeftOut(RecordError):
    """A row that its source leaves out by its own rule (a tie, too small a gap): counted in the data card, not bad.

    `reason` is one of `data.facts.REASONS`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Source(Protocol):
    """Records by index. Opening one is quick and holds no more memory for more records; it pickles for worker processes."""

    name: str
    """The name in the data card and in the identity of each record."""
    licence: str
    revision: str
    """The commit on the hub, or `local`."""
    generated: bool
    """Records come from a generator of this project: right by construction, not read through before training."""

    def __len__(self) -> int:
        """Return the number of rows, those included that will be left out."""
        ...

    def record(self, index: int) -> Preference:
        """Return record `index`; raise LeftOut for a row left out by rule and RecordError for an unusable one."""
        ...

    def fingerprint(self) -> str:
        """Return a short text that changes when the records change."""
        ...


class SourceConfig(Section, ABC):
    """What every source of a mixture has in common."""

    type: str
    name: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    """In the data card and in stages; None takes the type. Two sources of one mixture must differ."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the epoch relative to the other sources, on top of the share that the size gives."""
    cap: int | None = Field(default=None, ge=1)
    """At most this many records, drawn once by the mixture's seed."""
    repeat: float = Field(default=1.0, gt=0)
    """How often each record counts towards the source's size; 0.5 counts half of the records."""

    @property
    def label(self) -> str:
        """The name this source goes by."""
        return self.name or self.type

    @property
    def settings(self) -> str:
        """What decides how rows become records: all keys but the shares."""
        return self.model_dump_json(exclude={"name", "weight", "cap", "repeat"})

    @abstractmethod
    def open(self, cache: Path) -> Source:
        """Open the source; derived files (indices, memory-mapped tables) go under `cache`.

        Raises: SourceError if its files are missing or not in the documented schema.
        """


@dataclass
class TableSource:
    """A source whose records are rows of a table, each turned into a preference by one function."""

    name: str
    licence: str
    revision: str
    rows: Rows
    convert: Callable[[Row, str], Preference]
    settings: str
    """What in the recipe decides how rows become records."""
    generated: bool = False

    def __len__(self) -> int:
        """Return the number of rows of the table."""
        return len(self.rows)

    def record(self, index: int) -> Preference:
        """Return row `index` as a preference."""
        return self.convert(self.rows.row(index), f"{self.name}:{index}")

    def fingerprint(self) -> str:
        """Return the fingerprint of the table's files and the settings."""
        return f"{self.rows.fingerprint()} {self.settings}"


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
