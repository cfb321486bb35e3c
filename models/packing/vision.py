"""What the vision tower must know about a row's images, made once by the loader instead of in every forward.

The stock tower builds these from the grids on the host and asks the device for lengths in every layer; each question makes
the host wait. transformers takes them ready-made (5.17 to 5.23), and the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from data.errors import UserError

WINDOW = 112
"""Pixels on a side of an attention window in the released backbones."""


class SdpaCall(NamedTuple):
    """Segments of one length, or padded to one: one batched call of scaled dot-product attention."""

    queries: Tensor
    """(n, Q) row positions, int64."""
    keys: Tensor
    """(n, K) row positions, int64."""
    mask: Tensor | None = None
    """(n, 1, Q, K) additive."""
    causal: bool = False
    start: int | None = None
    """Where they begin if they lie one after another, so that a view takes the place of a gather."""


SdpaCalls = tuple[Sequence[SdpaCall], Tensor]
"""The calls of a row, and where each of its positions lies in their concatenated, flattened outputs, (S,) int64."""


def cumulative(lengths: Sequence[int]) -> Tensor:
    """Return 0 and the end of every segment of these lengths, (S + 1,) int32."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def map_tensors(part: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Return `move(part)` of a tensor, a dataclass with all its fields mapped, and anything else as it is."""
    if isinstance(part, Tensor):
        return move(part)
    if not is_dataclass(part):
        return part
    changes = {one.name: map_tensors(getattr(part, one.name), move) for one in fields(part) if one.init}
    return replace(part, **changes)  # type: ignore[type-var]  # an instance, not a class


@dataclass(frozen=True)
class Segments:
    """Neighbouring stretches of a row of patches; attention stays inside each. S segments, P patches."""

    lengths: tuple[int, ...]
    ends: Tensor
    """(S + 1,) int32: 0 and the end of every segment."""

    @cached_property
    def calls(self) -> SdpaCalls:
        """One call for each length; kept for the other layers."""
        starts: dict[int, list[int]] = {}
        for start, length in zip(accumulate(self.lengths, initial=0), self.lengths, strict=False):
            starts.setdefault(length, []).append(start)
        calls, order, device = [], [], self.ends.device
        for length, found in starts.items():
            index = torch.tensor(found)[:, None] + torch.arange(length)
            order.append(index.flatten())
            neighbours = found[-1] - found[0] == length * (len(found) - 1)
            calls.append(SdpaCall(index.to(device), index.to(device), start=found[0] if neighbours else None))
        return calls, torch.cat(order).argsort().to(device)


@dataclass(frozen=True)
class VisionPlan:
    """The order of a row's patches in the vision tower and who attends to whom. P patches in T = P / merge^2 tokens."""

    window: int
    """Pixels on a side of a window."""
    position_ids: Tensor
    """(P, 2) int64: row and column of every patch."""
    window_index: Tensor
    """(T,) int64: the order of tokens in which windows are neighbours."""
    frames: Segments
    """What the layers of full attention see: each frame of an image."""
    windows: Segments
    """What the other layers see; windows divide the frames."""

    @classmethod
    def of(cls, grids: Tensor, merge_size: int, patch_side: int, window: int = WINDOW) -> VisionPlan:
        """Plan the images of `grids` (I, 3): frames, rows and columns of patches of `patch_side` pixels."""
        index, ends = get_vision_window_index(grids, spatial_merge_size=merge_size, window_size=window, patch_size=patch_side)
        frames = tuple(rows * columns for count, rows, columns in grids.tolist() for _ in range(count))
        windows = tuple(ends.diff().tolist())
        both = Segments(frames, cumulative(frames)), Segments(windows, cumulative(windows))
        return cls(window, get_vision_position_ids(grids, merge_size), index, *both)

    def model_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments under which the backbone hands everything to its vision tower."""
        return {
            "image_position_ids": self.position_ids,
            "image_window_index": self.window_index,
            "image_cu_seqlens": self.frames.ends,
            "image_max_seqlen": max(self.frames.lengths),
            "image_cu_window_seqlens": self.windows.ends,
            "image_max_window_seqlen": max(self.windows.lengths),
            "image_plan": self,
        }

    def check(self, window: Any) -> None:
        """Raise UserError if the model's `window` is another."""
        if window != self.window:
            raise UserError(
                f"the row was packed for a vision tower with windows of {self.window} pixels, and the model's has {window}. "
                "Take the encoder of that backbone: `models.backbone.load_encoder`."
            )

    def segments(self, ends: Tensor) -> Segments:
        """Return the segments that a layer was given as `ends`."""
        # Windows divide frames: if there are equally many of both, they are the same.
        return self.frames if len(ends) == len(self.frames.ends) else self.windows
