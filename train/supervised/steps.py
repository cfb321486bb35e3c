"""The data of a run as one sequence of optimizer steps: item k is this rank's packed rows of step k.

A pure function of (records, seed, step, rank), so that resume continues with the same order, and no sampler,
`set_epoch` or sharding of a loader can change it. Every rank takes an equal share of a step's records, but for the last
step of an epoch, where one may take one more than another: the loss is divided by the pairs of all ranks.
Neighbours of one prompt become one group, so that prompt and images are computed once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, text
from mmrm.data.preparation.mixing import Mixture
from mmrm.models.config import Read
from mmrm.models.encoder import Encoder
from mmrm.models.packing.bins import PATCH_COST, balance_over_ranks, pack_first_fit
from mmrm.models.packing.groups import Group, PackedBatch, join


class Records(Protocol):
    """What a run trains on: encoded records by index, and an order for every epoch."""

    def __len__(self) -> int:
        """Return the length of an epoch."""
        ...

    def __getitem__(self, index: int) -> TrainingExample:
        """Return record `index` as a group, or the one that the stated policy puts in its place."""
        ...

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the record indices of `epoch` in their order, (len,), the same on every rank."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A record as a group, with what the loss needs beside the tokens."""

    group: Group
    margin: float = 0.0
    response_tokens: tuple[int, ...] = ()
    """Tokens of each response, for length normalisation."""
    skipped: int = 0
    """Records that turned out to be unusable, for the first time in this process, when this one was asked for."""
    record: str = ""
    """The identity of the record."""
    prompt: object = None
    """Equal for records of equal messages and images, whose groups may become one; None: of this record alone."""
    own_critiques: bool = False
    """The last two continuations hold critiques that the critic in training wrote."""


class PackedRow(NamedTuple):
    """A packed row and the numbers that never enter the model (DeepSpeed would cast them to its own dtype)."""

    batch: PackedBatch
    margins: Tensor
    """(records,) fp32."""
    response_tokens: Tensor
    """(places,) int64, or empty where no method asks for it."""
    own_critiques: Tensor
    """(records,) bool."""
    places: Tensor
    """(places,) int64: the continuations of every record in turn, counted over the row; records of one prompt may share some."""
    counts: Tensor
    """(records,) int64: how many places a record has."""

    @property
    def records(self) -> int:
        """The records of the row; 0 for a filler."""
        return len(self.margins)

    def totals(self) -> Tensor:
        """Return the row's share of what a step's losses are divided by, (2,) fp32: records and learned tokens."""
        return torch.tensor([self.records, len(self.batch.labels)], dtype=torch.float32)

    def to(self, device: torch.device) -> PackedRow:
        """Return the row with its tensors on `device`."""
        return PackedRow(
            self.batch.to(device, non_blocking=True), *(numbers.to(device) for numbers in self[1:])
        )


class Step(TypedDict):
    """A rank's share of one optimizer step; `skipped` sums up that of its records."""

    rows: list[PackedRow]
    records: list[str]
    """Their identities."""
    skipped: int


Pack = Callable[[Sequence[Group]], PackedBatch]
"""`Encoder.pack`: lays groups out in one row."""


def one_group(same: Sequence[TrainingExample]) -> tuple[Group, list[int]]:
    """Return records of one prompt as one group, and the continuations of every record in turn.

    A continuation that several records have, such as a response that was compared with several others, is in the group once.
    One that carries language-model loss stays as often as it is learned.
    """
    if len(same) == 1:
        return same[0].group, list(range(len(same[0].group.continuations)))
    whole = join([one.group for one in same])
    keys = [number if one.loss_tokens else one for number, one in enumerate(whole.continuations)]
    distinct = dict(zip(keys, whole.continuations, strict=True))
    numbers = {key: number for number, key in enumerate(distinct)}
    return replace(whole, continuations=tuple(distinct.values())), [numbers[key] for key in keys]


