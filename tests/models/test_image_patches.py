"""Patches that are made by tables are those of the stock image processors, to the bit."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from mmrm.models.families.registry import FAMILIES
from mmrm.models.image_patches import StockPatches, TablePatches
from tests.models import tiny

WITH_TABLES = (
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "video_llama_3",
    "glm4v",
)
"""Families whose image processors put the channels of a patch one after the other."""


@functools.cache
def patches_of(family: str) -> TablePatches:
    """Return the patches of a family, as its encoder makes them."""
    patches = tiny.encoder(family).patches.patches
    assert isinstance(patches, TablePatches)
    return patches


def patches_with(**changes: Any) -> TablePatches:
    """Return the patches of an image processor of Qwen2.5-VL with other settings."""
    patches = patches_of("qwen2_5_vl")
    processor = tiny.image_processor()
    for name, value in changes.items():
        setattr(processor, name, value)
    stock = StockPatches(processor, patches.stock.vision)
    return TablePatches(stock, patches.patch, patches.sizes)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def assert_stock(patches: TablePatches, image: Image.Image) -> None:
    found, grid = patches(image)
    expected, expected_grid = patches.stock(image)
    assert grid == expected_grid
    assert found.dtype == expected.dtype == torch.float32
    assert torch.equal(found, expected)
    assert found.is_contiguous()


def test_families_use_tables_where_they_can() -> None:
    for family in FAMILIES:
        patches = tiny.encoder(family).patches.patches
        assert isinstance(patches, TablePatches if family in WITH_TABLES else StockPatches)


@pytest.mark.parametrize("family", WITH_TABLES)
@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 400), height=st.integers(1, 400), seed=st.integers(0, 10**6))
def test_patches_of_any_size_are_those_of_the_processor(
    family: str, width: int, height: int, seed: int
) -> None:
    if max(width, height) <= 200 * min(width, height):
        assert_stock(patches_of(family), noise(width, height, seed))


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "CMYK"])
def test_the_processor_converts_other_modes(mode: str) -> None:
    assert_stock(patches_of("qwen2_5_vl"), noise(90, 60).convert(mode))


@pytest.mark.parametrize(
    "changes",
    [
        {"do_normalize": False},
        {"do_rescale": False},
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [1.0, 0.5, 0.25]},
        {"resample": Image.Resampling.NEAREST},
    ],
)
def test_settings_of_the_processor_are_kept(changes: dict[str, Any]) -> None:
    assert_stock(patches_with(**changes), noise(90, 60))


def test_very_long_images_are_refused_as_by_the_processor() -> None:
    patches = patches_of("qwen2_5_vl")
    for use in (patches, patches.stock):
        with pytest.raises(ValueError, match="aspect ratio"):
            use(noise(402, 2))


class OtherOrder(Qwen2VLImageProcessorPil):  # type: ignore[misc]
    """An image processor that returns the patches of an image in another order."""

    def __call__(self, images: Any, **options: Any) -> Any:
        """Return the patches, the last one first."""
        output = super().__call__(images, **options)
        output["pixel_values"] = output["pixel_values"].flip(0).contiguous()
        return output


def test_a_processor_with_another_layout_is_refused() -> None:
    patches = patches_of("qwen2_5_vl")
    stock = StockPatches(OtherOrder(), patches.stock.vision)
    with pytest.raises(RuntimeError, match=r"other patches than expected.*5\.17 to 5\.23"):
        TablePatches(stock, patches.patch, patches.sizes)(noise(90, 60))


def test_a_processor_that_scales_nothing_is_used_itself() -> None:
    encoder = tiny.encoder()
    processor = tiny.image_processor()
    processor.do_resize = False
    settings = BackboneConfig(path="tiny", dtype="float32")
    other = Encoder(encoder.tokenizer, processor, settings, tiny.config())
    assert isinstance(other.patches.patches, StockPatches)


def test_tables_travel_to_workers() -> None:
    patches = patches_of("qwen2_5_vl")
    before, _ = patches(noise(90, 60))
    after, _ = pickle.loads(pickle.dumps(patches))(noise(90, 60))
    assert torch.equal(before, after)
