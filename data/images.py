"""Images between the file and the processor: safe decoding, and the size and token count from the header alone.

An image stays encoded until a worker needs its pixels. Nothing here trusts the file: the formats are a fixed list,
the number of pixels is checked before anything is decoded, and a path may not leave the folder it was declared under.
Every error is a `RecordError` that names the record.
"""

import base64
import io
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from mmrm.data.errors import ImageError, SpecialFileError, UserError
from mmrm.data.image_decoding import ImageModeError, orientation, upright_rgb
from mmrm.data.preference import EncodedImage
from mmrm.data.regular_files import open_regular, read_bytes, require_regular
from mmrm.data.video import ADVICE, is_video, is_video_name

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is read; Pillow's other plug-ins (EPS starts Ghostscript) are not used."""
MAX_PIXELS = 89_478_485
"""The size at which Pillow itself begins to warn of a decompression bomb; a 24-bit image of 256 MiB."""
MIN_PIXELS_OF_BACKBONE, MAX_PIXELS_OF_BACKBONE = 3136, 1_003_520
"""The pixel limits of Qwen2.5-VL's processor in the recipes of the papers."""
HEAD = 16
"""Bytes that tell a video."""
TOKEN_SIDE = 28
"""Side in pixels of the square of an image that becomes one token, where no backbone says another."""
SENT_AS_IT_IS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}
"""What every endpoint reads; other formats, and images that are stored turned, transparent or in 16 bits, are sent as PNG."""
ELSEWHERE = (
    "If the images lie elsewhere, name the folder: `images: FOLDER` at a source in the recipe, `image_root: FOLDER` at a "
    "benchmark (`--benchmarks NAME=PLACE,image_root=FOLDER`)."
)
"""What to do about an image that is not there."""
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)
"""What Pillow's readers raise on a damaged file (each plug-in its own; found by feeding it damaged files)."""


def image_path(root: Path, name: str, record: str, links: bool = False) -> Path:
    """Return the file `name` under `root`.

    `name` comes from a record, which is not trusted: neither `..` nor an absolute path may leave the root. Links may lead to
    `root` itself and, inside a snapshot of the hub's cache, to the cache's files of that data set.

    `links` also follows a link that lies under `root` and leads out of it, to a folder of images or one image, if the owner
    of `root` or the user of this process made it: links are no record's work. Archives are read, never unpacked, and bring
    none; a link of somebody else (in a folder that several may write to), a link inside a snapshot of the hub's cache, and a
    second link that leads on out of the first one's folder stay refused. A server, whose clients choose names, takes none.

    Raises: ImageError if the path leaves the root (by `..`, by being absolute, or through any other link) or is no file.
    """
    path = resolved(root, name, record, links)
    try:
        require_regular(path)
    except SpecialFileError as error:
        raise ImageError(f"{record}: the image {_short(name)} cannot be used: {error}") from error
    except OSError as error:
        raise ImageError(
            f"{record}: the image {_short(name)} is not there: {path} is no file. Looked in: {root.resolve()}. {ELSEWHERE}"
        ) from error
    return path


def resolved(root: Path, name: str, record: str, links: bool = False) -> Path:
    """Return where `name` under `root` leads once all links are followed, be there something or not; else as `image_path`."""
    try:
        boundary = root.resolve()
        path = (boundary / name).resolve()
        path.is_file()  # an over-long name and a folder without access show only here
        blobs = next(
            (
                folder.with_name("blobs")
                for folder in boundary.parents
                if folder.name == "snapshots"
            ),
            None,
        )
        in_hub_cache = blobs is not None and blobs.is_dir()
        inside = path.is_relative_to(boundary) or (in_hub_cache and path.parent == blobs)
        inside = inside or (links and not in_hub_cache and _by_an_owners_link(boundary, Path(name)))
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # links in a circle are a RuntimeError, a NUL is a ValueError
        raise ImageError(
            f"{record}: the image path {_short(name)} cannot be followed ({type(error).__name__}). Required is the path of a "
            "file under the image folder, without NUL characters or links in a circle."
        ) from error
    if not inside:
        through = ", or behind a link there that the folder's owner or you made" if links else ""
        raise ImageError(
            f"{record}: the image path {_short(name)} leads to {path}, outside of the declared image folder {boundary}. "
            f"Records may only name files under that folder{through}: correct the path, or declare the folder of the images."
        )
    return path


