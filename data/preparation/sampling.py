"""How many records of each source an epoch draws, and in which order: pure arithmetic, the same on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from data.config.section import Ratio, Section
from data.errors import UserError
from data.sources.shared.base import SourceConfig

Indices = npt.NDArray[np.int32]


class StageConfig(Section):
    """A part of every epoch that draws from some of the sources only; stages follow one another."""

    name: str
    """In the data card."""
    sources: list[str] | None = None
    """Names of sources; null takes all."""
    modality: Literal["all", "multimodal", "text"] = "all"
    """Draw all records, only those with images, or only those without."""
    repeat: Ratio = 1.0
    """The stage's length relative to the size of what it draws from."""


@dataclass(frozen=True)
class Pool:
    """Records that are drawn alike: those of one source, or those of one source with (or without) images."""

    config: SourceConfig
    text_only: bool | None
    """None where the source was not split by modality."""
    indices: Indices
    """Indices into the mixture."""

    @property
    def size(self) -> float:
        """The number of records times the repeats asked for."""
        return len(self.indices) * self.config.repeat


def shares(
    pools: Sequence[Pool], temperature: float, text_per_multimodal: float | None
) -> npt.NDArray[np.float64]:
    """Return each pool's share of the draws (they sum to 1): weight · size^(1/temperature), then the modality ratio.

    Raises: UserError if a ratio is asked for and one of the two kinds has no record.
    """
    share = np.array([pool.config.weight * pool.size ** (1 / temperature) for pool in pools])
    if text_per_multimodal is not None:
        text = np.array([bool(pool.text_only) for pool in pools])
        if not share[text].sum() or not share[~text].sum():
            missing = "text-only" if not share[text].sum() else "multimodal"
            raise UserError(
                f"text_per_multimodal is {text_per_multimodal}, but there is no {missing} record to draw. "
                "Add a source that has some, or take text_per_multimodal out."
            )
        share[text] *= text_per_multimodal / share[text].sum()
        share[~text] /= share[~text].sum()
    return np.asarray(share / share.sum(), np.float64)


def apportion(total: int, share: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return whole numbers that sum to `total`, each within one of `total * share` (largest remainders)."""
    exact = total * share
    counts = np.floor(exact).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]
    counts[largest] += 1
    return counts


def draw(pool: Pool, count: int, generator: np.random.Generator) -> Indices:
    """Return `count` of the pool's indices: each as often as every other, or once more."""
    rounds, rest = divmod(count, len(pool.indices))
    extra = generator.permutation(pool.indices)[:rest] if rest else pool.indices[:0]
    return np.concatenate([np.tile(pool.indices, rounds), extra])


def bring_together(order: Indices, prompts: npt.NDArray[np.integer], most: int) -> Indices:
    """Return `order` with up to `most` records of one prompt after one another, where the first of them was drawn.

    `prompts` has the prompt of every entry of `order`, as a number. A record that an epoch draws again begins other sets, so
    that it never stands twice in one. Where no two records share a prompt, the order stays as it is.
    """
    again = _earlier(order)
    same = prompts.astype(np.int64) * (int(again.max(initial=0)) + 1) + again
    _, same = np.unique(same, return_inverse=True)
    earlier = _earlier(same) // most
    sets = same.astype(np.int64) * (int(earlier.max(initial=0)) + 1) + earlier
    _, first, inverse = np.unique(sets, return_index=True, return_inverse=True)
    return order[np.argsort(first[inverse], kind="stable")]


def _earlier(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return for each of `values` how many equal ones stand before it, (len,)."""
    places = np.argsort(values, kind="stable")
    begins = np.diff(values[places], prepend=-1) != 0
    number = np.arange(len(values))
    found = np.empty(len(values), np.int64)
    found[places] = number - np.maximum.accumulate(np.where(begins, number, 0))
    return found


def quotas(total: int, limits: Sequence[int]) -> list[int]:
    """Return how many of `total` each of several sources gives: equal numbers, short of that where its limit is lower.

    Raises: UserError if the limits together allow fewer than `total`.
    """
    if total > sum(limits):
        raise UserError(
            f"validation asks for {total:,} held-out records; the sources can give {sum(limits):,} (at most half of each). "
            "Ask for fewer, or add records."
        )
    given = [0] * len(limits)
    while total > sum(given):
        open_ended = [position for position, limit in enumerate(limits) if given[position] < limit]
        each = max(1, (total - sum(given)) // len(open_ended))
        for position in open_ended[: total - sum(given)]:
            given[position] = min(limits[position], given[position] + each)
    return given
