"""Attention while texts are generated after the conversations of a packed row.

A new token sees its own conversation in the packed row, then everything generated after it. A group
is a root of a tree with the segments below it. The keys and values of a group are held once for all
texts that go on from its segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

MAX_PADDED_RATIO = 1.1
"""Groups of different lengths are put into one batch if, padded to the longest of them, they have
at most this many times their own positions. The token budget does not count this padding."""


class GroupSpan(NamedTuple):
    """The positions `start:end` that a group, a root with the segments below it, has in a row."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Number of positions."""
        return self.end - self.start


@dataclass
class GroupBatch:
    """Keys and values of B groups, padded to L positions, and the C' texts that see them.

    A packed row is divided into such batches, and each attends in one matrix product.

    Example: a group with two texts (numbers 0 and 1 of the row) and a group with one
    (number 2) have `members` [0, 1, 2], `groups` [0, 0, 1], `members_by_group` [[0, 1], [2, 0]]
    with the last entry as padding, and `flat_index` [0, 1, 2].
    """

    layers: dict[int, tuple[Tensor, Tensor]]
    """Keys and values by attention layer, (B, key heads, L, d) each. Layers of other kinds have
    none."""
    mask: Tensor
    """(C', L), added to the logits: 0 at the tokens of a text's conversation, else -inf."""
    members: Tensor
    """(C',) int64: number of each text among all texts of the row."""
    groups: Tensor
    """(C',) int64, ascending: the group of each text."""
    members_by_group: Tensor
    """(B, n) int64: indices into `members` for each group; padded with 0."""
    flat_index: Tensor
    """(C',) int64: index of each text in the flattened `members_by_group`."""

    @classmethod
    def of(
        cls, layers: dict[int, tuple[Tensor, Tensor]], mask: Tensor, members: Tensor, groups: Tensor
    ) -> "GroupBatch":
        """Return a batch with these fields; the other two are computed from `groups`."""
        num_groups = int(groups[-1]) + 1
        indices_by_group: list[Tensor] = []
        indices_in_group: list[Tensor] = []
        for group in range(num_groups):
            indices = torch.nonzero(groups == group)[:, 0]
            indices_by_group.append(indices)
            indices_in_group.append(torch.arange(len(indices), device=groups.device))
        members_by_group = pad_sequence(indices_by_group, batch_first=True)
        flat_index = groups * members_by_group.shape[1] + torch.cat(indices_in_group)
        return cls(layers, mask, members, groups, members_by_group, flat_index)

    def keep(self, index: Tensor, count: int) -> "GroupBatch | None":
        """Return a batch with only some of the texts, and with the groups that they see.

        The keys and values of other groups are removed from `self.layers`, so that their memory is
        freed.

        Args:
            index: (kept,) int64, ascending: the texts of the row that are kept.
            count: Number of texts that the row has so far.

        Returns:
            The batch, whose `members` count the kept texts alone; None if no text
            of this batch is kept.
        """
        new_numbers = index.new_full((count,), -1)  # -1: the text is not kept
        new_numbers[index] = torch.arange(len(index), device=index.device)
        new_members = new_numbers[self.members]
        is_kept = new_members >= 0
        if not bool(is_kept.any()):
            return None
        # Groups that are still seen, by their old numbers, and the new number of the group of each
        # text.
        kept_groups, new_groups = torch.unique(self.groups[is_kept], return_inverse=True)
        if len(kept_groups) < len(self.members_by_group):
            # One layer after another, so that few layers are in memory twice.
            for layer, (keys, values) in self.layers.items():
                self.layers[layer] = (keys[kept_groups], values[kept_groups])
        return GroupBatch.of(self.layers, self.mask[is_kept], new_members[is_kept], new_groups)

    def join_groups(self, x: Tensor) -> Tensor:
        """Stack the texts of each group: (C', key heads, r, k) to (B, key heads, n * r, k).

        n is the largest number of texts of a group; smaller groups are padded. As one
        matrix, the texts of a group read the group's keys only once.

        Args:
            x: Queries or weights of C' texts, with r heads for each key head.
        """
        _, num_heads, heads_per_key, width = x.shape
        rows = x if self.is_even else x.index_select(0, self.members_by_group.flatten())
        rows = rows.view(*self.members_by_group.shape, num_heads, heads_per_key, width)
        return rows.transpose(1, 2).reshape(len(self.members_by_group), num_heads, -1, width)

    def split_groups(self, x: Tensor, heads_per_key: int) -> Tensor:
        """Undo `join_groups`: (B, key heads, n * r, k) to (C', key heads, r, k).

        Args:
            x: The tensor with stacked texts.
            heads_per_key: Number of heads for each key head, r.
        """
        num_groups, num_heads, _, width = x.shape
        rows = x.view(num_groups, num_heads, -1, heads_per_key, width).transpose(1, 2)
        rows = rows.reshape(-1, num_heads, heads_per_key, width)
        return rows if self.is_even else rows.index_select(0, self.flat_index)

    @property
    def is_even(self) -> bool:
        """True if all groups have equally many texts."""
        return self.members_by_group.numel() == len(self.flat_index)


