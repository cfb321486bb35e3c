"""Attention while the continuations of a packed row are generated.

A new token sees its part of the packed row (its prompt, and its continuation's given tokens), then
everything generated after them. The keys and values of the row are held once for all continuations
of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PADDED = 1.1
"""Groups of different lengths form one batch as long as padding all to the longest gives at most
this many times their keys: a tenth more than the token budget counts."""


class Stretch(NamedTuple):
    """The row positions `start:end` of one group."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Number of positions."""
        return self.end - self.start


@dataclass
class GroupBatch:
    """Keys and values of B groups, padded to L positions, and the C' continuations that see them.

    Example: a group with two continuations (numbers 0 and 1 of the row) and a group with one
    (number 2) have `members` [0, 1, 2], `groups` [0, 0, 1], `members_by_group` [[0, 1], [2, 0]]
    with the last entry as padding, and `flat_index` [0, 1, 2].
    """

    layers: list[tuple[Tensor, Tensor]]
    """Keys and values in every layer, (B, key heads, L, d) each."""
    mask: Tensor
    """(C', L), added to the logits: 0 at a continuation's prompt and given tokens, else -inf."""
    members: Tensor
    """(C',) int64: number of each continuation among all continuations of the row."""
    groups: Tensor
    """(C',) int64, ascending: the group of each continuation."""
    members_by_group: Tensor
    """(B, n) int64: indices into `members` for each group; padded with 0."""
    flat_index: Tensor
    """(C',) int64: index of each continuation in the flattened `members_by_group`."""

    @classmethod
    def of(
        cls, layers: list[tuple[Tensor, Tensor]], mask: Tensor, members: Tensor, groups: Tensor
    ) -> "GroupBatch":
        """Return the batch; its last two fields are computed from `groups`."""
        num_groups = int(groups[-1]) + 1
        indices = [torch.nonzero(groups == group)[:, 0] for group in range(num_groups)]
        members_by_group = pad_sequence(indices, batch_first=True)
        index_in_group = torch.cat(
            [
                torch.arange(len(indices_of_group), device=groups.device)
                for indices_of_group in indices
            ]
        )
        flat_index = groups * members_by_group.shape[1] + index_in_group
        return cls(layers, mask, members, groups, members_by_group, flat_index)

    def keep(self, index: Tensor, count: int) -> "GroupBatch | None":
        """Return the batch with only some continuations and the groups that they see.

        The keys and values of other groups are released from this batch's list of layers.

        Args:
            index: (kept,) int64, ascending: the continuations of the row that are kept.
            count: Number of continuations of the row before.

        Returns:
            None if no continuation of this batch is kept.
        """
        new_numbers = index.new_full((count,), -1)
        new_numbers[index] = torch.arange(len(index), device=index.device)
        members = new_numbers[self.members]
        is_kept = members >= 0
        if not bool(is_kept.any()):
            return None
        kept_groups, new_groups = torch.unique(self.groups[is_kept], return_inverse=True)
        if len(kept_groups) < len(self.members_by_group):
            # One layer after another, so that few layers are in memory twice.
            for layer, (keys, values) in enumerate(self.layers):
                self.layers[layer] = (keys[kept_groups], values[kept_groups])
        return GroupBatch.of(self.layers, self.mask[is_kept], members[is_kept], new_groups)

    def join_groups(self, x: Tensor) -> Tensor:
        """Return `x` (C', key heads, r, k) as (B, key heads, n * r, k).

        The continuations of a group share its keys: as one matrix, they read these only once.
        """
        _, num_heads, heads_per_key, width = x.shape
        rows = x if self.is_even else x.index_select(0, self.members_by_group.flatten())
        rows = rows.view(*self.members_by_group.shape, num_heads, heads_per_key, width)
        return rows.transpose(1, 2).reshape(len(self.members_by_group), num_heads, -1, width)

    def split_groups(self, x: Tensor, heads_per_key: int) -> Tensor:
        """Return `x` (B, key heads, n * r, k) as (C', key heads, r, k): undoes `join_groups`."""
        num_groups, num_heads, _, width = x.shape
        rows = x.view(num_groups, num_heads, -1, heads_per_key, width).transpose(1, 2)
        rows = rows.reshape(-1, num_heads, heads_per_key, width)
        return rows if self.is_even else rows.index_select(0, self.flat_index)

    @property
    def is_even(self) -> bool:
        """Whether all groups have equally many continuations."""
        return self.members_by_group.numel() == len(self.flat_index)


