"""Packed groups through a model, data-parallel: the one forward path of evaluation; and its simplest user, the scalar judge.

Work is dealt to ranks by index, encoded in loader workers a chunk at a time (pixels of a whole benchmark would not fit in
memory), packed under the token budget, and run in lock-step: a rank without work runs the filler row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader

from data.preference import text
from eval.protocol import Example, Verdict
from models.config import StoredRead
from models.distributed import gather, max_over_ranks, rank, world_size
from models.encoder import Encoder
from models.packing.groups import Group, PackedBatch, pack_first_fit

Item = TypeVar("Item")
Found = TypeVar("Found")

CHUNK = 64
"""Items that are encoded and packed together: enough to fill rows well, few enough to hold their pixels."""


PackedItems = tuple[PackedBatch, list[int]]
"""A row and the indices of the items whose groups it holds, in order."""


@dataclass(frozen=True, slots=True)
class Packed:
    """How items are encoded and packed: what all judges on packed rows share."""

    encoder: Encoder
    device: torch.device
    token_budget: int
    workers: int = 0


def run_packed(
    packed: Packed,
    items: Sequence[Item],
    encode: Callable[[Item], Group],
    run: Callable[[PackedBatch, list[Item]], Sequence[Found]],
) -> list[Found]:
    """Return what `run` finds for every item, in order, on every rank; all ranks must call together.

    `encode` makes an item's group; it runs in loader workers and must be picklable. `run` gets a packed row on the device
    and its items, and returns one thing for each. Ranks run equally many rows: one without work runs the filler row, with
    no items, and nothing is taken from it.
    """
    share = range(rank(), len(items), world_size())
    loader: DataLoader[list[PackedItems]] = DataLoader(
        [share[start : start + CHUNK] for start in range(0, len(share), CHUNK)],  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=partial(_rows, packed, items, encode),
        num_workers=packed.workers if len(items) > CHUNK else 0,
        generator=torch.Generator(),  # else it draws a seed from the run's own generator: evaluating must not change training
    )
    found: dict[int, Found] = {}
    chunks = iter(loader)
    for _ in range(max_over_ranks(len(loader), packed.device)):
        rows: list[PackedItems] = next(chunks, [])
        for number in range(max_over_ranks(len(rows), packed.device)):
            batch, inside = rows[number] if number < len(rows) else (packed.encoder.pack([]), [])
            found |= zip(inside, run(batch.to(packed.device), [items[i] for i in inside]), strict=True)
    whole = {index: one for part in gather(found) for index, one in part.items()}
    return [whole[index] for index in range(len(items))]


def _rows(packed: Packed, items: Sequence[Item], encode: Callable[[Item], Group], chunk: Sequence[int]) -> list[PackedItems]:
    """Encode and pack a chunk of the items."""
    groups = [encode(items[i]) for i in chunk]
    rows = pack_first_fit([group.cost for group in groups], packed.token_budget)
    return [(packed.encoder.pack([groups[i] for i in row]), [chunk[i] for i in row]) for row in rows]


@dataclass(frozen=True, slots=True)
class ResponsesEncoder:
    """An example as one group: its prompt once, then its responses with read positions; runs in loader workers."""

    encoder: Encoder
    read: StoredRead

    def __call__(self, example: Example) -> Group:
        """Encode an example; raises RecordError for an image that cannot be decoded."""
        conversations = [(*example.prompt, text("assistant", response)) for response in example.responses]
        return self.encoder.encode_conversations(example.images, conversations, self.read, example.identity)


@dataclass(frozen=True, slots=True)
class ScalarJudge:
    """A scalar reward model: the response with the higher score is the better one."""

    model: nn.Module
    """May be wrapped by DeepSpeed or DDP; in eval mode."""
    packed: Packed
    read: StoredRead
    about: tuple[str, ...] = ()
    """What must be said beside its figures."""

    @torch.no_grad()
    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Return both scores of every example, fp32 values; all ranks must call together, and all get all verdicts."""
        return run_packed(self.packed, examples, ResponsesEncoder(self.packed.encoder, self.read), self._verdicts)

    def _verdicts(self, batch: PackedBatch, examples: Sequence[Example]) -> list[Verdict]:
        scores = iter(self.model(**batch.score_inputs()).tolist())
        return [Verdict(scores=(next(scores), next(scores))) for _ in examples]

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures."""
        return self.about
