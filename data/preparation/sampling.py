"""How many records of each source an epoch draws, and in which order: pure arithmetic, the same on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mmrm.data.config.section import Ratio, Section
from mmrm.data.errors import UserError
from mmrm.data.sources.shared.source import SourceConfig

Indices = npt.NDArray[np.int32]
SetPlacement = Literal["first_member", "random_member"]
"""The member of a set of records of one prompt whose position in an epoch the set takes.

New runs use `random_member`. Runs that were started when there was only `first_member` keep it."""
PAIRS_TOGETHER = 4
"""Default of `method.pairs_together`, the largest set of pairs of one prompt."""
METHODS_WITH_SETS = ("naive", "critic")
"""Types of `method` that have `pairs_together`. The others train on every record by itself."""


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


def bring_together(
    order: Indices,
    prompts: npt.NDArray[np.integer],
    most: int,
    generator: np.random.Generator | None,
) -> Indices:
    """Return `order` with the records of one prompt in sets of at most `most` neighbours.

    A set takes the position of one of its members, which is drawn at random. So are the members of
    the sets, if a prompt has more records than `most`. If `order` is random, the sets are in random
    order: records are trained neither earlier nor later because they share their prompt. Members
    keep their order within the set.

    Without a generator a set takes the position of its first member (`SetPlacement`). Records that
    share their prompt are then trained earlier than others.

    `prompts` has a number for the prompt of every entry of `order`. A record that an epoch draws
    several times is in as many sets. If no two records share a prompt, the result is `order`.
    """
    # A set's members are neighbours in this sequence of the prompt's entries, and the first of
    # them gives the set its position.
    sequence = np.arange(len(order)) if generator is None else generator.permutation(len(order))
    repetitions = _count_earlier(order[sequence])
    prompt_repetitions = _number_pairs(prompts[sequence], repetitions)
    sets = _number_pairs(prompt_repetitions, _count_earlier(prompt_repetitions) // most)
    _, first_members = np.unique(sets, return_index=True)
    positions = np.empty(len(order), np.int64)
    positions[sequence] = sequence[first_members[sets]]
    return order[np.argsort(positions, kind="stable")]


def _count_earlier(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return for each of `values` how many equal ones are before it, (len,)."""
    places = np.argsort(values, kind="stable")
    begins = np.diff(values[places], prepend=-1) != 0
    number = np.arange(len(values))
    counts = np.empty(len(values), np.int64)
    counts[places] = number - np.maximum.accumulate(np.where(begins, number, 0))
    return counts


def _number_pairs(
    left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """Return numbers of the pairs of `left[i]` and `right[i]`, (len,); equal pairs have the same."""
    keys = left.astype(np.int64) * (int(right.max(initial=0)) + 1) + right
    _, numbers = np.unique(keys, return_inverse=True)
    return numbers.astype(np.int64)


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
