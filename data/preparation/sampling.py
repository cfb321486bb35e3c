"""The number of records that an epoch draws from each source, and their order.

`Mixture` calls these functions. They are pure arithmetic on indices, so that every rank computes
the same epoch.
"""

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
"""The rule by which records that share their prompt are placed in an epoch.

They follow one another, as a set, at the position of the first of them or of a random one. New runs
use `random_member`. Runs that were started when there was only `first_member` keep it."""
PAIRS_TOGETHER = 4
"""Default of `method.pairs_together`, the largest set of pairs of one prompt."""
IMAGES_TOGETHER = 1
"""Default of `method.images_together`: prompts that share an image stay where they were drawn."""
METHODS_WITH_SETS = ("naive", "critic")
"""Types of `method` that have `pairs_together` and `images_together`. The others train on every
record by itself."""


class StageConfig(Section):
    """A part of every epoch that draws from some of the sources only; stages follow one another."""

    name: str
    """Name of the stage in error messages."""
    sources: list[str] | None = None
    """Names of the sources to draw from; null takes all."""
    modality: Literal["all", "multimodal", "text"] = "all"
    """Draw all records, only records with images, or only records without."""
    repeat: Ratio = 1.0
    """Length of the stage relative to the size of the sources that it draws from."""


@dataclass(frozen=True)
class Pool:
    """Records that are drawn with equal probability: a source, or its records of one modality."""

    config: SourceConfig
    text_only: bool | None
    """True if all records are without images, False if all have images, None if both may occur."""
    indices: Indices
    """Indices into the mixture, (records,)."""

    @property
    def size(self) -> float:
        """The number of records times the configured repeats."""
        return len(self.indices) * self.config.repeat


def shares(
    pools: Sequence[Pool], temperature: float, text_per_multimodal: float | None
) -> npt.NDArray[np.float64]:
    """Return each pool's share of the draws: float64 of shape (pools,), with the sum 1.

    A share is proportional to weight · size^(1/temperature). With `text_per_multimodal`, the shares
    of text-only pools and of multimodal pools are then scaled to that ratio.

    Example: pools of 300 and 100 records have the shares 0.75 and 0.25 at temperature 1, and 0.63
    and 0.37 at temperature 2. If the second one is text-only and `text_per_multimodal` is 1, both
    are 0.5.

    Raises: UserError if a ratio is configured and one of the two kinds has no record.
    """
    weights = np.array([pool.config.weight * pool.size ** (1 / temperature) for pool in pools])
    if text_per_multimodal is not None:
        is_text = np.array([bool(pool.text_only) for pool in pools])
        text_sum = weights[is_text].sum()
        multimodal_sum = weights[~is_text].sum()
        for kind, kind_sum in (("text-only", text_sum), ("multimodal", multimodal_sum)):
            if not kind_sum:
                raise UserError(
                    f"text_per_multimodal is {text_per_multimodal}, but there is no {kind} record "
                    "to draw. Add a source that has some, or remove text_per_multimodal."
                )
        weights[is_text] *= text_per_multimodal / text_sum
        weights[~is_text] /= multimodal_sum
    return np.asarray(weights / weights.sum(), np.float64)


