"""How images stand in what a model is given: as grids of patches (Qwen2-VL to Qwen3-VL, VideoLLaMA3), or as tiles (InternVL).

This file travels with every checkpoint that has a reward head, so it imports torch and transformers alone.
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
    """Images of any size: `pixel_values` (patches, numbers) and `image_grid_thw` (images, 3); the template writes the marks."""

    processor = Qwen2VLImageProcessorPil
    marks: tuple[str, ...] = ()
    """Tokens before and after an image, where the chat template writes none."""

    @staticmethod
    def merge(config: Any) -> int:
        """Return the sides of the square of patches that becomes a token."""
        return int(config.vision_config.spatial_merge_size)

    @classmethod
    def tokens(cls, config: Any, made: Mapping[str, Any]) -> list[int]:
        """Return the tokens of each image that an image processor made."""
        grids = made.get("image_grid_thw")
        return [] if grids is None else (grids.prod(1) // cls.merge(config) ** 2).tolist()

    @staticmethod
    def inputs(made: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what of it the model takes."""
        return dict(made)

    @staticmethod
    def kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return what the stock model needs besides: 0 for text, 1 for an image, 2 for a video.

        Without it the stock model silently counts positions in 1-D.
        """
        return {
            "mm_token_type_ids": (ids == config.image_token_id).int()
            + 2 * (ids == config.video_token_id).int()
        }

    @classmethod
    def fault(
        cls, config: Any, ids: Tensor, runs: Sequence[int], given: Mapping[str, Any]
    ) -> str | None:
        """Say why the images `given` are not those of `ids`, whose image tokens stand in `runs`; raise ValueError for a video."""
        if given.get("pixel_values_videos") is not None or (ids == config.video_token_id).any():
            raise ValueError(
                "a video was given; this model was trained on images only: give single frames as images"
            )
        grids, pixels = given.get("image_grid_thw"), given.get("pixel_values")
        patches = 0 if grids is None else int(grids.prod(1).sum())
        wanted, held = cls.tokens(config, given), 0 if pixels is None else len(pixels)
        if runs == wanted and patches == held:
            return None
        return (
            f"pixel_values holds {held} patches and image_grid_thw {len(wanted)} images, of {wanted[:9]} tokens; they must be "
            "the same, in order"
        )


class UnmergedGrids(PatchGrids):
    """The same, with a token for each patch and `image_merge_sizes` (images,), which says so; the template writes no marks."""

    processor = VideoLlama3ImageProcessorPil

    @staticmethod
    def merge(config: Any) -> int:
        """Return 1."""
        return 1

    @staticmethod
    def kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return nothing: positions are counted in 1-D."""
        return {}


class Tiles:
    """Images cut into tiles of equally many tokens: `pixel_values` (tiles, channels, side, side), those of an image together."""

    processor = GotOcr2ImageProcessorPil
    marks = ("<img>", "</img>")

    @staticmethod
    def of_a_tile(config: Any) -> int:
        """Return the tokens of a tile."""
        image, patch = config.vision_config.image_size, config.vision_config.patch_size
        return int(
            (image[0] // patch[0] * config.downsample_ratio)
            * (image[1] // patch[1] * config.downsample_ratio)
        )

    @classmethod
    def tokens(cls, config: Any, made: Mapping[str, Any]) -> list[int]:
        """Return the tokens of each image that an image processor made."""
        return [int(count) * cls.of_a_tile(config) for count in made["num_patches"]]

    @staticmethod
    def inputs(made: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what of it the model takes."""
        return {"pixel_values": made["pixel_values"]}

    @staticmethod
    def kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
        """Return nothing: positions are counted in 1-D."""
        return {}

    @classmethod
    def fault(
        cls, config: Any, ids: Tensor, runs: Sequence[int], given: Mapping[str, Any]
    ) -> str | None:
        """Say why the images `given` are not those of `ids`, whose image tokens stand in `runs` of these lengths."""
        pixels, tile = given.get("pixel_values"), cls.of_a_tile(config)
        held = 0 if pixels is None else len(pixels)
        if sum(runs) == held * tile and not any(run % tile for run in runs):
            return None
        return f"pixel_values holds {held} tiles, of {tile} tokens each; every image has whole tiles, and there must be as many"


OTHERS: dict[str, type[PatchGrids] | type[Tiles]] = {
    "internvl": Tiles,
    "video_llama_3": UnmergedGrids,
}


def images_of(model_type: str) -> type[PatchGrids] | type[Tiles]:
    """Return how images stand in the inputs of a model of this type."""
    return OTHERS.get(model_type, PatchGrids)


def refuse_wrong_images(config: Any, input_ids: Tensor, **given: Any) -> None:
    """Raise ValueError for a video, and unless the runs of image tokens in `input_ids` (B, T) are the images given, in order."""
    placeholder = input_ids == config.image_token_id
    number = (
        (placeholder & ~F.pad(placeholder[:, :-1], (1, 0)))
        .flatten()
        .cumsum(0)[placeholder.flatten()]
    )
    runs = number.unique_consecutive(return_counts=True)[1].tolist()
    fault = images_of(config.model_type).fault(config, input_ids, runs, given)
    if fault is not None:
        raise ValueError(
            f"the conversations hold {len(runs)} image placeholders, of {runs[:9]} tokens, but {fault}. An image whose pixels "
            "are missing would be scored as noise: pass what the image processor returns, and write the image token once for "
            "each token of the image"
        )
