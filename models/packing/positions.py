"""Position ids of a prompt's tokens: counted one by one, or on three axes as M-RoPE counts images.

All functions have one signature, so a family of backbones names one of them (`Parts.positions`).
They need no model, so loader workers can call them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def without_single_axis(position_ids: Tensor) -> Tensor:
    """Return position ids (axes, ...) in the shape that a model takes.

    A model that counts positions on one axis takes (...), the others take (axes, ...).
    """
    return position_ids[0] if len(position_ids) == 1 else position_ids


def sequential(
    prompt: Sequence[int],
    image: int,
    grids: Sequence[tuple[int, int, int]],
    merge: int,
    temporal_steps: Sequence[float],
) -> tuple[Tensor, int]:
    """Return the position ids of a prompt for a model that counts all tokens one by one.

    The tokens of images are counted like those of text. Only `prompt` is used; the other parameters
    are those of `mrope`.

    Args:
        prompt: Token ids.
        image: Not used.
        grids: Not used.
        merge: Not used.
        temporal_steps: Not used.

    Returns:
        Position ids (1, tokens) int64, and the position after the prompt.
    """
    return torch.arange(len(prompt))[None], len(prompt)


def mrope(
    prompt: Sequence[int],
    image: int,
    grids: Sequence[tuple[int, int, int]],
    merge: int,
    temporal_steps: Sequence[float],
) -> tuple[Tensor, int]:
    """Return the position ids of a prompt on three axes, as Qwen2-VL to Qwen3-VL count them.

    A text token takes one position, which is the same on all axes. An image takes as many
    positions as its longer side has tokens (arXiv 2409.12191, section 2.1), and the axes differ
    inside it.

    A video is an image of several frames. The text behind it begins after the largest position of
    the video on any axis, as in vLLM and in older versions of transformers. In transformers 5.23, a
    forward pass begins it after the longer side of a frame, even if the frames take more positions,
    and `generate` begins it after the largest position.

    Args:
        prompt: Token ids.
        image: Id of the image token, which `prompt` holds once for every token of an image.
        grids: Frames, rows and columns of patches of every image, in order.
        merge: An image token covers `merge` x `merge` patches.
        temporal_steps: For every image, the positions from one of its frames to the next on the
            frame axis. Only a video has several frames. The product of a frame's number and the
            step is rounded down.

    Returns:
        Position ids (3, tokens) int64 with the axes frame, row and column, and the position after
        the prompt, which is the same on all axes.

    Example: a prompt `a I I I I b` with one image of the grid (1, 4, 4) and a merge of 2. The
    position after the prompt is 4.

        frame   0  1 1 1 1  3
        row     0  1 1 2 2  3
        column  0  1 2 1 2  3
    """
    pieces: list[Tensor] = []
    next_position = 0
    num_placed = 0  # tokens that have positions
    for (frames, rows, columns), step in zip(grids, temporal_steps, strict=True):
        image_start = prompt.index(image, num_placed)
        num_text = image_start - num_placed
        pieces.append(_text_positions(next_position, num_text))
        next_position += num_text

        token_rows = rows // merge
        token_columns = columns // merge
        frame_positions = (torch.arange(frames) * step).long()
        axes = torch.meshgrid(
            frame_positions,
            torch.arange(token_rows),
            torch.arange(token_columns),
            indexing="ij",
        )
        pieces.append(torch.stack(axes).flatten(1) + next_position)
        num_frame_positions = int(frame_positions[-1]) + 1
        next_position += max(num_frame_positions, token_rows, token_columns)
        num_placed = image_start + frames * token_rows * token_columns
    pieces.append(_text_positions(next_position, len(prompt) - num_placed))
    position_ids = torch.cat(pieces, dim=1)
    return position_ids, int(position_ids.max()) + 1


def mrope_of_text(
    prompt: Sequence[int],
    image: int,
    grids: Sequence[tuple[int, int, int]],
    merge: int,
    temporal_steps: Sequence[float],
) -> tuple[Tensor, int]:
    """Return the position ids of a prompt on three axes, with images counted like text.

    This is what Qwen2-VL and Qwen2.5-VL compute if they are called with embeddings in place of
    token ids, because they cannot find the images then. Reward models that were trained so need it.
    Only `prompt` is used; the other parameters are those of `mrope`.

    Args:
        prompt: Token ids.
        image: Not used.
        grids: Not used.
        merge: Not used.
        temporal_steps: Not used.

    Returns:
        Position ids (3, tokens) int64, the same on all axes, and the position after the prompt.
    """
    return _text_positions(0, len(prompt)), len(prompt)


def _text_positions(start: int, count: int) -> Tensor:
    """Return the position ids of `count` text tokens, (3, count) int64.

    They count from `start` on and are the same on all three axes.
    """
    return torch.arange(start, start + count).expand(3, -1)
