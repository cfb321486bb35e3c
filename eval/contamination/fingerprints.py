"""What is compared when a training record is looked for in a benchmark: words and shingles of a text, hashes of an image.

Texts. Two texts are equal if their words are: runs of letters and digits (of Chinese and Japanese, single characters), in
NFKC form and lower case. Punctuation, signs, white space and left-over image markers do not count. Two texts are nearly
equal if the Jaccard similarity of their shingles (the sets of hashes of three successive words) is high.

Images. Two images are the same file if the bytes are, and have the same pixels if they decode to the same upright RGB.
Nearly the same are those whose perceptual hashes differ in few bits and whose colour thumbnails are highly correlated. The
hash is the 64-bit pHash of Zauner (Implementation and Benchmarking of Perceptual Image Hash Functions, 2010), as the
imagehash package defines it: which of the 8 x 8 lowest DCT coefficients of the 32 x 32 luma lie above their median.
Re-encoding and scaling change a few bits; crops, mirror images and rotations are not found. The thumbnails tell apart what
the hash cannot: charts of one template, drawings on one background, images that differ in colour.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from data.images import decode
from data.preference import EncodedImage
from data.preparation.row_index import LEFT_OVER_MARKER
from data.storage.files import content_digest, hash64

Hashes = npt.NDArray[np.uint32]
Thumbnail = npt.NDArray[np.uint8]
SHINGLE = 3
"""Words of a shingle. One changed word in a text of n leaves a similarity of (n - 1) / (n + 5)."""
EDGE = ("",) * (SHINGLE - 1)
WEIGHTS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
"""Odd multipliers (of xxHash) for the words of a shingle, so that their order counts."""
UNSPACED = "\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
SIDE = 32
"""Pixels a side of the thumbnail from which the hash is computed."""
BLANK = 2.0
"""Levels (of 255) of standard deviation in the thumbnail below which an image is blank."""
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Rec. 601, as Pillow converts to grey."""
COSINES = np.cos(np.pi / SIDE * np.outer(np.arange(8), np.arange(SIDE) + 0.5)).astype(np.float32)
"""The first 8 rows of the DCT-II matrix, unscaled."""


def words(text: str) -> list[str]:
    """Return the words of `text` as they are compared."""
    folded = unicodedata.normalize("NFKC", LEFT_OVER_MARKER.sub(" ", text)).casefold()
    return WORD.findall(unicodedata.normalize("NFKC", folded))


def shingles(found: Sequence[str]) -> Hashes:
    """Return the distinct hashes of all runs of three words, ascending, with two empty words before and behind the text."""
    padded = " ".join([*EDGE, *found, *EDGE]).encode(errors="surrogatepass").split(b" ")
    hashes = np.fromiter(map(zlib.crc32, padded), np.uint64, len(padded))
    runs = np.lib.stride_tricks.sliding_window_view(hashes, SHINGLE) @ WEIGHTS
    return np.unique((runs >> np.uint64(32)).astype(np.uint32))


@dataclass(frozen=True, slots=True)
class TextFingerprint:
    """A question, or a pair of responses in no order."""

    key: int
    """64 bits, equal for equal words."""
    parts: tuple[Hashes, ...]
    """The shingles of the question, or those of each response."""

    @property
    def shingles(self) -> Hashes:
        """Those of all parts."""
        return self.parts[0] if len(self.parts) == 1 else np.union1d(*self.parts)


def fingerprint_text(*texts: str) -> TextFingerprint | None:
    """Return one question, or two responses whichever is preferred, as they are compared; None unless all have words."""
    found = [words(text) for text in texts]
    if not all(found):
        return None
    return TextFingerprint(hash64("\n".join(sorted(map(" ".join, found)))), tuple(map(shingles, found)))


def similarity(one: TextFingerprint, other: TextFingerprint) -> float:
    """Return the Jaccard similarity of two texts; of two pairs, that of the less similar responses, in the better assignment."""
    straight = min(map(jaccard, one.parts, other.parts))
    return max(straight, min(map(jaccard, one.parts, reversed(other.parts))))


def jaccard(one: Hashes, other: Hashes) -> float:
    """Return the share of the shingles of both that they have in common."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


@dataclass(frozen=True, slots=True)
class ImageFingerprint:
    """What is compared of an image that is not the same file."""

    hash: int
    """The perceptual hash, 64 bits."""
    thumbnail: Thumbnail
    """RGB, (32, 32, 3)."""


def fingerprint_image(image: EncodedImage, record: str) -> ImageFingerprint | None:
    """Return what is compared of an image; None if it is blank, which identifies nothing.

    Raises: ImageError naming `record` if it cannot be decoded.
    """
    decoded = decode(image, record)
    thumbnail = np.asarray(decoded.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0))
    if _centred(thumbnail).std() < BLANK:
        return None
    return ImageFingerprint(perceptual_hash(thumbnail.astype(np.float32) @ LUMA), thumbnail)


def correlation(one: Thumbnail, other: Thumbnail) -> float:
    """Return the correlation of two thumbnails that are not blank, -1 to 1, each channel around its own mean."""
    left, right = _centred(one), _centred(other)
    return float((left * right).sum() / np.sqrt((left**2).sum() * (right**2).sum()))


def _centred(thumbnail: Thumbnail) -> npt.NDArray[np.float32]:
    pixels = thumbnail.astype(np.float32)
    centred: npt.NDArray[np.float32] = pixels - pixels.mean((0, 1))
    return centred


def perceptual_hash(luma: npt.NDArray[np.float32]) -> int:
    """Return the 64-bit pHash of a luma plane of shape (32, 32); the first bit is the mean's, row by row."""
    lowest = COSINES @ luma @ COSINES.T
    return int.from_bytes(np.packbits(lowest > np.median(lowest)).tobytes(), "big")


def pixel_key(image: EncodedImage, record: str) -> str:
    """Return a digest that is equal for equal pixels; raises ImageError naming `record` if it cannot be decoded."""
    pixels = decode(image, record)
    return content_digest(f"{pixels.size}".encode() + pixels.tobytes())
