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

from mmrm.data.encoded_video import VideoConfig, num_sampled_frames
from mmrm.data.errors import ImageError, SpecialFileError, UserError
from mmrm.data.frame_sampling import FRAMES_OF_PATCH, frame_size
from mmrm.data.image_decoding import ImageModeError, orientation, upright_rgb
from mmrm.data.preference import EncodedImage
from mmrm.data.regular_files import open_regular, read_bytes, require_regular
from mmrm.data.video import (
    BYTES_TO_RECOGNISE_VIDEO,
    VIDEO_PART_ADVICE,
    is_video,
    is_video_name,
)

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
FIRST_SIDEWAYS_ORIENTATION = 5
"""EXIF orientations from 5 to 8 exchange height and width."""
TOKEN_SIDE = 28
"""Side in pixels of the square of an image that becomes one token, unless the backbone has
another."""
DEFAULT_VIDEOS = VideoConfig()
"""The frames that are sampled from videos unless a recipe says otherwise."""
SENT_UNCHANGED = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
}
"""Media types of the formats that every endpoint reads. Images in other formats, and images that
are stored turned, transparent or in 16 bits, are sent as PNG."""
ELSEWHERE_ADVICE = (
    "If the images are elsewhere, name the folder: `images: FOLDER` at a source in the recipe, "
    "`image_root: FOLDER` at a benchmark (`--benchmarks NAME=PLACE,image_root=FOLDER`)."
)
"""The way out in the message about an image that is not there."""
ERRORS_OF_DAMAGED_FILES = (
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


def image_path(
    root: Path, name: str, record: str, links: bool = False, advice: str = ELSEWHERE_ADVICE
) -> Path:
    """Return the path of the image or video file `name` under the folder `root`.

    `name` comes from a record, which is not trusted. It may not lead out of `root`, neither by `..`
    nor as an absolute path. Links that stay inside `root` are allowed. So are, inside a snapshot of
    the Hugging Face hub's cache, the links to the cache's files of the same data set.

    Args:
        root: The folder of the images.
        name: A path relative to `root`.
        record: The name of the record, for messages.
        links: True to allow a link under `root` that leads out of it, to a folder of images or to
            one image. The owner of `root` or the user of this process must have made the link.
            Refused are links of other users, links inside a snapshot of the hub's cache, and a
            second link that leads out of the first one's folder. A server, whose clients choose
            the names, does not allow links.
        advice: The sentence of a message that tells how to name another folder.

    Raises:
        ImageError: The path leaves `root`, or is no regular file.
    """
    path = resolved(root, name, record, links, advice)
    try:
        require_regular(path)
    except SpecialFileError as error:
        raise ImageError(f"{record}: the file {_short(name)} cannot be used: {error}") from error
    except OSError as error:
        raise ImageError(
            f"{record}: the file {_short(name)} is not there ({path} is no file). Looked in: "
            f"{root.resolve()}. {advice}"
        ) from error
    return path


def resolved(
    root: Path, name: str, record: str, links: bool = False, advice: str = ELSEWHERE_ADVICE
) -> Path:
    """Return the path of `name` under `root` with all links followed.

    The file need not exist. The arguments are those of `image_path`.

    Raises: ImageError if the path leaves `root`, or cannot be followed.
    """
    try:
        real_root = root.resolve()
        path = (real_root / name).resolve()
        path.is_file()  # raises for an over-long name and for a folder without access
        is_allowed = _is_allowed(path, real_root, name, links)
    # Links in a circle are a RuntimeError, and a NUL in the name is a ValueError.
    except (OSError, RuntimeError, ValueError) as error:
        raise ImageError(
            f"{record}: the path {_short(name)} cannot be followed ({type(error).__name__}). "
            "Required is the path of a file under the image folder, without NUL characters or "
            "links in a circle."
        ) from error
    if not is_allowed:
        or_behind_link = ""
        if links:
            or_behind_link = ", or behind a link there that the folder's owner or you made"
        raise ImageError(
            f"{record}: the path {_short(name)} leads to {path}, outside of the declared "
            f"image folder {real_root}. Records may only name files under that folder"
            f"{or_behind_link}. Correct the path, or declare the folder of the images. {advice}"
        )
    return path


def _is_allowed(path: Path, root: Path, name: str, links: bool) -> bool:
    """Return True if a record may use the file `path`.

    Args:
        path: The file that `name` leads to, with all links followed.
        root: The folder of the images, with all links followed.
        name: The path relative to `root`, as the record contains it.
        links: True to allow links that lead out of `root`; see `image_path`.
    """
    if path.is_relative_to(root):
        return True
    blobs = _blobs_of_snapshot(root)
    if blobs is not None:
        return path.parent == blobs
    return links and _leaves_by_own_link(root, Path(name))


def _blobs_of_snapshot(folder: Path) -> Path | None:
    """Return the folder with the files of a data set in the Hugging Face hub's cache.

    The result is None if `folder` is not inside a snapshot of the cache. In the cache,
    `snapshots/COMMIT/name` is a link to a file in the folder `blobs` next to `snapshots`.
    """
    for parent in folder.parents:
        if parent.name == "snapshots":
            blobs = parent.with_name("blobs")
            return blobs if blobs.is_dir() else None
    return None


def _leaves_by_own_link(root: Path, name: Path) -> bool:
    """Return True if the path `name` leads out of the folder `root` through one trusted link.

    A link is trusted if the owner of `root` or the user of this process made it.
    """
    if name.is_absolute() or ".." in name.parts:
        return False
    trusted_users = {root.stat().st_uid, os.geteuid()}
    position = root
    allowed_folder = root  # the target of the link, once a link has led out of `root`
    for part in name.parts:
        position /= part
        if not position.is_symlink():
            continue
        maker = position.lstat().st_uid
        position = position.resolve()
        if position.is_relative_to(allowed_folder):
            continue
        has_left_root = allowed_folder != root
        if has_left_root or maker not in trusted_users:
            return False
        allowed_folder = position
    return True


def _short(name: str) -> str:
    """Return a name in quotes for a message, cut off after 200 characters."""
    return repr(name if len(name) <= 200 else name[:200] + "…")


def from_data_uri(uri: str, record: str) -> bytes:
    """Return the bytes of an image that is written as a data URI, `data:image/png;base64,…`.

    `record` is the name of the image's record, for messages.

    Raises: ImageError if `uri` does not have that form.
    """
    if uri.startswith("data:video/"):
        raise ImageError(
            f"{record}: {uri[:40]!r}… is a video in the place of an image. {VIDEO_PART_ADVICE}"
        )
    if not re.match("data:image/[^,]*;base64,", uri):
        raise ImageError(
            f"{record}: {uri[:40]!r}… is no image data URI; required is "
            "'data:image/<format>;base64,<data>'."
        )
    try:
        return base64.b64decode(uri.partition(",")[2], validate=True)
    except ValueError as error:
        raise ImageError(f"{record}: the image data URI holds broken base64 ({error}).") from error


def from_video_uri(uri: str, record: str) -> bytes:
    """Return the bytes of a video that is written as a data URI, `data:video/mp4;base64,…`.

    `record` is the name of the video's record, for messages.

    Raises: ImageError if `uri` does not have that form.
    """
    if not re.match("data:(?:video/[^,]*|application/octet-stream);base64,", uri):
        raise ImageError(
            f"{record}: {uri[:40]!r}… is no video data URI; required is "
            "'data:video/<format>;base64,<data>'."
        )
    try:
        return base64.b64decode(uri.partition(",")[2], validate=True)
    except ValueError as error:
        raise ImageError(f"{record}: the video data URI holds broken base64 ({error}).") from error


def data_uri(image: EncodedImage, record: str) -> str:
    """Return an image as a data URI, `data:image/png;base64,…`, for a request to a model.

    The file is used unchanged if every server decodes it in the same way. Otherwise it is decoded
    and encoded as PNG. `record` is the name of the image's record, for messages.

    Raises: ImageError as `decode` does.
    """
    content = _content(image, record)
    with opened(content, record) as header:
        media_type = _unchanged_media_type(header)
    if media_type is None:
        buffer = io.BytesIO()
        decode(image, record).save(buffer, "PNG")
        media_type = "image/png"
        content = buffer.getvalue()
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _unchanged_media_type(image: Image.Image) -> str | None:
    """Return the media type of an image file that can be sent unchanged.

    The result is None if the image has to be sent as PNG.
    """
    is_opaque = image.mode in ("L", "P", "RGB") and "transparency" not in image.info
    is_upright = orientation(image) == 1
    if not is_opaque or not is_upright:
        return None
    return SENT_UNCHANGED.get(image.format or "")


def _content(image: EncodedImage, record: str) -> bytes:
    """Return the bytes of an encoded image; raise ImageError if its file cannot be read."""
    if isinstance(image, bytes):
        return image
    try:
        return read_bytes(image)
    except (OSError, SpecialFileError) as error:
        raise ImageError(f"{record}: the image {image} cannot be read: {error}") from error


def image_size(image: EncodedImage, record: str) -> tuple[int, int]:
    """Return (height, width) of an image in pixels, turned upright by its EXIF orientation.

    Only the header of the file is read. `record` is the name of the image's record, for messages.

    Raises: ImageError as `decode` does, except for damage behind the header. Also for an image
    whose sides differ more than the backbone's image processor allows.
    """
    with opened(image, record) as header:
        width, height = header.size
        is_on_its_side = orientation(header) >= FIRST_SIDEWAYS_ORIENTATION
    if is_on_its_side:
        width, height = height, width
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise ImageError(
            f"{record}: the image is {width} pixels wide and {height} high, and Qwen2.5-VL takes "
            f"at most {MAX_ASPECT_RATIO} : 1 between the sides. Crop it, or leave the record out."
        )
    return height, width


def grey_like(image: EncodedImage, record: str) -> bytes:
    """Return a grey image of the same size as `image`, encoded as PNG.

    `record` is the name of the image's record, for messages.

    Raises: ImageError as `image_size` does.
    """
    height, width = image_size(image, record)
    return _grey_png(height, width)


@lru_cache(maxsize=256)
def _grey_png(height: int, width: int) -> bytes:
    """Return a grey image of a size in pixels, encoded as PNG."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (128, 128, 128)).save(buffer, "PNG")
    return buffer.getvalue()


def decode(image: EncodedImage, record: str) -> Image.Image:
    """Decode an image, and return it as upright RGB of 8 bits.

    Transparency becomes white. The first frame of an animation is returned. `record` is the name of
    the image's record, for messages.

    Raises: ImageError for a file that is missing, truncated, damaged or of an unknown format; for
    a mode without an agreed RGB form (32-bit integer, float, Lab); and for more than MAX_PIXELS
    pixels, which are counted before the image is decoded.
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
    enlarges_short_sides: bool = False
    """Images with a side below `side` are first enlarged until it is `side`, as by GLM-4.1V's
    processor."""
    videos: VideoConfig = DEFAULT_VIDEOS
    """The frames that are sampled from videos."""
    description: ClassVar[str] = ""
    """Beginning of a sentence that ends with the number of tokens; empty, because nothing else has
    to be said."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most tokens that an image can have."""
        area = self.side**2
        return ceil(self.min_pixels / area), max(1, self.max_pixels // area)

    def __call__(self, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each image, int64 of shape (images,).

        `sizes` has a row (height, width) for each image, (images, 2).
        """
        sides = self.scaled(sizes) // self.side
        return np.asarray(sides[:, 0] * sides[:, 1])

    def scaled(self, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the height and width to which each image is scaled, int64 of shape (images, 2).

        `sizes` has a row (height, width) for each image, (images, 2).
        """
        if self.enlarges_short_sides:
            sizes = with_long_sides(sizes, self.side)
        return resized(sizes, self.min_pixels, self.max_pixels, self.side)

    @property
    def most_of_video(self) -> int:
        """The most tokens that a video can have.

        The sides of frames are rounded to whole tokens. So a few more are possible with
        `form: frames`, and for frames that are enlarged or very long.
        """
        is_frames = self.videos.form == "frames"
        frames_of_image = 1 if is_frames else FRAMES_OF_PATCH
        num_images = np.arange(1, -(-self.videos.most_frames // frames_of_image) + 1)
        pixels = np.minimum(self.max_pixels, self.videos.max_pixels // num_images)
        if is_frames:  # a small frame is enlarged to the size of the smallest image
            pixels = np.maximum(self.min_pixels, pixels)
        return int((num_images * (pixels // self.side**2)).max())

    def of_videos(self, videos: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each video, int64 of shape (videos,).

        `videos` has the fields of `VideoSize` for each video, (videos, 4).
        """
        num_frames = num_sampled_frames(videos[:, 2], videos[:, 3], self.videos)
        if self.videos.form == "frames":
            return num_frames * self(frame_sizes(videos, self.videos, self.max_pixels))
        num_patches = -(-num_frames // FRAMES_OF_PATCH)
        max_pixels = np.minimum(self.max_pixels, self.videos.max_pixels // num_patches)
        min_pixels = np.minimum(self.min_pixels, max_pixels)
        sizes = videos[:, :2].astype(np.uint32)
        sides = resized(sizes, min_pixels[:, None], max_pixels[:, None], self.side) // self.side
        return np.asarray(num_patches * sides[:, 0] * sides[:, 1])


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
    videos: VideoConfig = DEFAULT_VIDEOS
    """The frames that are sampled from videos."""

    @classmethod
    def within(
        cls,
        min_pixels: int,
        max_pixels: int,
        side: int,
        tokens: int,
        videos: VideoConfig = DEFAULT_VIDEOS,
    ) -> "TileTokens":
        """Return the counter for tiles whose number is limited by the pixels of an image.

        The limits are converted to numbers of tiles by the area of a tile. The tile that shows the
        whole image counts towards them, so that `max_pixels` allows as many tokens as with a
        backbone that scales images as a whole. An image has at least one tile.

        Example: with tiles of 448 x 448 pixels, 1,003,520 pixels are the area of five tiles. An
        image then has at most four tiles and the tile that shows the whole of it.

        Args:
            min_pixels: The fewest pixels of a scaled image (`backbone.min_pixels` of a recipe).
            max_pixels: The most pixels of a scaled image (`backbone.max_pixels` of a recipe).
            side: Side of a tile in pixels.
            tokens: Number of tokens of a tile.
            videos: The frames that are sampled from videos (`backbone.videos` of a recipe).

        Raises:
            UserError: No number of tiles is within the limits.
        """
        area = side**2
        # These two limits include the tile that shows the whole image.
        min_all_tiles = ceil(min_pixels / area)
        max_all_tiles = max_pixels // area
        if max_all_tiles < 1:
            raise UserError(
                f"backbone.max_pixels is {max_pixels:,}, but this backbone sees an image as tiles "
                f"of {side} x {side} pixels, at least one. Set it to {area:,} or more. From "
                f"{3 * area:,} on there are two tiles, and one of the whole image."
            )
        # An image is one tile, or at least two tiles and the one that shows the whole, which makes
        # three. It never is two tiles in all: a minimum of two in all requires three, and a
        # maximum of two in all allows one.
        min_tiles = min_all_tiles - 1 if min_all_tiles > 2 else min_all_tiles
        max_tiles = max_all_tiles - 1 if max_all_tiles > 2 else 1
        if min_tiles > max_tiles:
            raise UserError(
                f"backbone.min_pixels is {min_pixels:,} and backbone.max_pixels is {max_pixels:,}, "
                f"and no number of tiles of {side} x {side} pixels, with one of the whole image if "
                f"there are several, is between them. Lower min_pixels to {area:,}, which is one "
                f"tile, or raise max_pixels to {3 * area:,}."
            )
        return cls(min_tiles, max_tiles, side, tokens, videos)

    @property
    def description(self) -> str:
        """Beginning of a sentence that ends with the number of tokens, such as "one tile of …"."""
        if self.max_tiles == 1:
            return f"one tile of {self.side} x {self.side} pixels, "
        return (
            f"{self.min_tiles} to {self.max_tiles} tiles of {self.side} x {self.side} pixels, "
            "several with one of the whole, "
        )

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most tokens that an image can have."""
        num_tiles = np.array([self.min_tiles, self.max_tiles])
        fewest, most = self._tokens_of_tiles(num_tiles).tolist()
        return fewest, most

    def __call__(self, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each image, int64 of shape (images,).

        `sizes` has a row (height, width) for each image, (images, 2).
        """
        return self._tokens_of_tiles(tiled(sizes, self.min_tiles, self.max_tiles, self.side))

    @property
    def most_of_video(self) -> int:
        """The most tokens that a video can have.

        A small frame may have as many tiles as a large one, because their number depends on the
        shape of an image.
        """
        _, most_tokens = self.bounds
        return self.videos.most_frames * most_tokens

    def of_videos(self, videos: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each video, int64 of shape (videos,).

        Every sampled frame is an image. `videos` has the fields of `VideoSize` for each video,
        (videos, 4).
        """
        num_frames = num_sampled_frames(videos[:, 2], videos[:, 3], self.videos)
        _, most_tokens = self.bounds
        max_pixels = most_tokens // self.tokens * self.side**2
        return num_frames * self(frame_sizes(videos, self.videos, max_pixels))

    def _tokens_of_tiles(self, num_tiles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each image, int64 of shape (images,).

        `num_tiles` has the number of tiles of each image, (images,). An image with several tiles
        has a further tile that shows the whole image, which `num_tiles` does not count.
        """
        all_tiles = np.where(num_tiles > 1, num_tiles + 1, num_tiles)
        return np.asarray(all_tiles * self.tokens)


ImageTokens = PatchTokens | TileTokens
"""Counts the tokens that images and videos of given sizes become in a backbone."""
DEFAULT_IMAGE_TOKENS = PatchTokens()
"""The tokens of Qwen2.5-VL, for use without a backbone."""


def image_tokens_of(
    config: Mapping[str, Any],
    min_pixels: int,
    max_pixels: int,
    videos: VideoConfig = DEFAULT_VIDEOS,
) -> ImageTokens:
    """Return the object that counts a backbone's image tokens, by the contents of its config.json.

    Args:
        config: The contents of config.json.
        min_pixels: The fewest pixels of a scaled image (`backbone.min_pixels` of a recipe).
        max_pixels: The most pixels of a scaled image (`backbone.max_pixels` of a recipe).
        videos: The frames that are sampled from videos (`backbone.videos` of a recipe).

    Raises:
        UserError: No image can be within the limits.
        KeyError: The config.json has no `vision_config`.
    """
    vision = config["vision_config"]
    patch_side = _side(vision.get("patch_size", 14))
    # Only models that cut images into tiles, such as InternVL, have this key.
    if "downsample_ratio" in config:
        tile_side = _side(vision["image_size"])
        tokens_per_side = round(tile_side / patch_side * config["downsample_ratio"])
        return TileTokens.within(min_pixels, max_pixels, tile_side, tokens_per_side**2, videos)
    # Other models merge squares of patches into one token. Older versions of transformers left the
    # default out of config.json: 2 patches on a side for Qwen's towers, which have `in_channels`,
    # and 1 for the towers with `num_channels`.
    default_patches_per_side = 1 if "num_channels" in vision else 2
    patches_per_side = vision.get("spatial_merge_size", default_patches_per_side)
    # Only models whose image processor enlarges short sides have these keys: GLM-4.1V the first,
    # Cosmos3-Edge the second.
    enlarges_short_sides = "image_start_token_id" in config or "num_patches" in vision
    token_side = patch_side * patches_per_side
    return PatchTokens(min_pixels, max_pixels, token_side, enlarges_short_sides, videos)


def _side(size: int | Sequence[int]) -> int:
    """Return the side of a square whose size is one number, or a height and a width."""
    return size if isinstance(size, int) else size[0]


def tiled(
    sizes: npt.NDArray[np.uint32], min_tiles: int, max_tiles: int, side: int
) -> npt.NDArray[np.int64]:
    """Return the number of tiles into which InternVL's processor cuts each image, (images,).

    The processor takes the grid of tiles whose aspect ratio is nearest to the image's. Among
    equally near grids it takes the largest one that has less than twice the image's area, or else
    the smallest. The tile that shows the whole image is not counted.

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
    # From the smallest grid to the largest, so that a larger one replaces a smaller one.
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = np.abs(width / height - columns / rows)
        is_nearer = difference < smallest_difference
        is_as_near = difference == smallest_difference
        is_small_enough = width * height > 0.5 * side**2 * columns * rows
        is_taken = is_nearer | (is_as_near & is_small_enough)
        smallest_difference = np.minimum(smallest_difference, difference)
        num_tiles = np.where(is_taken, columns * rows, num_tiles)
    return num_tiles


def frame_sizes(
    videos: npt.NDArray[np.float64], config: VideoConfig, max_pixels: int
) -> npt.NDArray[np.uint32]:
    """Return the sizes of the frames of videos that are shown as images, (videos, 2).

    See `mmrm.data.frame_sampling.frame_size`.

    Args:
        videos: The fields of `VideoSize` for each video, (videos, 4).
        config: The choice of frames.
        max_pixels: The most pixels of an image (`backbone.max_pixels` of a recipe).
    """
    num_frames = num_sampled_frames(videos[:, 2], videos[:, 3], config)
    sizes = []
    for (height, width, _, _), num_sampled in zip(
        videos.tolist(), num_frames.tolist(), strict=True
    ):
        sizes.append(frame_size(int(height), int(width), num_sampled, config, max_pixels))
    return np.array(sizes, np.uint32).reshape(-1, 2)


def resized(
    sizes: npt.NDArray[np.uint32],
    min_pixels: int | npt.NDArray[np.integer],
    max_pixels: int | npt.NDArray[np.integer],
    side: int = TOKEN_SIDE,
) -> npt.NDArray[np.int64]:
    """Return the sizes to which Qwen's processor scales images, int64 of shape (images, 2).

    Height and width become multiples of `side`, so that the area is within the limits and the
    aspect ratio stays nearly the same. Unlike `image_size`, this refuses no shape.

    Example: with the limits of the papers, an image of 480 x 640 pixels becomes 476 x 644.

    Args:
        sizes: (height, width) of each image in pixels, (images, 2).
        min_pixels: The smallest area in pixels, one for all images or (images, 1).
        max_pixels: The largest area in pixels, one for all images or (images, 1).
        side: Side in pixels of the square of an image that becomes one token.
    """
    height_and_width = sizes.astype(np.float64)
    area = np.maximum(height_and_width[:, :1] * height_and_width[:, 1:], 1)
    # The three candidates, (images, 2), count squares along the height and along the width.
    rounded = np.rint(height_and_width / side)
    rounded_area = rounded[:, :1] * rounded[:, 1:] * side**2
    scaled_down = np.maximum(1, np.floor(height_and_width / np.sqrt(area / max_pixels) / side))
    scaled_up = np.ceil(height_and_width * np.sqrt(min_pixels / area) / side)
    num_squares = np.where(rounded_area < min_pixels, scaled_up, rounded)
    num_squares = np.where(rounded_area > max_pixels, scaled_down, num_squares)
    return num_squares.astype(np.int64) * side


def with_long_sides(sizes: npt.NDArray[np.uint32], side: int) -> npt.NDArray[np.uint32]:
    """Return sizes of which those with a shorter side than `side` are enlarged, (images, 2).

    The aspect ratio stays nearly the same. GLM-4.1V's processor does so before it scales an image.

    Args:
        sizes: (height, width) of each image in pixels, (images, 2).
        side: The smallest side in pixels.
    """
    scales = (side / sizes.astype(np.float64)).max(axis=1, keepdims=True)
    enlarged = (sizes * scales).astype(np.uint32)
    return np.where(scales > 1, enlarged, sizes)


@contextmanager
def opened(image: EncodedImage, record: str) -> Iterator[Image.Image]:
    """Open an image file for the block. Its header is read, and its pixels are not decoded yet.

    `record` is the name of the image's record, for messages.

    Raises: ImageError for a file that cannot be used. Errors of Pillow in the block, which decodes
    the pixels, are also raised as ImageError.
    """
    description = str(image) if isinstance(image, Path) else f"of {len(image):,} bytes"
    subject = f"{record}: the image {description}"
    if isinstance(image, Path) and is_video_name(image.name):
        raise ImageError(f"{subject} is a video. {VIDEO_PART_ADVICE}")
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
            first_bytes = file.read(BYTES_TO_RECOGNISE_VIDEO)
        reason = f"is none of {', '.join(FORMATS)}, or its header is damaged."
        if is_video(first_bytes):
            reason = f"is a video. {VIDEO_PART_ADVICE}"
        raise ImageError(f"{subject} {reason}") from error
    except ERRORS_OF_DAMAGED_FILES as error:
        raise ImageError(f"{subject} is truncated or damaged: {error}.") from error


def _file_of(image: EncodedImage) -> BinaryIO:
    """Return an encoded image as an open file; raises as `open_regular` does."""
    if isinstance(image, bytes):
        return io.BytesIO(image)
    return open_regular(image)
