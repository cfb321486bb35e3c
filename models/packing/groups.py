"""One prompt, many continuations: the group, and the packed row that the model computes.

A row is `[prompt | continuation | continuation ... | next prompt | ...]`. Position ids of a continuation start where
its prompt ends, and the attention plan lets it see its prompt and itself, so that a row gives the very numbers that
each `prompt ++ continuation` gives alone.
`unpack` is the way back: a row that is too large for the device is cut into smaller ones. How a step's records are balanced
over ranks, and groups packed into rows under a token budget, goes by lengths only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, takewhile
from math import prod
from typing import Any

import torch
from torch import Tensor

from mmrm.models.packing.attention import AttentionPlan
from mmrm.models.packing.bins import cost
from mmrm.models.packing.positions import as_taken
from mmrm.models.packing.vision import VisionPlan, VisionTokens, map_tensors


@dataclass(frozen=True, slots=True)
class Continuation:
    """What follows a prompt; `read` and `loss_tokens` index its own tokens."""

    ids: tuple[int, ...]
    read: tuple[int, ...] = ()
    """Tokens whose hidden states give the score (their mean)."""
    loss_tokens: tuple[int, ...] = ()
    """Tokens that carry language-model loss."""


@dataclass(frozen=True, slots=True)
class Group:
    """One multimodal prompt and its continuations, tokenised."""

    prompt_ids: tuple[int, ...]
    continuations: tuple[Continuation, ...] = ()
    pixel_values: Tensor | None = None
    """(patches, patch_size) float32, the images one after another; None without an image."""
    grids: tuple[tuple[int, int, int], ...] = ()
    """Frames (or tiles), rows and columns of patches, for every image."""

    @property
    def tokens(self) -> int:
        """LM tokens of the group in a row."""
        return sum(self.lengths)

    @property
    def patches(self) -> int:
        """Vision patches of the group in a row."""
        return sum(frames * rows * columns for frames, rows, columns in self.grids)

    @property
    def cost(self) -> int:
        """What the group takes of a token budget; its rows' may round to fewer."""
        return cost(self.tokens, self.patches)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the prompt and of the continuations."""
        return len(self.prompt_ids), *(len(continuation.ids) for continuation in self.continuations)

    def _from(self, start: int) -> Iterator[Continuation]:
        """Yield the continuations as they are where the prompt has but `start` tokens."""
        rest = self.prompt_ids[start:]
        for one in self.continuations:
            moved = (tuple(i + len(rest) for i in own) for own in (one.read, one.loss_tokens))
            yield Continuation((*rest, *one.ids), *moved)


def join(groups: Sequence[Group]) -> Group:
    """Return groups of equal messages and images as one; its prompt is what all their conversations begin with."""
    columns = zip(*(group.prompt_ids for group in groups), strict=False)
    shared = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))
    continuations = chain.from_iterable(group._from(shared) for group in groups)
    return replace(
        groups[0], prompt_ids=groups[0].prompt_ids[:shared], continuations=tuple(continuations)
    )


def filler_group(vision: VisionTokens) -> Group:
    """Return the smallest image, blank, between its marks, without continuation: it changes nothing.

    It costs 3 tokens, 1 of a family without marks, or of one with tiles a tile's. A row without an image takes one, so that the
    vision tower runs on every rank; a rank without work runs a row of it.
    """
    patches = prod(vision.smallest)
    ids = vision.marked([vision.image] * (patches // vision.merge_size**2))
    return Group(tuple(ids), (), torch.zeros(patches, vision.patch_size), (vision.smallest,))


@dataclass(frozen=True)
class PackedBatch:
    """A row of groups, as the model takes it. T tokens, P patches, I images, R reads, L labels."""

    input_ids: Tensor
    """(1, T) int64."""
    position_ids: Tensor
    """(axes, 1, T) int64: frame, row and column, as M-RoPE counts them, or one place."""
    plan: AttentionPlan
    pixel_values: Tensor
    """(P, patch_size) float32."""
    image_grid_thw: Tensor
    """(I, 3) int64; stays on the CPU, because the model only reads it from there."""
    vision: VisionPlan
    """What the vision tower would work out from the grids in every forward."""
    read_positions: Tensor
    """(R,) int64 row positions."""
    read_owners: Tensor
    """(R,) int64: the continuation that is read, counted over the whole row."""
    label_positions: Tensor
    """(L,) int64: the row position whose hidden state predicts the label, so one before it (the prompt's last
    position for the first token of a continuation)."""
    labels: Tensor
    """(L,) int64 token ids."""
    label_owners: Tensor
    """(L,) int64, as `read_owners`."""
    groups: tuple[Group, ...]
    """The groups that were packed, without their pixels; a filler that was added is not among them."""

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Continuations of every group."""
        return tuple(len(group.continuations) for group in self.groups)

    @property
    def tokens(self) -> int:
        """LM tokens of the row."""
        return self.input_ids.shape[1]

    @property
    def cost(self) -> int:
        """What the row takes of a token budget."""
        return cost(self.tokens, len(self.pixel_values))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """Return the batch with its tensors on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """Return the batch in page-locked memory, from which it is copied while the device computes; loaders call this."""
        return self._map(Tensor.pin_memory)

    def _map(self, move: Callable[[Tensor], Tensor]) -> PackedBatch:
        moved: PackedBatch = map_tensors(self, move)
        return replace(moved, image_grid_thw=self.image_grid_thw)

    def model_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of the backbone's forward."""
        return {
            "input_ids": self.input_ids,
            "position_ids": as_taken(self.position_ids),
            "attention_mask": self.plan,
            "use_cache": False,
            **self.vision.model_inputs(self.pixel_values, self.image_grid_thw),
        }

    def score_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of `ScalarRewardModel.forward`: the backbone's and where scores are read."""
        reads = {"read_positions": self.read_positions, "read_owners": self.read_owners}
        return {
            **self.model_inputs(),
            **reads,
            "continuations": sum(self.group_sizes) if len(self.read_owners) else 0,
        }

    def joint_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of `CriticRewardModel.forward`: both of the above."""
        return {**self.score_inputs(), **self.label_inputs()}

    def label_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of `LanguageModel.forward`: the backbone's and which tokens carry loss."""
        return {
            **self.model_inputs(),
            "label_positions": self.label_positions,
            "labels": self.labels,
        }


