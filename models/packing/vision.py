"""The layout of images in a packed row, and the plan from which a vision tower computes them.

`VisionTokens` holds the properties of a family's images that the packing of a row needs.
`VisionPlan` holds what the stock vision tower would compute from the grids in every forward. The
loader computes it once, because the tower copies lengths from the device in every layer, and each
copy makes the host wait. Transformers takes the plan as an argument (5.17 to 5.23), and the results
are the same bits.
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

Grid = tuple[int, int, int]
"""Frames (or tiles), rows and columns of an image, in patches."""


class SdpaCall(NamedTuple):
    """One batched call of scaled dot-product attention: n segments, padded to one length."""

    queries: Tensor
    """(n, Q) int64: row positions."""
    keys: Tensor
    """(n, K) int64: row positions."""
    mask: Tensor | None = None
    """(n, 1, Q, K), added to the logits; None if no key is hidden, or if `causal` hides them."""
    causal: bool = False
    start: int | None = None
    """Row position of the first segment if the segments are neighbours in the row, else None.
    Neighbours are read as a view, without a gather."""


class SdpaCalls(NamedTuple):
    """All attention calls of a row, and the order in which their outputs form the row again."""

    calls: Sequence[SdpaCall]
    output_index: Tensor
    """(row positions,) int64: where the output of each position is in the outputs of all calls,
    flattened and concatenated."""


def cumulative(lengths: Sequence[int]) -> Tensor:
    """Return 0 and the end of every segment, (segments + 1,) int32.

    The segments follow one another, and `lengths` are their lengths.
    """
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def map_tensors(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Return `value` with `move` applied to its tensors, also inside dataclasses and dictionaries.

    Other values are returned unchanged.
    """
    if isinstance(value, Tensor):
        return move(value)
    if isinstance(value, dict):
        return {name: map_tensors(item, move) for name, item in value.items()}
    if not is_dataclass(value):
        return value
    changes = {}
    for member in fields(value):
        if member.init:
            changes[member.name] = map_tensors(getattr(value, member.name), move)
    return replace(value, **changes)  # type: ignore[type-var]  # an instance, not a class


@dataclass(frozen=True)
class PatchRuns:
    """A division of a row's patches into runs, each of which attends to itself alone.

    A run is a number of neighbouring patches: a frame of an image, or a window inside one.
    """

    lengths: tuple[int, ...]
    """Patches of every run."""
    ends: Tensor
    """(runs + 1,) int32: 0 and the end of every run."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> PatchRuns:
        """Return the division of a row into runs of these lengths."""
        return cls(tuple(lengths), cumulative(lengths))

    @classmethod
    def frames(cls, grids: Tensor) -> PatchRuns:
        """Return the division of a row into frames.

        Args:
            grids: Frames, rows and columns of patches of each image of the row, (I, 3) int64.
        """
        lengths: list[int] = []
        for num_frames, rows, columns in grids.tolist():
            lengths += [rows * columns] * num_frames
        return cls.of(lengths)

    @functools.cached_property
    def calls(self) -> SdpaCalls:
        """The attention calls of a layer, one for all runs of the same length.

        They are computed once and kept for all layers.
        """
        starts_by_length: dict[int, list[int]] = {}
        start = 0
        for length in self.lengths:
            starts_by_length.setdefault(length, []).append(start)
            start += length

        device = self.ends.device
        calls = []
        positions_by_call = []
        for length, starts in starts_by_length.items():
            positions = torch.tensor(starts)[:, None] + torch.arange(length)  # (runs, length)
            positions_by_call.append(positions.flatten())
            are_neighbours = starts[-1] - starts[0] == length * (len(starts) - 1)
            calls.append(
                SdpaCall(
                    queries=positions.to(device),
                    keys=positions.to(device),
                    start=starts[0] if are_neighbours else None,
                )
            )
        output_index = torch.cat(positions_by_call).argsort()
        return SdpaCalls(calls, output_index.to(device))


@dataclass(frozen=True)
class VisionPlan:
    """Arguments of a vision tower that depend only on the grids of a row's images.

    The tower would compute them itself in every forward. Each family of backbones has a function
    that computes them once, `tower_plan` in models/families/.
    """

    tensors: Mapping[str, Tensor]
    """Position ids and other tensors, by the tower's keyword."""
    runs: Mapping[str, PatchRuns]
    """Runs of patches that attend to each other, by the tower's keyword, such as `cu_seqlens`. The
    first are the frames of images. All others divide these."""
    tower_settings: Mapping[str, int]
    """Settings of the tower's configuration on which the plan depends."""
    per_image: Mapping[str, int] = field(default_factory=dict)
    """Numbers by the tower's keyword, which the tower takes once for each image, as (I,) int64 on
    the host like the grids."""
    tile: tuple[int, int, int] | None = None
    """Channels, height and width of a tile, for a tower that takes tiles as a batch and computes
    nothing from grids; None for a tower that takes patches."""

    def model_inputs(self, pixels: Tensor, grids: Tensor) -> dict[str, Any]:
        """Return the backbone's keyword arguments for a row's images.

        The backbone passes keywords that begin with `image_` on to its vision tower. A tower that
        takes tiles needs only the tiles. The others get the tensors of the plan: the ones that are
        ready (`tensors`), one number repeated for each image (`per_image`), and the ends and the
        longest length of the runs of patches that see one another (`runs`).

        Args:
            pixels: (patches, numbers) float32.
            grids: (I, 3) int64.
        """
        if self.tile is not None:
            return {"pixel_values": pixels.view(-1, *self.tile)}
        inputs: dict[str, Any] = {"pixel_values": pixels, "image_grid_thw": grids}
        for name, tensor in self.tensors.items():
            inputs[f"image_{name}"] = tensor
        for name, number in self.per_image.items():
            inputs[f"image_{name}"] = torch.full_like(grids[:, 0], number)
        for name, runs in self.runs.items():
            inputs[f"image_{name}"] = runs.ends
            # For example `image_max_seqlen` for `image_cu_seqlens`.
            longest_run_keyword = f"image_max_{name.removeprefix('cu_').removesuffix('s')}"
            inputs[longest_run_keyword] = max(runs.lengths)
        inputs["image_plan"] = self  # the attention of the tower finds the runs in it
        return inputs

    def check(self, config: Any) -> None:
        """Raise UserError unless the plan was made for a vision tower with this configuration.

        Args:
            config: The tower's configuration in transformers.
        """
        differences = []
        for name, planned in self.tower_settings.items():
            actual = vars(config).get(name)
            if planned != actual:
                differences.append(f"{name} {planned}, but the model's is {actual}")
        if differences:
            raise UserError(
                f"The row was packed for a vision tower with {'; '.join(differences)}. "
                "The plan of a row is valid for one vision tower only. Load the encoder of the "
                "same backbone with `mmrm.models.backbone.load_encoder`."
            )

    def runs_of_layer(self, ends: Tensor) -> PatchRuns:
        """Return the runs in which a vision layer attends, windows or frames.

        Args:
            ends: The runs as the tower passes them to the layer: 0 and the end of every run,
                (runs + 1,) int32. Only their number is used, because values would have to be copied
                from the device. It is enough: all runs divide the frames, so runs that are as many
                as the frames are the frames.
        """
        return next(runs for runs in self.runs.values() if len(runs.ends) == len(ends))


