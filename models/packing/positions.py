"""One prompt, many continuations: the group, and the packed row that the model computes.

A row is `[prompt | continuation | continuation ... | next prompt | ...]`. Position ids of a continuation start where
its prompt ends, and the attention plan lets it see its prompt and itself, so that a row gives the very numbers that
each `prompt ++ continuation` gives alone.
`unpack` is the way back: a row that is too large for the device is cut into smaller ones. How a step's records are balanced
over ranks, and groups packed into rows under a token budget, goes by lengths only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def as_taken(positions: Tensor) -> Tensor:
    """Return position ids (axes, …) as a model takes them: a model that counts one place has no dimension for it."""
    return positions[0] if len(positions) == 1 else positions


def in_order(
    prompt: Sequence[int], image: int, grids: Sequence[tuple[int, int, int]], merge: int
) -> tuple[Tensor, int]:
    """Return the place of every token of a prompt, (1, tokens) int64, and the next: images are counted like text."""
    return torch.arange(len(prompt))[None], len(prompt)


def mrope(
    prompt: Sequence[int], image: int, grids: Sequence[tuple[int, int, int]], merge: int
) -> tuple[Tensor, int]:
    """Return frame, row and column of every token of a prompt, (3, tokens) int64, and the next position on all three axes.

    A text token takes one position on all axes, an image as many as the longer of its sides has tokens (arXiv 2409.12191,
    section 2.1): from Qwen2-VL to Qwen3-VL the same for images.
    """
    parts, position, done = list[Tensor](), 0, 0
    for frames, rows, columns in grids:
        sides = frames, rows // merge, columns // merge
        first = prompt.index(image, done)
        parts.append(torch.arange(position, position + first - done).expand(3, -1))
        position += first - done
        axes = torch.meshgrid(*map(torch.arange, sides), indexing="ij")
        parts.append(torch.stack(axes).flatten(1) + position)
        position += max(sides[1:])
        done = first + sides[0] * sides[1] * sides[2]
    parts.append(torch.arange(position, position + len(prompt) - done).expand(3, -1))
    own = torch.cat(parts, dim=1)
    return own, int(own.max()) + 1
