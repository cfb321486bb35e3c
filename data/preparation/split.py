"""What a mixture holds of each source: the rows to train on, the rows held out, and the count of all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.errors import UserError
from data.preference import Preference, validate
from data.preparation.filters import Filters, apply
from data.preparation.row_index import REASONS
from data.preparation.sampling import Indices, Pool, quotas
from data.preparation.scan import Prepared, Reading, prepared
from data.sources.shared.base import Source, SourceConfig


@dataclass(frozen=True)
class SourceSplit:
    """One source inside a mixture. `rows` and `held_out` are ascending row numbers of the source, int32."""

    config: SourceConfig
    source: Source
    read: Prepared | None
    """None for a generated source, which is not read through."""
    left_out: dict[str, int]
    """Rows left out, by reason; with `rows` and `held_out` they add up to the rows of the source."""
    rows: Indices
    held_out: Indices

    @property
    def content(self) -> str:
        """A short text that changes with the records: of what was read in them, or of the generator's settings."""
        return self.source.fingerprint() if self.read is None else self.read.content

    def pools(self, start: int, split: bool) -> list[Pool]:
        """Return the training rows as indices of the mixture, where they begin at `start`; by modality if `split`.

        Raises: UserError if a generated source is to be split: nobody has looked which of its records hold images.
        """
        indices = np.arange(start, start + len(self.rows), dtype=np.int32)
        weight, repeat = self.config.weight, self.config.repeat
        if not split:
            return [Pool(self.config.label, None, indices, weight, repeat)]
        if self.read is None:
            raise UserError(
                f"{self.config.label}: a generated source cannot be divided into text-only and multimodal records. "
                "Use the source's own setting of the text share instead of text_per_multimodal or a stage's modality."
            )
        text_only = self.read.facts.rows["images"][self.rows] == 0
        return [Pool(self.config.label, kind, indices[text_only == kind], weight, repeat) for kind in (False, True)]

    def lengths(self, min_pixels: int, max_pixels: int) -> npt.NDArray[np.float64]:
        """Return estimated text tokens and image tokens of each training row, (rows, 2); NaN for a generated source."""
        if self.read is None:
            return np.full((len(self.rows), 2), np.nan)
        facts = self.read.facts
        found = np.stack([facts.rows["text_tokens"], facts.image_tokens(min_pixels, max_pixels)], axis=1)
        return found[self.rows].astype(np.float64)


class HeldOutRecords(Sequence[Preference]):
    """A read-only list of records that are read, and validated, when asked for."""

    def __init__(self, parts: Sequence[tuple[Source, Indices]]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(rows) for _, rows in parts])

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self.ends[-1])

    def place(self, index: int) -> tuple[int, int]:
        """Return which part holds record `index`, and its position there."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        part = int(np.searchsorted(self.ends, index, side="right"))
        return part, index - int(self.ends[part] - len(self.parts[part][1]))

    def __getitem__(self, index: int) -> Preference:  # type: ignore[override]  # an index, no slice
        """Return one record; raise RecordError if it cannot be used."""
        part, position = self.place(index)
        source, rows = self.parts[part]
        return dataclasses.replace(validate(source.record(int(rows[position]))), source=source.name)


def opened(config: SourceConfig, filters: Filters, reading: Reading) -> SourceSplit:
    """Open one source and apply the filters; all its usable rows are still in `rows`."""
    source = config.open(reading.cache)
    if not len(source):
        raise UserError(f"{source.name}: the source has no rows.")
    if source.generated:
        return SourceSplit(config, source, None, {}, np.arange(len(source), dtype=np.int32), np.empty(0, np.int32))
    read = prepared(source, reading)
    reasons = apply(filters, read.facts)
    counts = np.bincount(reasons, minlength=len(REASONS))
    left_out = {name: int(count) for name, count in zip(REASONS, counts, strict=True) if count and name != "kept"}
    rows = np.flatnonzero(reasons == REASONS.index("kept")).astype(np.int32)
    return SourceSplit(config, source, read, left_out, rows, np.empty(0, np.int32))


def held_out(parts: Sequence[SourceSplit], total: int, seed: int) -> list[SourceSplit]:
    """Move `total` rows to `held_out`, equally many from each source; then leave out prompts seen there, and cap.

    Raises: UserError if the sources are too small.
    """
    counts = quotas(total, [len(part.rows) // 2 for part in parts])
    generators = [np.random.default_rng([seed, number, 0x5EED]) for number in range(len(parts))]
    held = [
        np.sort(generator.choice(part.rows, count, replace=False))
        for part, count, generator in zip(parts, counts, generators, strict=True)
    ]
    seen = np.concatenate([_prompt_keys(part, rows) for part, rows in zip(parts, held, strict=True)])
    return [_rest(part, rows, seen, generator) for part, rows, generator in zip(parts, held, generators, strict=True)]


def _rest(part: SourceSplit, held: Indices, seen: npt.NDArray[np.uint64], generator: np.random.Generator) -> SourceSplit:
    rows = np.setdiff1d(part.rows, held, assume_unique=True)
    left_out = dict(part.left_out)
    if part.read is not None and len(seen):
        fresh = rows[~np.isin(_prompt_keys(part, rows), seen)]
        left_out |= {"prompt_held_out": len(rows) - len(fresh)} if len(fresh) < len(rows) else {}
        rows = fresh
    if part.config.cap is not None and len(rows) > part.config.cap:
        left_out["over_cap"] = len(rows) - part.config.cap
        rows = np.sort(generator.choice(rows, part.config.cap, replace=False))
    return dataclasses.replace(part, rows=rows, held_out=held, left_out=left_out)


def _prompt_keys(part: SourceSplit, rows: Indices) -> npt.NDArray[np.uint64]:
    return np.empty(0, np.uint64) if part.read is None else part.read.facts.rows["prompt_key"][rows]
