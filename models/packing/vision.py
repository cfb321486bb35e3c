"""Attention over packed rows: every continuation sees its own prompt and itself, exactly as if it stood alone.

Two functions are registered with transformers and nothing is patched. `shared_prefix` reads an `AttentionPlan`, or while
decoding a `DecodePlan`, in the place of a mask; `flash_windows` takes all segments of a vision layer in one call. On CUDA in
bf16 or fp16 both are one varlen call (FlashAttention inside torch); elsewhere they are batched SDPA.

The loader makes both plans once. The stock vision towers build what `VisionPlan` holds from the grids on the host and ask
the device for lengths in every layer, and each question makes the host wait; transformers takes it ready-made (5.17 to
5.23), and the results are the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmrm.data.errors import UserError


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
    """Return `move(part)` of a tensor, a dataclass or a dictionary with all its values mapped, and anything else as it is."""
    if isinstance(part, Tensor):
        return move(part)
    if isinstance(part, dict):
        return {name: map_tensors(value, move) for name, value in part.items()}
    if not is_dataclass(part):
        return part
    changes = {
        one.name: map_tensors(getattr(part, one.name), move) for one in fields(part) if one.init
    }
    return replace(part, **changes)  # type: ignore[type-var]  # an instance, not a class


@dataclass(frozen=True)
class Segments:
    """Neighbouring stretches of a row of patches; attention stays inside each. S segments, P patches."""

    lengths: tuple[int, ...]
    ends: Tensor
    """(S + 1,) int32: 0 and the end of every segment."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Segments:
        """Return neighbouring segments of these lengths."""
        return cls(tuple(lengths), cumulative(lengths))

    @classmethod
    def frames(cls, grids: Tensor) -> Segments:
        """Return each frame of each image of `grids` (I, 3) as a segment of its patches."""
        return cls.of(
            [rows * columns for count, rows, columns in grids.tolist() for _ in range(count)]
        )

    @functools.cached_property
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
            calls.append(
                SdpaCall(index.to(device), index.to(device), start=found[0] if neighbours else None)
            )
        return calls, torch.cat(order).argsort().to(device)


@dataclass(frozen=True)
class VisionPlan:
    """What a vision tower would work out from a row's grids, under the tower's own keywords; families/ says what that is."""

    tensors: Mapping[str, Tensor]
    """Position ids and the like."""
    segments: Mapping[str, Segments]
    """`cu_seqlens` and the like: who attends to whom. The first are frames of images; others divide these."""
    tower: Mapping[str, int]
    """The numbers of the tower's configuration on which the plan depends."""
    each: Mapping[str, int] = field(default_factory=dict)
    """Numbers that the tower takes once for each image, (I,) int64 beside the grids, on the host."""
    tile: tuple[int, int, int] | None = None
    """Channels, height and width of what the tower takes as a batch: it attends inside each, and nothing is worked out."""

    def model_inputs(self, pixels: Tensor, grids: Tensor) -> dict[str, Any]:
        """Return the keyword arguments of the backbone for a row's pixels (patches, numbers) and grids (I, 3).

        Under those of the plan the backbone hands everything to its vision tower.
        """
        if self.tile is not None:
            return {"pixel_values": pixels.view(-1, *self.tile)}
        found: dict[str, Any] = {f"image_{name}": tensor for name, tensor in self.tensors.items()}
        found |= {
            f"image_{name}": torch.full_like(grids[:, 0], number)
            for name, number in self.each.items()
        }
        for name, segments in self.segments.items():
            found[f"image_{name}"] = segments.ends
            found[f"image_max_{name.removeprefix('cu_').removesuffix('s')}"] = max(segments.lengths)
        return {"pixel_values": pixels, "image_grid_thw": grids, **found, "image_plan": self}

    def check(self, config: Any) -> None:
        """Raise UserError unless the plan was made for a tower of this configuration."""
        wrong = {name: (number, vars(config).get(name)) for name, number in self.tower.items()}
        wrong = {name: both for name, both in wrong.items() if both[0] != both[1]}
        if wrong:
            found = "; ".join(
                f"{name} {packed}, and the model's is {own}"
                for name, (packed, own) in wrong.items()
            )
            raise UserError(
                f"the row was packed for a vision tower with {found}. Take the encoder of that backbone: "
                "`mmrm.models.backbone.load_encoder`."
            )

    def of_layer(self, ends: Tensor) -> Segments:
        """Return the segments with these ends; where equally many divide a frame as there are frames, they are the same."""
        return next(
            segments for segments in self.segments.values() if len(segments.ends) == len(ends)
        )


@dataclass(frozen=True, slots=True)
class VisionTokens:
    """How an image stands in a row: the tokenizer's ids around it, the shapes of its patches, and the family's functions."""

    start: int | None
    image: int
    end: int | None
    merge_size: int
    """An LM token covers merge_size x merge_size patches."""
    patch_size: int
    """Numbers in a patch: channels x frames x height x width."""
    smallest: tuple[int, int, int]
    """Grid of the smallest image."""
    read: Callable[[Any, VisionTokens], tuple[Tensor, tuple[tuple[int, int, int], ...]]]
    """What the image processor made to `Group.pixel_values` and `Group.grids`."""
    tower_plan: Callable[[Tensor], VisionPlan]
    """Grids (I, 3) to what the vision tower takes ready-made."""
    positions: Callable[
        [Sequence[int], int, Sequence[tuple[int, int, int]], int], tuple[Tensor, int]
    ]
    """(prompt, image token, grids, merge size) to the prompt's position ids (axes, tokens), and the next position on all axes."""

    def marked(self, tokens: Sequence[int]) -> list[int]:
        """Return an image's tokens between its marks, where the family has any."""
        return [token for token in (self.start, *tokens, self.end) if token is not None]


def grids_as_made(
    made: Any, vision: VisionTokens
) -> tuple[Tensor, tuple[tuple[int, int, int], ...]]:
    """Return patches and grids of an image processor that makes them."""
    return made["pixel_values"], tuple(tuple(grid) for grid in made["image_grid_thw"].tolist())


def tiles_as_grids(
    made: Any, vision: VisionTokens
) -> tuple[Tensor, tuple[tuple[int, int, int], ...]]:
    """Return tiles (N, channels, side, side) as rows of as many numbers as patches have, which `VisionPlan` undoes."""
    _, rows, columns = vision.smallest
    return made["pixel_values"].reshape(-1, vision.patch_size), tuple(
        (n, rows, columns) for n in made["num_patches"].tolist()
    )
