"""The data of a run as one sequence of optimizer steps.

A record is encoded into a tree of segments: a prompt with its images, and the texts that follow it.
Trees are packed into rows. Entry k of the sequence holds this rank's rows of optimizer step k.

The sequence is a pure function of records, seed, step and rank. A resumed run continues with the
same order, and no sampler, `set_epoch` or sharding of a loader can change it. Every rank takes an
equal share of a step's records, except in the last step of an epoch, in which one rank may take one
more than another. The loss is divided by the records of all ranks. Successive records with one
prompt become one tree, so their prompt and images are computed once. With `method.images_together`,
so do successive prompts that begin with the same image.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, nan
from operator import attrgetter
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.models.config import Read
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packing.bins import PATCH_COST, balance_over_ranks, pack_first_fit
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree, merge, runs_to_merge


class EncodedRecords(Protocol):
    """The records of a run, encoded by index, and their order in every epoch."""

    def __len__(self) -> int:
        """Return the number of records in an epoch."""
        ...

    def __getitem__(self, index: int) -> TrainingExample:
        """Return record `index`, encoded as a prompt with the texts that follow it.

        A record that cannot be used is replaced by another one.
        """
        ...

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the record indices of `epoch` in their order, (len,), the same on every rank."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """An encoded record: a prompt with the texts that follow it, and numbers for the loss."""

    tree: SegmentTree
    """It has an output for each text."""
    margin: float = 0.0
    """The smallest difference of scores that the record asks for."""
    ranks: tuple[int, ...] = (0, 1)
    """The rank of each response: 0 is the best, and equal ranks are tied."""
    attributes: tuple[tuple[float, ...], ...] = ((), ())
    """The numbers of each response, one for each attribute that is learned; NaN if unknown."""
    response_tokens: tuple[int, ...] = ()
    """Number of tokens of each response, for length normalisation."""
    skipped: int = 0
    """Number of records that were found to be unusable while this one was loaded. A record that
    this process has found before is not counted again."""
    record: str = ""
    """Identity of the record."""
    prompt: object = None
    """Equal for records with equal messages and images, whose trees may be merged; None if the
    tree is not merged with another for its prompt."""
    image: object = None
    """Equal for records whose prompts begin with the same image, and whose trees may be merged;
    None if the tree is not merged with those of other prompts."""
    has_model_critiques: bool = False
    """The last two outputs are critiques that the critic in training wrote."""


class ResponseLabels(NamedTuple):
    """What the data say about the responses of a packed row.

    The responses of a record follow one another, and the best is the first. Example: a record with
    three responses of ranks 0, 1 and 1, followed by a pair, has `records` (0, 0, 0, 1, 1) and
    `ranks` (0, 1, 1, 0, 1).

    The tensors stay on the CPU. Pairs of responses are made of them there, because a number of
    pairs that depends on values would make the CPU wait for the device.
    """

    records: Tensor
    """(responses,) int64: the index of each response's record in the row."""
    ranks: Tensor
    """(responses,) int64: 0 is the best of a record, and equal ranks are tied."""
    attributes: Tensor
    """(responses, attributes) fp32: the numbers of each response; NaN if unknown."""
    margins: Tensor
    """(records,) fp32: `TrainingExample.margin`."""
    tokens: Tensor
    """(responses,) int64: tokens of each response; empty if the method does not need them."""


