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
"""Pillow's modes that it converts to RGB by itself."""
ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
"""Pillow's modes with transparency."""
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's modes of grey images with 16 bits."""


class ImageModeError(ValueError):
    """An image whose mode has no agreed RGB form (32-bit integer, float, Lab)."""


def orientation(opened: Image.Image) -> int:
    """Return the orientation of an opened image by its EXIF data: 1 (upright) to 8.

    The result is 1 for an image without an orientation, and for a TIFF, which Pillow itself turns.
    Only the header of the file is read.
    """
    if opened.format == "TIFF":
        return 1
    # `getexif` would decode the whole PNG to search for EXIF data that are not in its header.
    if opened.format == "PNG" and "exif" not in opened.info:
        return 1
    tag = opened.getexif().get(ORIENTATION_TAG, 1)
    return tag if tag in TURNS else 1


def upright_rgb(opened: Image.Image) -> Image.Image:
    """Decode an image that `Image.open` returned, and return it as upright RGB of 8 bits.

    Transparency becomes white, and values of 16 bits are scaled to 8.

    Raises: ImageModeError if the mode of the image has no agreed RGB form. Pillow's own errors, of
    many classes, for a damaged file.
    """
    turn = TURNS.get(orientation(opened))
    has_exif_in_header = "exif" in opened.info
    opened.load()
    if not has_exif_in_header:
        # A PNG may have its EXIF data behind its pixels, where `load` finds them. They are ignored,
        # because an image's size is computed from its header alone.
        opened.info.pop("exif", None)
    image = _rgb(opened)
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB of 8 bits; raise ImageModeError if its mode has no agreed RGB form."""
    if image.mode in SIXTEEN_BIT_MODES:
        eight_bit = image.point(lambda value: value / 256, "L")
        return eight_bit.convert("RGB")
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", transparent.size, "white")
        return Image.alpha_composite(white, transparent).convert("RGB")
    if image.mode in DIRECT_MODES:
        return image.convert("RGB")
    raise ImageModeError(
        f"the image has mode {image.mode!r} ({image.format}), for which no conversion to RGB is "
        "agreed on. Save it as 8-bit or 16-bit grey, or as RGB."
    )
