"""Reading of encoded images: paths, headers, sizes, token counts and safe decoding.

An image stays encoded until a worker needs its pixels. Files are not trusted: the formats are a
fixed list, the number of pixels is checked before anything is decoded, and a path may not leave the
folder it was declared under. Every error is a `RecordError` that names the record.
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
"""The formats that are read. Pillow's other plug-ins are not used; EPS, for one, starts
Ghostscript."""
MAX_PIXELS = 89_478_485
"""The size above which Pillow itself warns of a decompression bomb; a 24-bit image of 256 MiB."""
MIN_PIXELS_OF_BACKBONE = 3136
MAX_PIXELS_OF_BACKBONE = 1_003_520
"""The pixel limits of Qwen2.5-VL's processor in the recipes of the papers."""
MAX_ASPECT_RATIO = 200
"""The largest ratio of the sides that Qwen2.5-VL's image processor takes."""
HEAD = 16
"""Number of bytes by which a video is recognised."""
TOKEN_SIDE = 28
"""Side in pixels of the square of an image that becomes one token, unless the backbone has
another."""
SENT_AS_IT_IS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}
"""Media types of the formats that every endpoint reads. Images in other formats, and images that
are stored turned, transparent or in 16 bits, are sent as PNG."""
ELSEWHERE = (
    "If the images are elsewhere, name the folder: `images: FOLDER` at a source in the recipe, "
    "`image_root: FOLDER` at a benchmark (`--benchmarks NAME=PLACE,image_root=FOLDER`)."
)
"""The way out in the message about an image that is not there."""
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
"""Errors that Pillow's readers raise on damaged files. Each plug-in raises its own; they were found
by feeding damaged files to them."""


def image_path(root: Path, name: str, record: str, links: bool = False) -> Path:
    """Return the path of the file `name` under `root`.

    `name` comes from a record, which is not trusted: it may leave the root neither by `..` nor by
    being absolute. Links may lead to `root` itself and, inside a snapshot of the hub's cache, to
    the cache's files of that data set.

    With `links`, a link under `root` may also lead out of it, to a folder of images or to one
    image, if the owner of `root` or the user of this process made the link. Records cannot make
    links: archives are read without being unpacked. The following links stay refused: links of
    another user (in a folder that several may write to), links inside a snapshot of the hub's
    cache, and a second link that leads out of the first one's folder. A server, whose clients
    choose names, does not use `links`.

    Raises: ImageError, naming `record`, if the path leaves the root or is no file.
    """
    path = resolved(root, name, record, links)
    try:
        require_regular(path)
    except SpecialFileError as error:
        raise ImageError(f"{record}: the image {_short(name)} cannot be used: {error}") from error
    except OSError as error:
        raise ImageError(
            f"{record}: the image {_short(name)} is not there ({path} is no file). Looked in: "
            f"{root.resolve()}. {ELSEWHERE}"
        ) from error
    return path


def resolved(root: Path, name: str, record: str, links: bool = False) -> Path:
    """Return the path of `name` under `root` with all links followed, whether or not it exists.

    Arguments and errors are those of `image_path`.
    """
    try:
        boundary = root.resolve()
        path = (boundary / name).resolve()
        path.is_file()  # raises for an over-long name and for a folder without access
        is_allowed = _is_allowed(path, boundary, name, links)
    # Links in a circle are a RuntimeError, and a NUL in the name is a ValueError.
    except (OSError, RuntimeError, ValueError) as error:
        raise ImageError(
            f"{record}: the image path {_short(name)} cannot be followed ({type(error).__name__}). "
            "Required is the path of a file under the image folder, without NUL characters or "
            "links in a circle."
        ) from error
    if not is_allowed:
        through = ", or behind a link there that the folder's owner or you made" if links else ""
        raise ImageError(
            f"{record}: the image path {_short(name)} leads to {path}, outside of the declared "
            f"image folder {boundary}. Records may only name files under that folder{through}. "
            "Correct the path, or declare the folder of the images."
        )
    return path


def _is_allowed(path: Path, boundary: Path, name: str, links: bool) -> bool:
    """Return True if a record may name `path`, to which `name` under `boundary` leads."""
    if path.is_relative_to(boundary):
        return True
    blobs = _blobs_of_snapshot(boundary)
    if blobs is not None:
        return path.parent == blobs
    return links and _by_an_owners_link(boundary, Path(name))


def _blobs_of_snapshot(folder: Path) -> Path | None:
    """Return the folder of a data set's files if `folder` is inside a snapshot of the hub's cache.

    In the cache, `snapshots/COMMIT/name` is a link to a file in the folder `blobs` next to
    `snapshots`.
    """
    for parent in folder.parents:
        if parent.name == "snapshots":
            blobs = parent.with_name("blobs")
            return blobs if blobs.is_dir() else None
    return None


