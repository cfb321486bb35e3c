"""Conversion of an opened image to upright 8-bit RGB, the same in training, in evaluation and beside a saved checkpoint.

This file travels with every checkpoint that has a reward head, so it imports Pillow and nothing else.
"""

from PIL import Image

ORIENTATION_TAG = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What brings an image of each EXIF orientation upright; orientation 1 is upright."""
DIRECT_MODES = ("1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV")
ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")


class ImageModeError(ValueError):
    """An image whose mode has no agreed RGB form (32-bit integer, float, Lab)."""


def orientation(opened: Image.Image) -> int:
    """Return the EXIF orientation, 1 (upright) to 8.

    Pillow turns a TIFF by itself. Asking a PNG without EXIF for its EXIF decodes it whole, hence the look into `info`.
    """
    if opened.format == "TIFF" or (opened.format == "PNG" and "exif" not in opened.info):
        return 1
    found = opened.getexif().get(ORIENTATION_TAG, 1)
    return found if found in TURNS else 1


def upright_rgb(opened: Image.Image) -> Image.Image:
    """Return an image, as `Image.open` gave it, as upright RGB; transparency becomes white, 16 bits are scaled to 8.

    Raises: ImageModeError; what Pillow raises on a damaged file.
    """
    turn, known = TURNS.get(orientation(opened)), "exif" in opened.info
    opened.load()
    if not known:  # a PNG's EXIF after its pixels: the size is read from the header alone, and a second call must not see it
        opened.info.pop("exif", None)
    image = _rgb(opened)
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in SIXTEEN_BIT_MODES:
        return image.point(lambda value: value / 256, "L").convert("RGB")
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode in DIRECT_MODES:
        return image.convert("RGB")
    raise ImageModeError(
        f"the image has mode {image.mode!r} ({image.format}), for which no conversion to RGB is agreed on. "
        "Save it as 8-bit or 16-bit grey, or as RGB."
    )