class PackedRow(NamedTuple):
    """A packed row, and the numbers that the loss needs besides the model's inputs.

    DeepSpeed would cast these numbers if they were inputs of the model.
    """

    batch: PackedBatch
    response_labels: ResponseLabels
    has_model_critiques: Tensor
    """(records,) bool: `TrainingExample.has_model_critiques`."""
    output_counts: Tensor
    """(records,) int64: number of outputs of each record. Those of the first record are the first
    of the row."""

    @property
    def records(self) -> int:
        """Number of records in the row.

        It is 0 for a filler: a row that a rank computes while other ranks still have rows.
        """
        return len(self.response_labels.margins)

    def totals(self) -> Tensor:
        """Return the numbers of the row's records and of its learned tokens, (2,) fp32.

        A loss is divided by one of their sums over the rows of a step.
        """
        return torch.tensor([self.records, len(self.batch.labels)], dtype=torch.float32)

    def to(self, device: torch.device) -> PackedRow:
        """Return the row with its tensors on `device`, except the labels of responses."""
        return PackedRow(
            batch=self.batch.to(device, non_blocking=True),
            response_labels=self.response_labels,
            has_model_critiques=self.has_model_critiques.to(device),
            output_counts=self.output_counts.to(device),
        )


class Step(TypedDict):
    """A rank's share of one optimizer step."""

    rows: list[PackedRow]
    records: list[str]
    """Identities of the records."""
    skipped: int
    """Sum of `TrainingExample.skipped`."""


Pack = Callable[[Sequence[SegmentTree]], PackedBatch]
"""`Encoder.pack`: packs trees into one row."""


def merged_tree(examples: Sequence[TrainingExample]) -> SegmentTree:
    """Return one tree with the outputs of all examples, in order.

    A text that several examples have, such as a response that was compared with several others, is
    in the tree once.
    """
    return merge([example.tree for example in examples])


def split_by_tree(
    examples: Sequence[TrainingExample], budget: float = inf
) -> list[list[TrainingExample]]:
    """Divide examples into sets of successive examples, each of which becomes one tree.

    A set has one prompt, or several prompts that begin with the same image. The cost of its tree is
    at most `budget`, in tokens, unless it is a single example. Prompts become one tree only if this
    saves tokens, as `mmrm.models.packing.segments.TreeRun` decides.
    """
    sets: list[list[TrainingExample]] = []
    for sets_of_image in _split_by_image(split_by_prompt(examples, budget)):
        if len(sets_of_image) == 1:
            sets += sets_of_image
            continue
        trees = [merged_tree(examples_of_prompt) for examples_of_prompt in sets_of_image]
        for run in runs_to_merge(trees, attrgetter("cost"), budget):
            # A merged tree may cost a few tokens more than was expected of the run.
            remaining = run
            while remaining:
                num_fitting = _num_fitting([trees[index] for index in remaining], budget)
                examples_of_tree: list[TrainingExample] = []
                for index in remaining[:num_fitting]:
                    examples_of_tree += sets_of_image[index]
                sets.append(examples_of_tree)
                remaining = remaining[num_fitting:]
    return sets


def split_by_prompt(
    examples: Sequence[TrainingExample], budget: float = inf
) -> list[list[TrainingExample]]:
    """Divide examples into sets of successive examples with one prompt.

    Each set has as many examples as the cost of its merged tree allows, which is at most `budget`,
    in tokens. A single example may exceed it.
    """
    sets: list[list[TrainingExample]] = []
    start = 0
    while start < len(examples):
        end = start + 1
        prompt = examples[start].prompt
        while end < len(examples) and prompt is not None and examples[end].prompt == prompt:
            end += 1
        num_fitting = _num_fitting([example.tree for example in examples[start:end]], budget)
        sets.append(list(examples[start : start + num_fitting]))
        start += num_fitting
    return sets


def _num_fitting(trees: Sequence[SegmentTree], budget: float) -> int:
    """Return the number of first trees that cost at most `budget` as one merged tree, at least 1.

    The number is found by halving, because to merge the trees again for each of them would take
    quadratic time.
    """
    if len(trees) == 1 or budget == inf or merge(trees).cost <= budget:
        return len(trees)
    # If some first trees are within the budget, fewer of them are, too.
    counts = range(2, len(trees))
    return 1 + bisect_right(counts, budget, key=lambda count: merge(trees[:count]).cost)


