"""How images are passed to a padded model: as grids of patches, or as tiles.

Qwen2-VL to Qwen3-VL and VideoLLaMA3 take grids of patches, InternVL takes tiles. `images_of`
returns the class for a model. The classes are not instantiated.

This file is saved with every checkpoint that has a reward head, so it imports torch and
transformers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import (
    GotOcr2ImageProcessorPil,
    Qwen2VLImageProcessorPil,
    VideoLlama3ImageProcessorPil,
)


class PatchGrids:
    """Images of any size; the chat template writes the tokens before and after an image.

    `pixel_values` is (patches, numbers), and `image_grid_thw` is (images, 3): frames, rows and
    columns of patches.
    """

    processor = Qwen2VLImageProcessorPil
    marks: tuple[str, ...] = ()
    """Tokens before and after an image, if the chat template does not write them."""

    @staticmethod
    def merge(config: Any) -> int:
        """Return n if a token covers n x n patches."""
        return int(config.vision_config.spatial_merge_size)

    @classmethod
    def tokens(cls, config: Any, made: Mapping[str, Any]) -> list[int]:
        """Return the number of tokens of each image in the output of an image processor."""
        grids = made.get("image_grid_thw")
        if grids is None:
            return []
        lengths: list[int] = (grids.prod(1) // cls.merge(config) ** 2).tolist()
        return lengths

    @staticmethod
    def inputs(made: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the model's arguments from the output of an image processor."""
        return dict(made)

    @staticmethod
    def kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return the stock model's argument with the kind of each token, (B, T) int32.

        The kind is 0 for text, 1 for an image, 2 for a video. Without it, the stock model silently
        counts positions on one axis.
        """
        is_image = (ids == config.image_token_id).int()
        is_video = (ids == config.video_token_id).int()
        return {"mm_token_type_ids": is_image + 2 * is_video}

    @classmethod
    def fault(
        cls, config: Any, ids: Tensor, runs: Sequence[int], given: Mapping[str, Any]
    ) -> str | None:
        """Return why the given images are not those of the conversations; None if they are.

        Args:
            config: The model's configuration.
            ids: Token ids, (B, T).
            runs: Lengths of the runs of image tokens in `ids`, in order.
            given: The arguments that the model was called with.

        Raises:
            ValueError: A video is given.
        """
        if given.get("pixel_values_videos") is not None or (ids == config.video_token_id).any():
            raise ValueError(
                "a video was given, but this model was trained on images only: give single frames "
                "as images"
            )
        grids = given.get("image_grid_thw")
        pixels = given.get("pixel_values")
        num_expected = 0 if grids is None else int(grids.prod(1).sum())
        num_given = 0 if pixels is None else len(pixels)
        lengths = cls.tokens(config, given)
        if runs == lengths and num_expected == num_given:
            return None
        return (
            f"pixel_values holds {num_given} patches and image_grid_thw {len(lengths)} images, of "
            f"{lengths[:9]} tokens; they must be the same, in order"
        )


class UnmergedGrids(PatchGrids):
    """Grids of patches of which each is a token; there are no tokens around an image.

    `image_merge_sizes` (images,) is 1 for each image.
    """

    processor = VideoLlama3ImageProcessorPil

    @staticmethod
    def merge(config: Any) -> int:
        """Return 1."""
        return 1

    @staticmethod
    def kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return nothing: the stock model counts positions on one axis."""
        return {}


class Tiles:
    """Images cut into tiles of equally many tokens.

    `pixel_values` is (tiles, channels, side, side); the tiles of an image are neighbours.
    """

    processor = GotOcr2ImageProcessorPil
    marks = ("<img>", "</img>")

    @staticmethod
    def of_a_tile(config: Any) -> int:
        """Return the number of tokens of a tile."""
        height, width = config.vision_config.image_size
        patch_height, patch_width = config.vision_config.patch_size
        rows = height // patch_height * config.downsample_ratio
        columns = width // patch_width * config.downsample_ratio
        return int(rows * columns)

    @classmethod
    def tokens(cls, config: Any, made: Mapping[str, Any]) -> list[int]:
        """Return the number of tokens of each image in the output of an image processor."""
        return [int(num_tiles) * cls.of_a_tile(config) for num_tiles in made["num_patches"]]

    @staticmethod
    def inputs(made: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the model's arguments from the output of an image processor."""
        return {"pixel_values": made["pixel_values"]}

    @staticmethod
    def kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return nothing: the stock model counts positions on one axis."""
        return {}

    @classmethod
    def fault(
        cls, config: Any, ids: Tensor, runs: Sequence[int], given: Mapping[str, Any]
    ) -> str | None:
        """Return why the given images are not those of the conversations; None if they are.

        The arguments are those of `PatchGrids.fault`.
        """
        pixels = given.get("pixel_values")
        num_given = 0 if pixels is None else len(pixels)
        tile_length = cls.of_a_tile(config)
        has_part_of_tile = any(length % tile_length for length in runs)
        if sum(runs) == num_given * tile_length and not has_part_of_tile:
            return None
        return (
            f"pixel_values holds {num_given} tiles, of {tile_length} tokens each; every image has "
            "whole tiles, and there must be as many"
        )


OTHERS: dict[str, type[PatchGrids] | type[Tiles]] = {
    "internvl": Tiles,
    "video_llama_3": UnmergedGrids,
}
"""`model_type` to the class; all other models have `PatchGrids`."""


def images_of(model_type: str) -> type[PatchGrids] | type[Tiles]:
    """Return the class for the images of a model of this type."""
    return OTHERS.get(model_type, PatchGrids)


def refuse_wrong_images(config: Any, input_ids: Tensor, **given: Any) -> None:
    """Raise unless the image tokens of a padded batch are those of the given images, in order.

    Args:
        config: The model's configuration.
        input_ids: (B, T).
        given: The other arguments that the model was called with.

    Raises:
        ValueError: The images do not fit, or a video is given.
    """
    is_image = input_ids == config.image_token_id
    is_start = is_image & ~F.pad(is_image[:, :-1], (1, 0))
    run_numbers = is_start.flatten().cumsum(0)[is_image.flatten()]
    _, run_lengths = run_numbers.unique_consecutive(return_counts=True)
    runs = run_lengths.tolist()
    fault = images_of(config.model_type).fault(config, input_ids, runs, given)
    if fault is not None:
        raise ValueError(
            f"the conversations hold {len(runs)} image placeholders, of {runs[:9]} tokens, but "
            f"{fault}. An image whose pixels are missing would be scored as noise: pass what the "
            "image processor returns, and write the image token once for each token of the image"
        )