def by_prompt(
    encoded: Sequence[TrainingExample], budget: float = inf
) -> list[list[TrainingExample]]:
    """Return neighbours of one prompt together, as long as their group keeps to `budget`."""
    found: list[list[TrainingExample]] = []
    for one in encoded:
        same = bool(found) and one.prompt is not None and one.prompt == found[-1][0].prompt
        if same and one_group([*found[-1], one])[0].cost <= budget:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def make_row(encoded: Sequence[TrainingExample], pack: Pack) -> PackedRow:
    """Pack `encoded` into one row, neighbours of one prompt as one group; an empty sequence gives the filler row."""
    groups, places, done = list[Group](), list[int](), 0
    for same in by_prompt(encoded):
        group, own = one_group(same)
        groups.append(group)
        places += [done + place for place in own]
        done += len(group.continuations)
    return PackedRow(
        batch=pack(groups),
        margins=torch.tensor([one.margin for one in encoded], dtype=torch.float32),
        response_tokens=torch.tensor(
            [n for one in encoded for n in one.response_tokens], dtype=torch.int64
        ),
        own_critiques=torch.tensor([one.own_critiques for one in encoded], dtype=torch.bool),
        places=torch.tensor(places, dtype=torch.int64),
        counts=torch.tensor([len(one.group.continuations) for one in encoded], dtype=torch.int64),
    )


def make_rows(encoded: Sequence[TrainingExample], pack: Pack, budget: int) -> list[PackedRow]:
    """Pack `encoded` into rows within `budget`, a record above it into a row of its own; the filler row where there is none."""
    together = by_prompt(encoded, budget)
    rows = pack_first_fit([one_group(same)[0].cost for same in together], budget) or [[]]
    return [make_row([one for place in row for one in together[place]], pack) for row in rows]


@dataclass(frozen=True, slots=True)
class Costs:
    """What every record is expected to take of a token budget, by its index, and what records of one prompt share of it."""

    records: npt.NDArray[np.floating]
    """(len,)."""
    images: npt.NDArray[np.floating] | None = None
    """What of that falls to the images, (len,)."""
    prompts: npt.NDArray[np.integer] | None = None
    """Numbers that are equal for records of one prompt, (len,); None where each is computed by itself."""

    def of_sets(
        self, drawn: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.integer]]:
        """Return cost and number of each set of neighbours of one prompt in `drawn`."""
        costs = self.records[drawn]
        if self.prompts is None or self.images is None or not len(drawn):
            return costs, np.ones(len(drawn), np.int64)
        starts = np.flatnonzero(np.diff(self.prompts[drawn], prepend=-1))
        sizes = np.diff(starts, append=len(drawn))
        return np.add.reduceat(costs, starts) - (sizes - 1) * self.images[drawn[starts]], sizes