def _split_by_image(
    sets: Sequence[list[TrainingExample]],
) -> list[list[list[TrainingExample]]]:
    """Return sets of one prompt in lists of successive sets that begin with the same image."""
    sets_by_image: list[list[list[TrainingExample]]] = []
    for examples in sets:
        image = examples[0].image
        has_image_of_last_set = (
            len(sets_by_image) > 0 and image is not None and image == sets_by_image[-1][0][0].image
        )
        if has_image_of_last_set:
            sets_by_image[-1].append(examples)
        else:
            sets_by_image.append([examples])
    return sets_by_image


def make_row(examples: Sequence[TrainingExample], pack: Pack) -> PackedRow:
    """Pack examples into one row. Successive examples of a set of `split_by_tree` are one tree.

    Without examples the row is a filler, which a rank computes while other ranks still have rows.
    """
    trees = [merged_tree(examples_of_tree) for examples_of_tree in split_by_tree(examples)]
    output_counts = [len(example.tree.outputs) for example in examples]
    has_model_critiques = [example.has_model_critiques for example in examples]
    return PackedRow(
        batch=pack(trees),
        response_labels=label_responses(examples),
        has_model_critiques=torch.tensor(has_model_critiques, dtype=torch.bool),
        output_counts=torch.tensor(output_counts, dtype=torch.int64),
    )


def label_responses(examples: Sequence[TrainingExample]) -> ResponseLabels:
    """Return the labels of the responses of examples, in their order."""
    records: list[int] = []
    ranks: list[int] = []
    attributes: list[tuple[float, ...]] = []
    tokens: list[int] = []
    for index, example in enumerate(examples):
        records += [index] * len(example.ranks)
        ranks += example.ranks
        attributes += example.attributes
        tokens += example.response_tokens
    return ResponseLabels(
        records=torch.tensor(records, dtype=torch.int64),
        ranks=torch.tensor(ranks, dtype=torch.int64),
        attributes=torch.tensor(attributes, dtype=torch.float32),
        margins=torch.tensor([example.margin for example in examples], dtype=torch.float32),
        tokens=torch.tensor(tokens, dtype=torch.int64),
    )


def make_rows(examples: Sequence[TrainingExample], pack: Pack, budget: int) -> list[PackedRow]:
    """Pack examples into rows whose cost is at most `budget`, in tokens.

    An example above the budget gets a row of its own. Without examples there is one row, a filler,
    which a rank computes while other ranks still have rows.
    """
    sets = split_by_tree(examples, budget)
    costs = [merged_tree(examples_of_tree).cost for examples_of_tree in sets]
    rows = []
    for set_indices in pack_first_fit(costs, budget):
        examples_of_row: list[TrainingExample] = []
        for index in set_indices:
            examples_of_row += sets[index]
        rows.append(make_row(examples_of_row, pack))
    return rows or [make_row([], pack)]


@dataclass(frozen=True, slots=True)
class FirstImages:
    """The image with which the prompt of each record begins, and its cost in tokens."""

    numbers: npt.NDArray[np.integer]
    """(len,): equal for records that begin with the same image. The number of a record without
    images is that of no other."""
    costs: npt.NDArray[np.floating]
    """(len,): the cost of the image."""

    def join(
        self,
        first_records: npt.NDArray[np.integer],
        costs: npt.NDArray[np.floating],
        sizes: npt.NDArray[np.integer],
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.integer]]:
        """Join successive sets of one prompt that begin with the same image.

        Args:
            first_records: The index of the first record of each set, (sets,).
            costs: The cost of each set, (sets,).
            sizes: The number of records of each set, (sets,).

        Returns:
            The costs and the sizes of the joined sets.
        """
        starts = np.flatnonzero(np.diff(self.numbers[first_records], prepend=-1))
        num_joined = np.diff(starts, append=len(first_records))
        repeated_image_costs = (num_joined - 1) * self.costs[first_records[starts]]
        summed_costs = np.add.reduceat(costs, starts)
        return summed_costs - repeated_image_costs, np.add.reduceat(sizes, starts)


