"""The group, one prompt with its continuations, and the packed row that a model computes.

`Group` holds tokens of one multimodal prompt and of what follows it: two responses, critiques, or
sampled texts. `pack` lays groups out in one row, `PackedBatch`, so that prompt and image are
computed once for all continuations. The results are exactly those of each conversation alone.
`unpack` returns the groups of a row, for cutting a row that is too large for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from mmrm.models.packing.attention import AttentionPlan
from mmrm.models.packing.bins import cost
from mmrm.models.packing.positions import without_single_axis
from mmrm.models.packing.vision import Grid, VisionPlan, VisionTokens, map_tensors


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that follow a prompt; `read` and `loss_tokens` are indices into `ids`."""

    ids: tuple[int, ...]
    read: tuple[int, ...] = ()
    """Tokens whose mean hidden state gives the score."""
    loss_tokens: tuple[int, ...] = ()
    """Tokens that carry language-model loss."""


@dataclass(frozen=True, slots=True)
class Group:
    """One multimodal prompt and its continuations, tokenised."""

    prompt_ids: tuple[int, ...]
    continuations: tuple[Continuation, ...] = ()
    pixel_values: Tensor | None = None
    """(patches, patch_size) float32, the images one after another; None without an image."""
    grids: tuple[Grid, ...] = ()
    """Frames (or tiles), rows and columns of patches, for every image."""

    @property
    def tokens(self) -> int:
        """Number of language-model tokens."""
        return sum(self.lengths)

    @property
    def patches(self) -> int:
        """Number of vision patches."""
        return sum(frames * rows * columns for frames, rows, columns in self.grids)

    @property
    def cost(self) -> int:
        """Cost of computing the group, in tokens; its vision patches count as parts of a token.

        It is rounded up, so a row may cost less than the sum of its groups.
        """
        return cost(self.tokens, self.patches)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of tokens of the prompt and of each continuation."""
        return (len(self.prompt_ids), *(len(item.ids) for item in self.continuations))


def join(groups: Sequence[Group]) -> Group:
    """Return groups with the same messages and images as one group with all their continuations.

    Its prompt is the longest common beginning of their prompts. The remaining tokens of a prompt
    are moved to the beginning of its continuations.
    """
    num_shared = 0
    for tokens_at_index in zip(*(group.prompt_ids for group in groups), strict=False):
        if len(set(tokens_at_index)) > 1:
            break
        num_shared += 1

    continuations: list[Continuation] = []
    for group in groups:
        moved_ids = group.prompt_ids[num_shared:]
        for continuation in group.continuations:
            continuations.append(_prepend(moved_ids, continuation))
    return replace(
        groups[0],
        prompt_ids=groups[0].prompt_ids[:num_shared],
        continuations=tuple(continuations),
    )


def _prepend(ids: tuple[int, ...], continuation: Continuation) -> Continuation:
    """Return `continuation` with `ids` before its own tokens."""
    return Continuation(
        ids=(*ids, *continuation.ids),
        read=tuple(len(ids) + index for index in continuation.read),
        loss_tokens=tuple(len(ids) + index for index in continuation.loss_tokens),
    )


def filler_group(vision: VisionTokens) -> Group:
    """Return a filler: a group with the smallest possible image, blank, and no continuations.

    `pack` adds it to a row without an image, so that the vision tower runs on every rank. A rank
    without work runs a row of it alone. It changes no result. It costs 3 tokens, or 1 in a family
    without tokens around an image. In a family with tiles it costs the tokens of a tile.
    """
    num_patches = prod(vision.smallest)
    num_tokens = num_patches // vision.merge_size**2
    return Group(
        prompt_ids=tuple(vision.with_marks([vision.image] * num_tokens)),
        pixel_values=torch.zeros(num_patches, vision.patch_size),
        grids=(vision.smallest,),
    )


@dataclass(frozen=True)
class PackedBatch:
    """A row of groups, as the tensors that the model takes; `pack` has a worked example.

    The row has T tokens, P patches, I images, R positions at which scores are read, and L labels,
    the tokens that carry language-model loss.
    """

    input_ids: Tensor
    """(1, T) int64."""
    position_ids: Tensor
    """(axes, 1, T) int64: frame, row and column if the family has M-RoPE, else one axis."""
    plan: AttentionPlan
    pixel_values: Tensor
    """(P, patch_size) float32."""
    image_grid_thw: Tensor
    """(I, 3) int64; stays on the CPU, because the model reads it only from there."""
    vision: VisionPlan
    """Arguments of the vision tower that are computed once from the grids."""
    read_positions: Tensor
    """(R,) int64: row positions whose hidden states give scores."""
    read_owners: Tensor
    """(R,) int64: the continuation of each read position, counted over the whole row."""
    label_positions: Tensor
    """(L,) int64: row position whose hidden state predicts each label. It is the position before
    the label; for the first token of a continuation it is the last of the prompt."""
    labels: Tensor
    """(L,) int64: token ids."""
    label_owners: Tensor
    """(L,) int64: the continuation of each label, counted over the whole row."""
    groups: tuple[Group, ...]
    """The packed groups without pixels, and without the filler that `pack` may have added."""

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Number of continuations of every group."""
        return tuple(len(group.continuations) for group in self.groups)

    @property
    def tokens(self) -> int:
        """Number of language-model tokens, T."""
        return self.input_ids.shape[1]

    @property
    def cost(self) -> int:
        """Cost of computing the row, in tokens; its vision patches count as parts of a token."""
        return cost(self.tokens, len(self.pixel_values))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """Return the batch with its tensors on `device`; the grids stay on the CPU."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """Return the batch in page-locked memory; torch's loaders call this method.

        From there it is copied to the device while the device computes.
        """
        return self._map(Tensor.pin_memory)

    def _map(self, move: Callable[[Tensor], Tensor]) -> PackedBatch:
        """Return the batch with `move` applied to all tensors except the grids."""
        moved: PackedBatch = map_tensors(self, move)
        return replace(moved, image_grid_thw=self.image_grid_thw)

    def model_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of the backbone's forward."""
        return {
            "input_ids": self.input_ids,
            "position_ids": without_single_axis(self.position_ids),
            "attention_mask": self.plan,
            "use_cache": False,
            **self.vision.model_inputs(self.pixel_values, self.image_grid_thw),
        }

    def score_inputs(self) -> dict[str, Any]:
        """Return the arguments of `ScalarRewardModel.forward` for a packed row.

        They are those of the backbone, and the positions at which scores are read.
        """
        # A row without read positions gets no scores.
        is_scored = len(self.read_owners) > 0
        return {
            **self.model_inputs(),
            "read_positions": self.read_positions,
            "read_owners": self.read_owners,
            "continuations": sum(self.group_sizes) if is_scored else 0,
        }

    def label_inputs(self) -> dict[str, Any]:
        """Return the arguments of `LanguageModel.forward` for a packed row.

        They are those of the backbone, and the labels whose log-probabilities are computed.
        """
        return {
            **self.model_inputs(),
            "label_positions": self.label_positions,
            "labels": self.labels,
        }

    def joint_inputs(self) -> dict[str, Any]:
        """Return the arguments of `CriticRewardModel.forward` for a packed row.

        They are those of the backbone, the positions at which scores are read, and the labels.
        """
        return {**self.score_inputs(), **self.label_inputs()}