def _by_an_owners_link(boundary: Path, name: Path) -> bool:
    """Return True if `name` leaves `boundary` through one link that its owner or this user made."""
    if name.is_absolute() or ".." in name.parts:
        return False
    allowed_makers = {boundary.stat().st_uid, os.geteuid()}
    here = boundary
    area = boundary
    for part in name.parts:
        here /= part
        if not here.is_symlink():
            continue
        maker = here.lstat().st_uid
        here = here.resolve()
        if here.is_relative_to(area):
            continue
        is_second_way_out = area != boundary
        if is_second_way_out or maker not in allowed_makers:
            return False
        area = here
    return True


def _short(name: str) -> str:
    """Return a name in quotes for a message, of at most 200 characters."""
    return repr(name if len(name) <= 200 else name[:200] + "…")


def from_data_uri(uri: str, record: str) -> bytes:
    """Return the bytes of an image written as `data:image/png;base64,…`.

    Raises: ImageError if `uri` is not of that form.
    """
    if uri.startswith("data:video/"):
        raise ImageError(f"{record}: {uri[:40]!r}… is a video in the place of an image. {ADVICE}")
    if not re.match("data:image/[^,]*;base64,", uri):
        raise ImageError(
            f"{record}: {uri[:40]!r}… is no image data URI; required is "
            "'data:image/<format>;base64,<data>'."
        )
    try:
        return base64.b64decode(uri.partition(",")[2], validate=True)
    except ValueError as error:
        raise ImageError(f"{record}: the image data URI holds broken base64 ({error}).") from error


def data_uri(image: EncodedImage, record: str) -> str:
    """Return an image as `data:image/png;base64,…`.

    The file is sent unchanged if every endpoint shows it in the same way, and as PNG otherwise.
    """
    content = _content(image, record)
    with opened(content, record) as header:
        media_type = _media_type_as_it_is(header)
    if media_type is None:
        buffer = io.BytesIO()
        decode(image, record).save(buffer, "PNG")
        media_type = "image/png"
        content = buffer.getvalue()
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _media_type_as_it_is(image: Image.Image) -> str | None:
    """Return the media type of an image that can be sent unchanged, else None."""
    is_opaque = image.mode in ("L", "P", "RGB") and "transparency" not in image.info
    if not is_opaque or orientation(image) != 1:
        return None
    return SENT_AS_IT_IS.get(image.format or "")


def _content(image: EncodedImage, record: str) -> bytes:
    """Return the encoded image; raise ImageError if its file cannot be read."""
    if isinstance(image, bytes):
        return image
    try:
        return read_bytes(image)
    except (OSError, SpecialFileError) as error:
        raise ImageError(f"{record}: the image {image} cannot be read: {error}") from error


def image_size(image: EncodedImage, record: str) -> tuple[int, int]:
    """Return (height, width) in pixels as displayed, with EXIF orientation, from the header alone.

    Raises: ImageError as `decode` does, except for damage behind the header, and for a shape that
    the backbone's image processor refuses.
    """
    with opened(image, record) as header:
        width, height = header.size
        is_on_its_side = orientation(header) >= 5
    if is_on_its_side:
        width, height = height, width
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise ImageError(
            f"{record}: the image is {width} pixels wide and {height} high, and Qwen2.5-VL takes "
            f"at most {MAX_ASPECT_RATIO} : 1 between the sides. Crop it, or leave the record out."
        )
    return height, width


def grey_like(image: EncodedImage, record: str) -> bytes:
    """Return a grey PNG of the image's size; raises ImageError as `image_size` does."""
    height, width = image_size(image, record)
    return _grey_png(height, width)


@lru_cache(maxsize=256)
def _grey_png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (128, 128, 128)).save(buffer, "PNG")
    return buffer.getvalue()


def decode(image: EncodedImage, record: str) -> Image.Image:
    """Return the image as upright RGB of 8 bits.

    Transparency becomes white, and of an animation the first frame is taken.

    Raises: ImageError naming `record` for a missing, truncated or damaged file, an unknown format,
    a mode without an agreed RGB form (32-bit integer, float, Lab), and more than MAX_PIXELS pixels,
    which are counted before decoding.
    """
    with opened(image, record) as header:
        return upright_rgb(header)


