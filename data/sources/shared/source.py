"""What a source of preference records is: addressed by index, read lazily, documented by licence and revision."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

from pydantic import Field

from mmrm.data.config.section import Ratio, Records, Section
from mmrm.data.preference import Preference


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
    """In the data card and in stages; null takes the type. Two sources of one mixture must differ."""
    weight: Ratio = 1.0
    """Share of the epoch relative to the other sources, on top of the share that the size gives."""
    cap: Records | None = None
    """At most this many records, drawn once by the mixture's seed."""
    repeat: Ratio = 1.0
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

        Raises: UserError if its files are missing or not in the documented schema.
        """
