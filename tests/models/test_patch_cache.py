"""Images are processed once while they are needed, and are known by their pixels."""

from __future__ import annotations

import io
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from PIL import Image

from mmrm.data.errors import ImageError
from mmrm.data.synthetic.scenes import png
from mmrm.models.cancellation import AbandonedError, run_abandonable
from mmrm.models.image_patches import StockPatches
from mmrm.models.packing.packed_batch import patches_of
from mmrm.models.packing.vision import Grid
from mmrm.models.patch_cache import PatchCache
from tests.models import tiny
from tests.models.families.parameters import every_family


class Counting(StockPatches):
    """Makes patches by the image processor, and counts the images."""

    num_images = 0

    def __call__(self, image: Image.Image) -> tuple[torch.Tensor, Grid]:
        """Return the patches and the grid of an image."""
        self.num_images += 1
        return super().__call__(image)


@pytest.fixture
def counting() -> Counting:
    return Counting(tiny.image_processor(), tiny.encoder().vision)


@pytest.fixture
def cache(counting: Counting) -> PatchCache:
    return PatchCache(counting, counting.vision)


def encoded(seed: int, image_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    tiny.picture(60, 80, seed).save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("family", every_family())
def test_an_image_has_the_patches_of_the_stock_processor(family: str) -> None:
    encoder = tiny.encoder(family)
    picture = tiny.picture(150, 60)
    found = encoder.patches.of_decoded(picture)
    stock = tiny.image_processor(family=family)(images=[picture], return_tensors="pt")
    assert torch.equal(patches_of(found).flatten(), stock["pixel_values"].flatten())
    assert found.patches == len(patches_of(found))
    assert found.num_tokens == found.patches // encoder.vision.merge_size**2


def test_an_image_is_processed_once_however_often_it_is_asked_for(
    cache: PatchCache, counting: Counting
) -> None:
    first, second = encoded(0), encoded(1)
    found = cache.of_encoded([first, second, first], "record")
    assert list(found) == [first, second]
    assert counting.num_images == 2
    # The images of the last call are kept, and no others.
    assert cache.of_encoded([second], "record")[second] is found[second]
    assert counting.num_images == 2
    cache.of_encoded([first], "record")
    assert counting.num_images == 3


def test_a_record_without_images_keeps_those_of_the_one_before(
    cache: PatchCache, counting: Counting
) -> None:
    cache.of_encoded([encoded(0)], "record")
    assert cache.of_encoded([], "record") == {}
    cache.of_encoded([encoded(0)], "record")
    assert counting.num_images == 1


def test_images_are_equal_if_their_pixels_are(cache: PatchCache, tmp_path: Path) -> None:
    """Whatever file they come from, and however it is compressed."""
    small, large = encoded(0, compress_level=9), encoded(0, compress_level=0)
    assert small != large
    in_a_file = tmp_path / "picture.bmp"
    in_a_file.write_bytes(encoded(0, "BMP"))
    found = cache.of_encoded([small, large, in_a_file, encoded(1)], "record")
    first, same, from_file, other = found.values()
    assert first == same == from_file
    assert hash(first) == hash(same) == hash(from_file)
    assert first != other
    assert first.grid == other.grid
    assert first.num_tokens == other.num_tokens


def test_the_shape_of_an_image_counts(cache: PatchCache) -> None:
    """The bytes of a uniform image are the same in any shape of the same size."""
    wide, tall = (Image.new("RGB", size, "red") for size in ((80, 40), (40, 80)))
    assert wide.tobytes() == tall.tobytes()
    assert cache.of_decoded(wide) != cache.of_decoded(tall)


def test_the_palette_of_an_image_counts(cache: PatchCache) -> None:
    """The bytes of an image with a palette are indices into it."""
    red, blue = (Image.new("P", (60, 60)) for _ in range(2))
    red.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    assert red.tobytes() == blue.tobytes()
    assert cache.of_decoded(red) != cache.of_decoded(blue)
    assert not torch.equal(patches_of(cache.of_decoded(red)), patches_of(cache.of_decoded(blue)))


def test_a_damaged_image_is_refused_by_the_name_of_its_record(cache: PatchCache) -> None:
    with pytest.raises(ImageError, match="record 7"):
        cache.of_encoded([png(tiny.picture(60, 60)), b"no image"], "record 7")


def test_abandoned_work_ends_before_the_next_image(cache: PatchCache, counting: Counting) -> None:
    gone = Event()
    gone.set()
    with pytest.raises(AbandonedError):
        run_abandonable(gone, cache.of_encoded, [encoded(0)], "record")
    assert counting.num_images == 0
