"""What the vision tower must know about a row's images, made once by the loader instead of in every forward.

The stock tower builds these from the grids on the host and asks the device for lengths in every layer; each question makes
the host wait. transformers takes them ready-made (5.17 to 5.23), and the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from data.errors import UserError

WINDOW = 112
"""Pixels on a side of an attention window in the released backbones."""


@dataclass(frozen=True)
class SegmentCall:
    """The segments of one length: one batched SDPA call."""

    length: int
    start: int | None
    """Where they begin if they lie one after another, so that a view takes the place of a gather."""
    index: Tensor
    """(segments x length,) int64 row positions."""


@dataclass(frozen=True)
class Segments:
    """Neighbouring stretches of a row of patches; attention stays inside each. S segments, P patches."""

    lengths: tuple[int, ...]
    ends: Tensor
    """(S + 1,) int32: 0 and the end of every segment."""
    _calls: dict[torch.device, tuple[tuple[SegmentCall, ...], Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Segments:
        """Return the segments of these lengths, one after another."""
        return cls(tuple(lengths), torch.tensor([0, *accumulate(lengths)], dtype=torch.int32))

    @property
    def longest(self) -> int:
        """The longest segment's length."""
        return max(self.lengths)

    def calls(self) -> tuple[tuple[SegmentCall, ...], Tensor]:
        """Return one call for each length, and where each patch lies in their joined outputs, (P,); kept for other layers."""
        device = self.ends.device
        if device not in self._calls:
            self._calls[device] = _calls(self.lengths, device)
        return self._calls[device]


def _calls(lengths: Sequence[int], device: torch.device) -> tuple[tuple[SegmentCall, ...], Tensor]:
    starts: dict[int, list[int]] = {}
    for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        starts.setdefault(length, []).append(start)
    indices = [(torch.tensor(found)[:, None] + torch.arange(length)).flatten() for length, found in starts.items()]
    calls = []
    for (length, found), index in zip(starts.items(), indices, strict=True):
        together = found[-1] - found[0] == length * (len(found) - 1)
        calls.append(SegmentCall(length, found[0] if together else None, index.to(device)))
    return tuple(calls), torch.cat(indices).argsort().to(device)


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
        frames = [rows * columns for count, rows, columns in grids.tolist() for _ in range(count)]
        places = get_vision_position_ids(grids, merge_size)
        return cls(window, places, index, Segments.of(frames), Segments.of(ends.diff().tolist()))

    def map(self, move: Any) -> VisionPlan:
        """Return the plan with `move` applied to its tensors."""
        frames, windows = (replace(part, ends=move(part.ends), _calls={}) for part in (self.frames, self.windows))
        places, index = move(self.position_ids), move(self.window_index)
        return replace(self, position_ids=places, window_index=index, frames=frames, windows=windows)

    def model_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments under which the backbone hands everything to its vision tower."""
        return {
            "image_position_ids": self.position_ids,
            "image_window_index": self.window_index,
            "image_cu_seqlens": self.frames.ends,
            "image_max_seqlen": self.frames.longest,
            "image_cu_window_seqlens": self.windows.ends,
            "image_max_window_seqlen": self.windows.longest,
            "image_plan": self,
        }

    def check(self, window: Any) -> None:
        """Raise UserError if the model's `window` is another."""
        if window != self.window:
            raise UserError(
                f"the row was packed for a vision tower with windows of {self.window} pixels, and the model's has {window}. "
                "Give the encoder `models.backbone.window_size(config)` of the backbone."
            )

    def segments(self, ends: Tensor) -> Segments:
        """Return the segments that a layer was given as `ends`."""
        # Windows divide frames: if there are equally many of both, they are the same.
        return self.frames if len(ends) == len(self.frames.ends) else self.windows
