"""The number of tokens of images, as it is counted from their sizes and as the image processor makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrm.data.images import image_tokens_of
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from tests.models import tiny


def assert_counted_as_by_the_processor(
    family: str, sizes: Sequence[tuple[int, int]], min_pixels: int, max_pixels: int
) -> None:
    """Assert that tokens counted from heights and widths are those of the family's processor.

    Sizes whose sides differ by more than the data floor allows are left out.
    """
    config = tiny.config(family)
    limits = BackboneConfig(path="tiny", min_pixels=min_pixels, max_pixels=max_pixels)
    processor = tiny.image_processor(min_pixels, max_pixels, family)
    encoder = Encoder(tiny.tokenizer(family), processor, limits, config)
    allowed = [
        (height, width) for height, width in sizes if max(height, width) < 190 * min(height, width)
    ]
    counted = encoder.image_tokens(np.array(allowed, np.uint32).reshape(-1, 2)).tolist()
    for (height, width), tokens in zip(allowed, counted, strict=True):
        made = processor(images=[tiny.picture(width, height)], return_tensors="pt")
        assert int(made["image_grid_thw"].prod()) == 4 * tokens
    assert image_tokens_of(config.to_dict(), min_pixels, max_pixels) == encoder.image_tokens, (
        "the data plan counts by config.json"
    )