def pack(groups: Sequence[Group], vision: VisionTokens) -> PackedBatch:
    """Return `groups` laid out in one row, as the tensors that the model takes.

    A row is `[prompt | continuation | continuation | ... | next prompt | ...]`. The position ids of
    a continuation start where its prompt ends. The attention plan lets it see its prompt and
    itself. If no group has an image, a filler with a blank image is added (see `filler_group`). A
    row may have no groups: it is then the filler alone.

    Args:
        groups: The groups, each with at least one token in its prompt.
        vision: The properties of the family's images.

    Raises:
        ValueError: Some continuations have read positions and others have none, so the scores of
            the row would have no meaning.

    Example: one group. Its prompt is an image of 2 x 2 tokens between `<v>` and `</v>`, then "how
    many". Its first continuation carries loss on all tokens. Both are read at `<end>`.

        row position        0   1 2 3 4  5    6   7     8   9 10     11  12
        input_ids           <v> I I I I  </v> how many  two . <end>  six <end>
        position_ids frame  0   1 1 1 1  3    4   5     6   7 8      6   7
                     row    0   1 1 2 2  3    4   5     6   7 8      6   7
                     column 0   1 2 1 2  3    4   5     6   7 8      6   7

        image_grid_thw      [[1, 4, 4]]: a token covers 2 x 2 patches
        plan.cu_seqlens_q   [0, 8, 11, 13]
        plan.cu_seqlens_k   [0, 8, 19, 29]: the keys are 0-7, 0-10, and 0-7 with 11-12
        read_positions      [10, 12], read_owners [0, 1]
        label_positions     [7, 8, 9], labels `two . <end>`, label_owners [0, 0, 0]
    """
    groups_of_row = list(groups)
    has_image = any(group.grids for group in groups)
    if not has_image:
        groups_of_row.append(filler_group(vision))
    _refuse_partly_read(groups_of_row)

    token_ids: list[int] = []
    read_positions: list[int] = []
    read_owners: list[int] = []
    label_positions: list[int] = []
    labels: list[int] = []
    label_owners: list[int] = []
    owner = 0  # number of the continuation, over the whole row
    for group in groups_of_row:
        token_ids += group.prompt_ids
        last_of_prompt = len(token_ids) - 1
        for continuation in group.continuations:
            start = len(token_ids)
            token_ids += continuation.ids
            for index in continuation.read:
                read_positions.append(start + index)
                read_owners.append(owner)
            for index in continuation.loss_tokens:
                # A token is predicted at the position before it.
                label_positions.append(last_of_prompt if index == 0 else start + index - 1)
                labels.append(continuation.ids[index])
                label_owners.append(owner)
            owner += 1

    pixel_values = [group.pixel_values for group in groups_of_row if group.pixel_values is not None]
    grids = torch.tensor([grid for group in groups_of_row for grid in group.grids])
    position_ids = torch.cat([_position_ids(group, vision) for group in groups_of_row], dim=1)
    return PackedBatch(
        input_ids=torch.tensor([token_ids]),
        position_ids=position_ids[:, None],
        plan=AttentionPlan.of([group.lengths for group in groups_of_row]),
        pixel_values=torch.cat(pixel_values),
        image_grid_thw=grids,
        vision=vision.tower_plan(grids),
        read_positions=torch.tensor(read_positions, dtype=torch.int64),
        read_owners=torch.tensor(read_owners, dtype=torch.int64),
        label_positions=torch.tensor(label_positions, dtype=torch.int64),
        labels=torch.tensor(labels, dtype=torch.int64),
        label_owners=torch.tensor(label_owners, dtype=torch.int64),
        groups=tuple(replace(group, pixel_values=None) for group in groups),
    )