@dataclass(frozen=True, slots=True)
class PatchTokens:
    """Counts the tokens of images that are scaled as a whole, as by Qwen2.5-VL's processor.

    An image is scaled until its area is between two limits, and each square of it becomes a token.
    """

    min_pixels: int = MIN_PIXELS_OF_BACKBONE
    max_pixels: int = MAX_PIXELS_OF_BACKBONE
    side: int = TOKEN_SIDE
    """Side of the square of one token in pixels."""
    how: ClassVar[str] = ""
    """Beginning of a description; empty, because there is nothing to add to the number of
    tokens."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The number of tokens of the smallest and of the largest image."""
        area = self.side**2
        return ceil(self.min_pixels / area), max(1, self.max_pixels // area)

    def __call__(self, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each image, int64 of shape (images,).

        `sizes` has a row (height, width) for each image, (images, 2).
        """
        sides = resized(sizes, self.min_pixels, self.max_pixels, self.side) // self.side
        return np.asarray(sides[:, 0] * sides[:, 1])


@dataclass(frozen=True, slots=True)
class TileTokens:
    """Counts the tokens of images that are cut into square tiles, as by InternVL's processor.

    Every tile has the same number of tokens. An image that is cut into several tiles has a further
    tile, which shows the whole image.
    """

    min_tiles: int
    """The fewest tiles, without the tile of the whole image."""
    max_tiles: int
    """The most tiles, without the tile of the whole image."""
    side: int
    """Side of a tile in pixels."""
    tokens: int
    """Number of tokens of a tile."""

    @classmethod
    def within(cls, min_pixels: int, max_pixels: int, side: int, tokens: int) -> "TileTokens":
        """Return as many tiles as the limits of an image's pixels allow.

        The tile of the whole image is counted, so that `max_pixels` gives as many tokens as with a
        backbone that scales images as a whole. An image has at least one tile.

        Example: with tiles of 448 x 448 pixels, 1,003,520 pixels are the area of five tiles. These
        are at most four tiles and the tile of the whole image.

        Raises: UserError if no number of tiles fits.
        """
        area = side**2
        fewest_with_whole = ceil(min_pixels / area)
        most_with_whole = max_pixels // area
        if most_with_whole < 1:
            raise UserError(
                f"backbone.max_pixels is {max_pixels:,}, but this backbone sees an image as tiles "
                f"of {side} x {side} pixels, at least one. Set it to {area:,} or more. From "
                f"{3 * area:,} on there are two tiles, and one of the whole image."
            )
        # Two tiles come with a third one of the whole image. So a limit of two tiles is one of one.
        fewest = fewest_with_whole - 1 if fewest_with_whole > 2 else fewest_with_whole
        most = most_with_whole - 1 if most_with_whole > 2 else 1
        if fewest > most:
            raise UserError(
                f"backbone.min_pixels is {min_pixels:,} and backbone.max_pixels is {max_pixels:,}, "
                f"and no number of tiles of {side} x {side} pixels, with one of the whole image if "
                f"there are several, is between them. Lower min_pixels to {area:,}, which is one "
                f"tile, or raise max_pixels to {3 * area:,}."
            )
        return cls(fewest, most, side, tokens)

    @property
    def how(self) -> str:
        """Beginning of a description, which the number of tokens follows."""
        if self.max_tiles == 1:
            return f"one tile of {self.side} x {self.side} pixels, "
        return (
            f"{self.min_tiles} to {self.max_tiles} tiles of {self.side} x {self.side} pixels, "
            "several with one of the whole, "
        )

    @property
    def bounds(self) -> tuple[int, int]:
        """The number of tokens of the smallest and of the largest image."""
        num_tiles = np.array([self.min_tiles, self.max_tiles])
        fewest, most = self._tokens_of_tiles(num_tiles).tolist()
        return fewest, most

    def __call__(self, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each image, int64 of shape (images,).

        `sizes` has a row (height, width) for each image, (images, 2).
        """
        return self._tokens_of_tiles(tiled(sizes, self.min_tiles, self.max_tiles, self.side))

    def _tokens_of_tiles(self, num_tiles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of images with these numbers of tiles, (images,)."""
        with_whole_image = np.where(num_tiles > 1, num_tiles + 1, num_tiles)
        return np.asarray(with_whole_image * self.tokens)


ImageTokens = PatchTokens | TileTokens
"""Counts the tokens that images of given sizes become in a backbone."""
DEFAULT_IMAGE_TOKENS = PatchTokens()
"""The tokens of Qwen2.5-VL, for use without a backbone."""


def image_tokens_of(config: Mapping[str, Any], min_pixels: int, max_pixels: int) -> ImageTokens:
    """Return the counter of image tokens of a backbone of any family by its config.json.

    A model that cuts images into tiles has `downsample_ratio`, and its tower has the size of a
    tile. Other models merge squares of patches into a token. If `spatial_merge_size` is missing,
    the squares have 2 x 2 patches, because older versions of transformers left out that default. A
    tower with `num_channels`, where Qwen's has `in_channels`, makes a token of each patch in that
    case.

    Raises: UserError for limits that no image can keep, KeyError for a config.json without a vision
    tower.
    """
    vision = config["vision_config"]
    patch = _side(vision.get("patch_size", 14))
    if "downsample_ratio" in config:
        tile = _side(vision["image_size"])
        tokens_on_side = round(tile / patch * config["downsample_ratio"])
        return TileTokens.within(min_pixels, max_pixels, tile, tokens_on_side**2)
    default_merge = 1 if "num_channels" in vision else 2
    merge = vision.get("spatial_merge_size", default_merge)
    return PatchTokens(min_pixels, max_pixels, patch * merge)


def _side(size: int | Sequence[int]) -> int:
    """Return the side of a square that is given by one number or by height and width."""
    return size if isinstance(size, int) else size[0]


def tiled(
    sizes: npt.NDArray[np.uint32], min_tiles: int, max_tiles: int, side: int
) -> npt.NDArray[np.int64]:
    """Return the number of tiles into which InternVL's processor cuts each image, (images,).

    It takes the grid of tiles whose aspect ratio is nearest to the image's. Among equally near
    grids it takes the largest one that has less than twice the image's area, or else the smallest.

    Args:
        sizes: (height, width) of each image in pixels, (images, 2).
        min_tiles: The fewest tiles of a grid.
        max_tiles: The most tiles of a grid.
        side: Side of a tile in pixels.
    """
    grids = [
        (columns, rows)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles + 1)
        if min_tiles <= columns * rows <= max_tiles
    ]
    height, width = sizes.astype(np.float64).T
    smallest_difference = np.full(len(sizes), np.inf)
    num_tiles = np.ones(len(sizes), np.int64)
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = np.abs(width / height - columns / rows)
        is_nearer = difference < smallest_difference
        is_as_near = difference == smallest_difference
        is_small_enough = width * height > 0.5 * side**2 * columns * rows
        is_better = is_nearer | (is_as_near & is_small_enough)
        smallest_difference = np.minimum(smallest_difference, difference)
        num_tiles = np.where(is_better, columns * rows, num_tiles)
    return num_tiles


def resized(
    sizes: npt.NDArray[np.uint32], min_pixels: int, max_pixels: int, side: int = TOKEN_SIDE
) -> npt.NDArray[np.int64]:
    """Return the sizes to which Qwen's processor scales images, int64 of shape (images, 2).

    They are multiples of `side`, the side of a token's square, and their area is within the limits.
    Unlike `image_size`, this refuses no shape.

    Example: with the limits of the papers, an image of 480 x 640 pixels becomes 476 x 644.

    `sizes` has a row (height, width) for each image, (images, 2).
    """
    sides = sizes.astype(np.float64)
    area = np.maximum(sides[:, :1] * sides[:, 1:], 1)
    rounded = np.rint(sides / side)
    rounded_area = rounded[:, :1] * rounded[:, 1:] * side**2
    scaled_down = np.maximum(1, np.floor(sides / np.sqrt(area / max_pixels) / side))
    scaled_up = np.ceil(sides * np.sqrt(min_pixels / area) / side)
    multiples = np.where(rounded_area < min_pixels, scaled_up, rounded)
    multiples = np.where(rounded_area > max_pixels, scaled_down, multiples)
    return multiples.astype(np.int64) * side


@contextmanager
def opened(image: EncodedImage, record: str) -> Iterator[Image.Image]:
    """Open an image up to its header for the block.

    Raises: ImageError naming `record` for anything that goes wrong, here and in the block.
    """
    description = str(image) if isinstance(image, Path) else f"of {len(image):,} bytes"
    subject = f"{record}: the image {description}"
    if isinstance(image, Path) and is_video_name(image.name):
        raise ImageError(f"{subject} is a video. {ADVICE}")
    try:
        with _file_of(image) as file, Image.open(file, formats=FORMATS) as header:
            if header.width * header.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{header.width} x {header.height} pixels")
            yield header
    except ImageModeError as error:
        raise ImageError(f"{record}: {error}") from error
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"{subject} is too large to decode ({error}); allowed are {MAX_PIXELS:,} pixels. Scale "
            "it down on disk, or leave it out."
        ) from error
    except FileNotFoundError as error:
        raise ImageError(f"{subject} is not there.") from error
    except SpecialFileError as error:
        raise ImageError(f"{subject} cannot be used: {error}") from error
    except UnidentifiedImageError as error:
        with _file_of(image) as file:
            head = file.read(HEAD)
        reason = f"is none of {', '.join(FORMATS)}, or its header is damaged."
        if is_video(head):
            reason = f"is a video. {ADVICE}"
        raise ImageError(f"{subject} {reason}") from error
    except BROKEN as error:
        raise ImageError(f"{subject} is truncated or damaged: {error}.") from error


def _file_of(image: EncodedImage) -> BinaryIO:
    """Return the encoded image as an open file; raises as `open_regular` does."""
    if isinstance(image, bytes):
        return io.BytesIO(image)
    return open_regular(image)