@dataclass
class DecodePlan:
    """The keys and values of a packed row that the new tokens of a decoding step attend to.

    All texts of a group read its keys and values in place, so these are in memory once. The
    keys and values of generated tokens are not in the plan.
    """

    batches: list[GroupBatch]
    count: int
    """Number of texts, C."""
    ndim: ClassVar[int] = 1
    """Transformers passes the plan on unchanged, because it is no mask of two dimensions."""

    @classmethod
    def of(
        cls, layers: dict[int, tuple[Tensor, Tensor]], visible: Sequence[Tensor]
    ) -> "DecodePlan":
        """Return the plan of a packed row, and empty `layers`.

        Args:
            layers: Keys and values of the row by attention layer, (key heads, T, d) each. They are
                taken out one by one, so that few layers are in memory twice.
            visible: For each text the row positions that it sees, ascending, (positions,)
                int64. Texts of one group begin with the same root, so they see the same first
                position. A group is one span of the row.
        """
        end_by_start: dict[int, int] = {}
        for positions in visible:
            start = int(positions[0])
            end = int(positions[-1]) + 1
            end_by_start[start] = max(end, end_by_start.get(start, 0))
        spans = [GroupSpan(start, end) for start, end in end_by_start.items()]
        spans_by_batch = _batches_of_similar_lengths(spans)

        some_keys, _ = next(iter(layers.values()))
        dtype = some_keys.dtype
        batches = [_empty_batch(batch_spans, visible, dtype) for batch_spans in spans_by_batch]
        for layer in list(layers):
            keys, values = layers.pop(layer)
            for batch, batch_spans in zip(batches, spans_by_batch, strict=True):
                stacked_keys = _stack_groups(keys, batch_spans)
                batch.layers[layer] = (stacked_keys, _stack_groups(values, batch_spans))
        return cls(batches, len(visible))

    @property
    def shape(self) -> tuple[int]:
        """The number of row positions in memory, with padding.

        Transformers reads the shape of every mask.
        """
        total = 0
        for batch in self.batches:
            some_keys, _ = next(iter(batch.layers.values()))
            num_groups, _, num_positions, _ = some_keys.shape
            total += num_groups * num_positions
        return (total,)

    def keep(self, index: Tensor) -> None:
        """Drop all texts except those at `index`, (kept,) int64, ascending.

        Groups that no remaining text sees are dropped as well.
        """
        kept = [batch.keep(index, self.count) for batch in self.batches]
        self.batches = [batch for batch in kept if batch is not None]
        self.count = len(index)


def _batches_of_similar_lengths(spans: Sequence[GroupSpan]) -> list[list[GroupSpan]]:
    """Divide groups into batches of similar lengths, whose padding MAX_PADDED_RATIO limits.

    Batches are ordered from the longest groups to the shortest. Inside a batch, groups are in row
    order.
    """
    batches: list[list[GroupSpan]] = []
    for span in sorted(spans, key=lambda span: span.length, reverse=True):
        if batches:
            lengths = [other.length for other in batches[-1]] + [span.length]
            longest = lengths[0]
            num_padded_positions = longest * len(lengths)
            if num_padded_positions <= MAX_PADDED_RATIO * sum(lengths):
                batches[-1].append(span)
                continue
        batches.append([span])
    return [sorted(batch) for batch in batches]