@dataclass(frozen=True, slots=True)
class Costs:
    """The expected cost of each record in tokens; an image also costs some for its patches."""

    records: npt.NDArray[np.floating]
    """(len,): cost of every record alone."""
    images: npt.NDArray[np.floating] | None = None
    """(len,): the part of `records` that its images cost; None if `prompts` is None."""
    prompts: npt.NDArray[np.integer] | None = None
    """(len,): numbers that are equal for records with one prompt; None if no prompt is shared."""
    first_images: FirstImages | None = None
    """None if prompts that begin with the same image are not brought together."""

    def of_sets(
        self, drawn: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.integer]]:
        """Divide records into sets, and return the cost and size of each set.

        What a set has in common is counted once in its cost: the images of records of one prompt,
        and the first image of several prompts. The size is the number of its records.

        Args:
            drawn: Record indices in the order of an epoch. Successive records with the same
                prompt are a set, and with `first_images` also successive records that begin with
                the same image.

        Returns:
            The costs and the sizes, (sets,) each.
        """
        costs = self.records[drawn]
        if self.prompts is None or self.images is None or not len(drawn):
            return costs, np.ones(len(drawn), np.int64)
        # A set starts where the prompt differs from the one before. The first record starts a set.
        starts = np.flatnonzero(np.diff(self.prompts[drawn], prepend=-1))
        sizes = np.diff(starts, append=len(drawn))
        summed_costs = np.add.reduceat(costs, starts)
        repeated_image_costs = (sizes - 1) * self.images[drawn[starts]]
        set_costs = summed_costs - repeated_image_costs
        if self.first_images is None:
            return set_costs, sizes
        return self.first_images.join(drawn[starts], set_costs, sizes)


