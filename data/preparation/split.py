"""The split of each source: rows to train on, rows held out for validation, and rows left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from mmrm.data.encoded_video import grey_video_like
from mmrm.data.errors import UserError
from mmrm.data.images import ImageTokens, grey_like
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.decisions import AppliedDecisions
from mmrm.data.preparation.row_index import (
    BYTES_PER_TOKEN,
    KEEPS_ORDER,
    REASONS,
    REJECTED_FIRST,
    RowIndex,
    index_rows,
)
from mmrm.data.preparation.sampling import Indices, Pool, quotas
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.storage.row_files import part_and_position

KEPT = REASONS.index("kept")
HELD_OUT_DRAW = 0x5EED
"""Last number of the seeds of `hold_out`. It makes its draws independent of those of an epoch."""


@dataclass(frozen=True)
class SourceSplit:
    """A source of a recipe, divided into training rows, held-out rows and rows left out."""

    config: SourceConfig
    source: Source
    row_index: RowIndex | None
    """None for a generated source, which is not read before training."""
    left_out: dict[str, int]
    """Number of rows that are neither trained on nor held out, by reason. With the lengths of
    `rows` and `held_out` they add up to the number of rows of the source."""
    rows: Indices
    """Ascending row numbers of the training records in the source, int32 of shape (rows,)."""
    held_out: Indices
    """Ascending row numbers of the held-out records in the source, int32 of shape (held-out
    rows,)."""
    decisions: AppliedDecisions | None = None
    """The decisions about labels that were applied to the source; None if the recipe has none."""
    block_ends: Sequence[int] = ()
    """`SourceConfig.block_ends` of the source."""

    @classmethod
    def of(
        cls,
        config: SourceConfig,
        source: Source,
        row_index: RowIndex | None,
        reasons: npt.NDArray[np.uint8],
        decisions: AppliedDecisions | None = None,
    ) -> SourceSplit:
        """Return the split of a source in which all usable rows are trained on, and none held out.

        Args:
            config: The source's section of the recipe.
            source: The opened source.
            row_index: Its row index; None for a generated source.
            reasons: Index into REASONS of each row, (rows of the source,).
            decisions: The decisions about labels that were applied; None if the recipe has none.
        """
        counts = np.bincount(reasons, minlength=len(REASONS)).tolist()
        left_out = {}
        for reason, count in zip(REASONS, counts, strict=True):
            if count and reason != "kept":
                left_out[reason] = count
        rows = np.flatnonzero(reasons == KEPT).astype(np.int32)
        return cls(config, source, row_index, left_out, rows, rows[:0], decisions)

    @property
    def content(self) -> str:
        """A short text that changes when the records of the source change.

        It is a digest of the records, or for a generated source a fingerprint of its settings. A
        digest of the applied decisions follows if there are any.
        """
        content = self.row_index.content if self.row_index else self.source.fingerprint()
        if self.decisions is None or not self.decisions.digest:
            return content
        return f"{content} {self.decisions.digest}"

    def indexed_rows(self, sample: Indices) -> tuple[RowIndex, Indices]:
        """Return a table of figures about rows, and the positions of the training rows in it.

        This is the row index of the source. A generated source has none. For it, the rows in
        `sample` are generated and indexed, and the positions of all of these are returned.

        Args:
            sample: Numbers of rows that represent the training rows of a generated source,
                (sample,). For other sources it is not used.
        """
        if self.row_index is not None:
            return self.row_index, self.rows
        return index_rows(self.source, sample.tolist()), np.arange(len(sample), dtype=np.int32)

    def pools(self, start: int, by_modality: bool) -> list[Pool]:
        """Return the training rows as one pool to draw from, or as one pool for each modality.

        Args:
            start: Index in the mixture of the first training row.
            by_modality: Whether to separate records with images from text-only records.

        Raises:
            UserError: `by_modality` is True for a generated source. Only reading all its records
            would tell which of them hold images.
        """
        indices = np.arange(start, start + len(self.rows), dtype=np.int32)
        if not by_modality:
            return [Pool(self.config, text_only=None, indices=indices)]
        if self.row_index is None:
            raise UserError(
                f"{self.config.label}: a generated source cannot be divided into text-only and "
                "multimodal records. Use the source's own setting of the text share instead of "
                "text_per_multimodal or a stage's modality."
            )
        is_text_only = self.row_index.is_text_only[self.rows]
        return [
            Pool(self.config, text_only=False, indices=indices[~is_text_only]),
            Pool(self.config, text_only=True, indices=indices[is_text_only]),
        ]

    def lengths(self, count_image_tokens: ImageTokens) -> npt.NDArray[np.float64]:
        """Return estimated text tokens and image tokens of each training row, (rows, 2).

        All are NaN for a generated source.
        """
        if self.row_index is None:
            return np.full((len(self.rows), 2), np.nan)
        text_tokens = self.row_index.rows["text_tokens"]
        image_tokens = self.row_index.image_tokens(count_image_tokens)
        lengths = np.stack([text_tokens, image_tokens], axis=1)
        return lengths[self.rows].astype(np.float64)

    def rationale_sides(self) -> npt.NDArray[np.int8]:
        """Return the position in which a judge has to be shown each row's chosen response.

        It is 0 for first and 1 for second, if the row's rationale can be used in one order only. It
        is -1 if both orders are possible. The result is int8 of shape (rows,).
        """
        if self.row_index is None:
            # Rationales of a generated source can be shown in both orders; a test checks that.
            return np.full(len(self.rows), -1, np.int8)
        flags = self.row_index.rows["flags"][self.rows]
        sides = np.where(flags & REJECTED_FIRST, 1, 0).astype(np.int8)
        has_both_orders = (flags & KEEPS_ORDER) == 0
        sides[has_both_orders] = -1
        return sides

    def difficulties(self) -> npt.NDArray[np.uint16]:
        """Return the difficulty of each training row, uint16 of shape (rows,).

        It is 0 (UNKNOWN_DIFFICULTY) for a row without one. All are 0 for a generated source.
        """
        if self.row_index is None:
            return np.zeros(len(self.rows), np.uint16)
        difficulties: npt.NDArray[np.uint16] = self.row_index.rows["difficulty"][self.rows]
        return difficulties

    def prompt_keys(self, rows: Indices) -> npt.NDArray[np.uint64]:
        """Return numbers that are equal for equal prompts, one for each of `rows`, uint64 (rows,).

        The result is empty for a generated source, whose prompts are not compared with others.
        """
        if self.row_index is None:
            return np.empty(0, np.uint64)
        keys: npt.NDArray[np.uint64] = self.row_index.rows["prompt_key"][rows]
        return keys

    def image_keys(self) -> npt.NDArray[np.uint64]:
        """Return numbers that are equal for training rows whose prompts begin with the same image.

        A row's number is 0 if its prompt has no image. All are 0 for a generated source, whose
        images are not compared with others. The result is uint64 of shape (rows,).
        """
        if self.row_index is None:
            return np.zeros(len(self.rows), np.uint64)
        keys: npt.NDArray[np.uint64] = self.row_index.rows["image_key"][self.rows]
        return keys

    def prompt_text_tokens(self) -> npt.NDArray[np.float64]:
        """Return the estimated tokens of the text of each training row's prompt, (rows,).

        They are 0 for a generated source.
        """
        if self.row_index is None:
            return np.zeros(len(self.rows))
        rows = self.row_index.rows[self.rows]
        response_characters = rows["chosen"].astype(np.int64) + rows["rejected"] + rows["others"]
        prompt_tokens = rows["text_tokens"] - response_characters / BYTES_PER_TOKEN
        return np.asarray(np.maximum(prompt_tokens, 0))

    def prompt_image_tokens(self, count_image_tokens: ImageTokens) -> npt.NDArray[np.int64]:
        """Return the image tokens of each training row's prompt, int64 of shape (rows,).

        They are 0 for a generated source.
        """
        if self.row_index is None:
            return np.zeros(len(self.rows), np.int64)
        return self.row_index.prompt_image_tokens(count_image_tokens)[self.rows]

    def first_image_tokens(self, count_image_tokens: ImageTokens) -> npt.NDArray[np.int64]:
        """Return the tokens of each training row's first image, int64 of shape (rows,).

        Only images of the prompt count. It is 0 without one, and for a generated source.
        """
        if self.row_index is None:
            return np.zeros(len(self.rows), np.int64)
        return self.row_index.first_image_tokens(count_image_tokens)[self.rows]


class SplitRecords(Sequence[Preference]):
    """A read-only list of the training records, or of the held-out records, of all sources.

    Records are read and validated when they are accessed.
    """

    def __init__(self, rows_by_source: Sequence[tuple[Source, Indices]], grey: bool) -> None:
        """Store the sources, and the rows to read from each.

        Args:
            rows_by_source: Each source with the numbers of its rows to read, (rows,).
            grey: Whether to replace every image, and every frame of a video, by a grey one of the
                same size.
        """
        self.rows_by_source = rows_by_source
        self.grey = grey
        self.ends = list(accumulate(len(rows) for _, rows in rows_by_source))
        """For each source, the number of records in it and in all sources before it."""

    def __len__(self) -> int:
        return self.ends[-1]

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the source that holds record `index`, and its position there.

        The position counts the rows of the source that this list holds.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return part_and_position(self.ends, index)

    def __getitem__(self, index: int) -> Preference:  # type: ignore[override]  # an index, no slice
        """Read, validate and return record `index`; raise RecordError if it cannot be used."""
        source_number, position = self.locate(index)
        source, rows = self.rows_by_source[source_number]
        record = validate(source.record(int(rows[position])))
        if self.grey:
            record = _with_grey_images(record)
        return replace(record, source=source.name)


def _with_grey_images(record: Preference) -> Preference:
    """Return a record with a grey image of the same size in place of each image, and of each frame.

    Images and videos of the prompt and of the responses are replaced.
    """
    responses = []
    for response in record.responses:
        grey_images = [grey_like(image, record.identity) for image in response.images]
        grey_videos = [grey_video_like(video, record.identity) for video in response.videos]
        responses.append(response.with_media(grey_images, grey_videos))
    return replace(
        record,
        images=tuple(grey_like(image, record.identity) for image in record.images),
        videos=tuple(grey_video_like(video, record.identity) for video in record.videos),
        responses=tuple(responses),
    )


def hold_out(
    splits: Sequence[SourceSplit], total: int, seed: int, validation_seed: int | None = None
) -> list[SourceSplit]:
    """Hold out `total` rows of all sources together, and return the changed splits.

    A split is a source with its training rows and its held-out rows. Each source gives equally
    many rows, if it has enough. Training rows that share their prompt with a held-out row of any
    source are left out. Then each source's `cap`, the largest number of rows to train on, is
    applied to its remaining training rows.

    Args:
        splits: The sources, each with all its usable rows in `rows`.
        total: The number of rows to hold out.
        seed: Draws the rows under a cap, and the held-out rows if `validation_seed` is None.
        validation_seed: Draws the held-out rows alone, so that runs with other seeds hold out the
        same.

    Raises:
        UserError: The sources are too small.
    """
    generators = _generators(seed, len(splits))
    held_out_generators = generators
    if validation_seed is not None:
        held_out_generators = _generators(validation_seed, len(splits))

    half_of_sources = [len(split.rows) // 2 for split in splits]
    counts = quotas(total, half_of_sources)
    divided_splits = []
    for split, count, generator in zip(splits, counts, held_out_generators, strict=True):
        held_out = np.sort(generator.choice(split.rows, count, replace=False))
        rows = np.setdiff1d(split.rows, held_out, assume_unique=True)
        divided_splits.append(replace(split, rows=rows, held_out=held_out))

    held_out_prompts = np.concatenate(
        [split.prompt_keys(split.held_out) for split in divided_splits]
    )
    return [
        _without_prompts_and_capped(split, held_out_prompts, generator)
        for split, generator in zip(divided_splits, generators, strict=True)
    ]


def _generators(seed: int, count: int) -> list[np.random.Generator]:
    """Return one random generator for each of `count` sources, from `seed`."""
    return [np.random.default_rng([seed, number, HELD_OUT_DRAW]) for number in range(count)]


def _without_prompts_and_capped(
    split: SourceSplit, prompts: npt.NDArray[np.uint64], generator: np.random.Generator
) -> SourceSplit:
    """Return the split with fewer training rows; rows dropped here are added to its `left_out`.

    Training rows with one of the given prompts are dropped. If more than the source's `cap` are
    left, that many are drawn from them.

    Args:
        split: The split of one source.
        prompts: Keys of the prompts of held-out rows.
        generator: Draws the rows under a cap.
    """
    rows = split.rows
    if split.row_index is not None:
        rows = rows[~np.isin(split.prompt_keys(rows), prompts)]
    capped = rows
    cap = split.config.cap
    if cap is not None and len(rows) > cap:
        capped = np.sort(generator.choice(rows, cap, replace=False))

    left_out = dict(split.left_out)
    num_prompt_held_out = len(split.rows) - len(rows)
    if num_prompt_held_out:
        left_out["prompt_held_out"] = num_prompt_held_out
    num_over_cap = len(rows) - len(capped)
    if num_over_cap:
        left_out["over_cap"] = num_over_cap
    return replace(split, rows=capped, left_out=left_out)
