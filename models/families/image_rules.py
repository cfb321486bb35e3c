"""The rules by which a family's images become patches and tokens.

An image is scaled as a whole, or cut into tiles of one size. In a group, both are grids of patches,
of which n x n become a token; the tiles of an image are counted like the frames of a video.
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
    """The rules by which the images of a family become patches and tokens.

    In all methods, `vision_config` is that of transformers' configuration or of a `Shape`.
    """

    attends_in_runs: bool
    """True if the tower takes all images as one row of patches and attends in runs, which are parts
    of the row. The attention is then that of models/packing. False if the tower takes a batch and
    attends by stock SDPA."""

    @abstractmethod
    def tokens(self, vision_config: Any, limits: BackboneConfig) -> ImageTokens:
        """Return the object that computes how many tokens an image becomes.

        Args:
            vision_config: The configuration of the vision tower.
            limits: The recipe's `backbone` section, with the limits of an image's size.

        Raises:
            UserError: No image can satisfy the limits.
        """

    @abstractmethod
    def arguments(self, vision_config: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the arguments with which an image processor keeps the recipe's limits.

        Args:
            vision_config: The configuration of the vision tower.
            limits: The recipe's `backbone` section, with the limits of an image's size.

        Raises:
            UserError: No image can satisfy the limits.
        """

    @abstractmethod
    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits `min_pixels` and `max_pixels` of a saved image processor.

        Args:
            saved: The content of its preprocessor_config.json.

        Raises:
            KeyError: The file does not contain them.
        """

    @abstractmethod
    def sizes(self, vision_config: Any) -> tuple[int, int]:
        """Return n if a token covers n x n patches, and the count of numbers in a patch."""

    def planar_patch(self, vision_config: Any) -> Patch | None:
        """Return the sizes of a patch whose channels follow one another, as `TablePatches` makes it.

        None if the image processor orders the numbers of a patch in another way.
        """
        return None

    @abstractmethod
    def smallest(self, vision_config: Any) -> tuple[int, int, int]:
        """Return the grid of the smallest image: frames (or tiles), rows and columns of patches."""

    @abstractmethod
    def refuse(self, image_processor: Any, vision_config: Any) -> None:
        """Raise UserError if the image processor does not make what the vision tower takes."""


@dataclass(frozen=True, slots=True)
class Patch:
    """The sizes of a patch, named as in an image processor, and its number of channels."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    channels: int


