"""Image files that are damaged, odd or far too large, each made in code and small on disk."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

from tests.data.sources.fixtures import RED


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    """Return an image as a file of the given format."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_header(width: int, height: int, extra: bytes = b"") -> bytes:
    """Return a PNG that states a size and holds next to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(b"\0"))
        + chunk(b"IEND", b"")
    )


def bits_flipped(data: bytes, seed: int) -> bytes:
    """Return `data` with eight bytes changed."""
    generator = np.random.default_rng(seed)
    changed = bytearray(data)
    for position in generator.integers(0, len(data), 8):
        changed[position] ^= 1 << int(generator.integers(8))
    return bytes(changed)


@cache
def pictures() -> dict[str, bytes]:
    """Return the files by what is special about them."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8))
    grey16 = Image.fromarray(np.arange(2000, dtype=np.uint16).reshape(40, 50) * 30)
    forms = {
        "PNG": RED,
        **{form: saved(noise, form) for form in ("JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")},
    }
    found = {
        "empty": b"",
        "one byte": b"\x89",
        "text": b"this is not an image",
        "HTML": b"<!doctype html><title>404</title>",
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "1 x 1": saved(Image.new("RGB", (1, 1)), "PNG"),
        "1 x 150": saved(Image.new("RGB", (1, 150)), "PNG"),
        "1 x 5000": saved(Image.new("RGB", (1, 5000)), "PNG"),
        "no pixels": png_header(0, 0),
        "bomb": png_header(100_000, 100_000),
        "bomb that overflows": png_header(2**31 - 1, 2**31 - 1),
        "large and empty": png_header(9000, 9000),
        "text bomb": png_header(
            60, 40, chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 80_000_000, 9))
        ),
        "colour profile of nonsense": saved(noise, "PNG", icc_profile=b"nonsense" * 50),
        "16 bit": saved(grey16, "PNG"),
        "32 bit": saved(Image.new("I", (40, 30)), "TIFF"),
        "float": saved(Image.new("F", (40, 30)), "TIFF"),
        "Lab": saved(Image.new("LAB", (40, 30)), "TIFF"),
        "CMYK": saved(noise.convert("CMYK"), "JPEG"),
        "bilevel": saved(noise.convert("1"), "PNG"),
        "palette with transparency": saved(noise.convert("P"), "PNG", transparency=3),
        "grey with alpha": saved(noise.convert("LA"), "PNG"),
        "animation": saved(
            noise, "GIF", save_all=True, append_images=[noise.rotate(90, expand=True)]
        ),
        "icon in disguise": saved(noise, "ICO"),
        "two files": RED + forms["JPEG"],
    }
    for turn in (0, 3, 6, 8, 9, 65535):
        exif = Image.Exif()
        exif[0x0112] = turn
        found[f"EXIF {turn}"] = saved(noise, "JPEG", exif=exif)
        found[f"EXIF {turn} in PNG"] = saved(noise, "PNG", exif=exif)
    found["broken EXIF"] = saved(noise, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    for form, data in forms.items():
        for share in (0.1, 0.5, 0.95):
            found[f"{form} cut at {share:.0%}"] = data[: int(len(data) * share)]
        for seed in range(4):
            found[f"{form} with flipped bits {seed}"] = bits_flipped(data, seed)
    return found
