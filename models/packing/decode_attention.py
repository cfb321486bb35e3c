"""Attention while continuations of a packed row are written: a new token sees its part of the row, and what was written since."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PADDED = 1.1
"""Groups of different lengths are one batch while padding all to the longest makes their keys at most so many times as many: a
tenth more than the token budget counts."""


@dataclass
class GroupBatch:
    """The keys and values of B groups of a packed row, padded to L positions, and the C' continuations that see them."""

    layers: list[tuple[Tensor, Tensor]]
    """Keys and values in every layer, (B, key heads, L, d) each."""
    mask: Tensor
    """(C', L) additive: 0 at a continuation's prompt and at its own given tokens, else -inf."""
    members: Tensor
    """(C',) int64: the place of each continuation among all of the row."""
    groups: Tensor
    """(C',) int64, ascending: the group that each belongs to."""
    place: Tensor
    """(B, n) int64: the continuations of each group, as places in `members`; padded with 0."""
    slot: Tensor
    """(C',) int64: where each stands in `place`, flattened."""

    @classmethod
    def of(
        cls, layers: list[tuple[Tensor, Tensor]], mask: Tensor, members: Tensor, groups: Tensor
    ) -> "GroupBatch":
        """Return the batch of these continuations."""
        each = [torch.nonzero(groups == group)[:, 0] for group in range(int(groups[-1]) + 1)]
        place = pad_sequence(each, batch_first=True)
        within = torch.cat([torch.arange(len(one), device=groups.device) for one in each])
        return cls(layers, mask, members, groups, place, groups * place.shape[1] + within)

    def keep(self, index: Tensor, count: int) -> "GroupBatch | None":
        """Return the batch with those at `index`, ascending places among `count`, and what they see; None without any."""
        renumbered = index.new_full((count,), -1)
        renumbered[index] = torch.arange(len(index), device=index.device)
        members = renumbered[self.members]
        alive = members >= 0
        if not bool(alive.any()):
            return None
        groups, relabelled = torch.unique(self.groups[alive], return_inverse=True)
        if len(groups) < len(self.place):
            for number, (keys, values) in enumerate(
                self.layers
            ):  # one layer after another, so that few are held twice
                self.layers[number] = keys[groups], values[groups]
        return GroupBatch.of(self.layers, self.mask[alive], members[alive], relabelled)

    def side_by_side(self, x: Tensor) -> Tensor:
        """Return (C', key heads, r, k) as (B, key heads, n · r, k): what shares keys is one matrix, which reads them once."""
        _, heads, share, width = x.shape
        own = (x if self.even else x.index_select(0, self.place.flatten())).view(
            *self.place.shape, heads, share, width
        )
        return own.transpose(1, 2).reshape(len(self.place), heads, -1, width)

    def apart(self, x: Tensor, share: int) -> Tensor:
        """Return (B, key heads, n · r, k) as (C', key heads, r, k)."""
        batch, heads, _, width = x.shape
        own = (
            x.view(batch, heads, -1, share, width).transpose(1, 2).reshape(-1, heads, share, width)
        )
        return own if self.even else own.index_select(0, self.slot)

    @property
    def even(self) -> bool:
        """Whether all groups have equally many continuations."""
        return self.place.numel() == len(self.slot)