def _refuse_partly_read(groups: Sequence[Group]) -> None:
    """Raise ValueError if some continuations have read positions and others have none."""
    continuations: list[Continuation] = []
    for group in groups:
        continuations += group.continuations
    num_read = sum(1 for continuation in continuations if continuation.read)
    if 0 < num_read < len(continuations):
        raise ValueError(
            f"{num_read} of {len(continuations)} continuations of this row have a read position. "
            "A row is scored as a whole: encode all of its groups with the same `read`."
        )


def _position_ids(group: Group, vision: VisionTokens) -> Tensor:
    """Return the position ids of a group, (axes, tokens) int64."""
    prompt_positions, next_position = vision.positions(
        group.prompt_ids, vision.image, group.grids, vision.merge_size
    )
    num_axes = len(prompt_positions)
    pieces = [prompt_positions]
    for continuation in group.continuations:
        # Every continuation starts where the prompt ends, as if it were alone.
        end = next_position + len(continuation.ids)
        pieces.append(torch.arange(next_position, end).expand(num_axes, -1))
    return torch.cat(pieces, dim=1)


def unpack(batch: PackedBatch) -> list[Group]:
    """Return the groups that `batch` was packed from, without a filler that `pack` added.

    Their pixels are views of those of the batch.
    """
    groups = []
    first_patch = 0
    for group in batch.groups:
        end = first_patch + group.patches
        pixel_values = batch.pixel_values[first_patch:end] if group.grids else None
        groups.append(replace(group, pixel_values=pixel_values))
        first_patch = end
    return groups