def pack(groups: Sequence[Group], vision: VisionTokens) -> PackedBatch:
    """Lay `groups` out in one row; a filler joins them if none has an image (so `pack([])` is a row of filler alone).

    Raises ValueError where some continuations are read and others are not: scores would have no meaning there.
    """
    row = list(groups)
    if not any(group.grids for group in row):
        row.append(filler_group(vision))
    read = [bool(continuation.read) for group in row for continuation in group.continuations]
    if any(read) and not all(read):
        raise ValueError(
            f"{sum(read)} of {len(read)} continuations of this row have a read position. A row is scored as a whole: "
            "encode all of its groups with the same `read`."
        )
    ids: list[int] = []
    reads: list[tuple[int, int]] = []
    labels: list[tuple[int, int, int]] = []
    owner = 0
    for group in row:
        ids += group.prompt_ids
        last_of_prompt = len(ids) - 1
        for continuation in group.continuations:
            start = len(ids)
            ids += continuation.ids
            reads += [(start + i, owner) for i in continuation.read]
            labels += [
                (start + i - 1 if i else last_of_prompt, ids[start + i], owner)
                for i in continuation.loss_tokens
            ]
            owner += 1
    read_positions, read_owners = torch.tensor(reads, dtype=torch.int64).reshape(-1, 2).unbind(1)
    label_positions, label_ids, label_owners = (
        torch.tensor(labels, dtype=torch.int64).reshape(-1, 3).unbind(1)
    )
    grids = torch.tensor([grid for group in row for grid in group.grids])
    return PackedBatch(
        input_ids=torch.tensor([ids]),
        position_ids=torch.cat([positions(group, vision) for group in row], dim=1)[:, None],
        plan=AttentionPlan.of([group.lengths for group in row]),
        pixel_values=torch.cat(
            [group.pixel_values for group in row if group.pixel_values is not None]
        ),
        image_grid_thw=grids,
        vision=vision.tower_plan(grids),
        read_positions=read_positions,
        read_owners=read_owners,
        label_positions=label_positions,
        labels=label_ids,
        label_owners=label_owners,
        groups=tuple(replace(group, pixel_values=None) for group in groups),
    )


def positions(group: Group, vision: VisionTokens) -> Tensor:
    """Return the position ids of a group, (axes, tokens) int64; no model is needed, so a loader worker can do it."""
    own, after = vision.positions(group.prompt_ids, vision.image, group.grids, vision.merge_size)
    return torch.cat(
        [own, *(torch.arange(after, after + n).expand(len(own), -1) for n in group.lengths[1:])],
        dim=1,
    )


def unpack(batch: PackedBatch) -> list[Group]:
    """Return the groups of which `batch` was packed; their pixels are views of the row's."""
    ends = accumulate(group.patches for group in batch.groups)
    return [
        replace(
            group,
            pixel_values=batch.pixel_values[end - group.patches : end] if group.grids else None,
        )
        for group, end in zip(batch.groups, ends, strict=True)
    ]
