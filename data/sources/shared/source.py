"""The two classes behind every source: `Source` for its records, `SourceConfig` for its keys.

A recipe lists sources under `data.sources`. Each entry is a `SourceConfig`, told apart by `type`,
and opens the `Source` that the mixture draws records from.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from pydantic import Field

from mmrm.data.config.section import GrowingSection, Ratio, Records
from mmrm.data.preference import Preference


class Source(Protocol):
    """An opened data set, which returns its preference records by their index.

    A source can be pickled, because worker processes read from it. Opening a source is quick, and
    the memory that it holds does not grow with the number of records.
    """

    name: str
    """The name in the data card and in the identity of each record."""
    licence: str
    """The licence that the data card states."""
    revision: str
    """The commit on the hub, or `local`."""
    generated: bool
    """True if a generator of this project makes the records. Such records are right by
    construction, so they are not all read before training."""

    def __len__(self) -> int:
        """Return the number of rows, including those that will be left out."""
        ...

    def record(self, index: int) -> Preference:
        """Return the record at `index`.

        Raises:
            LeftOut: If a rule of the source leaves the row out.
            RecordError: If the row cannot be used.
        """
        ...

    def fingerprint(self) -> str:
        """Return a short text that changes when the records change."""
        ...


class SourceConfig(GrowingSection, ABC):
    """The keys of a source in a recipe: the base class with the keys that all sources share.

    A class for one type of source adds its own keys and implements `open`. It also sets those class
    variables below whose default does not describe its records.
    """

    has_responses: ClassVar[bool] = True
    """True if a record holds a chosen and a rejected response. Questions for a policy hold none."""
    has_critiques: ClassVar[bool] = False
    """True if records may hold a critique of each response."""
    has_rationales: ClassVar[bool] = False
    """True if records may hold a rationale of the preference."""
    has_answers: ClassVar[bool] = False
    """True if records hold a known answer, which a verifier compares responses with."""
    type: str
    name: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    """Name in the data card and in stages; null takes the type. Two sources of one mixture must
    differ."""
    weight: Ratio = 1.0
    """Share of the epoch relative to the other sources, on top of the share that the size gives."""
    cap: Records | None = None
    """Largest number of records. They are drawn once with the mixture's seed."""
    repeat: Ratio = 1.0
    """Number of times that each record counts towards the source's size; 0.5 counts half of
    the records."""

    @property
    def label(self) -> str:
        """The name of this source in the data card, in stages and in messages."""
        return self.name or self.type

    @property
    def settings(self) -> str:
        """The keys that decide how rows become records, as JSON.

        These are all keys except the name and the keys for the share of the epoch.
        """
        return self.model_dump_json(exclude={"name", "weight", "cap", "repeat"})

    @property
    def gives_lists(self) -> bool:
        """True if a record may hold more than two responses with these settings."""
        return False

    @property
    def gives_ties(self) -> bool:
        """True if all responses of a record may be tied with these settings.

        A record with more than two responses may have equal ranks beside different ones in any
        case.
        """
        return False

    @property
    def location(self) -> str | None:
        """The path or the hub id that records are read from; None if they are generated."""
        return None

    @property
    def is_on_hub(self) -> bool:
        """True if opening the source connects to the hub."""
        return False

    def input_paths(self) -> dict[str, str]:
        """Return the local paths that the source reads, by the recipe key that holds the path."""
        return {}

    def check_local_files(self) -> None:
        """Check that the local files exist and are of a kind that can be read.

        The files are not opened, and the hub is not asked.

        Raises:
            UserError: If a file is missing or of a kind that cannot be read.
        """

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of rows, and words for a plan that tell where the number comes from.

        The number is None if it is not known before the files are read. `cap` and `repeat` are not
        applied to it.
        """
        return None, "counted at the first reading"

    def expected_rows(self) -> tuple[int | None, str]:
        """Return the number of records that an epoch draws, and words for where it comes from.

        The number is that of `stated_rows` after `cap` and `repeat`; rows that will be left out are
        counted. It is None if it is not known before the files are read.
        """
        rows, origin = self.stated_rows()
        if rows is None:
            return None, origin
        if self.cap is not None and self.cap < rows:
            rows = self.cap
            origin = f"{origin}, capped"
        return round(rows * self.repeat), origin

    def max_validation(self) -> int | None:
        """Return the largest number of records that can be held out for validation.

        None means that it is not known before the files are read.
        """
        return None

    def block_ends(self, source: Source) -> Sequence[int]:
        """Return for each file of an opened source the number of rows in it and all files before it.

        The result is empty unless the source is made of large files, of which few should be read at
        one time (`data.shards_together`).
        """
        return ()

    @abstractmethod
    def open(self, cache: Path) -> Source:
        """Open the source.

        Derived files, such as memory-mapped tables, are written below the folder `cache`.

        Raises:
            UserError: If the files are missing or not in the documented schema.
        """
