"""The training mixture: the sources of a recipe as one list of records, and the order of epochs.

The `data` section of a recipe is a `MixtureConfig`. A `Mixture` opens its sources, reads through
new ones, splits off the held-out records and addresses all training records by index. Indices and
order are the same on every rank and in every worker.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from mmrm.data.config.section import Count, GrowingSection, Processes, Ratio, Records
from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import DEFAULT_IMAGE_TOKENS, ImageTokens
from mmrm.data.package import data_cache
from mmrm.data.preference import Preference
from mmrm.data.preparation.balance import balanced_split, refuse_unknown
from mmrm.data.preparation.curriculum import (
    UNKNOWN_DIFFICULTY,
    CurriculumConfig,
    easy_first,
    reasons_after_curriculum,
)
from mmrm.data.preparation.data_card import (
    DataCard,
    Sharing,
    card_of,
    difficulty_counts,
    mean_difficulties,
)
from mmrm.data.preparation.decisions import (
    AppliedDecisions,
    FlippedSource,
    applied_decisions,
    decision_counts_in_words,
    flipped_index,
    flipped_rows,
    read_decisions,
    reasons_after_decisions,
    unmatched_keys,
)
from mmrm.data.preparation.filters import FilterConfig, read_fingerprints, reasons_after_filters
from mmrm.data.preparation.recognition import format_advice
from mmrm.data.preparation.row_index import REASONS, RowIndex
from mmrm.data.preparation.sampling import (
    Indices,
    Pool,
    SetPlacement,
    StageConfig,
    apportion,
    bring_images_together,
    bring_together,
    count_earlier,
    draw,
    in_windows,
    interleaved,
    number_pairs,
    shares,
)
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.preparation.sharing import (
    LeftToCompute,
    RecordLengths,
    left_to_compute,
    repeats,
)
from mmrm.data.preparation.split import SourceSplit, SplitRecords, hold_out
from mmrm.data.sources.registry import AnySource
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.text_shortcuts import SHORTCUTS, require_shortcuts

ResultT = TypeVar("ResultT")


class MixtureConfig(GrowingSection):
    """The training data: sources, how they are mixed, and which records are left out."""

    LATER_KEYS = frozenset({"curriculum", "balance", "decisions", "shards_together"})
    allowed_values: ClassVar[Mapping[str, Sequence[str]]] = {"balance": tuple(SHORTCUTS)}

    sources: list[AnySource] = Field(min_length=1)
    """The sources to train on, each with a `type`; see the list of types."""
    validation: int = Field(default=0, ge=0, le=10**8)
    """Number of held-out records, drawn uniformly over the sources; no training record shares a
    prompt with them."""
    validation_seed: int | None = Field(default=None, ge=0)
    """Seed that draws the held-out records; null takes `seed`. Runs with different seeds and the
    same `validation_seed` are measured on the same records."""
    images: Literal["real", "grey"] = "real"
    """`grey` replaces every image by a grey one of its size, so that the model learns from the text
    alone (an ablation)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of the records and of everything drawn from them."""
    records: Records | None = None
    """Number of records of one epoch; null takes the sum of the sources' sizes or, with stages, of
    the stages' sizes."""
    temperature: float = Field(default=1.0, ge=0.05, le=1e6)
    """A source's share is weight · size^(1/temperature): 1 draws by size, large values draw all
    sources alike."""
    text_per_multimodal: Ratio | None = None
    """Number of text-only records drawn for each record with images; null leaves the sources' own
    ratio. It does not apply to stages of one modality."""
    stages: list[StageConfig] = Field(default=[])
    """Parts of every epoch in succession; an empty list is one stage over everything."""
    filters: FilterConfig = FilterConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    """Which pairs are trained on by the number of tries that an annotator needed for them, and in
    which order."""
    decisions: list[str] = Field(default=[])
    """Paths of files with decisions about labels: records to leave out, and records whose ranks are
    reversed (train/clean.py and its page write them). A record is named by its content. If several
    lines name one record, the last line of the last file counts. Generated sources are read through
    for it."""
    balance: list[str] = Field(default=[])
    """Shortcuts, such as `length`, that are to predict nothing: of each source, records are left out
    until the response with more of it is preferred in half of the records in which both differ.
    With several shortcuts, this holds for every combination of them. It applies after `cap`. The
    data card counts the records as `unbalanced`. A generated source is read for it once."""
    shards_together: Count | None = None
    """Number of shards of each source that records are drawn from at one time, so that a rank reads
    from few files. They are drawn in a new order in every epoch. Null draws from all shards, as from
    any other source. Only sources of type `shards` have some; records of other sources are mixed in
    evenly."""
    bad_records: BadRecordConfig = BadRecordConfig()
    workers: Processes | None = None
    """Number of processes for the first reading; null takes all cores."""
    cache: str | None = None
    """Folder for indices, tables and the results of the first reading; null takes `data` in
    the cache folder, which is `$MMRM_CACHE` or `mmrm` in the user's cache folder."""

    @property
    def digest(self) -> str:
        """A digest of all settings that decide the training records and their order."""
        excluded = {"cache", "workers"}
        if self.validation_seed is None:
            # Runs of versions without this key have digests without it.
            excluded.add("validation_seed")
        settings = self.model_dump_json(exclude=excluded)
        return hashlib.sha256(settings.encode()).hexdigest()

    @property
    def cache_folder(self) -> Path:
        """The folder for files that are derived from the sources, such as row indices."""
        return Path(self.cache).expanduser() if self.cache else data_cache()

    @field_validator("balance")
    @classmethod
    def _shortcuts_exist(cls, balance: list[str]) -> list[str]:
        require_shortcuts(balance)
        return balance

    @model_validator(mode="after")
    def _order_is_possible(self) -> MixtureConfig:
        if self.shards_together is not None and self.curriculum.order == "easy_first":
            raise ValueError(
                "shards_together reads few shards at one time, and curriculum.order easy_first sorts "
                "the records of all of them; remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _names_agree(self) -> MixtureConfig:
        labels = [source.label for source in self.sources]
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        if repeated:
            raise ValueError(
                f"sources: the name {repeated[0]!r} occurs more than once; give each source a "
                "`name` of its own"
            )
        for stage in self.stages:
            for name in stage.sources or []:
                if name not in labels:
                    raise ValueError(
                        f"stages: {stage.name!r} draws from {name!r}, which is no source; there "
                        f"are {labels}"
                    )
        return self


class Mixture:
    """The training records and the held-out records of a recipe.

    `mixture[i]` for i in 0 … len(mixture) - 1 is a training record, and `order(epoch)` returns the
    indices in the order of an epoch. Rank r of n trains on a slice of that order; the mixture
    itself depends neither on ranks nor on workers. It holds a few bytes a record in memory, and
    pickles for worker processes.
    """

    def __init__(
        self, config: MixtureConfig, image_tokens: ImageTokens = DEFAULT_IMAGE_TOKENS
    ) -> None:
        """Open the sources, and read through sources that were never read before.

        Args:
            config: The `data` section of a recipe.
            image_tokens: Counts the tokens of images in the backbone; the default is Qwen2.5-VL's.

        Raises:
            UserError: A source or a file of decisions cannot be read, a source has too many bad
                records or is too small, or the curriculum needs difficulties that no record has.
            RecordError: A record cannot be used, under the strict policy.
        """
        self.config = config
        self.image_tokens = image_tokens
        fingerprints = read_fingerprints(config.filters.leave_out)
        self._decisions = read_decisions(config.decisions)
        splits = [self._open(section, fingerprints) for section in config.sources]
        self.splits = hold_out(splits, config.validation, config.seed, config.validation_seed)
        if config.balance:
            self.splits = self._balanced(self.splits)
        grey = config.images == "grey"
        self.records = SplitRecords([(split.source, split.rows) for split in self.splits], grey)
        self.validation = SplitRecords(
            [(split.source, split.held_out) for split in self.splits], grey
        )
        self.stages = self._stages()
        """For each stage, its pools with the number of records that an epoch draws from each."""
        self.skipped: set[int] = set()
        """Indices of records that `load` of this process could not use."""
        self.set_placement: SetPlacement = "random_member"
        """The rule by which `order` places records that share their prompt. A resumed run keeps the
        value that it was started with."""
        is_easy_first = config.curriculum.order == "easy_first"
        if is_easy_first and not (self.difficulties != UNKNOWN_DIFFICULTY).any():
            raise UserError(
                "data.curriculum.order is easy_first, and no record has a difficulty. Annotate the "
                "pairs (python eval/annotate.py --help) and take the files as a source of type "
                "project, or remove the key."
            )

    def _open(self, section: SourceConfig, fingerprints: npt.NDArray[np.uint64]) -> SourceSplit:
        """Open a source, and return its split with all rows that pass the filters to train on.

        A source that was never read before is read through. Generated sources are not filtered.

        Args:
            section: The source's section of the recipe.
            fingerprints: Fingerprints of the records that `filters.leave_out` lists.

        Raises:
            UserError: The source cannot be read. The message advises another format if one fits.
        """
        config = self.config
        try:
            source = section.open(config.cache_folder)
            if not len(source):
                raise UserError(f"{source.name}: the source has no rows.")
            if source.generated:
                _refuse_selection(section, config.curriculum)
                return self._generated_split(section, source)
            block_ends = section.block_ends(source)
            index = self._scan(source)
            rows_to_flip = flipped_rows(self._decisions, index)
            if rows_to_flip:
                source = FlippedSource(source, rows_to_flip)
                index = flipped_index(index, rows_to_flip)
            reasons = reasons_after_filters(config.filters, index, fingerprints, self.image_tokens)
            reasons = reasons_after_curriculum(config.curriculum, index.rows["difficulty"], reasons)
            reasons = reasons_after_decisions(self._decisions, index, reasons)
            applied = self._applied(index, reasons)
            split = SourceSplit.of(section, source, index, reasons, applied)
            return replace(split, block_ends=block_ends)
        except UserError as error:
            error.args = (f"{error}{format_advice(section, config.cache_folder)}",)
            raise

    def _balanced(self, splits: Sequence[SourceSplit]) -> list[SourceSplit]:
        """Return the sources with the training rows in which `data.balance` predicts nothing.

        Raises:
            UserError: A shortcut is not known in any record, or no record of a source would be
                left.
        """
        indices = []
        for split in splits:
            index = split.row_index
            if index is None:  # a generated source
                index = self._scan(split.source)
            indices.append(index)
        rows_of_sources = []
        for split, index in zip(splits, indices, strict=True):
            rows_of_sources.append(index.shortcuts[split.rows])
        names = self.config.balance
        refuse_unknown(rows_of_sources, names)
        balanced = []
        for split, index in zip(splits, indices, strict=True):
            balanced.append(balanced_split(split, index, names, self.config.seed))
        return balanced

    def _generated_split(self, section: SourceConfig, source: Source) -> SourceSplit:
        """Return the split of a generated source, which is read only if there are decisions."""
        reasons = np.full(len(source), REASONS.index("kept"), np.uint8)
        if not self.config.decisions:
            return SourceSplit.of(section, source, None, reasons)
        index = self._scan(source)
        rows_to_flip = flipped_rows(self._decisions, index)
        if rows_to_flip:
            source = FlippedSource(source, rows_to_flip)
        reasons = reasons_after_decisions(self._decisions, index, reasons)
        return SourceSplit.of(section, source, None, reasons, self._applied(index, reasons))

    def _scan(self, source: Source) -> RowIndex:
        """Return the row index of a source, which is read through if it was never read before."""
        num_workers = self.config.workers or os.cpu_count() or 1
        return scan(source, self.config.bad_records, self.config.cache_folder, num_workers)

    def _applied(self, index: RowIndex, reasons: npt.NDArray[np.uint8]) -> AppliedDecisions | None:
        """Return the counts of the applied decisions, None for a recipe without decisions."""
        if not self.config.decisions:
            return None
        return applied_decisions(self._decisions, index, reasons)

    def decision_keys(self) -> npt.NDArray[np.uint64]:
        """Return the key under which decisions name each training record, uint64 (len(self),).

        A generated source is read through for it. A record that a decision has flipped has the key
        of the record in its source.
        """
        keys = []
        for split, index in zip(self.splits, self.indices_without_decisions(), strict=True):
            keys.append(index.rows["record_key"][split.rows])
        return np.concatenate(keys)

    def indices_without_decisions(self) -> list[RowIndex]:
        """Return the row index of every source as it is without decisions.

        A generated source is read through for it.
        """
        folder = self.config.cache_folder
        return [self._scan(split.config.open(folder)) for split in self.splits]

    @property
    def decision_lines(self) -> list[str]:
        """Lines for people with the decisions that were applied; none without decisions."""
        if not self.config.decisions:
            return []
        lines = []
        for split in self.splits:
            assert split.decisions is not None, (
                "a recipe with decisions applies them to all sources"
            )
            lines.append(split.decisions.line(split.config.label))
        num_unmatched = unmatched_keys(self._decisions, self.indices_without_decisions())
        counts = decision_counts_in_words(self._decisions.counts)
        lines.append(
            f"data.decisions: {len(self._decisions.by_key):,} records are named ({counts}); "
            f"{num_unmatched:,} of them are in no source"
        )
        return lines

    def __len__(self) -> int:
        """Return the number of training records; an epoch may draw fewer or more: `epoch_size`."""
        return len(self.records)

    def __getitem__(self, index: int) -> Preference:
        """Read, validate and return training record `index`.

        Raises: RecordError if it has become unusable since its source was first read.
        """
        return self.records[index]

    @property
    def epoch_size(self) -> int:
        """The length of `order(epoch)`, the same in every epoch."""
        return sum(count for stage in self.stages for _, count in stage)

    def order(self, epoch: int, pairs_together: int = 1, images_together: int = 1) -> Indices:
        """Return the indices of an epoch, in order: int32 of shape (epoch_size,).

        The result is a permutation of all records, unless the recipe sets repeats, weights, a
        temperature, a ratio or stages. With these, an index may occur several times, or only in
        some epochs. The result is the same whenever the configuration, the arguments and
        `set_placement` are the same.

        Args:
            epoch: Number of the epoch, from 0.
            pairs_together: The largest number of records that share their prompt and follow one
                another.
            images_together: The largest number of records whose prompts begin with the same image
                and which follow one another. Records that share their prompt are not separated for
                this limit.
        """
        stage_orders = []
        for stage_number, pools_with_counts in enumerate(self.stages):
            generator = np.random.default_rng([self.config.seed, epoch, stage_number])
            drawn = [draw(pool, count, generator) for pool, count in pools_with_counts]
            if self.config.shards_together is None:
                stage_order = generator.permutation(np.concatenate(drawn))
            else:
                stage_order = self._drawn_from_few_shards(
                    drawn, self.config.shards_together, generator
                )
            if self.config.curriculum.order == "easy_first":
                stage_order = easy_first(stage_order, self.difficulties[stage_order])
            if images_together > 1:
                stage_order = bring_images_together(
                    stage_order,
                    self._trained_together(self.prompts, stage_order),
                    self._trained_together(self.first_images, stage_order),
                    pairs_together,
                    images_together,
                    generator,
                )
            elif pairs_together > 1:
                # Without a generator, records of one prompt are placed at the first one of them.
                is_random = self.set_placement == "random_member"
                placing_generator = generator if is_random else None
                prompts = self._trained_together(self.prompts, stage_order)
                stage_order = bring_together(
                    stage_order, prompts, pairs_together, placing_generator
                )
            stage_orders.append(stage_order)
        return np.concatenate(stage_orders)

    def _drawn_from_few_shards(
        self, drawn: Sequence[Indices], shards_together: int, generator: np.random.Generator
    ) -> Indices:
        """Return the drawn records in a random order in which few shards are read at one time.

        Args:
            drawn: Indices of records, those of each pool of a stage, (n,) each. The records of a pool
                are of one source.
            shards_together: Number of shards of a source that are read at one time.
            generator: Draws the order.
        """
        orders_of_shards: dict[int, npt.NDArray[np.int64]] = {}
        sequences = []
        for indices in drawn:
            if not len(indices):
                continue  # so few records are drawn that this pool gets none
            source_number = int(np.searchsorted(self.records.ends, indices[:1], side="right")[0])
            split = self.splits[source_number]
            if not split.block_ends:
                sequences.append(generator.permutation(indices))
                continue
            if source_number not in orders_of_shards:
                num_shards = len(split.block_ends)
                orders_of_shards[source_number] = generator.permutation(num_shards)
            first_index = self.records.ends[source_number] - len(split.rows)
            rows = split.rows[indices - first_index]
            shards = np.searchsorted(split.block_ends, rows, side="right")
            order_of_shards = orders_of_shards[source_number]
            windows = order_of_shards[shards] // shards_together
            # A record that is drawn again comes when all records have been drawn before.
            windows += count_earlier(indices) * len(order_of_shards)
            sequences.append(in_windows(indices, windows, generator))
        return interleaved(sequences, generator)

    def _trained_together(self, numbers: Indices, order: Indices) -> npt.NDArray[np.integer]:
        """Return a number for each entry of `order` that is equal for entries that may be neighbours.

        With `easy_first`, records that share their prompt or their image are only brought together
        if their difficulties are equal too, so that the order stays that of the difficulties.

        Args:
            numbers: For each training record, the number of its prompt, or of its first image.
            order: Indices of records, (n,).
        """
        if self.config.curriculum.order == "shuffled":
            return numbers[order]
        return number_pairs(numbers[order], self.difficulties[order])

    @property
    def has_shared_prompts(self) -> bool:
        """True if several training records have the same prompt and images."""
        return len(np.unique(self.prompts)) < len(self)

    @cached_property
    def prompts(self) -> Indices:
        """For each training record, the index of the first one with the same prompt and images.

        The result is int32 of shape (len(self),). Records of generated sources share no prompt.

        Example: if records 0 and 2 of three have the same prompt, the result is 0, 1, 0.
        """
        # Generated sources have no keys of prompts: each of their records is its own first one.
        keys = np.concatenate([split.prompt_keys(split.rows) for split in self.splits])
        is_generated = [split.source.generated for split in self.splits]
        num_records = [len(split.rows) for split in self.splits]
        indices_with_key = np.flatnonzero(~np.repeat(is_generated, num_records))

        _, first_position_of_key, key_number = np.unique(
            keys, return_index=True, return_inverse=True
        )
        first_indices = np.arange(len(self), dtype=np.int32)
        first_indices[indices_with_key] = indices_with_key[first_position_of_key[key_number]]
        return first_indices

    @cached_property
    def first_images(self) -> Indices:
        """For each training record, the index of the first one that begins with the same image.

        The prompts of two such records are equal up to the end of their first image. The result is
        int32 of shape (len(self),). Records without images and records of generated sources share
        none.

        Example: records 1 and 3 of four begin with the same image, and 0 has none: 0, 1, 2, 1.
        """
        keys = np.concatenate([split.image_keys() for split in self.splits])
        indices_with_key = np.flatnonzero(keys)
        _, first_position_of_key, key_number = np.unique(
            keys[indices_with_key], return_index=True, return_inverse=True
        )
        first_indices = np.arange(len(self), dtype=np.int32)
        first_indices[indices_with_key] = indices_with_key[first_position_of_key[key_number]]
        return first_indices

    @cached_property
    def difficulties(self) -> npt.NDArray[np.uint16]:
        """The difficulty of each training record, UNKNOWN_DIFFICULTY if it has none, (len(self),)."""
        return np.concatenate([split.difficulties() for split in self.splits])

    @property
    def curriculum_lines(self) -> list[str]:
        """Lines for people with the difficulties of each source's training records.

        There are none without a curriculum.
        """
        if self.config.curriculum == CurriculumConfig():
            return []
        lines = []
        for split in self.splits:
            counts = difficulty_counts(split.difficulties())
            lines.append(counts.line(split.config.label))
        return lines

    @cached_property
    def rationale_sides(self) -> npt.NDArray[np.int8]:
        """The position in which a judge has to be shown each record's chosen response.

        It is 0 for first and 1 for second, because the record's rationale was written for that
        order. It is -1 if both are possible. int8 of shape (len(self),).
        """
        return np.concatenate([split.rationale_sides() for split in self.splits])

    def load(self, index: int, convert: Callable[[Preference], ResultT]) -> ResultT:
        """Return `convert(record)` for training record `index`, or for the next usable record.

        Some faults show only when a record is used: damaged pixels behind a sound header, a file
        that was removed. Under the `skip` policy, the next usable record of the same source is then
        converted instead. This process does not try the faulty record again.

        Raises:
            RecordError: The record cannot be used, under the strict policy.
            UserError: More than the allowed share of `len(self)` was skipped.
        """
        source_number, position = self.records.locate(index)
        num_records = len(self.splits[source_number].rows)
        first_index_of_source = index - position
        for step in range(num_records):
            # The record after the source's last one is its first one.
            candidate = first_index_of_source + (position + step) % num_records
            if candidate in self.skipped:
                continue
            try:
                return convert(self[candidate])
            except RecordError as error:
                if self.config.bad_records.policy == "strict":
                    raise
                self._skip(candidate, error)
        name = self.splits[source_number].source.name
        raise UserError(
            f"{name}: not one record can be used. Run `python data/mixture.py RECIPE --plan` to "
            "see why, and correct the source or remove it."
        )

    def _skip(self, index: int, error: RecordError) -> None:
        """Remember that record `index` cannot be used; raise UserError if there are too many such.

        Args:
            index: The training record.
            error: The error that it raised, which the message of the UserError quotes.
        """
        self.skipped.add(index)
        limit = self.config.bad_records.limit
        if len(self.skipped) > max(1, limit * len(self)):
            raise UserError(
                f"{len(self.skipped):,} records could not be used while training, and the recipe "
                f"allows {limit:.1%} of {len(self):,} (bad_records.limit). Correct the data, or "
                f"raise the limit. The last of them: {error}"
            ) from error

    def lengths(self) -> npt.NDArray[np.float64]:
        """Return estimated text tokens and image tokens of every training record, (len, 2).

        They are computed from the row indices. Generated sources have none: their records are given
        the average length of all others, or 1 if all sources are generated.
        """
        lengths = self._known_lengths()
        is_known = ~np.isnan(lengths[:, 0])
        average = lengths[is_known].mean(axis=0) if is_known.any() else 1.0
        lengths[~is_known] = average
        return lengths

    def _known_lengths(self) -> npt.NDArray[np.float64]:
        """Return `lengths`, but NaN for records of generated sources, (len, 2)."""
        return np.concatenate([split.lengths(self.image_tokens) for split in self.splits])

    def first_image_tokens(self) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each training record's first image, (len,).

        It is 0 for records without images and for records of generated sources.
        """
        return np.concatenate(
            [split.first_image_tokens(self.image_tokens) for split in self.splits]
        )

    def card(self, pairs_together: int = 1, images_together: int = 1) -> DataCard:
        """Return the data card: for each source, the number of rows by their use, and the epoch.

        Args:
            pairs_together: As in `order`. The order decides how many records of a source are in
                each tenth of an epoch, and what is left to compute of them.
            images_together: As in `order`.
        """
        order = self.order(0, pairs_together, images_together)
        left = self._left_to_compute(
            order,
            same_prompt=repeats(self.prompts[order]) & (pairs_together > 1),
            same_image=repeats(self.first_images[order]) & (images_together > 1),
        )
        # The records once each, those of one image and of one prompt next to each other.
        sorted_records = np.lexsort((self.prompts, self.first_images))
        left_if_all = self._left_to_compute(
            sorted_records,
            same_prompt=repeats(self.prompts[sorted_records]),
            same_image=repeats(self.first_images[sorted_records]),
        )
        drawn_by_tenth = self._drawn_by_tenth(order)
        has_curriculum = self.config.curriculum != CurriculumConfig()
        has_difficulties = bool((self.difficulties != UNKNOWN_DIFFICULTY).any())
        sources = []
        for number, split in enumerate(self.splits):
            sharing = Sharing(left[number], left_if_all[number])
            card = card_of(
                split,
                drawn_by_tenth[number],
                self.image_tokens,
                sharing,
                has_difficulties or has_curriculum,
            )
            sources.append(card)
        difficulty_by_tenth = None
        if has_difficulties:
            difficulty_by_tenth = mean_difficulties(self.difficulties[order])
        return DataCard(
            sources,
            self.epoch_size,
            self.config.digest,
            pairs_together,
            images_together,
            difficulty_by_tenth,
            self.decision_lines,
        )

    def _left_to_compute(
        self,
        order: npt.NDArray[np.integer],
        same_prompt: npt.NDArray[np.bool_],
        same_image: npt.NDArray[np.bool_],
    ) -> list[LeftToCompute]:
        """Return for each source what is left to compute; see `left_to_compute`."""
        text_tokens, image_tokens = np.nan_to_num(self._known_lengths()).T
        prompt_texts = np.concatenate([split.prompt_text_tokens() for split in self.splits])
        prompt_images = np.concatenate(
            [split.prompt_image_tokens(self.image_tokens) for split in self.splits]
        )
        lengths = RecordLengths(
            total=text_tokens + image_tokens,
            prompt=prompt_texts + prompt_images,
            images=image_tokens,
            prompt_images=prompt_images,
            first_image=self.first_image_tokens(),
        )
        source_numbers = np.searchsorted(self.records.ends, order, side="right")
        return left_to_compute(
            lengths, order, same_prompt, same_image, source_numbers, len(self.splits)
        )

    def _drawn_by_tenth(self, order: Indices) -> list[list[int]]:
        """Return for each source ten counts: its records in each tenth of `order`."""
        source_numbers = np.searchsorted(self.records.ends, order, side="right")
        tenths = np.array_split(source_numbers, 10)
        counts = [np.bincount(tenth, minlength=len(self.splits)) for tenth in tenths]
        by_source: list[list[int]] = np.stack(counts, axis=1).tolist()
        return by_source

    def _stages(self) -> list[list[tuple[Pool, int]]]:
        """Return for each stage the pools that it draws from, with the number of records to draw.

        A pool is a source, or its records of one modality.
        """
        config = self.config
        stages = config.stages or [StageConfig(name="all")]  # without stages, one over everything
        pools_by_stage = [self._pools(stage) for stage in stages]
        sizes_by_stage = []
        for stage, pools in zip(stages, pools_by_stage, strict=True):
            size = sum(pool.size for pool in pools)
            sizes_by_stage.append(stage.repeat * size)
        sizes = np.array(sizes_by_stage)
        totals = np.round(sizes)
        if config.records is not None:
            totals = apportion(config.records, sizes / sizes.sum())

        stages_with_counts = []
        for stage, pools, total in zip(stages, pools_by_stage, totals, strict=True):
            # A stage of one modality has no ratio of the two.
            ratio = config.text_per_multimodal if stage.modality == "all" else None
            counts = apportion(int(total), shares(pools, config.temperature, ratio))
            stages_with_counts.append(list(zip(pools, counts.tolist(), strict=True)))
        return stages_with_counts

    def _pools(self, stage: StageConfig) -> list[Pool]:
        """Return the pools that a stage draws from.

        A pool is a source, or its records of one modality. A source is divided by modality only if
        the recipe requires it, because a generated source cannot be divided.

        Raises: UserError if the stage has no record to draw.
        """
        by_modality = self.config.text_per_multimodal is not None or stage.modality != "all"
        pools = []
        for split, end in zip(self.splits, self.records.ends, strict=True):
            if stage.sources is not None and split.config.label not in stage.sources:
                continue
            start = end - len(split.rows)
            for pool in split.pools(start, by_modality):
                if len(pool.indices) and _is_drawn(pool, stage):
                    pools.append(pool)
        if not pools:
            left_out = {
                split.config.label: split.left_out for split in self.splits if split.left_out
            }
            raise UserError(
                f"stage {stage.name!r}: there is no record to draw ({stage.modality}, sources "
                f"{stage.sources or 'all'}). Left out before: {left_out or 'nothing'}. Correct the "
                "data, or change data.filters or the stage."
            )
        return pools


def _refuse_selection(section: SourceConfig, curriculum: CurriculumConfig) -> None:
    """Raise UserError if a curriculum selects by difficulty from a generated source.

    Args:
        section: The section of the generated source, whose records have no difficulties.
        curriculum: The curriculum of the recipe.
    """
    if curriculum.selects:
        raise UserError(
            f"{section.label}: data.curriculum selects pairs by their difficulty, and records of a "
            "generated source have none. Annotate them (python eval/annotate.py --help) and take "
            "the file as a source of type project, or remove least and most."
        )


def _is_drawn(pool: Pool, stage: StageConfig) -> bool:
    """Return True if the records of a pool have the modality of the stage."""
    if stage.modality == "all":
        return True
    wants_text = stage.modality == "text"
    return pool.text_only == wants_text
