"""The form in which a model takes images: as grids of patches, or as tiles.

Qwen2-VL to Qwen3.5, VideoLLaMA3, GLM-4.1V and Cosmos3-Edge take grids of patches, InternVL takes
tiles. `images_of` returns the class with the rules for a model. The classes are not instantiated.

This file is saved with every checkpoint that has a reward head, so it imports torch and
transformers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import (
    Cosmos3EdgeImageProcessorPil,
    Glm4vImageProcessorPil,
    GotOcr2ImageProcessorPil,
    Qwen2VLImageProcessorPil,
    VideoLlama3ImageProcessorPil,
)

MAX_NAMED = 9
"""Number of images whose lengths an error names."""


class PatchGrids:
    """The rules of models that take images of any size as grids of patches.

    The model's arguments are `pixel_values` (patches, numbers) and `image_grid_thw` (images, 3),
    frames, rows and columns of patches. The chat template writes the tokens before and after an
    image.
    """

    processor = Qwen2VLImageProcessorPil
    marks: tuple[str, ...] = ()
    """Tokens before and after an image, if the chat template does not write them."""
    takes_videos = True
    """True if the models take a video as an image of several frames."""
    has_timestamps = False
    """True if every temporal patch of a video is an image of its own, behind its time as text."""
    has_timed_positions = False
    """True if the positions between the frames of a video depend on the seconds between them."""

    @staticmethod
    def merge_size(config: Any) -> int:
        """Return n for a model in which a token covers n x n patches."""
        return int(config.vision_config.spatial_merge_size)

    @classmethod
    def token_counts(cls, config: Any, processed: Mapping[str, Any]) -> list[int]:
        """Return the number of tokens of each image in the output of an image processor."""
        grids = processed.get("image_grid_thw")
        if grids is None:
            return []
        counts: list[int] = (grids.prod(1) // cls.merge_size(config) ** 2).tolist()
        return counts

    @staticmethod
    def model_inputs(processed: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the model's keyword arguments for the output of an image processor."""
        return dict(processed)

    @staticmethod
    def token_kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return the keyword argument that gives the stock model the kind of each token.

        It is (B, T) int32 with 0 for text, 1 for an image, 2 for a video. Without it, the stock
        model silently counts positions on one axis instead of three.

        Args:
            config: The model's configuration.
            ids: Token ids, (B, T).
        """
        is_image = (ids == config.image_token_id).int()
        is_video = (ids == config.video_token_id).int()
        return {"mm_token_type_ids": is_image + 2 * is_video}

    @classmethod
    def mismatch(
        cls, config: Any, ids: Tensor, run_lengths: Sequence[int], given: Mapping[str, Any]
    ) -> str | None:
        """Return, in words, the difference between the given images and the image tokens.

        Args:
            config: The model's configuration.
            ids: Token ids, (B, T).
            run_lengths: Lengths of the runs of image tokens in `ids`, in order. A run is an image.
            given: The arguments that the model was called with.

        Returns:
            None if there is no difference.

        Raises:
            ValueError: A video is given.
        """
        if given.get("pixel_values_videos") is not None or (ids == config.video_token_id).any():
            raise ValueError(
                "a video was given as video tokens, but this model takes a video as an image of "
                "several frames: call `model.score` with the video, or give frames as images"
            )
        grids = given.get("image_grid_thw")
        pixels = given.get("pixel_values")
        num_patches_of_grids = 0 if grids is None else int(grids.prod(1).sum())
        num_patches = 0 if pixels is None else len(pixels)
        counts = cls.token_counts(config, given)
        if run_lengths == counts and num_patches_of_grids == num_patches:
            return None
        return (
            f"pixel_values holds {num_patches} patches and image_grid_thw {len(counts)} images, of "
            f"{counts[:MAX_NAMED]} tokens; they must be the same, in order"
        )


class UnmergedGrids(PatchGrids):
    """The rules of models in which each patch is a token, with no tokens around an image.

    The model's arguments are those of `PatchGrids`, and `image_merge_sizes` (images,), 1 for each
    image.
    """

    processor = VideoLlama3ImageProcessorPil
    takes_videos = False

    @staticmethod
    def merge_size(config: Any) -> int:
        """Return 1, because a token covers one patch."""
        return 1

    @staticmethod
    def token_kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return no argument: these models count positions on one axis, whatever the kinds."""
        return {}


class Glm4vGrids(PatchGrids):
    """The rules of GLM-4.1V, which has its own image processor."""

    takes_videos = False
    processor = Glm4vImageProcessorPil