def _by_an_owners_link(boundary: Path, name: Path) -> bool:
    """Say whether `name` leaves `boundary` by one link in it, made by its owner or by this user, and stays behind that link."""
    if name.is_absolute() or ".." in name.parts:
        return False
    makers, place, area = {boundary.stat().st_uid, os.geteuid()}, boundary, boundary
    for part in name.parts:
        place /= part
        if place.is_symlink():
            maker, place = place.lstat().st_uid, place.resolve()
            if not place.is_relative_to(area):
                if area != boundary or maker not in makers:
                    return False
                area = place
    return True


def _short(name: str) -> str:
    return repr(name if len(name) <= 200 else name[:200] + "…")


def from_data_uri(uri: str, record: str) -> bytes:
    """Return the bytes of an image written as `data:image/png;base64,…`.

    Raises: ImageError if `uri` is not of that form.
    """
    if uri.startswith("data:video/"):
        raise ImageError(f"{record}: {uri[:40]!r}… is a video in the place of an image. {ADVICE}")
    if not re.match("data:image/[^,]*;base64,", uri):
        raise ImageError(
            f"{record}: {uri[:40]!r}… is no image data URI; required is 'data:image/<format>;base64,<data>'."
        )
    try:
        return base64.b64decode(uri.partition(",")[2], validate=True)
    except ValueError as error:  # also for letters that are not ASCII
        raise ImageError(f"{record}: the image data URI holds broken base64 ({error}).") from error


def data_uri(image: EncodedImage, record: str) -> str:
    """Return an image as `data:image/png;base64,…`: its own file where every endpoint shows it alike, else PNG."""
    content = _content(image, record)
    with opened(content, record) as found:
        plain = (
            found.mode in ("L", "P", "RGB")
            and "transparency" not in found.info
            and orientation(found) == 1
        )
        mime = SENT_AS_IT_IS.get(found.format or "") if plain else None
    if mime is None:
        buffer = io.BytesIO()
        decode(image, record).save(buffer, "PNG")
        mime, content = "image/png", buffer.getvalue()
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def _content(image: EncodedImage, record: str) -> bytes:
    """Return the encoded image; raise ImageError if its file cannot be read."""
    if isinstance(image, bytes):
        return image
    try:
        return read_bytes(image)
    except (OSError, SpecialFileError) as error:
        raise ImageError(f"{record}: the image {image} cannot be read: {error}") from error


def image_size(image: EncodedImage, record: str) -> tuple[int, int]:
    """Return (height, width) in pixels as displayed (EXIF orientation applied), from the header alone.

    Raises: ImageError as `decode`, except for damage behind the header; for a shape that the backbone's image processor refuses.
    """
    with opened(image, record) as found:
        height, width = found.size if orientation(found) >= 5 else found.size[::-1]
    if max(height, width) > 200 * min(height, width):
        raise ImageError(
            f"{record}: an image {width} pixels wide and {height} high: Qwen2.5-VL takes at most 200 : 1 between the sides."
        )
    return height, width


def grey_like(image: EncodedImage, record: str) -> bytes:
    """Return a PNG of the image's size that is grey all over; raises ImageError as `image_size` does."""
    return _grey_png(*image_size(image, record))


@lru_cache(maxsize=256)
def _grey_png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (128, 128, 128)).save(buffer, "PNG")
    return buffer.getvalue()


def decode(image: EncodedImage, record: str) -> Image.Image:
    """Return the image as upright RGB of 8 bits; transparency becomes white, of an animation the first frame is taken.

    Raises: ImageError naming `record` for a missing, truncated or damaged file, an unknown format, a mode without an
    agreed RGB form (32-bit integer, float, Lab), and more than MAX_PIXELS pixels, which are counted before decoding.
    """
    with opened(image, record) as found:
        return upright_rgb(found)