@dataclass
class DecodePlan:
    """What the tokens of a decoding step see: part of a packed row, and what was generated since.

    All continuations of a group read its keys and values in place, so these are in memory once.
    """

    batches: list[GroupBatch]
    count: int
    """Number of continuations, C."""
    ndim: ClassVar[int] = 1
    """As in `AttentionPlan`."""

    @classmethod
    def of(cls, layers: list[tuple[Tensor, Tensor]], visible: Sequence[Tensor]) -> "DecodePlan":
        """Return the plan of a packed row; `layers` is emptied.

        Args:
            layers: Keys and values of the row in every layer, (key heads, T, d) each. They are
                taken out one by one, so that few layers are in memory twice.
            visible: For each continuation the row positions that it sees, ascending, (positions,)
                int64. Continuations of one group begin with the same prompt. A group is one stretch
                of the row.
        """
        end_by_start: dict[int, int] = {}
        for positions in visible:
            start = int(positions[0])
            end = int(positions[-1]) + 1
            end_by_start[start] = max(end, end_by_start.get(start, 0))
        stretches = [Stretch(start, end) for start, end in end_by_start.items()]
        stretches_by_batch = _similar_lengths(stretches)

        dtype = layers[0][0].dtype
        batches = [_empty_batch(members, visible, dtype) for members in stretches_by_batch]
        while layers:
            keys, values = layers.pop(0)
            for batch, members in zip(batches, stretches_by_batch, strict=True):
                batch.layers.append((_stack(keys, members), _stack(values, members)))
        return cls(batches, len(visible))

    @property
    def shape(self) -> tuple[int]:
        """Positions of the packed row that are in memory, padding included."""
        total = 0
        for batch in self.batches:
            num_groups, _, num_positions, _ = batch.layers[0][0].shape
            total += num_groups * num_positions
        return (total,)

    def keep(self, index: Tensor) -> None:
        """Drop all continuations except those at `index`, and groups that none of them sees."""
        kept = [batch.keep(index, self.count) for batch in self.batches]
        self.batches = [batch for batch in kept if batch is not None]
        self.count = len(index)