class PatchLayout(ImageLayout):
    """The rules of Qwen2-VL to Qwen3.5: an image is scaled until its sides are whole tokens."""

    attends_in_runs = True

    def patch(self, vision_config: Any) -> Patch:
        """Return the patch that a vision tower takes."""
        return Patch(
            patch_size=vision_config.patch_size,
            temporal_patch_size=vision_config.temporal_patch_size,
            merge_size=vision_config.spatial_merge_size,
            channels=vision_config.in_channels,
        )

    def planar_patch(self, vision_config: Any) -> Patch | None:
        """Return the patch that a vision tower takes."""
        return self.patch(vision_config)

    def tokens(self, vision_config: Any, limits: BackboneConfig) -> ImageTokens:
        """Return the object that computes how many tokens an image becomes."""
        patch = self.patch(vision_config)
        token_side = patch.patch_size * patch.merge_size
        return PatchTokens(limits.min_pixels, limits.max_pixels, token_side, videos=limits.videos)

    def arguments(self, vision_config: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the arguments with which an image processor keeps the recipe's limits."""
        return {"min_pixels": limits.min_pixels, "max_pixels": limits.max_pixels}

    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits `min_pixels` and `max_pixels` of a saved image processor.

        Processors of older versions of transformers save them under these names, and others under
        `size`.
        """
        # Despite their names, these values of `size` are areas: numbers of pixels.
        size = saved.get("size") or {}
        return {
            "min_pixels": saved.get("min_pixels") or size["shortest_edge"],
            "max_pixels": saved.get("max_pixels") or size["longest_edge"],
        }

    def sizes(self, vision_config: Any) -> tuple[int, int]:
        """Return n if a token covers n x n patches, and the count of numbers in a patch."""
        patch = self.patch(vision_config)
        numbers = patch.channels * patch.temporal_patch_size * patch.patch_size**2
        return patch.merge_size, numbers

    def smallest(self, vision_config: Any) -> tuple[int, int, int]:
        """Return the grid of an image that is a single token."""
        merge_size = self.patch(vision_config).merge_size
        return 1, merge_size, merge_size

    def refuse(self, image_processor: Any, vision_config: Any) -> None:
        """Raise UserError if the image processor does not make what the vision tower takes."""
        patch = self.patch(vision_config)
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
    """The rules of VideoLLaMA3: as in `PatchLayout`, but every patch is a token."""

    def patch(self, vision_config: Any) -> Patch:
        """Return the patch that a vision tower takes."""
        return Patch(
            patch_size=vision_config.patch_size,
            temporal_patch_size=1,
            merge_size=1,
            channels=vision_config.num_channels,
        )


@dataclass(frozen=True, slots=True)
class Tile:
    """The size of a square tile, in pixels and in patches."""

    side: int
    """Pixels on a side."""
    patches: int
    """Patches on a side."""

    @classmethod
    def of(cls, vision_config: Any) -> Tile:
        """Return the square tiles into which images are cut for a vision tower, by its config."""
        side = _height(vision_config.image_size)
        return cls(side, side // _height(vision_config.patch_size))


def _height(size: Any) -> int:
    """Return the height of a size, which is (height, width) or one number for both."""
    height: int = size if isinstance(size, int) else size[0]
    return height


class TileLayout(ImageLayout):
    """The rules of InternVL: an image is cut into square tiles.

    The numbers of rows and columns of tiles are near the image's aspect ratio. An image of several
    tiles has one more tile, the whole image. The limits of a recipe count all tiles:
    `TileTokens.within`.
    """

    attends_in_runs = False
    MERGE = 2
    """Side of a token in patches, as in all released models; others are refused."""

    def tokens(self, vision_config: Any, limits: BackboneConfig) -> TileTokens:
        """Return the object that computes how many tokens an image becomes."""
        tile = Tile.of(vision_config)
        tokens_per_tile = (tile.patches // self.MERGE) ** 2
        return TileTokens.within(
            limits.min_pixels, limits.max_pixels, tile.side, tokens_per_tile, limits.videos
        )

    def arguments(self, vision_config: Any, limits: BackboneConfig) -> dict[str, Any]:
        """Return the arguments with which an image processor keeps the recipe's limits.

        Released processors cut images into tiles only if `crop_to_patches` is set.
        """
        tile_tokens = self.tokens(vision_config, limits)
        # These processors call tiles "patches".
        return {
            "crop_to_patches": True,
            "min_patches": tile_tokens.min_tiles,
            "max_patches": tile_tokens.max_tiles,
        }

    def limits(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits `min_pixels` and `max_pixels` of a saved image processor."""
        area = saved["size"]["height"] ** 2
        return {
            "min_pixels": self._with_whole_image(saved["min_patches"]) * area,
            "max_pixels": self._with_whole_image(saved["max_patches"]) * area,
        }

    def _with_whole_image(self, num_tiles: int) -> int:
        """Return a number of tiles with the tile of the whole image added.

        An image that is a single tile has no such tile.
        """
        return num_tiles + 1 if num_tiles > 1 else num_tiles

    def sizes(self, vision_config: Any) -> tuple[int, int]:
        """Return n if a token covers n x n patches, and the count of numbers in a patch."""
        tile = Tile.of(vision_config)
        return self.MERGE, vision_config.num_channels * (tile.side // tile.patches) ** 2

    def smallest(self, vision_config: Any) -> tuple[int, int, int]:
        """Return the grid of an image that is a single tile."""
        side = Tile.of(vision_config).patches
        return 1, side, side

    def refuse(self, image_processor: Any, vision_config: Any) -> None:
        """Raise UserError if the tiles have another size, or the processor does not cut images."""
        side = Tile.of(vision_config).side
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
