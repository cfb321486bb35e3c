"""The split of each source of a mixture: the rows to train on, the rows held out, and the count of all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import UserError
from mmrm.data.images import ImageTokens, grey_like
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.row_index import (
    KEEPS_ORDER,
    REASONS,
    REJECTED_FIRST,
    RowIndex,
    index_rows,
)
from mmrm.data.preparation.sampling import Indices, Pool, quotas
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.storage.row_files import located


@dataclass(frozen=True)
class SourceSplit:
    """One source inside a mixture. `rows` and `held_out` are ascending row numbers of the source, int32."""

    config: SourceConfig
    source: Source
    row_index: RowIndex | None
    """None for a generated source, which is not read through."""
    left_out: dict[str, int]
    """Rows left out, by reason; with `rows` and `held_out` they add up to the rows of the source."""
    rows: Indices
    held_out: Indices

    @classmethod
    def of(
        cls,
        config: SourceConfig,
        source: Source,
        row_index: RowIndex | None,
        reasons: npt.NDArray[np.uint8],
    ) -> SourceSplit:
        """Return a source whose usable rows are all in `rows`; `reasons` are indices into REASONS, (rows,)."""
        counts = np.bincount(reasons, minlength=len(REASONS)).tolist()
        left_out = {
            name: count
            for name, count in zip(REASONS, counts, strict=True)
            if count and name != "kept"
        }
        rows = np.flatnonzero(reasons == REASONS.index("kept")).astype(np.int32)
        return cls(config, source, row_index, left_out, rows, rows[:0])

    @property
    def content(self) -> str:
        """A short text that changes with the records: of what was read in them, or of the generator's settings."""
        return self.source.fingerprint() if self.row_index is None else self.row_index.content

    def known(self, sample: Indices) -> tuple[RowIndex, Indices]:
        """Return a row index and where the training rows stand in it; of a generated source, `sample` stands for these."""
        if self.row_index is not None:
            return self.row_index, self.rows
        return index_rows(self.source, sample.tolist()), np.arange(len(sample), dtype=np.int32)

    def pools(self, start: int, split: bool) -> list[Pool]:
        """Return the training rows as indices of the mixture, where they begin at `start`; by modality if `split`.

        Raises: UserError if a generated source is to be split: it is not known which of its records hold images.
        """
        indices = np.arange(start, start + len(self.rows), dtype=np.int32)
        whole = Pool(self.config, None, indices)
        if not split:
            return [whole]
        if self.row_index is None:
            raise UserError(
                f"{self.config.label}: a generated source cannot be divided into text-only and multimodal records. "
                "Use the source's own setting of the text share instead of text_per_multimodal or a stage's modality."
            )
        text_only = self.row_index.rows["images"][self.rows] == 0
        return [
            replace(whole, text_only=kind, indices=indices[text_only == kind])
            for kind in (False, True)
        ]

    def lengths(self, count: ImageTokens) -> npt.NDArray[np.float64]:
        """Return estimated text tokens and image tokens of each training row, (rows, 2); NaN for a generated source."""
        if self.row_index is None:
            return np.full((len(self.rows), 2), np.nan)
        found = np.stack(
            [self.row_index.rows["text_tokens"], self.row_index.image_tokens(count)], axis=1
        )
        return found[self.rows].astype(np.float64)

    def rationale_sides(self) -> npt.NDArray[np.int8]:
        """Return the only side on which each training row can be shown, -1 if both are, (rows,).

        The side is 0 if the chosen response is shown first and 1 if it is shown second. Rationales
        of a generated source can be shown in both orders; a test draws them.
        """
        if self.row_index is None:
            return np.full(len(self.rows), -1, np.int8)
        flags = self.row_index.rows["flags"][self.rows]
        sides = np.where(flags & REJECTED_FIRST, 1, 0).astype(np.int8)
        sides[(flags & KEEPS_ORDER) == 0] = -1
        return sides

    def prompt_keys(self, rows: Indices) -> npt.NDArray[np.uint64]:
        """Return the keys of the prompts of `rows`; none for a generated source, whose splits share no scene."""
        return (
            np.empty(0, np.uint64)
            if self.row_index is None
            else self.row_index.rows["prompt_key"][rows]
        )


class SplitRecords(Sequence[Preference]):
    """A read-only list of records that are read, and validated, when asked for; with grey images of the same size if `grey`."""

    def __init__(self, parts: Sequence[tuple[Source, Indices]], grey: bool) -> None:
        self.parts, self.grey = parts, grey
        self.ends = list(accumulate(len(rows) for _, rows in parts))

    def __len__(self) -> int:
        return self.ends[-1]

    def place(self, index: int) -> tuple[int, int]:
        """Return which part holds record `index`, and its position there."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return located(self.ends, index)

    def __getitem__(self, index: int) -> Preference:  # type: ignore[override]  # an index, no slice
        """Return one record; raise RecordError if it cannot be used."""
        part, position = self.place(index)
        source, rows = self.parts[part]
        record = validate(source.record(int(rows[position])))
        images = (
            (grey_like(image, record.identity) for image in record.images)
            if self.grey
            else record.images
        )
        return replace(record, source=source.name, images=tuple(images))


def hold_out(
    parts: Sequence[SourceSplit], total: int, seed: int, validation_seed: int | None = None
) -> list[SourceSplit]:
    """Move `total` rows to `held_out`, equally many from each source; then leave out prompts seen there, and cap.

    Args:
        parts: the sources, each with its usable rows.
        total: number of rows to hold out.
        seed: draws the rows under a cap, and the held-out rows if `validation_seed` is None.
        validation_seed: draws the held-out rows alone, so that runs with other seeds hold out the same.

    Raises:
        UserError: if the sources are too small.
    """
    generators = [np.random.default_rng([seed, number, 0x5EED]) for number in range(len(parts))]
    held_out_generators = generators
    if validation_seed is not None:
        held_out_generators = [
            np.random.default_rng([validation_seed, number, 0x5EED]) for number in range(len(parts))
        ]
    counts, found = quotas(total, [len(part.rows) // 2 for part in parts]), []
    for part, count, generator in zip(parts, counts, held_out_generators, strict=True):
        held_out = np.sort(generator.choice(part.rows, count, replace=False))
        found.append(
            replace(
                part, rows=np.setdiff1d(part.rows, held_out, assume_unique=True), held_out=held_out
            )
        )
    seen = np.concatenate([part.prompt_keys(part.held_out) for part in found])
    for number, (part, generator) in enumerate(zip(found, generators, strict=True)):
        rows = (
            part.rows
            if part.row_index is None
            else part.rows[~np.isin(part.prompt_keys(part.rows), seen)]
        )
        cap = part.config.cap or len(rows)
        drawn = np.sort(generator.choice(rows, cap, replace=False)) if len(rows) > cap else rows
        lost = {"prompt_held_out": len(part.rows) - len(rows), "over_cap": len(rows) - len(drawn)}
        left_out = part.left_out | {reason: count for reason, count in lost.items() if count}
        found[number] = replace(part, rows=drawn, left_out=left_out)
    return found