@dataclass(frozen=True, slots=True)
class VisionTokens:
    """The properties of a family's images that packing needs.

    Each family has its own functions. They are fields, not methods, because loader workers receive
    this object pickled.
    """

    start: int | None
    """Id of the token before an image; None if the family has none."""
    image: int
    """Id of the token that is repeated for each token of an image."""
    end: int | None
    """Id of the token after an image; None if the family has none."""
    merge_size: int
    """An image token covers `merge_size` x `merge_size` patches."""
    patch_size: int
    """Numbers in a patch: channels x frames x height x width."""
    smallest: Grid
    """Grid of the smallest image."""
    read: Callable[[Any, VisionTokens], tuple[Tensor, tuple[Grid, ...]]]
    """Turns the output of the image processor into patches and grids."""
    tower_plan: Callable[[Tensor], VisionPlan]
    """Turns grids (I, 3) into the plan of the vision tower."""
    positions: Callable[
        [Sequence[int], int, Sequence[Grid], int, Sequence[float]], tuple[Tensor, int]
    ]
    """Turns prompt, image token, grids, merge size and temporal steps into position ids (axes, tokens) int64 and
    the position after the prompt. It is a function of `mmrm.models.packing.positions`."""

    def with_marks(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of an image with the start token before and the end token after them.

        In a family without start and end tokens, they are returned unchanged.
        """
        return [token for token in (self.start, *tokens, self.end) if token is not None]


def read_patches(processed: Any, vision: VisionTokens) -> tuple[Tensor, tuple[Grid, ...]]:
    """Return an image processor's patches (patches, numbers), and the grid of each image.

    Args:
        processed: The output of an image processor that makes patches.
        vision: Not used; the parameters are those of `read_tiles`.
    """
    grids = tuple(tuple(grid) for grid in processed["image_grid_thw"].tolist())
    return processed["pixel_values"], grids


def read_tiles(processed: Any, vision: VisionTokens) -> tuple[Tensor, tuple[Grid, ...]]:
    """Return an image processor's tiles as patches (patches, numbers), and the grid of each image.

    Tiles (tiles, channels, side, side) are only reshaped. Each becomes as many rows as it has
    patches, but the numbers of a row do not belong to one patch. `VisionPlan.model_inputs` restores
    the tiles.

    Args:
        processed: The output of an image processor that makes tiles.
        vision: The properties of the family's images.
    """
    _, rows, columns = vision.smallest
    patches = processed["pixel_values"].reshape(-1, vision.patch_size)
    grids = tuple((num_tiles, rows, columns) for num_tiles in processed["num_patches"].tolist())
    return patches, grids
