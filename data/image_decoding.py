"""Conversion of an opened image to upright 8-bit RGB.

Training, evaluation and saved checkpoints use the same conversion.

This file travels with every checkpoint that has a reward head, so it imports Pillow and nothing
else.
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
"""The turn that makes an image of each EXIF orientation upright; orientation 1 is upright."""
DIRECT_MODES = ("1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV")
ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")


class ImageModeError(ValueError):
    """An image whose mode has no agreed RGB form (32-bit integer, float, Lab)."""


def orientation(opened: Image.Image) -> int:
    """Return the EXIF orientation, 1 (upright) to 8.

    Pillow turns a TIFF by itself. A PNG is asked for its EXIF only if `info` has it, because Pillow
    would decode the whole image to search for it.
    """
    if opened.format == "TIFF" or (opened.format == "PNG" and "exif" not in opened.info):
        return 1
    tag = opened.getexif().get(ORIENTATION_TAG, 1)
    return tag if tag in TURNS else 1


def upright_rgb(opened: Image.Image) -> Image.Image:
    """Return an image, as `Image.open` gave it, as upright RGB.

    Transparency becomes white, and 16 bits are scaled to 8.

    Raises: ImageModeError; the errors that Pillow raises on a damaged file.
    """
    turn = TURNS.get(orientation(opened))
    has_exif_in_header = "exif" in opened.info
    opened.load()
    if not has_exif_in_header:
        # A PNG may have its EXIF behind its pixels. Sizes are read from the header alone, and a
        # second call must not see it either.
        opened.info.pop("exif", None)
    image = _rgb(opened)
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB of 8 bits; raise ImageModeError if its mode has no agreed RGB form."""
    if image.mode in SIXTEEN_BIT_MODES:
        return image.point(lambda value: value / 256, "L").convert("RGB")
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode in DIRECT_MODES:
        return image.convert("RGB")
    raise ImageModeError(
        f"the image has mode {image.mode!r} ({image.format}), for which no conversion to RGB is "
        "agreed on. Save it as 8-bit or 16-bit grey, or as RGB."
    )
