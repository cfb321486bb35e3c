"""How a family sees images: scaled as a whole to a grid of patches, or cut into tiles of one size.

In a group both are grids of patches, of which `merge` x `merge` become a token: a tile stands there as a frame does. What
differs is told by the two classes here; `VisionPlan.model_inputs` then hands a row's pixels to the tower in its own shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrm.data.errors import UserError
from mmrm.data.images import ImageTokens, PatchTokens, TileTokens
from mmrm.models.config import BackboneConfig


class ImageLayout(ABC):
    """What a family's images become. `vision` is a `vision_config`, transformers' or that of a `Shape`."""

    planned: bool
    """The tower attends inside segments of a row of patches, by our kernels; else it takes a batch, and attends as stock SDPA."""

    @abstractmethod
    def tokens(self, vision: Any, limits: BackboneConfig) -> ImageTokens:
        """Return how many tokens images become; raises UserError for limits that no image can keep."""

    @abstractmethod
    def arguments(self, vision: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the image processor's keywords for the recipe's limits; raises UserError as `tokens`."""

    @abstractmethod
    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return `min_pixels` and `max_pixels` of a saved image processor; raises KeyError where it does not say."""

    @abstractmethod
    def sizes(self, vision: Any) -> tuple[int, int]:
        """Return the sides of a square of patches that becomes a token, in patches, and the numbers in a patch."""

    @abstractmethod
    def smallest(self, vision: Any) -> tuple[int, int, int]:
        """Return the grid of the smallest image."""

    @abstractmethod
    def refuse(self, image_processor: Any, vision: Any) -> None:
        """Raise UserError where the image processor makes other patches than the vision tower takes."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch's sizes, called as an image processor calls them, and its channels."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    channels: int


class PatchLayout(ImageLayout):
    """Scaled as a whole, to sides that are multiples of a token's: Qwen2-VL to Qwen3-VL."""

    planned = True

    def patch(self, vision: Any) -> Patch:
        """Return the patch that a vision tower takes."""
        return Patch(
            vision.patch_size,
            vision.temporal_patch_size,
            vision.spatial_merge_size,
            vision.in_channels,
        )

    def tokens(self, vision: Any, limits: BackboneConfig) -> ImageTokens:
        """Return how many tokens images become."""
        patch = self.patch(vision)
        return PatchTokens(
            limits.min_pixels, limits.max_pixels, patch.patch_size * patch.merge_size
        )

    def arguments(self, vision: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the image processor's keywords."""
        return {"min_pixels": limits.min_pixels, "max_pixels": limits.max_pixels}

    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of a saved image processor, in either way of writing them."""
        size, ends = (
            saved.get("size") or {},
            {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"},
        )
        return {name: saved.get(name) or size[end] for name, end in ends.items()}

    def sizes(self, vision: Any) -> tuple[int, int]:
        """Return the sides of a token's square, and the numbers in a patch."""
        patch = self.patch(vision)
        return patch.merge_size, patch.channels * patch.temporal_patch_size * patch.patch_size**2

    def smallest(self, vision: Any) -> tuple[int, int, int]:
        """Return the grid of one token."""
        return 1, self.patch(vision).merge_size, self.patch(vision).merge_size

    def refuse(self, image_processor: Any, vision: Any) -> None:
        """Raise UserError for other patches than the tower's."""
        patch = self.patch(vision)
        made = (
            image_processor.patch_size,
            image_processor.temporal_patch_size,
            image_processor.merge_size,
        )
        wanted = patch.patch_size, patch.temporal_patch_size, patch.merge_size
        if made != wanted:
            raise UserError(
                f"the image processor makes patches of {made[0]} pixels and {made[1]} frames, {made[2]} x {made[2]} to a token; "
                f"the vision tower takes {wanted[0]}, {wanted[1]} and {wanted[2]}. Take this backbone's preprocessor_config.json."
            )


class UnmergedLayout(PatchLayout):
    """The same with a token for each patch, of a tower whose configuration names neither merge nor frames: VideoLLaMA3."""

    def patch(self, vision: Any) -> Patch:
        """Return the patch that a vision tower takes."""
        return Patch(vision.patch_size, 1, 1, vision.num_channels)


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile's sizes."""

    side: int
    """Pixels."""
    patches: int
    """Patches on a side."""

    @classmethod
    def of(cls, vision: Any) -> Tile:
        """Return the tile that a vision tower takes, whose configuration gives height and width, or one number for both."""
        sides = [
            size if isinstance(size, int) else size[0]
            for size in (vision.image_size, vision.patch_size)
        ]
        return cls(sides[0], sides[0] // sides[1])


class TileLayout(ImageLayout):
    """Cut into square tiles, in rows and columns near to the image's aspect ratio, several with one of the whole: InternVL.

    The limits of a recipe count all tiles: `TileTokens.within`.
    """

    planned = False
    MERGE = 2
    """Patches on a side of a token, as in all released models; others are refused."""

    def tokens(self, vision: Any, limits: BackboneConfig) -> TileTokens:
        """Return how many tokens images become."""
        tile = Tile.of(vision)
        return TileTokens.within(
            limits.min_pixels, limits.max_pixels, tile.side, (tile.patches // self.MERGE) ** 2
        )

    def arguments(self, vision: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the image processor's keywords; released ones cut only where their processor tells them to."""
        found = self.tokens(vision, limits)
        return {
            "crop_to_patches": True,
            "min_patches": found.min_tiles,
            "max_patches": found.max_tiles,
        }

    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of a saved image processor, whose tile of the whole image counts too."""
        low, high = (tiles + (tiles > 1) for tiles in (saved["min_patches"], saved["max_patches"]))
        area = saved["size"]["height"] ** 2
        return {"min_pixels": low * area, "max_pixels": high * area}

    def sizes(self, vision: Any) -> tuple[int, int]:
        """Return the sides of a token's square, and the numbers in a patch."""
        tile = Tile.of(vision)
        return self.MERGE, vision.num_channels * (tile.side // tile.patches) ** 2

    def smallest(self, vision: Any) -> tuple[int, int, int]:
        """Return the grid of one tile."""
        side = Tile.of(vision).patches
        return 1, side, side

    def refuse(self, image_processor: Any, vision: Any) -> None:
        """Raise UserError for tiles of another size, and for a processor that cuts no image."""
        tile, size = Tile.of(vision), image_processor.size
        if (size.height, size.width, image_processor.crop_to_patches) != (
            tile.side,
            tile.side,
            True,
        ):
            cuts = "cuts" if image_processor.crop_to_patches else "does not cut"
            raise UserError(
                f"the image processor {cuts} images into tiles, and makes {size.height} x {size.width} pixels of each; the "
                f"vision tower takes tiles of {tile.side} x {tile.side}. Take this backbone's preprocessor_config.json."
            )


PATCHES, UNMERGED, TILES = PatchLayout(), UnmergedLayout(), TileLayout()
