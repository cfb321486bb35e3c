"""The training mixture: many sources as one, addressed by index, the same on every rank and in every worker."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from mmrm.data.config.section import Processes, Ratio, Records, Section
from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import DEFAULT_IMAGE_TOKENS, ImageTokens
from mmrm.data.preference import Preference
from mmrm.data.preparation.data_card import DataCard, card_of
from mmrm.data.preparation.filters import FilterConfig, apply, read_fingerprints
from mmrm.data.preparation.recognition import advice
from mmrm.data.preparation.sampling import (
    Indices,
    Pool,
    SetPlacement,
    StageConfig,
    apportion,
    bring_together,
    draw,
    shares,
)
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.preparation.split import SourceSplit, SplitRecords, hold_out
from mmrm.data.sources.registry import AnySource

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "data"

T = TypeVar("T")


class MixtureConfig(Section):
    """What is trained on: sources, how they are mixed, and what is left out."""

    sources: list[AnySource] = Field(min_length=1)
    """What is trained on, each with a `type`; see the list of types."""
    validation: int = Field(default=0, ge=0, le=10**8)
    """Held-out records, drawn uniformly over the sources; no training record shares a prompt with them."""
    validation_seed: int | None = Field(default=None, ge=0)
    """Seed by which the held-out records are drawn; null takes `seed`. Runs with different seeds and the same
    `validation_seed` are measured on the same records."""
    images: Literal["real", "grey"] = "real"
    """`grey` replaces every image by a grey one of its size: what is learnt then comes from the text alone (an ablation)."""
    seed: int = Field(default=0, ge=0)
    """Of the order of the records and of everything drawn from them."""
    records: Records | None = None
    """Records of one epoch; null takes the sum of the sources' sizes (or, with stages, of the stages')."""
    temperature: float = Field(default=1.0, ge=0.05, le=1e6)
    """A source's share is weight · size^(1/temperature): 1 draws by size, large values draw all sources alike."""
    text_per_multimodal: Ratio | None = None
    """Text-only records drawn for each record with images; null leaves the sources' own ratio. Not for stages of one kind."""
    stages: list[StageConfig] = Field(default=[])
    """Parts of every epoch in succession; empty is one stage over everything."""
    filters: FilterConfig = FilterConfig()
    bad_records: BadRecordConfig = BadRecordConfig()
    workers: Processes | None = None
    """Processes for the first reading; null takes all cores."""
    cache: str | None = None
    """Folder for indices, tables and what the first reading found; null takes `.cache/data` in the clone."""

    @property
    def digest(self) -> str:
        """A digest of every setting that decides what is trained on."""
        left_out = {"cache", "workers"}
        if self.validation_seed is None:
            left_out.add("validation_seed")  # the digests of before there was this key stay valid
        settings = self.model_dump_json(exclude=left_out)
        return hashlib.sha256(settings.encode()).hexdigest()

    @property
    def cache_folder(self) -> Path:
        """The folder for what is derived from the sources."""
        return Path(self.cache).expanduser() if self.cache else CACHE

    @model_validator(mode="after")
    def _names_agree(self) -> MixtureConfig:
        labels = [source.label for source in self.sources]
        double = sorted({label for label in labels if labels.count(label) > 1})
        if double:
            raise ValueError(
                f"sources: the name {double[0]!r} occurs more than once; give each source a `name` of its own"
            )
        for stage in self.stages:
            for name in stage.sources or []:
                if name not in labels:
                    raise ValueError(
                        f"stages: {stage.name!r} draws from {name!r}, which is no source; there are {labels}"
                    )
        return self