class Cosmos3EdgeGrids(PatchGrids):
    """The rules of Cosmos3-Edge, which has its own image processor."""

    takes_videos = False
    processor = Cosmos3EdgeImageProcessorPil


class Tiles:
    """The rules of models that take images cut into tiles, which have equally many tokens.

    The model's argument is `pixel_values` (tiles, channels, side, side), in which the tiles of an
    image follow one another.
    """

    processor = GotOcr2ImageProcessorPil
    marks = ("<img>", "</img>")
    """Tokens before and after an image, which the chat template does not write."""

    @staticmethod
    def tokens_per_tile(config: Any) -> int:
        """Return the number of tokens of a tile, given the model's configuration."""
        height, width = config.vision_config.image_size
        patch_height, patch_width = config.vision_config.patch_size
        rows = height // patch_height * config.downsample_ratio
        columns = width // patch_width * config.downsample_ratio
        return int(rows * columns)

    @classmethod
    def token_counts(cls, config: Any, processed: Mapping[str, Any]) -> list[int]:
        """Return the number of tokens of each image in the output of an image processor."""
        tokens_per_tile = cls.tokens_per_tile(config)
        tiles_by_image = processed["num_patches"]  # the processor's name for tiles
        return [int(num_tiles) * tokens_per_tile for num_tiles in tiles_by_image]

    @staticmethod
    def model_inputs(processed: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the model's keyword arguments for the output of an image processor."""
        return {"pixel_values": processed["pixel_values"]}

    @staticmethod
    def token_kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return no argument: these models count positions on one axis, whatever the kinds."""
        return {}

    @classmethod
    def mismatch(
        cls, config: Any, ids: Tensor, run_lengths: Sequence[int], given: Mapping[str, Any]
    ) -> str | None:
        """Return, in words, the difference between the given images and the image tokens.

        The arguments are those of `PatchGrids.mismatch`.

        Returns:
            None if there is no difference.
        """
        pixels = given.get("pixel_values")
        num_tiles = 0 if pixels is None else len(pixels)
        tile_length = cls.tokens_per_tile(config)
        has_part_of_tile = any(length % tile_length for length in run_lengths)
        if sum(run_lengths) == num_tiles * tile_length and not has_part_of_tile:
            return None
        return (
            f"pixel_values holds {num_tiles} tiles, of {tile_length} tokens each; every image has "
            "whole tiles, and there must be as many"
        )


class TimedGrids(PatchGrids):
    """The rules of Qwen2.5-VL: the positions of a video's frames depend on their times."""

    has_timed_positions = True


class TimestampedGrids(PatchGrids):
    """The rules of Qwen3-VL and Qwen3.5: every temporal patch of a video is behind its time."""

    has_timestamps = True


OTHERS: dict[str, type[PatchGrids] | type[Tiles]] = {
    "qwen2_5_vl": TimedGrids,
    "qwen3_vl": TimestampedGrids,
    "qwen3_vl_moe": TimestampedGrids,
    "qwen3_5": TimestampedGrids,
    "internvl": Tiles,
    "video_llama_3": UnmergedGrids,
    "glm4v": Glm4vGrids,
    "cosmos3_edge": Cosmos3EdgeGrids,
}
"""`model_type` to the class with its rules; Qwen2-VL has `PatchGrids`."""


def images_of(model_type: str) -> type[PatchGrids] | type[Tiles]:
    """Return the class with the rules for the images of a model of this type."""
    return OTHERS.get(model_type, PatchGrids)


def refuse_wrong_images(config: Any, input_ids: Tensor, **given: Any) -> None:
    """Raise ValueError unless the image tokens of a padded batch fit the given images, in order.

    Args:
        config: The model's configuration.
        input_ids: (B, T).
        given: The other arguments that the model was called with.

    Raises:
        ValueError: The images do not fit, or a video is given.
    """
    is_image = input_ids == config.image_token_id
    is_after_image_token = F.pad(is_image[:, :-1], (1, 0))
    is_start = is_image & ~is_after_image_token
    # Successive image tokens, which are one image, get the same number.
    run_numbers = is_start.flatten().cumsum(0)[is_image.flatten()]
    _, counts = run_numbers.unique_consecutive(return_counts=True)
    run_lengths = counts.tolist()
    mismatch = images_of(config.model_type).mismatch(config, input_ids, run_lengths, given)
    if mismatch is not None:
        raise ValueError(
            f"the conversations hold {len(run_lengths)} image placeholders, of "
            f"{run_lengths[:MAX_NAMED]} tokens, but {mismatch}. An image whose pixels are missing "
            "would be scored as noise: pass what the image processor returns, and write the image "
            "token once for each token of the image"
        )
