"""How a family's images become patches and tokens.

An image is scaled as a whole, or cut into tiles of one size. In a group, both are grids of patches,
of which `merge` x `merge` become a token; a tile takes the place of a frame.
`VisionPlan.model_inputs` passes a row's pixels to the tower in the tower's own shape.
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
    """The rules of a family; `vision` is a `vision_config`, of transformers or of a `Shape`."""

    planned: bool
    """True if the tower attends in runs of a row of patches, by the functions of models/packing.
    False if it takes a batch and attends by stock SDPA."""

    @abstractmethod
    def tokens(self, vision: Any, limits: BackboneConfig) -> ImageTokens:
        """Return how many tokens images become.

        Raises:
            UserError: No image can satisfy the limits.
        """

    @abstractmethod
    def arguments(self, vision: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the image processor's arguments for the recipe's limits.

        Raises:
            UserError: As `tokens`.
        """

    @abstractmethod
    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return `min_pixels` and `max_pixels` of a saved image processor.

        Raises:
            KeyError: Its file does not contain them.
        """

    @abstractmethod
    def sizes(self, vision: Any) -> tuple[int, int]:
        """Return n if a token covers n x n patches, and the numbers in a patch."""

    @abstractmethod
    def smallest(self, vision: Any) -> tuple[int, int, int]:
        """Return the grid of the smallest image: frames (or tiles), rows and columns of patches."""

    @abstractmethod
    def refuse(self, image_processor: Any, vision: Any) -> None:
        """Raise UserError if the image processor does not make what the vision tower takes."""


@dataclass(frozen=True, slots=True)
class Patch:
    """The sizes of a patch, under the names of an image processor, and its channels."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    channels: int


class PatchLayout(ImageLayout):
    """Images are scaled to sides that are multiples of a token's: Qwen2-VL to Qwen3-VL."""

    planned = True

    def patch(self, vision: Any) -> Patch:
        """Return the patch that a vision tower takes."""
        return Patch(
            patch_size=vision.patch_size,
            temporal_patch_size=vision.temporal_patch_size,
            merge_size=vision.spatial_merge_size,
            channels=vision.in_channels,
        )

    def tokens(self, vision: Any, limits: BackboneConfig) -> ImageTokens:
        """Return how many tokens images become."""
        patch = self.patch(vision)
        token_side = patch.patch_size * patch.merge_size
        return PatchTokens(limits.min_pixels, limits.max_pixels, token_side)

    def arguments(self, vision: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the image processor's arguments."""
        return {"min_pixels": limits.min_pixels, "max_pixels": limits.max_pixels}

    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of a saved image processor, in either of the two ways to write them."""
        size = saved.get("size") or {}
        return {
            "min_pixels": saved.get("min_pixels") or size["shortest_edge"],
            "max_pixels": saved.get("max_pixels") or size["longest_edge"],
        }

    def sizes(self, vision: Any) -> tuple[int, int]:
        """Return the side of a token in patches, and the numbers in a patch."""
        patch = self.patch(vision)
        numbers = patch.channels * patch.temporal_patch_size * patch.patch_size**2
        return patch.merge_size, numbers

    def smallest(self, vision: Any) -> tuple[int, int, int]:
        """Return the grid of one token."""
        merge_size = self.patch(vision).merge_size
        return 1, merge_size, merge_size

    def refuse(self, image_processor: Any, vision: Any) -> None:
        """Raise UserError if the image processor does not make what the vision tower takes."""
        patch = self.patch(vision)
        expected = (patch.patch_size, patch.temporal_patch_size, patch.merge_size)
        actual = (
            image_processor.patch_size,
            image_processor.temporal_patch_size,
            image_processor.merge_size,
        )
        if actual != expected:
            raise UserError(
                f"The image processor makes patches of {actual[0]} pixels and {actual[1]} frames, "
                f"{actual[2]} x {actual[2]} to a token, but the vision tower takes {expected[0]}, "
                f"{expected[1]} and {expected[2]}. Use this backbone's preprocessor_config.json."
            )


class UnmergedLayout(PatchLayout):
    """Every patch is a token, and there is no merge size in the configuration: VideoLLaMA3."""

    def patch(self, vision: Any) -> Patch:
        """Return the patch that a vision tower takes."""
        return Patch(
            patch_size=vision.patch_size,
            temporal_patch_size=1,
            merge_size=1,
            channels=vision.num_channels,
        )


@dataclass(frozen=True, slots=True)
class Tile:
    """The sizes of a square tile."""

    side: int
    """Pixels on a side."""
    patches: int
    """Patches on a side."""

    @classmethod
    def of(cls, vision: Any) -> Tile:
        """Return the tile that a vision tower takes."""
        side = _height(vision.image_size)
        return cls(side, side // _height(vision.patch_size))


def _height(size: Any) -> int:
    """Return the height of a size, which is (height, width) or one number for both."""
    height: int = size if isinstance(size, int) else size[0]
    return height


class TileLayout(ImageLayout):
    """Images are cut into square tiles: InternVL.

    The numbers of rows and columns of tiles are near the image's aspect ratio. An image of several
    tiles has one more tile, the whole image. The limits of a recipe count all tiles:
    `TileTokens.within`.
    """

    planned = False
    MERGE = 2
    """Side of a token in patches, as in all released models; others are refused."""

    def tokens(self, vision: Any, limits: BackboneConfig) -> TileTokens:
        """Return how many tokens images become."""
        tile = Tile.of(vision)
        tokens_per_tile = (tile.patches // self.MERGE) ** 2
        return TileTokens.within(limits.min_pixels, limits.max_pixels, tile.side, tokens_per_tile)

    def arguments(self, vision: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the image processor's arguments.

        Released processors cut images only if `crop_to_patches` is set.
        """
        tokens = self.tokens(vision, limits)
        return {
            "crop_to_patches": True,
            "min_patches": tokens.min_tiles,
            "max_patches": tokens.max_tiles,
        }

    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of a saved image processor."""
        area = saved["size"]["height"] ** 2
        return {
            "min_pixels": self._all_tiles(saved["min_patches"]) * area,
            "max_pixels": self._all_tiles(saved["max_patches"]) * area,
        }

    def _all_tiles(self, tiles: int) -> int:
        """Return the number of tiles, with that of the whole image if there are several."""
        return tiles + 1 if tiles > 1 else tiles

    def sizes(self, vision: Any) -> tuple[int, int]:
        """Return the side of a token in patches, and the numbers in a patch."""
        tile = Tile.of(vision)
        return self.MERGE, vision.num_channels * (tile.side // tile.patches) ** 2

    def smallest(self, vision: Any) -> tuple[int, int, int]:
        """Return the grid of one tile."""
        side = Tile.of(vision).patches
        return 1, side, side

    def refuse(self, image_processor: Any, vision: Any) -> None:
        """Raise UserError if the tiles have another size, or the processor does not cut images."""
        side = Tile.of(vision).side
        size = image_processor.size
        is_cut = bool(image_processor.crop_to_patches)
        if is_cut and (size.height, size.width) == (side, side):
            return
        cuts = "cuts" if is_cut else "does not cut"
        raise UserError(
            f"The image processor {cuts} images into tiles, and makes {size.height} x {size.width} "
            f"pixels of each, but the vision tower takes tiles of {side} x {side}. Use this "
            "backbone's preprocessor_config.json."
        )


PATCHES = PatchLayout()
UNMERGED = UnmergedLayout()
TILES = TileLayout()