def _empty_batch(
    spans: Sequence[GroupSpan], visible: Sequence[Tensor], dtype: torch.dtype
) -> GroupBatch:
    """Return the batch of some groups, still without keys and values.

    Args:
        spans: The groups.
        visible: For each text of the row, the positions that it sees, as in
            `DecodePlan.of`.
        dtype: Dtype of the mask.
    """
    device = visible[0].device
    group_by_start = {span.start: group for group, span in enumerate(spans)}
    members: list[int] = []
    groups: list[int] = []
    for number, positions in enumerate(visible):
        group = group_by_start.get(int(positions[0]))
        if group is not None:  # else it sees a group of another batch
            members.append(number)
            groups.append(group)

    longest = max(span.length for span in spans)
    mask = torch.full((len(members), longest), -torch.inf, dtype=dtype, device=device)
    for mask_row, number in zip(mask, members, strict=True):
        mask_row[visible[number] - visible[number][0]] = 0
    group_index = torch.tensor(groups, device=device)
    order = group_index.argsort(stable=True)
    return GroupBatch.of(
        layers={},
        mask=mask[order],
        members=torch.tensor(members, device=device)[order],
        groups=group_index[order],
    )


def _stack_groups(x: Tensor, spans: Sequence[GroupSpan]) -> Tensor:
    """Return B groups of a packed row as one tensor, (B, key heads, L, d), padded with 0.

    Args:
        x: Keys or values of the row, (key heads, T, d).
        spans: The groups, of which the longest has L positions.
    """
    longest = max(span.length for span in spans)
    padded = []
    for span in spans:
        group = x[:, span.start : span.end]
        padded.append(F.pad(group, (0, 0, 0, longest - span.length)))
    return torch.stack(padded)


def decode(
    query: Tensor, key: Tensor, value: Tensor, plan: DecodePlan, layer: int, scaling: float | None
) -> Tensor:
    """Compute the attention of one new token of every text in one layer.

    Logits and sums of values are fp32, as inside SDPA's kernels: with key biases of hundreds, bf16
    logits would be rounded to steps of 1 or 2.

    Args:
        query: (C, heads, 1, d).
        key: (C, key heads, n, d), of the n tokens that were generated so far.
        value: (C, key heads, n, d), of the same tokens.
        plan: The keys and values of the packed row.
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
    # Back from the order of the batches to the order of the texts.
    members = torch.cat([batch.members for batch in plan.batches])
    return torch.cat(attended).index_select(0, members.argsort())


def _decode_batch(
    query: Tensor, key: Tensor, value: Tensor, batch: GroupBatch, layer: int, scaling: float | None
) -> Tensor:
    """Compute the attention of the texts of one batch.

    The arguments and the result are those of `decode`, for these texts alone. In the code,
    "given" tokens are those of the packed row, and "new" tokens were generated since.
    """
    given_keys, given_values = batch.layers[layer]
    num_texts, num_heads, _, head_size = query.shape
    _, num_key_heads, num_given, _ = given_keys.shape
    heads_per_key = num_heads // num_key_heads

    queries = query.to(given_keys.dtype)
    queries = queries.view(num_texts, num_key_heads, heads_per_key, head_size)
    given_logits = _matmul_fp32(batch.join_groups(queries), given_keys.transpose(2, 3))
    given_logits = batch.split_groups(given_logits, heads_per_key) + batch.mask[:, None, None]
    new_logits = _matmul_fp32(queries, key.to(given_keys.dtype).transpose(2, 3))
    logits = torch.cat([given_logits, new_logits], dim=3)

    scale = head_size**-0.5 if scaling is None else scaling
    weights = (logits * scale).softmax(3).to(given_values.dtype)
    given_sums = _matmul_fp32(batch.join_groups(weights[..., :num_given]), given_values)
    given_sums = batch.split_groups(given_sums, heads_per_key)
    new_sums = _matmul_fp32(weights[..., num_given:], value)
    attended = (given_sums + new_sums).to(given_values.dtype)
    return attended.reshape(num_texts, 1, num_heads, head_size)


def _matmul_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product of `a` (..., n, m) and `b` (..., m, k), computed in fp32.

    This is also so for inputs in half precision and under autocast.
    """
    if a.is_cuda and a.dtype != torch.float32:
        left = a.reshape(-1, *a.shape[-2:])
        right = b.reshape(-1, *b.shape[-2:])
        product = torch.bmm(left, right, out_dtype=torch.float32)
        return product.view(*a.shape[:-1], b.shape[-1])
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float()
