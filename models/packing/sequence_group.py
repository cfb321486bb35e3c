"""The ranks that compute a packed row together, and what they send to each other.

models/packing/sequence_parallel.py describes how a row is divided over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that compute the same rows together."""

    rank: int
    """The number of this rank in the group, from 0."""
    size: int
    """The number of ranks in the group."""
    process_group: distributed.ProcessGroup
    """The group in PyTorch, over which its ranks communicate."""

    def stretch(self, num_tokens: int) -> tuple[int, int]:
        """Return the start and the end of this rank's stretch of a row.

        All stretches are equally long, so the last ones may reach beyond the end of the row.
        """
        length = -(-num_tokens // self.size)
        return self.rank * length, (self.rank + 1) * length

    def tokens_to_heads(self, states: Tensor, num_tokens: int) -> Tensor:
        """Return all tokens of this rank's heads: (1, heads of a rank, num_tokens, d).

        Heads that do not divide over the ranks are repeated, each as often as it is necessary. Keys
        and values can have fewer heads than queries, and each of their heads then belongs to as many
        successive heads of queries as before.

        Args:
            states: This rank's stretch of the queries, keys or values, (1, heads, length, d).
            num_tokens: The number of tokens in the row.
        """
        num_repeats = self.size // math.gcd(self.size, states.shape[1])
        states = states.repeat_interleave(num_repeats, dim=1)
        _, num_heads, length, head_size = states.shape
        parts = states.reshape(self.size, num_heads // self.size, length, head_size)
        parts = _exchange(parts, self.process_group)  # part i is now the stretch of rank i
        heads = parts.transpose(0, 1).reshape(num_heads // self.size, self.size * length, head_size)
        return heads[None, :, :num_tokens]

    def heads_to_tokens(self, states: Tensor) -> Tensor:
        """Return this rank's stretch of the output of all heads: (1, length, heads, d).

        Args:
            states: The output of this rank's heads for all tokens, (1, num_tokens, heads / size, d).
        """
        _, num_tokens, num_own_heads, head_size = states.shape
        start, end = self.stretch(num_tokens)
        length = end - start
        missing = self.size * length - num_tokens
        padded = F.pad(states[0], (0, 0, 0, 0, 0, missing))
        parts = padded.view(self.size, length, num_own_heads, head_size)
        parts = _exchange(parts, self.process_group)  # part i is now of the heads of rank i
        tokens = parts.transpose(0, 1).reshape(length, self.size * num_own_heads, head_size)
        return tokens[None]

    def gather(self, part: Tensor) -> Tensor:
        """Return the parts of all ranks, (size, *shape of a part).

        The gradient of a part is the sum of the gradients that all ranks have of it.

        Args:
            part: The tensor of this rank. Those of all ranks have the same shape.
        """
        gathered: Tensor = _Gather.apply(part, self)  # type: ignore[no-untyped-call]
        return gathered.view(self.size, *part.shape)

    def gather_stretches(self, stretch: Tensor, num_tokens: int) -> Tensor:
        """Return what the ranks computed of all tokens, (num_tokens, ...).

        Args:
            stretch: What this rank computed of the tokens of its stretch, (length, ...).
            num_tokens: The number of tokens in the row.
        """
        return self.gather(stretch).flatten(0, 1)[:num_tokens]


def _exchange(parts: Tensor, process_group: distributed.ProcessGroup) -> Tensor:
    """Send part i of a tensor to rank i, and return the parts that all ranks sent here."""
    received: Tensor = _Exchange.apply(parts, process_group)  # type: ignore[no-untyped-call]
    return received


class _Exchange(torch.autograd.Function):
    """The operation of `_exchange`, with its gradient."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, process_group: distributed.ProcessGroup) -> Tensor:
        """Return the received parts, (size, ...), in the order of the ranks that sent them."""
        ctx.process_group = process_group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        distributed.all_to_all_single(received, parts.contiguous(), group=process_group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Send the gradient of each received part back to the rank that sent the part."""
        return _exchange(gradient, ctx.process_group), None


class _Gather(torch.autograd.Function):
    """Gathers tensors of the same shape from all ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: SequenceGroup) -> Tensor:
        """Return the tensors of all ranks, concatenated along their first axis."""
        ctx.group = group
        gathered = part.new_empty((group.size * len(part), *part.shape[1:]))
        distributed.all_gather_into_tensor(gathered, part.contiguous(), group=group.process_group)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Add up the gradients that all ranks have of this rank's tensor."""
        group: SequenceGroup = ctx.group
        own_gradient = gradient.new_empty((len(gradient) // group.size, *gradient.shape[1:]))
        distributed.reduce_scatter_tensor(
            own_gradient, gradient.contiguous(), group=group.process_group
        )
        return own_gradient, None


@dataclass(frozen=True)
class ImageShares:
    """The division of a row's distinct images over the ranks, whose vision towers compute them."""

    group: SequenceGroup
    owners: tuple[int, ...]
    """For each image, the rank in the group that computes it."""
    num_tokens: tuple[int, ...]
    """For each image, its number of tokens."""
    tiles: tuple[int, ...]
    """For each image, its number of frames or tiles."""
    smallest: int
    """Number of tokens of the blank image that a rank without an image computes."""

    @property
    def own_images(self) -> list[int]:
        """The images that this rank computes."""
        return [image for image, owner in enumerate(self.owners) if owner == self.group.rank]

    def gather_images(self, own_tokens: Tensor) -> list[Tensor]:
        """Return the embeddings of all images of the row, (tokens, hidden) each.

        Args:
            own_tokens: The embeddings of this rank's images, one after the other, (tokens, hidden).
        """
        next_token = [0] * self.group.size
        starts = []
        for owner, num_tokens in zip(self.owners, self.num_tokens, strict=True):
            starts.append(next_token[owner])
            next_token[owner] += num_tokens
        # A rank without an image has the tokens of a blank one, which are not used.
        longest = max(self.smallest, *next_token)
        missing = longest - len(own_tokens)
        of_ranks = self.group.gather(F.pad(own_tokens, (0, 0, 0, missing)))
        images = []
        for owner, start, num_tokens in zip(self.owners, starts, self.num_tokens, strict=True):
            images.append(of_ranks[owner, start : start + num_tokens])
        return images

    def complete(self, features: Any) -> None:
        """Change the output of `get_image_features` for this rank's images to that of all images.

        A tower that takes tiles returns one tensor with all tiles, (tiles, tokens of a tile,
        hidden). The others return a tensor for each image. Qwen3-VL's features for the first
        language layers ("deepstack") are one tensor for all images in transformers 5.17, and one
        for each image in 5.23.
        """
        pooled = features.pooler_output
        if isinstance(pooled, Tensor):
            images = self.gather_images(pooled.flatten(0, 1))
            features.pooler_output = torch.cat(images).view(-1, *pooled.shape[1:])
            return
        features.pooler_output = self.gather_images(torch.cat(tuple(pooled)))
        if "deepstack_features" not in features:
            return
        layers: list[Tensor | list[Tensor]] = []
        for layer in features.deepstack_features:
            if isinstance(layer, Tensor):
                layers.append(torch.cat(self.gather_images(layer)))
            else:
                layers.append(self.gather_images(torch.cat(tuple(layer))))
        features.deepstack_features = layers


def owners_of_images(num_patches: Sequence[int], size: int) -> tuple[int, ...]:
    """Return for each image the rank that computes it, so that ranks have similar numbers of patches.

    Images are given out from the largest to the smallest, each to the rank that has the fewest
    patches.

    Args:
        num_patches: The number of patches of each image.
        size: The number of ranks.

    Example: images of 4, 9 and 4 patches on two ranks have the owners 1, 0, 1.
    """
    owners = [0] * len(num_patches)
    patches_of_ranks = [0] * size
    for image in sorted(range(len(num_patches)), key=lambda image: -num_patches[image]):
        owner = patches_of_ranks.index(min(patches_of_ranks))
        owners[image] = owner
        patches_of_ranks[owner] += num_patches[image]
    return tuple(owners)


def make_group(size: int) -> SequenceGroup | None:
    """Return the group of this rank, or None if `size` is 1; all ranks must call together.

    A group has `size` successive ranks, which are usually on one node.

    Args:
        size: The number of ranks in a group, which divides the number of all ranks.
    """
    if size == 1:
        return None
    rank = distributed.get_rank()
    own_group: SequenceGroup | None = None
    for first_rank in range(0, distributed.get_world_size(), size):
        ranks = list(range(first_rank, first_rank + size))
        process_group = distributed.new_group(ranks)  # all ranks make all groups
        if rank in ranks:
            own_group = SequenceGroup(rank - first_rank, size, process_group)
    return own_group