class StepDataset(Dataset[Step]):
    """The optimizer steps of a whole run for one rank, as a map-style data set.

    Item k has the packed rows that this rank computes in step k.
    """

    def __init__(
        self,
        records: EncodedRecords,
        pack: Pack,
        *,
        records_per_step: int,
        steps: int,
        token_budget: int,
        rank: int = 0,
        world_size: int = 1,
        costs: Costs | None = None,
        prepare: Callable[[int], None] | None = None,
    ) -> None:
        """Divide the records of every epoch into steps.

        The last step of an epoch takes the records that are left. It may be smaller, and a rank may
        have none of them. Successive records with one prompt go to one rank.

        Args:
            records: The records of the run.
            pack: Packs trees into one row.
            records_per_step: Records of a step on all ranks together.
            steps: Number of optimizer steps.
            token_budget: Largest cost of a row in tokens; a record above it gets a row of its own.
            rank: Number of this rank.
            world_size: Number of ranks.
            costs: Expected costs of the records. If they are given, the ranks get similar costs.
            prepare: Called in the process that loads a step, with the number of the step, before
                its records are loaded.

        Raises:
            UserError: The ranks cannot share a step equally, or there are too few records.
        """
        if records_per_step % world_size:
            raise UserError(
                f"optim.records_per_step is {records_per_step}, which does not divide over "
                f"{world_size} ranks, and every rank must take the same number. Set "
                f"optim.records_per_step to a multiple of {world_size}, or start another number of "
                "ranks."
            )
        if len(records) < records_per_step:
            raise UserError(
                f"The data set has {len(records)} records and optim.records_per_step is "
                f"{records_per_step}, so no step can be filled. Lower optim.records_per_step or "
                "add data."
            )
        self.records = records
        self.pack = pack
        self.records_per_step = records_per_step
        self.steps = steps
        # Shared memory, so that a change reaches loader workers at once.
        self._budget = torch.tensor(token_budget).share_memory_()  # type: ignore[no-untyped-call]
        self.rank = rank
        self.world_size = world_size
        self.costs = costs
        self.prepare = prepare
        self.steps_per_epoch = ceil(len(records) / records_per_step)
        self._order: tuple[int, npt.NDArray[np.integer]] | None = None

    def __len__(self) -> int:
        return self.steps

    @property
    def token_budget(self) -> int:
        """The largest cost of a row; loader workers see a change at once."""
        return int(self._budget)

    @token_budget.setter
    def token_budget(self, value: int) -> None:
        self._budget.fill_(value)

    def indices(self, step: int) -> list[int]:
        """Return the indices of the records that this rank takes in a step.

        Every rank computes the same division, so the ranks do not have to communicate.
        """
        drawn = np.array(self.global_indices(range(step, step + 1)), np.int64)
        costs, sizes = self._costs_of_sets(drawn)
        positions_by_rank = balance_over_ranks(costs.tolist(), self.world_size, sizes.tolist())
        indices: list[int] = drawn[positions_by_rank[self.rank]].tolist()
        return indices

    def _costs_of_sets(
        self, drawn: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.integer]]:
        """Return `Costs.of_sets` for the records of a step.

        If costs are unknown, every record is a set of its own with a cost of 1.
        """
        if self.costs is None:
            return np.ones(len(drawn)), np.ones(len(drawn), np.int64)
        return self.costs.of_sets(drawn)

    def global_indices(self, steps: range) -> list[int]:
        """Return the indices of the records that all ranks take in `steps`, in order."""
        indices: list[int] = []
        for step in steps:
            epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
            start = step_of_epoch * self.records_per_step
            end = start + self.records_per_step
            indices += self._order_of(epoch)[start:end].tolist()
        return indices

    def _order_of(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the record indices of an epoch, (len,); the last result is kept."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self.records.order(epoch))
        return self._order[1]

    def __getitem__(self, step: int) -> Step:
        if self.prepare is not None:
            self.prepare(step)
        examples = [self.records[index] for index in self.indices(step)]
        return {
            "rows": make_rows(examples, self.pack, self.token_budget),
            "records": [example.record for example in examples],
            "skipped": sum(example.skipped for example in examples),
        }


PATCHES_PER_TOKEN = 4
"""The backbone merges 2 x 2 patches into a token."""
Encode = Callable[[Preference, int], TrainingExample]
"""Encodes a record. If several responses are in one conversation, the number decides their order. A
judge of two responses sees the better one first (0) or second (1). For a joint reward model the
number is that of the epoch."""


@dataclass(frozen=True, slots=True)
class MixtureRecords:
    """The records of a mixture of sources, encoded when they are read.

    The mixture replaces a record that cannot be used by another one.
    """

    mixture: Mixture
    encode: Encode
    pairs_together: int = 1
    """Largest number of records with one prompt that are brought together in an epoch's order."""
    images_together: int = 1
    """Largest number of records that begin with the same image and are brought together."""

    def __len__(self) -> int:
        return self.mixture.epoch_size

    def __getitem__(self, index: int) -> TrainingExample:
        return self.load(index)

    def load(self, index: int, side: int = 0) -> TrainingExample:
        """Return an encoded record.

        Args:
            index: The index of the record in the mixture.
            side: The second argument of `Encode`.
        """
        num_skipped_before = len(self.mixture.skipped)
        example = self.mixture.load(index, lambda record: self.encode(record, side))
        prompt = None
        if example.prompt is not None:
            # Two records share a prompt if the mixture numbers their prompts alike and the prompts
            # are equal. They may differ if another record replaced one that could not be used.
            prompt = (int(self.mixture.prompts[index]), example.prompt)
        image = None
        if self.images_together > 1:
            # The tree of a record that replaced another one is not merged, because it does not
            # begin like its neighbours.
            image = int(self.mixture.first_images[index])
        num_skipped = len(self.mixture.skipped) - num_skipped_before
        return replace(example, skipped=num_skipped, prompt=prompt, image=image)

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the record indices of an epoch, (len,), the same on every rank."""
        return self.mixture.order(epoch, self.pairs_together, self.images_together)


def expected_costs(mixture: Mixture) -> npt.NDArray[np.float32]:
    """Return the expected cost of each training record in tokens, (len,).

    It comes from the lengths that the mixture stores; no record is decoded. A vision patch costs
    PATCH_COST tokens.
    """
    text_tokens, image_tokens = mixture.lengths().T
    patch_costs = PATCH_COST * PATCHES_PER_TOKEN * image_tokens
    return np.asarray(text_tokens + image_tokens + patch_costs, dtype=np.float32)


def shared_costs(mixture: Mixture, images_together: int = 1) -> Costs:
    """Return the expected costs of the records of a mixture in which records can share a prompt.

    Only images are counted as shared. The length of a prompt's text is not known, because the
    mixture stores one length for prompt and responses together.

    Args:
        mixture: The mixture.
        images_together: Largest number of records that begin with the same image and are brought
            together. With 1, the image is counted for every prompt.
    """
    image_costs = _costs_of_images(mixture.lengths()[:, 1])
    first_images = None
    if images_together > 1:
        first_image_costs = _costs_of_images(mixture.first_image_tokens())
        first_images = FirstImages(mixture.first_images, first_image_costs)
    return Costs(expected_costs(mixture), image_costs, mixture.prompts, first_images)


def _costs_of_images(image_tokens: npt.NDArray[np.number]) -> npt.NDArray[np.float32]:
    """Return the cost of images in tokens from their numbers of tokens, (n,)."""
    costs = (1 + PATCH_COST * PATCHES_PER_TOKEN) * image_tokens
    return costs.astype(np.float32)


@dataclass(frozen=True, slots=True)
class ResponseEncoder:
    """Encodes a preference as a prompt with its responses, the best one first."""

    encoder: Encoder
    read: Read
    counts_response_tokens: bool = True
    """Also count the tokens of each response, which length normalisation needs."""
    attribute_names: tuple[str, ...] = ()
    """The attributes of a record that are learned, in the order of the labels."""

    def __call__(self, record: Preference, side: int = 0) -> TrainingExample:
        """Decode the images of a record and encode all of its responses.

        `side` is not used: each response follows the prompt by itself.

        Raises:
            RecordError: The record cannot be decoded or encoded.
        """
        self.encoder.refuse_control_tokens(record)
        conversations = []
        for response in record.responses:
            conversations.append(
                Conversation.answered(record.prompt, record.images, response, videos=record.videos)
            )
        tree = self.encoder.encode_conversations(conversations, self.read, record.identity)
        return TrainingExample(
            tree,
            margin=record.margin or 0.0,
            ranks=record.ranks,
            attributes=attributes_of_responses(record, self.attribute_names),
            response_tokens=response_tokens(self.encoder, record)
            if self.counts_response_tokens
            else (),
            record=record.identity,
            prompt=(record.prompt, contents_of_images(tree)),
        )


def attributes_of_responses(
    record: Preference, names: Sequence[str]
) -> tuple[tuple[float, ...], ...]:
    """Return the numbers of each response of a record, one for each of the attributes in `names`.

    A number is NaN if the record does not have the attribute, or does not know it of the response.
    """
    unknown = (nan,) * len(record.responses)
    numbers_by_attribute = [record.attributes.get(name, unknown) for name in names]
    attributes = []
    for index in range(len(record.responses)):
        attributes.append(tuple(numbers[index] for numbers in numbers_by_attribute))
    return tuple(attributes)


def contents_of_images(tree: SegmentTree) -> tuple[str, ...]:
    """Return digests of a tree's distinct images, which do not depend on the files they are in."""
    return tuple(image.content for image in tree.images)


def response_tokens(encoder: Encoder, record: Preference) -> tuple[int, ...]:
    """Return the number of text tokens of each response of a record.

    Special tokens and images are not counted.
    """
    counts = []
    for response in record.responses:
        ids = encoder.tokenizer(response.text, add_special_tokens=False)["input_ids"]
        counts.append(len(ids))
    return tuple(counts)