def _similar_lengths(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Return the groups in batches whose padding stays within PADDED.

    Batches come from the longest groups to the shortest. Inside a batch, groups are in row order.
    """
    batches: list[list[Stretch]] = []
    for stretch in sorted(stretches, key=lambda stretch: stretch.length, reverse=True):
        if batches:
            lengths = [member.length for member in (*batches[-1], stretch)]
            num_padded = lengths[0] * len(lengths)
            if num_padded <= PADDED * sum(lengths):
                batches[-1].append(stretch)
                continue
        batches.append([stretch])
    return [sorted(batch) for batch in batches]


def _empty_batch(
    stretches: Sequence[Stretch], visible: Sequence[Tensor], dtype: torch.dtype
) -> GroupBatch:
    """Return the batch of these groups, still without keys and values."""
    device = visible[0].device
    group_by_start = {stretch.start: group for group, stretch in enumerate(stretches)}
    members: list[int] = []
    groups: list[int] = []
    for number, positions in enumerate(visible):
        group = group_by_start.get(int(positions[0]))
        if group is not None:
            members.append(number)
            groups.append(group)

    longest = max(stretch.length for stretch in stretches)
    mask = torch.full((len(members), longest), -torch.inf, dtype=dtype, device=device)
    for mask_row, number in zip(mask, members, strict=True):
        mask_row[visible[number] - visible[number][0]] = 0
    group_index = torch.tensor(groups, device=device)
    order = group_index.argsort(stable=True)
    return GroupBatch.of(
        layers=[],
        mask=mask[order],
        members=torch.tensor(members, device=device)[order],
        groups=group_index[order],
    )


def _stack(x: Tensor, stretches: Sequence[Stretch]) -> Tensor:
    """Return groups of a packed row (key heads, T, d) as (B, key heads, L, d), padded with 0."""
    longest = max(stretch.length for stretch in stretches)
    padded = []
    for stretch in stretches:
        group = x[:, stretch.start : stretch.end]
        padded.append(F.pad(group, (0, 0, 0, longest - stretch.length)))
    return torch.stack(padded)


def decode(
    query: Tensor, key: Tensor, value: Tensor, plan: DecodePlan, layer: int, scaling: float | None
) -> Tensor:
    """Attend with one new token of every continuation.

    Logits and sums of values are fp32, as inside SDPA's kernels: with key biases of hundreds, bf16
    logits would be rounded to steps of 1 or 2.

    Args:
        query: (C, heads, 1, d).
        key: (C, key heads, n, d), of the n tokens generated so far.
        value: (C, key heads, n, d).
        plan: What each continuation sees of the packed row.
        layer: Index of the layer.
        scaling: Factor of the logits; None is d ** -0.5.

    Returns:
        (C, 1, heads, d).
    """
    if len(plan.batches) == 1:
        return _decode_batch(query, key, value, plan.batches[0], layer, scaling)
    attended = []
    for batch in plan.batches:
        q, k, v = (tensor.index_select(0, batch.members) for tensor in (query, key, value))
        attended.append(_decode_batch(q, k, v, batch, layer, scaling))
    members = torch.cat([batch.members for batch in plan.batches])
    return torch.cat(attended).index_select(0, members.argsort())


def _decode_batch(
    query: Tensor, key: Tensor, value: Tensor, batch: GroupBatch, layer: int, scaling: float | None
) -> Tensor:
    """Attend with the continuations of one batch; arguments and result are those of `decode`."""
    given_keys, given_values = batch.layers[layer]
    num_continuations, num_heads, _, head_size = query.shape
    _, num_key_heads, num_given, _ = given_keys.shape
    heads_per_key = num_heads // num_key_heads

    queries = query.to(given_keys.dtype)
    queries = queries.view(num_continuations, num_key_heads, heads_per_key, head_size)
    given_logits = _matmul_fp32(batch.join_groups(queries), given_keys.transpose(2, 3))
    given_logits = batch.split_groups(given_logits, heads_per_key) + batch.mask[:, None, None]
    new_logits = _matmul_fp32(queries, key.to(given_keys.dtype).transpose(2, 3))
    logits = torch.cat([given_logits, new_logits], dim=3)

    scale = head_size**-0.5 if scaling is None else scaling
    weights = (logits * scale).softmax(3).to(given_values.dtype)
    from_given = _matmul_fp32(batch.join_groups(weights[..., :num_given]), given_values)
    from_given = batch.split_groups(from_given, heads_per_key)
    from_new = _matmul_fp32(weights[..., num_given:], value)
    attended = (from_given + from_new).to(given_values.dtype)
    return attended.reshape(num_continuations, 1, num_heads, head_size)


def _matmul_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Return (..., n, m) x (..., m, k) in fp32, also for half precision and under autocast."""
    if a.is_cuda and a.dtype != torch.float32:
        left = a.reshape(-1, *a.shape[-2:])
        right = b.reshape(-1, *b.shape[-2:])
        product = torch.bmm(left, right, out_dtype=torch.float32)
        return product.view(*a.shape[:-1], b.shape[-1])
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float()