@dataclass
class DecodePlan:
    """What the tokens of a decoding step see: a part of one packed row, and all that was generated after themselves.

    The keys and values of a group are read where they are by all its continuations, and are held once.
    """

    batches: list[GroupBatch]
    count: int
    """Continuations, C."""
    ndim: ClassVar[int] = 1
    """As of an AttentionPlan."""

    @classmethod
    def of(cls, layers: list[tuple[Tensor, Tensor]], seen: Sequence[Tensor]) -> "DecodePlan":
        """Take over the keys and values of a packed row, (key heads, T, d) in every layer, for continuations in its order.

        `seen` holds the positions of the row that each continuation sees, ascending. Those of one group begin with the same
        prompt, and a group is a stretch of the row. `layers` is emptied on the way, so that few layers are held twice.
        """
        stretches: dict[int, int] = {}
        for positions in seen:
            start, end = int(positions[0]), int(positions[-1]) + 1
            stretches[start] = max(end, stretches.get(start, 0))
        parts = _alike(stretches)
        device = seen[0].device
        batches = []
        for part in parts:
            number = {start: group for group, start in enumerate(part)}
            members = [place for place, positions in enumerate(seen) if int(positions[0]) in number]
            groups = torch.tensor([number[int(seen[place][0])] for place in members], device=device)
            order = groups.argsort(stable=True)
            longest = max(stretches[start] - start for start in part)
            mask = torch.full(
                (len(members), longest), -torch.inf, dtype=layers[0][0].dtype, device=device
            )
            for row, place in zip(mask, members, strict=True):
                row[seen[place] - seen[place][0]] = 0
            batches.append(
                GroupBatch.of(
                    [], mask[order], torch.tensor(members, device=device)[order], groups[order]
                )
            )
        for keys, values in _emptied(layers):
            for batch, part in zip(batches, parts, strict=True):
                batch.layers.append(
                    (_stretches(keys, part, stretches), _stretches(values, part, stretches))
                )
        return cls(batches, len(seen))

    @property
    def shape(self) -> tuple[int]:
        """Positions of the packed row that are held, padding included."""
        return (
            sum(
                batch.layers[0][0].shape[0] * batch.layers[0][0].shape[2] for batch in self.batches
            ),
        )

    def keep(self, index: Tensor) -> None:
        """Drop all continuations but those at `index`, and the groups that none of these sees."""
        kept = [batch.keep(index, self.count) for batch in self.batches]
        self.batches, self.count = [batch for batch in kept if batch is not None], len(index)


def _alike(stretches: dict[int, int]) -> list[list[int]]:
    """Return the starts of the groups, longest first, in batches whose padding stays within PADDED; in each by their place."""
    parts: list[list[int]] = []
    for start in sorted(stretches, key=lambda start: stretches[start] - start, reverse=True):
        longest, whole = 0, 0
        if parts:
            lengths = [stretches[other] - other for other in (*parts[-1], start)]
            longest, whole = lengths[0] * len(lengths), sum(lengths)
        if parts and longest <= PADDED * whole:
            parts[-1].append(start)
        else:
            parts.append([start])
    return [sorted(part) for part in parts]


def _emptied(layers: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    while layers:
        yield layers.pop(0)


def _stretches(x: Tensor, part: Sequence[int], stretches: dict[int, int]) -> Tensor:
    """Return groups of a packed row, (key heads, T, d), side by side, (B, key heads, L, d); padded with 0."""
    longest = max(stretches[start] - start for start in part)
    return torch.stack(
        [
            F.pad(x[:, start : (end := stretches[start])], (0, 0, 0, longest - (end - start)))
            for start in part
        ]
    )


def decode(
    query: Tensor, key: Tensor, value: Tensor, plan: DecodePlan, layer: int, scaling: float | None
) -> Tensor:
    """Attend one token of every continuation: (C, heads, 1, d) over keys (C, key heads, n, d) and its group of the packed row.

    Logits and sums of values are fp32, as inside SDPA's kernels: key biases of hundreds leave bf16 steps of 1 or 2.
    """
    alone, found = len(plan.batches) == 1, []
    for batch in plan.batches:
        q, k, v = (x if alone else x.index_select(0, batch.members) for x in (query, key, value))
        found.append(_decode(q, k, v, batch, layer, scaling))
    if alone:
        return found[0]
    return torch.cat(found).index_select(
        0, torch.cat([batch.members for batch in plan.batches]).argsort()
    )


def _decode(
    query: Tensor, key: Tensor, value: Tensor, batch: GroupBatch, layer: int, scaling: float | None
) -> Tensor:
    keys, values = batch.layers[layer]
    (count, heads, _, d), (_, shared, length, _) = query.shape, keys.shape
    share = heads // shared
    own = query.to(keys.dtype).view(count, shared, share, d)
    seen = (
        batch.apart(_in_fp32(batch.side_by_side(own), keys.transpose(2, 3)), share)
        + batch.mask[:, None, None]
    )
    logits = torch.cat([seen, _in_fp32(own, key.to(keys.dtype).transpose(2, 3))], dim=3)
    weights = (logits * (d**-0.5 if scaling is None else scaling)).softmax(3).to(values.dtype)
    attended = batch.apart(_in_fp32(batch.side_by_side(weights[..., :length]), values), share)
    return (
        (attended + _in_fp32(weights[..., length:], value))
        .to(values.dtype)
        .reshape(count, 1, heads, d)
    )


def _in_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product (..., n, m) x (..., m, k) in fp32, also of half precision and under autocast."""
    if a.is_cuda and a.dtype != torch.float32:
        found = torch.bmm(
            a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), out_dtype=torch.float32
        )
        return found.view(*a.shape[:-1], b.shape[-1])
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float()