@dataclass(frozen=True, slots=True)
class PatchTokens:
    """Tokens of images that are scaled as a whole: one for each square of `side` pixels, their area between two limits."""

    min_pixels: int = MIN_PIXELS_OF_BACKBONE
    max_pixels: int = MAX_PIXELS_OF_BACKBONE
    side: int = TOKEN_SIDE
    how: ClassVar[str] = ""

    @property
    def bounds(self) -> tuple[int, int]:
        """Tokens of the smallest and of the largest image."""
        return ceil(self.min_pixels / self.side**2), max(1, self.max_pixels // self.side**2)

    def __call__(self, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the tokens of images of these (height, width), int64 of shape (images,)."""
        sides = resized(sizes, self.min_pixels, self.max_pixels, self.side) // self.side
        return np.asarray(sides[:, 0] * sides[:, 1])


@dataclass(frozen=True, slots=True)
class TileTokens:
    """Tokens of images that are cut into square tiles, of equally many tokens each; several have one of the whole image too."""

    min_tiles: int
    """As the two of an image processor: without the tile of the whole image."""
    max_tiles: int
    side: int
    """Pixels."""
    tokens: int
    """Of a tile."""

    @classmethod
    def within(cls, min_pixels: int, max_pixels: int, side: int, tokens: int) -> "TileTokens":
        """Return as many tiles as the limits of an image's pixels allow, that of the whole image counted.

        So `max_pixels` buys as many tokens as of a backbone that scales images as a whole. There is no size between two numbers
        of tiles, and no image becomes less than a tile. Raises UserError where no number fits.
        """
        area = side**2
        low, high = ceil(min_pixels / area), max_pixels // area
        if high < 1:
            raise UserError(
                f"backbone.max_pixels is {max_pixels:,}, but this backbone sees an image as tiles of {side} x {side} pixels, at "
                f"least one: give {area:,} or more. From {3 * area:,} on there are two tiles, with one of the whole "
                "image beside them."
            )
        least, most = low - (low > 2), high - 1 if high > 2 else 1
        if least > most:
            raise UserError(
                f"backbone.min_pixels {min_pixels:,} and max_pixels {max_pixels:,}: no number of tiles of {side} x {side} "
                f"pixels, with one of the whole image beside several, lies between. Lower min_pixels to {area:,}, which is one "
                f"tile, or raise max_pixels to {3 * area:,}."
            )
        return cls(least, most, side, tokens)

    @property
    def how(self) -> str:
        """In words."""
        if self.max_tiles == 1:
            return f"one tile of {self.side} x {self.side} pixels, "
        return f"{self.min_tiles} to {self.max_tiles} tiles of {self.side} x {self.side} pixels, several with one of the whole, "

    @property
    def bounds(self) -> tuple[int, int]:
        """Tokens of the smallest and of the largest image."""
        low, high = (tiles + (tiles > 1) for tiles in (self.min_tiles, self.max_tiles))
        return low * self.tokens, high * self.tokens

    def __call__(self, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the tokens of images of these (height, width), int64 of shape (images,)."""
        tiles = tiled(sizes, self.min_tiles, self.max_tiles, self.side)
        return (tiles + (tiles > 1)) * self.tokens


ImageTokens = PatchTokens | TileTokens
"""How many tokens images of given sizes become; a backbone decides which."""
DEFAULT_IMAGE_TOKENS = PatchTokens()
"""Qwen2.5-VL's, where no backbone is named."""


def image_tokens_of(config: Mapping[str, Any], min_pixels: int, max_pixels: int) -> ImageTokens:
    """Return how many tokens images become in a backbone whose config.json is `config`, whatever its family.

    A tower for tiles has the size of an image in it, and a model that makes fewer tokens of their patches says by what; others
    merge squares of patches, of 2 x 2 where older versions of transformers left that default out. A tower that has
    `num_channels` in place of Qwen's `in_channels` and names no square makes a token of each patch. Raises: UserError for limits
    that no image can keep, KeyError for a config.json without a vision tower.
    """
    vision = config["vision_config"]
    patch = _one(vision.get("patch_size", 14))
    if "downsample_ratio" in config:
        side = _one(vision["image_size"])
        return TileTokens.within(
            min_pixels, max_pixels, side, round(side / patch * config["downsample_ratio"]) ** 2
        )
    merge = 1 if "num_channels" in vision else 2
    return PatchTokens(min_pixels, max_pixels, patch * vision.get("spatial_merge_size", merge))


def _one(side: int | Sequence[int]) -> int:
    """Return the side of a square that is given by one number or by height and width."""
    return side if isinstance(side, int) else side[0]


def tiled(sizes: npt.NDArray[np.uint32], low: int, high: int, side: int) -> npt.NDArray[np.int64]:
    """Return into how many tiles InternVL's processor cuts images: those in rows and columns whose aspect ratio is the nearest.

    Of equally near ones the largest that has less than twice the image's area, or the smallest. `sizes` are as in `resized`.
    """
    shapes = [
        (columns, rows)
        for columns in range(1, high + 1)
        for rows in range(1, high + 1)
        if low <= columns * rows <= high
    ]
    height, width = sizes.astype(np.float64).T
    nearest, found = np.full(len(sizes), np.inf), np.ones(len(sizes), np.int64)
    for columns, rows in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
        away = np.abs(width / height - columns / rows)
        better = (away < nearest) | (
            (away == nearest) & (width * height > 0.5 * side**2 * columns * rows)
        )
        nearest, found = np.minimum(nearest, away), np.where(better, columns * rows, found)
    return found


def resized(
    sizes: npt.NDArray[np.uint32], min_pixels: int, max_pixels: int, side: int = TOKEN_SIDE
) -> npt.NDArray[np.int64]:
    """Return the sizes that Qwen's processor scales images to: multiples of a token's `side`, their area within the limits.

    `sizes` and the result hold (height, width) in rows; no shape is refused, as `image_size` does.
    """
    sides = sizes.astype(np.float64)
    area = np.maximum(sides[:, :1] * sides[:, 1:], 1)
    steps = np.rint(sides / side)
    pixels = steps[:, :1] * steps[:, 1:] * side**2
    smaller = np.maximum(1, np.floor(sides / np.sqrt(area / max_pixels) / side))
    larger = np.ceil(sides * np.sqrt(min_pixels / area) / side)
    chosen = np.where(pixels > max_pixels, smaller, np.where(pixels < min_pixels, larger, steps))
    return chosen.astype(np.int64) * side


@contextmanager
def opened(image: EncodedImage, record: str) -> Iterator[Image.Image]:
    """Open an image up to its header; turn what goes wrong, here and while it is in use, into an ImageError."""
    what = str(image) if isinstance(image, Path) else f"of {len(image):,} bytes"
    where = f"{record}: the image {what}"
    if isinstance(image, Path) and is_video_name(image.name):
        raise ImageError(f"{where} is a video. {ADVICE}")
    try:
        with _file_of(image) as file, Image.open(file, formats=FORMATS) as found:
            if found.width * found.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{found.width} x {found.height} pixels")
            yield found
    except ImageModeError as error:
        raise ImageError(f"{record}: {error}") from error
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"{where} is too large to decode: {error}, allowed are {MAX_PIXELS:,} pixels. Scale it down on disk, or leave it out."
        ) from error
    except FileNotFoundError as error:
        raise ImageError(f"{where} is not there.") from error
    except SpecialFileError as error:
        raise ImageError(f"{where} cannot be used: {error}") from error
    except UnidentifiedImageError as error:
        with _file_of(image) as file:
            head = file.read(HEAD)
        reason = f"is none of {', '.join(FORMATS)}, or its header is damaged."
        if is_video(head):
            reason = f"is a video. {ADVICE}"
        raise ImageError(f"{where} {reason}") from error
    except BROKEN as error:
        raise ImageError(f"{where} is truncated or damaged: {error}.") from error


def _file_of(image: EncodedImage) -> BinaryIO:
    """Return the encoded image as an open file; raises as `open_regular` does."""
    if isinstance(image, bytes):
        return io.BytesIO(image)
    return open_regular(image)