def apportion(total: int, share: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Divide `total` into whole numbers by the given shares; return them, int64 of shape (pools,).

    They sum to `total`, and each differs from `total * share` by less than one.

    This is the method of largest remainders: every exact number is rounded down, and the numbers
    with the largest remainders get one more.

    Example: 10 by the shares 0.5, 0.26, 0.24 is exactly 5, 2.6, 2.4. Rounded down this makes 9, and
    the one that is missing goes to 2.6: the result is 5, 3, 2.

    Args:
        total: The sum of the result.
        share: Shares with the sum 1, (pools,).
    """
    exact = total * share
    counts = np.floor(exact).astype(np.int64)
    num_missing = total - int(counts.sum())
    largest_remainder_first = np.argsort(counts - exact, kind="stable")
    counts[largest_remainder_first[:num_missing]] += 1
    return counts


def draw(pool: Pool, count: int, generator: np.random.Generator) -> Indices:
    """Return `count` of the pool's indices, (count,), with repetitions if the pool has fewer.

    Every index occurs equally often, except that some, drawn at random, occur once more.
    """
    num_repetitions, num_extra = divmod(count, len(pool.indices))
    extra = pool.indices[:0]
    if num_extra:
        extra = generator.permutation(pool.indices)[:num_extra]
    return np.concatenate([np.tile(pool.indices, num_repetitions), extra])


def in_windows(
    indices: Indices, windows: npt.NDArray[np.integer], generator: np.random.Generator
) -> Indices:
    """Return records in a random order in which those of one window follow one another, (n,).

    Args:
        indices: Indices of records, (n,).
        windows: The number of the window of each of them, (n,). Windows come in ascending order.
        generator: Draws the order inside each window.
    """
    shuffled = generator.permutation(len(indices))
    return indices[shuffled][np.argsort(windows[shuffled], kind="stable")]


def interleaved(sequences: Sequence[Indices], generator: np.random.Generator) -> Indices:
    """Return several sequences as one, in which each is spread evenly and keeps its own order, (n,).

    The i-th of n entries of a sequence is put at a random place of the i-th of n equal parts of the
    whole. So every part of the result has about the same share of each sequence.

    Args:
        sequences: Indices of records.
        generator: Draws the places.
    """
    places = []
    for sequence in sequences:
        number = len(sequence)
        places.append((np.arange(number) + generator.random(number)) / max(number, 1))
    return np.concatenate(sequences)[np.argsort(np.concatenate(places), kind="stable")]


def bring_together(
    order: Indices,
    prompts: npt.NDArray[np.integer],
    max_set_size: int,
    generator: np.random.Generator | None,
) -> Indices:
    """Return the entries of `order`, rearranged so that records of one prompt follow one another.

    Records of one prompt form sets of at most `max_set_size`, and a set moves to the position of
    one of its members. Members keep their order within the set. If no two records share a prompt,
    the result is `order`. A record that occurs several times in `order` is in as many sets.

    With a generator, this member is drawn at random, and so is the division of a prompt's records
    into several sets. If `order` is random, the sets are in random order as well: records are
    trained neither earlier nor later because they share their prompt.

    Without a generator, a set moves to its first member. Records that share their prompt are then
    trained earlier than others.

    Example, without a generator and with sets of at most two: the records 5, 0, 3, 1, 4 with the
    prompts a, b, a, c, a become 5, 3, 0, 1, 4.

    Args:
        order: Indices of records, (n,).
        prompts: A number for the prompt of each entry of `order`, (n,).
        max_set_size: The largest number of records in a set.
        generator: Draws the positions and the members of the sets; None takes the first ones.
    """
    sets = _sets_of_prompts(order, prompts, max_set_size, generator)
    return order[np.argsort(sets.positions, kind="stable")]


def bring_images_together(
    order: Indices,
    prompts: npt.NDArray[np.integer],
    images: npt.NDArray[np.integer],
    max_pairs: int,
    max_records: int,
    generator: np.random.Generator,
) -> Indices:
    """Return `order`, rearranged so that records of one prompt, and of one image, are neighbours.

    The records of a prompt form sets as in `bring_together`. Sets with the same first image then
    form larger sets of at most `max_records` records. A set of one prompt is never divided: it is
    a set by itself if it has more records. The larger set moves to the position of one of the sets
    in it, which is drawn at random, and so is the division of an image's sets. If `order` is
    random, all sets are in random order: records are trained neither earlier nor later because they
    share their image. If no two records share a prompt or an image, the result is `order`.

    Args:
        order: Indices of records, (n,).
        prompts: A number for the prompt of each entry of `order`, (n,).
        images: A number for the first image of each entry of `order`, (n,). The number of a record
            without images occurs for this record alone.
        max_pairs: The largest number of records of one prompt in a set.
        max_records: The largest number of records of one image in a set.
        generator: Draws the positions and the members of the sets.
    """
    sets = _sets_of_prompts(order, prompts, max_pairs, generator)
    # The position of a set of one prompt is that of one of its members, so it identifies the set.
    positions, set_of_entry, sizes = np.unique(
        sets.positions, return_inverse=True, return_counts=True
    )
    # Sets with the same image and different occurrences may contain the same record.
    image_numbers = number_pairs(images[positions], sets.occurrences[positions])
    first_sets = _first_sets_of_images(image_numbers, sizes, max_records, generator)
    image_set_positions = positions[first_sets][set_of_entry]
    return order[np.lexsort((np.arange(len(order)), sets.positions, image_set_positions))]


def _first_sets_of_images(
    images: npt.NDArray[np.integer],
    sizes: npt.NDArray[np.integer],
    max_records: int,
    generator: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Divide sets of one prompt into larger sets of one image.

    Args:
        images: A number for the image of each set of one prompt, (sets,).
        sizes: The number of records of each of them, (sets,).
        max_records: The largest number of records of a larger set, unless it has a single set.
        generator: Draws the sequence in which the larger sets are filled.

    Returns:
        For each set of one prompt, the index of the set that was put first into the same larger
        set, int64 of shape (sets,).
    """
    first_sets = np.arange(len(images))
    occurs_again = np.bincount(images)[images] > 1
    sequence = generator.permutation(np.flatnonzero(occurs_again))
    sequence = sequence[np.argsort(images[sequence], kind="stable")]
    image = -1
    first_set = -1
    num_records = 0
    members = zip(
        sequence.tolist(), images[sequence].tolist(), sizes[sequence].tolist(), strict=True
    )
    for member, image_of_member, size in members:
        is_full = num_records + size > max_records
        if image_of_member != image or is_full:
            image = image_of_member
            first_set = member
            num_records = 0
        first_sets[member] = first_set
        num_records += size
    return first_sets


@dataclass(frozen=True)
class _PromptSets:
    """The sets into which records of one prompt are divided."""

    positions: npt.NDArray[np.int64]
    """For each entry of the order, the position of its set: the position in the order of one of the
    set's members, (n,)."""
    occurrences: npt.NDArray[np.int64]
    """For each entry, a number that is equal in a set. Two sets with equal numbers have no record
    in common, (n,)."""


def _sets_of_prompts(
    order: Indices,
    prompts: npt.NDArray[np.integer],
    max_set_size: int,
    generator: np.random.Generator | None,
) -> _PromptSets:
    """Return the sets of `bring_together`, whose arguments these are."""
    # Positions in `order`, in the sequence in which sets are filled. The first member of a set in
    # this sequence gives the set its position.
    sequence = np.arange(len(order))
    if generator is not None:
        sequence = generator.permutation(len(order))
    # A record that occurs several times is only once in a set. So the first occurrences of the
    # records of a prompt form sets, the second occurrences form other sets, and so on.
    occurrences_in_sequence = count_earlier(order[sequence])
    occurrences_of_prompt = number_pairs(prompts[sequence], occurrences_in_sequence)
    set_within_these = count_earlier(occurrences_of_prompt) // max_set_size
    set_numbers = number_pairs(occurrences_of_prompt, set_within_these)

    # Every member gets the position of its set's first member.
    _, first_members = np.unique(set_numbers, return_index=True)
    positions = np.empty(len(order), np.int64)
    positions[sequence] = sequence[first_members[set_numbers]]
    occurrences = np.empty(len(order), np.int64)
    occurrences[sequence] = occurrences_in_sequence
    return _PromptSets(positions, occurrences)


def count_earlier(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return for each value the number of equal values before it, int64 of shape (n,).

    Example: 7, 8, 7, 7 gives 0, 0, 1, 2. The values are not negative.
    """
    by_value = np.argsort(values, kind="stable")  # equal values become neighbours
    is_first_of_value = np.diff(values[by_value], prepend=-1) != 0
    rank = np.arange(len(values))
    rank_of_first = np.maximum.accumulate(np.where(is_first_of_value, rank, 0))
    counts = np.empty(len(values), np.int64)
    counts[by_value] = rank - rank_of_first
    return counts


def number_pairs(
    left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """Return a number for each pair (`left[i]`, `right[i]`), int64 of shape (n,).

    Equal pairs have equal numbers, and the numbers are 0, 1, 2 and so on.
    """
    keys = left.astype(np.int64) * (int(right.max(initial=0)) + 1) + right
    _, numbers = np.unique(keys, return_inverse=True)
    return numbers.astype(np.int64)


def quotas(total: int, limits: Sequence[int]) -> list[int]:
    """Return the number of records to hold out of each source, for each of `limits`.

    The numbers sum to `total`. They are equal or differ by one, except that no source gives more
    than its limit.

    Example: 10 records from sources with the limits 2, 100, 100 are 2, 4, 4.

    Args:
        total: The number of records to hold out of all sources.
        limits: The largest number for each source.

    Raises: UserError if the limits together allow fewer than `total`.
    """
    if total > sum(limits):
        raise UserError(
            f"validation asks for {total:,} held-out records, but the sources can give at most "
            f"{sum(limits):,} (half of each source). Lower validation, or add records."
        )
    counts = [0] * len(limits)
    while sum(counts) < total:
        num_missing = total - sum(counts)
        below_limit = [index for index, limit in enumerate(limits) if counts[index] < limit]
        num_each = max(1, num_missing // len(below_limit))
        # The slice matters for the last few records, if there are fewer of them than sources.
        for index in below_limit[:num_missing]:
            counts[index] = min(limits[index], counts[index] + num_each)
    return counts
