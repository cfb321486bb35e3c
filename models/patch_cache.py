"""Images as a backbone's image processor returns them, each processed once while it is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrm.data.images import decode
from mmrm.data.preference import EncodedImage
from mmrm.models.cancellation import stop_if_abandoned
from mmrm.models.image_patches import ImagePatches
from mmrm.models.packing.segments import ProcessedImage
from mmrm.models.packing.vision import VisionTokens

if TYPE_CHECKING:
    from PIL.Image import Image


class PatchCache:
    """Processes images, and keeps those of the last call.

    Pairs with one prompt follow one another, so the last images are often needed again. Threads of
    a server may call the same object.
    """

    def __init__(self, patches: ImagePatches, vision: VisionTokens) -> None:
        """Create a cache for the images of one backbone.

        Args:
            patches: Makes the patches of an image.
            vision: The properties of the images of the backbone's family.
        """
        self.patches = patches
        self.vision = vision
        self._last: dict[EncodedImage, ProcessedImage] = {}

    def of_encoded(
        self, images: Sequence[EncodedImage], record: str
    ) -> dict[EncodedImage, ProcessedImage]:
        """Return encoded images, processed.

        Args:
            images: The contents of image files, or their paths.
            record: Identity of the record, for messages.

        Raises:
            RecordError: An image cannot be decoded.
        """
        # Read only once, because another thread may replace the attribute in between.
        last = self._last
        processed: dict[EncodedImage, ProcessedImage] = {}
        for image in images:
            if image in processed:
                continue
            stop_if_abandoned()
            if image in last:
                processed[image] = last[image]
            else:
                processed[image] = self.of_decoded(decode(image, record))
        if processed:
            self._last = processed
        return processed

    def of_decoded(self, image: Image) -> ProcessedImage:
        """Return a decoded image, processed."""
        pixel_values, grid = self.patches(image)
        frames, rows, columns = grid
        # Images with the same pixels are the same image, whatever files they come from.
        digest = hashlib.sha256(f"{image.mode} {image.size}".encode())
        digest.update(image.tobytes())
        # The bytes of an image with a palette are only indices into the palette.
        digest.update(bytes(image.getpalette() or ()))
        return ProcessedImage(
            content=digest.hexdigest(),
            grid=grid,
            num_tokens=frames * rows * columns // self.vision.merge_size**2,
            pixel_values=pixel_values,
        )