class Mixture:
    """The training records and the held-out ones of a recipe.

    `mixture[i]` for i in 0 … len(mixture) - 1 is a training record, `order(epoch)` the indices in the order of an epoch.
    Rank r of n trains on a slice of that order; nothing here knows of ranks or workers. What is held in memory is a few
    bytes a record; the object pickles for worker processes.
    """

    def __init__(
        self, config: MixtureConfig, image_tokens: ImageTokens = DEFAULT_IMAGE_TOKENS
    ) -> None:
        """Open the sources, and read through those that were never read before.

        `image_tokens` counts what images become in the backbone; the default is Qwen2.5-VL's.

        Raises: UserError, and under the strict policy RecordError.
        """
        self.config = config
        self.image_tokens = image_tokens
        fingerprints = read_fingerprints(config.filters.leave_out)
        parts = []
        for section in config.sources:
            try:
                source = section.open(config.cache_folder)
                if not len(source):
                    raise UserError(f"{source.name}: the source has no rows.")
                index, reasons = None, np.zeros(len(source), np.uint8)
                if not source.generated:
                    index = scan(
                        source,
                        config.bad_records,
                        config.cache_folder,
                        config.workers or os.cpu_count() or 1,
                    )
                    reasons = apply(config.filters, index, fingerprints, self.image_tokens)
            except UserError as error:
                error.args = (f"{error}{advice(section, config.cache_folder)}",)
                raise
            parts.append(SourceSplit.of(section, source, index, reasons))
        self.parts = hold_out(parts, config.validation, config.seed, config.validation_seed)
        grey = config.images == "grey"
        self.records = SplitRecords([(part.source, part.rows) for part in self.parts], grey)
        self.validation = SplitRecords([(part.source, part.held_out) for part in self.parts], grey)
        self.stages = self._stages()
        self.skipped: set[int] = set()
        self.set_placement: SetPlacement = "random_member"
        """Where `order` puts records of one prompt. A run that was begun with another value keeps
        it when it is resumed."""

    def __len__(self) -> int:
        """Return the number of different training records; an epoch may draw fewer or more: `epoch_size`."""
        return len(self.records)

    def __getitem__(self, index: int) -> Preference:
        """Return training record `index`, validated; raise RecordError if it has become unusable since the first reading."""
        return self.records[index]

    @property
    def epoch_size(self) -> int:
        """The length of `order(epoch)`, the same in every epoch."""
        return sum(count for stage in self.stages for _, count in stage)

    def order(self, epoch: int, together: int = 1) -> Indices:
        """Return the indices of an epoch, in order: int32 of shape (epoch_size,).

        The result is a permutation of all records unless repeats, weights, a temperature, a ratio
        or stages say otherwise. Then an index may occur several times, or only in some epochs.
        Within a stage, up to `together` records that share their prompt follow one another. The
        result depends on the configuration, the epoch, `together` and `set_placement` alone.
        """
        stages = []
        for number, stage in enumerate(self.stages):
            generator = np.random.default_rng([self.config.seed, epoch, number])
            drawn = [draw(pool, count, generator) for pool, count in stage]
            order = generator.permutation(np.concatenate(drawn))
            if together > 1:
                at_random = self.set_placement == "random_member"
                set_generator = generator if at_random else None
                order = bring_together(order, self.prompts[order], together, set_generator)
            stages.append(order)
        return np.concatenate(stages)

    @property
    def has_shared_prompts(self) -> bool:
        """True if several training records have the same prompt and images."""
        return len(np.unique(self.prompts)) < len(self)

    @cached_property
    def prompts(self) -> Indices:
        """The first training record with each one's prompt and images, (len,) int32; those of generated sources share none."""
        keys = np.concatenate([part.prompt_keys(part.rows) for part in self.parts])
        known = np.repeat(
            [not part.source.generated for part in self.parts],
            [len(part.rows) for part in self.parts],
        )
        found, places = np.arange(len(self), dtype=np.int32), np.flatnonzero(known)
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        found[places] = places[first[inverse]]
        return found

    @cached_property
    def rationale_sides(self) -> npt.NDArray[np.int8]:
        """The only side on which each training record can be shown, -1 if both are, (len,)."""
        return np.concatenate([part.rationale_sides() for part in self.parts])

    def load(self, index: int, use: Callable[[Preference], T]) -> T:
        """Return `use(record)` for training record `index`; under the `skip` policy for the next usable one of its source.

        For what only shows when a record is used: pixels behind a sound header, a file that went away. `skipped` holds the
        records that this process has found so; they are not tried again.

        Raises: RecordError under the strict policy; UserError when more than the allowed share of `len(self)` was skipped.
        """
        part, position = self.records.place(index)
        rows, allowed = len(self.parts[part].rows), self.config.bad_records
        for step in range(rows):
            place = index - position + (position + step) % rows
            if place in self.skipped:
                continue
            try:
                return use(self[place])
            except RecordError as error:
                if allowed.policy == "strict":
                    raise
                self.skipped.add(place)
                if len(self.skipped) > max(1, allowed.limit * len(self)):
                    raise UserError(
                        f"{len(self.skipped):,} records could not be used while training; the recipe allows "
                        f"{allowed.limit:.1%} of {len(self):,} (bad_records.limit). The last of them: {error}"
                    ) from error
        raise UserError(f"{self.parts[part].source.name}: not one record can be used")

    def lengths(self) -> npt.NDArray[np.float64]:
        """Return estimated text tokens and image tokens of every training record, (len, 2), from what the preparation noted.

        A record of a generated source is taken for an average one.
        """
        found = np.concatenate([part.lengths(self.image_tokens) for part in self.parts])
        known = ~np.isnan(found[:, 0])
        found[~known] = found[known].mean(axis=0) if known.any() else 1.0
        return found

    def card(self, together: int = 1) -> DataCard:
        """Return the data card: rows that went in, rows left out by reason, and the order of an epoch.

        `together` is that of `order`.
        """
        drawn_by_tenth = self._drawn_by_tenth(self.order(0, together))
        sources = [
            card_of(part, drawn, self.image_tokens)
            for part, drawn in zip(self.parts, drawn_by_tenth, strict=True)
        ]
        return DataCard(sources, self.epoch_size, self.config.digest)

    def _drawn_by_tenth(self, order: Indices) -> list[list[int]]:
        """Return for each source how many of its records are in each tenth of `order`."""
        source_numbers = np.searchsorted(self.records.ends, order, side="right")
        tenths = np.array_split(source_numbers, 10)
        counts = [np.bincount(tenth, minlength=len(self.parts)) for tenth in tenths]
        by_source: list[list[int]] = np.stack(counts, axis=1).tolist()
        return by_source

    def _stages(self) -> list[list[tuple[Pool, int]]]:
        """Return what each stage draws from, and how many records of it."""
        config, found = self.config, []
        stages = [
            (stage, self._pools(stage)) for stage in config.stages or [StageConfig(name="all")]
        ]
        sizes = np.array(
            [stage.repeat * sum(pool.size for pool in pools) for stage, pools in stages]
        )
        totals = (
            np.round(sizes)
            if config.records is None
            else apportion(config.records, sizes / sizes.sum())
        )
        for (stage, pools), total in zip(stages, totals, strict=True):
            ratio = config.text_per_multimodal if stage.modality == "all" else None
            counts = apportion(int(total), shares(pools, config.temperature, ratio))
            found.append(list(zip(pools, counts.tolist(), strict=True)))
        return found

    def _pools(self, stage: StageConfig) -> list[Pool]:
        """Return what a stage draws from; a source is split by modality only where the recipe asks for it."""
        split = self.config.text_per_multimodal is not None or stage.modality != "all"
        wanted = {"all": (None, False, True), "multimodal": (False,), "text": (True,)}[
            stage.modality
        ]
        pools = []
        for part, end in zip(self.parts, self.records.ends, strict=True):
            if stage.sources is None or part.config.label in stage.sources:
                found = part.pools(end - len(part.rows), split)
                pools += [pool for pool in found if pool.text_only in wanted and len(pool.indices)]
        if not pools:
            lost = {part.config.label: part.left_out for part in self.parts if part.left_out}
            raise UserError(
                f"stage {stage.name!r}: there is no record to draw ({stage.modality}, sources {stage.sources or 'all'}). "
                f"Left out before: {lost or 'nothing'}. Correct the data, or change data.filters or the stage."
            )
        return pools