class StepDataset(Dataset[Step]):
    """A map-style data set over the whole run: `len` is the number of optimizer steps."""

    def __init__(
        self,
        records: Records,
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
        """Take the expected costs of the records, if they are known: then ranks get equally much to do.

        Neighbours of one prompt go to one rank. `prepare` is called with a step before its records are asked for.
        The last step of an epoch takes the records that are left; it may be smaller, and a rank may have none of them.
        """
        if records_per_step % world_size:
            raise UserError(
                f"A step of {records_per_step} records does not divide over {world_size} ranks, and every rank must take "
                f"the same number. Set optim.records_per_step to a multiple of {world_size}, or start another number of ranks."
            )
        if len(records) < records_per_step:
            raise UserError(
                f"The data set has {len(records)} records and a step takes {records_per_step}: no step can be filled. "
                "Lower optim.records_per_step or add data."
            )
        self.records, self.pack, self.prepare = records, pack, prepare
        self.records_per_step, self.steps, self.costs = records_per_step, steps, costs
        self._budget = torch.tensor(token_budget).share_memory_()  # type: ignore[no-untyped-call]
        self.rank, self.world_size = rank, world_size
        self.steps_per_epoch = ceil(len(records) / records_per_step)
        self._order: tuple[int, npt.NDArray[np.integer]] | None = None

    def __len__(self) -> int:
        return self.steps

    @property
    def token_budget(self) -> int:
        """The cost of a row at most; loader workers see a change at once."""
        return int(self._budget)

    @token_budget.setter
    def token_budget(self, value: int) -> None:
        self._budget.fill_(value)

    def indices(self, step: int) -> list[int]:
        """Return the record indices of this rank in optimizer step `step`: ranks need not ask one another."""
        drawn = np.array(self.global_indices(range(step, step + 1)), np.int64)
        alike = np.ones(len(drawn))
        costs, sizes = (
            (alike, alike.astype(np.int64)) if self.costs is None else self.costs.of_sets(drawn)
        )
        dealt = balance_over_ranks(costs.tolist(), self.world_size, sizes.tolist())
        mine: list[int] = drawn[dealt[self.rank]].tolist()
        return mine

    def global_indices(self, steps: range) -> list[int]:
        """Return the record indices of all ranks in some optimizer steps, in order."""
        found: list[int] = []
        for step in steps:
            epoch, place = divmod(step, self.steps_per_epoch)
            if self._order is None or self._order[0] != epoch:
                self._order = (epoch, self.records.order(epoch))
            start = place * self.records_per_step
            found += self._order[1][start : start + self.records_per_step].tolist()
        return found

    def __getitem__(self, step: int) -> Step:
        if self.prepare is not None:
            self.prepare(step)
        encoded = [self.records[index] for index in self.indices(step)]
        rows, records = (
            make_rows(encoded, self.pack, self.token_budget),
            [one.record for one in encoded],
        )
        return {"rows": rows, "records": records, "skipped": sum(one.skipped for one in encoded)}


PATCHES_PER_TOKEN = 4
"""The backbone merges 2 x 2 patches into a token."""
Encode = Callable[[Preference, int], TrainingExample]
"""Encodes a record; where both responses stand in one prompt, the better one is shown first (0) or second (1)."""


@dataclass(frozen=True, slots=True)
class MixtureRecords:
    """The mixture's epochs; a record that cannot be used is handled by the mixture's own policy."""

    mixture: Mixture
    encode: Encode
    together: int = 1
    """Records of one prompt that follow one another in an epoch, where the mixture has so many."""

    def __len__(self) -> int:
        return self.mixture.epoch_size

    def __getitem__(self, index: int) -> TrainingExample:
        return self.load(index)

    def load(self, index: int, side: int = 0) -> TrainingExample:
        """Return an encoded record, with the number of unusable ones that this process met for the first time on the way."""
        before = len(self.mixture.skipped)
        encoded = self.mixture.load(index, lambda record: self.encode(record, side))
        prompt = (
            None if encoded.prompt is None else (int(self.mixture.prompts[index]), encoded.prompt)
        )
        return replace(encoded, skipped=len(self.mixture.skipped) - before, prompt=prompt)

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of an epoch, the same on every rank."""
        return self.mixture.order(epoch, self.together)


def expected_costs(mixture: Mixture) -> npt.NDArray[np.float32]:
    """Return what each training record will take of a token budget, (len,), before anything is read or decoded."""
    text_tokens, image_tokens = mixture.lengths().T
    return np.asarray(
        text_tokens + image_tokens + PATCH_COST * PATCHES_PER_TOKEN * image_tokens, dtype=np.float32
    )


def shared_costs(mixture: Mixture) -> Costs:
    """Return what records cost where those of one prompt become one group; what its text costs is not known by itself."""
    images = (1 + PATCH_COST * PATCHES_PER_TOKEN) * mixture.lengths()[:, 1]
    return Costs(expected_costs(mixture), images.astype(np.float32), mixture.prompts)


@dataclass(frozen=True, slots=True)
class PairEncoder:
    """A preference as one group of two continuations, chosen first; runs in loader workers."""

    encoder: Encoder
    read: Read
    lengths: bool = True
    """Also count the tokens of each response by itself."""

    def __call__(self, record: Preference, side: int = 0) -> TrainingExample:
        """Decode the images and encode both responses; raises RecordError as decoding and encoding do."""
        self.encoder.refuse_control_tokens(record)
        conversations = [
            (*record.prompt, text("assistant", response))
            for response in (record.chosen, record.rejected)
        ]
        group = self.encoder.encode_conversations(
            record.images, conversations, self.read, record.identity
        )
        lengths = response_tokens(self.encoder, record) if self.lengths else ()
        prompt = record.prompt, record.images
        return TrainingExample(
            group, record.margin or 0.0, lengths, record=record.identity, prompt=prompt
        )


def response_tokens(encoder: Encoder, record: Preference) -> tuple[int, ...]:
    """Return the tokens of both responses, chosen first, by themselves."""
    return tuple(
        len(encoder.tokenizer(one, add_special_tokens=False)["input_ids"])
        for one in (record.chosen, record.rejected)
    )
