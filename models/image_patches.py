"""Patches of images, as a backbone's image processor makes them.

`StockPatches` calls the image processor. `TablePatches` makes the same patches, to the bit, in less
time. An image processor scales an image, turns its pixels into normalised floating-point numbers,
and cuts them into patches. Once the image is scaled, every number depends on one pixel of 8 bits and
its channel alone, so there are at most 256 numbers in each channel. `TablePatches` asks the processor
for these numbers once. It scales an image, cuts the pixels while they have 8 bits, and looks the numbers
of the patches up.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import transformers
from PIL import Image
from torch import Tensor

from mmrm.data.images import MAX_ASPECT_RATIO, PatchTokens
from mmrm.models.families.image_rules import Patch
from mmrm.models.packing.vision import Grid, VisionTokens

NUM_VALUES = 256
"""The number of values of a pixel in a channel."""
PATCHES_AT_ONCE = 64
"""Patches that are looked up at one time. Their numbers stay in the cache of the processor."""
TRIED_TOKENS = (3, 5)
"""Rows and columns of tokens of the image on which `TablePatches` is compared with the processor."""


class ImagePatches(Protocol):
    """Makes the patches of an image."""

    def __call__(self, image: Image.Image) -> tuple[Tensor, Grid]:
        """Return the patches of a decoded image, (patches, numbers) float32, and its grid."""
        ...


class StockPatches:
    """Makes patches by calling the image processor."""

    def __init__(self, image_processor: Any, vision: VisionTokens) -> None:
        """Keep the image processor.

        Args:
            image_processor: The backbone's image processor.
            vision: The properties of the images of the backbone's family.
        """
        self.image_processor = image_processor
        self.vision = vision

    def __call__(self, image: Image.Image) -> tuple[Tensor, Grid]:
        """Return the patches of a decoded image, (patches, numbers) float32, and its grid."""
        output = self.image_processor(images=[image], return_tensors="pt")
        pixel_values, (grid,) = self.vision.read(output, self.vision)
        return pixel_values, grid


class TablePatches:
    """Makes patches by tables of the numbers that the image processor makes of pixels.

    A patch has its channels one after the other. In each channel come the frames of the patch, and in
    a frame the pixels by rows. The frames are equal, because an image has only one. The patches of a
    token follow one another.
    """

    def __init__(self, stock: StockPatches, patch: Patch, sizes: PatchTokens) -> None:
        """Keep what decides the patches; the tables are made when they are needed first.

        Args:
            stock: Makes the same patches by the image processor.
            patch: The sizes of a patch.
            sizes: Computes the size to which an image is scaled.
        """
        self.stock = stock
        self.patch = patch
        self.sizes = sizes

    def __call__(self, image: Image.Image) -> tuple[Tensor, Grid]:
        """Return the patches of a decoded image, (patches, numbers) float32, and its grid.

        The image processor itself converts images that are not RGB, and refuses very long ones.
        """
        is_too_long = max(image.size) > MAX_ASPECT_RATIO * min(image.size)
        if image.mode != "RGB" or is_too_long:
            return self.stock(image)
        return self._make(image, self._tables)

    def _make(self, image: Image.Image, tables: npt.NDArray[np.float32]) -> tuple[Tensor, Grid]:
        """Return the patches and the grid of an RGB image, by tables, (channels, 256)."""
        side = self.patch.patch_size
        merge_size = self.patch.merge_size
        num_channels = len(tables)
        [(height, width)] = self.sizes.scaled(np.array([[image.height, image.width]], np.uint32))
        resample = self.stock.image_processor.resample
        scaled = image.resize((int(width), int(height)), Image.Resampling(resample))
        rows = int(height) // side
        columns = int(width) // side

        pixels = np.asarray(scaled).reshape(
            *(rows // merge_size, merge_size, side),
            *(columns // merge_size, merge_size, side),
            num_channels,
        )
        # Rows and columns of tokens, those of patches in a token, channels, and pixels.
        by_patch = pixels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, num_channels, side * side)
        shape = (len(by_patch), num_channels, self.patch.temporal_patch_size, side * side)
        numbers = np.empty(shape, np.float32)
        for start in range(0, len(by_patch), PATCHES_AT_ONCE):
            end = start + PATCHES_AT_ONCE
            for channel, table in enumerate(tables):
                # Every value is in the table. `clip` is the mode without a check of that.
                looked_up = table.take(by_patch[start:end, channel], mode="clip")
                numbers[start:end, channel] = looked_up[:, None]
        patches = torch.from_numpy(numbers.reshape(len(by_patch), -1))
        return patches, (1, rows, columns)

    @cached_property
    def _tables(self) -> npt.NDArray[np.float32]:
        """The number that the image processor makes of each value in each channel, (channels, 256).

        Raises:
            RuntimeError: The patches of these tables are not those of the image processor.
        """
        side = self.patch.patch_size * self.patch.merge_size
        # An image of a single colour, and of one token, for each value of a pixel.
        colours = [
            Image.new("RGB", (side, side), (value, value, value)) for value in range(NUM_VALUES)
        ]
        output = self.stock.image_processor(images=colours, do_resize=False, return_tensors="pt")
        numbers = output["pixel_values"].numpy()
        by_value = numbers.reshape(NUM_VALUES, -1, self.patch.channels, self._numbers_of_channel)
        tables = np.ascontiguousarray(by_value[:, 0, :, 0].T)

        rows, columns = TRIED_TOKENS
        noise = np.random.default_rng(0).integers(
            0, NUM_VALUES, (rows * side + 1, columns * side - 1, self.patch.channels), np.uint8
        )
        image = Image.fromarray(noise)
        expected, expected_grid = self.stock(image)
        found, grid = self._make(image, tables)
        if grid != expected_grid or not torch.equal(found, expected):
            raise RuntimeError(
                f"transformers {transformers.__version__}: "
                f"{type(self.stock.image_processor).__name__} makes other patches than expected: it "
                "scales images, orders patches or normalises pixels in another way. This project is "
                "tested with transformers 5.17 to 5.23; install one of these versions."
            )
        return tables

    @property
    def _numbers_of_channel(self) -> int:
        """The count of numbers that a patch has in one channel."""
        return self.patch.temporal_patch_size * self.patch.patch_size**2
