"""Whether something of a training record occurs in some benchmarks: their images, questions and pairs of responses, indexed.

Texts. Two texts are equal if their words are: runs of letters and digits (of Chinese and Japanese, single characters), in
NFKC form and lower case. Punctuation, signs, white space and left-over image markers do not count. Two texts are nearly
equal if the Jaccard similarity of their shingles (the sets of hashes of three successive words) is high.

Images. Two images are the same file if the bytes are, and have the same pixels if they decode to the same upright RGB.
Nearly the same are those whose perceptual hashes differ in few bits and whose colour thumbnails are highly correlated. The
hash is the 64-bit pHash of Zauner (Implementation and Benchmarking of Perceptual Image Hash Functions, 2010), as the
imagehash package defines it: which of the 8 x 8 lowest DCT coefficients of the 32 x 32 luma lie above their median.
Re-encoding and scaling change a few bits; crops, mirror images and rotations are not found. The thumbnails tell apart what
the hash cannot: charts of one template, drawings on one background, images that differ in colour.

Looking up. Exact matches are found by key. Nearly equal texts are found by MinHash and locality-sensitive hashing
(datasketch), and the Jaccard similarity of what that proposes is computed exactly: nothing below the limit is returned, and
fewer than one in a thousand at the limit is missed. Most texts never get that far, since too few of their shingles occur in
any entry at all.

Perceptual hashes are compared with all entries' at once. For seven thousand that takes 6 microseconds, against two
milliseconds for decoding an image, and it is exact; an index by bands of the hash has more to look at, in Python.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH
from PIL import Image

from mmrm.data.errors import ImageError
from mmrm.data.images import decode
from mmrm.data.preference import EncodedImage, Message, Preference, texts
from mmrm.data.preparation.row_index import LEFT_OVER_MARKER
from mmrm.data.scanning import compatibility_form
from mmrm.data.storage.files import content_digest, digest, hash64
from mmrm.eval.candidates import Example

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
    folded = compatibility_form(LEFT_OVER_MARKER.sub(" ", text)).casefold()
    return WORD.findall(compatibility_form(folded))


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
        return np.unique(np.concatenate(self.parts))


def fingerprint_text(*texts: str) -> TextFingerprint | None:
    """Return one question, or two responses whichever is preferred, as they are compared; None unless all have words."""
    found = [words(text) for text in texts]
    if not all(found):
        return None
    return TextFingerprint(
        hash64("\n".join(sorted(map(" ".join, found)))), tuple(map(shingles, found))
    )


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
    thumbnail = np.asarray(
        decoded.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    )
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


KINDS = (
    "image_file",
    "image_pixels",
    "image_near",
    "question",
    "question_near",
    "pair",
    "pair_near",
)
IMAGE_KINDS = KINDS[:3]
DISTANCE = 8
"""Bits of 64 in which the hashes of near images may differ: re-encoding at quality 20 and halving the size stay within,
as does the share that PDQ, a longer hash of the same kind, recommends (31 of 256)."""
CORRELATION = 0.95
"""Of the thumbnails of near images, at least. Re-encoded and halved photographs and charts stay above 0.98; of 3,160 pairs
of different charts from two templates none came above 0.9."""
SIMILARITY = 0.8
"""Jaccard similarity of near texts, at least: one word in 25 may be another. Between 0.7 and 0.8 lie different questions in the
same frame ("Please first conduct reasoning, ... Question: Find the volume ..." in VL-RewardBench)."""
PERMUTATIONS, BANDS, ROWS = 128, 32, 4
"""A text of similarity s is proposed with probability 1 - (1 - s^4)^32: 0.999 at 2/3, which is the least that the joint
shingles of two pairs have if their responses reach 0.8 one by one."""
OCCURS_BITS = 24
"""Bits of a shingle's hash by which it is noted as occurring: 16 MB for millions of shingles."""
REMEMBERED = 1 << 17
"""Images whose matches are kept, since many records of a source share an image."""


class Hit(NamedTuple):
    """An entry of an index that was found, and how alike it is: 1 is equal; of near images, the correlation."""

    kind: str
    """One of KINDS."""
    entry: int
    similarity: float


class TextIndex:
    """Distinct texts: found again exactly, else the most similar one."""

    def __init__(self, kind: str, texts: Iterable[TextFingerprint]) -> None:
        self.kind, self.texts = kind, list(texts)
        self._by_key = {text.key: number for number, text in enumerate(self.texts)}
        self._occurs = np.zeros(1 << OCCURS_BITS, np.bool_)
        self._empty = MinHash(num_perm=PERMUTATIONS, hashfunc=int)
        self._similar = MinHashLSH(num_perm=PERMUTATIONS, params=(BANDS, ROWS))
        for number, text in enumerate(self.texts):
            self._similar.insert(number, self._signature(text))
            self._occurs[text.shingles >> (32 - OCCURS_BITS)] = True

    def find(self, text: TextFingerprint) -> Hit | None:
        """Return the equal text, else the most similar one within the limit (of several, the first), else None."""
        if text.key in self._by_key:
            return Hit(self.kind, self._by_key[text.key], 1.0)
        for part in (
            text.parts
        ):  # what occurs in any text at all; the share within one text cannot be larger
            if np.count_nonzero(self._occurs[part >> (32 - OCCURS_BITS)]) < SIMILARITY * len(part):
                return None
        proposed = self._similar.query(self._signature(text))
        best, number = max(
            ((similarity(text, self.texts[number]), -number) for number in proposed),
            default=(0.0, 0),
        )
        return Hit(f"{self.kind}_near", -number, round(best, 4)) if best >= SIMILARITY else None

    def _signature(self, text: TextFingerprint) -> MinHash:
        signature = self._empty.copy()
        signature.update_batch(text.shingles.tolist())
        return signature


class IndexedImage(NamedTuple):
    """An image of a benchmark that is not blank."""

    file: str
    """As `content_digest` returns it."""
    pixels: str
    """As `pixel_key` returns it."""
    fingerprint: ImageFingerprint


class ImageIndex:
    """Distinct images: found again by file, else by pixels, else the most alike."""

    def __init__(self, images: Iterable[IndexedImage]) -> None:
        self.images = list(images)
        self._by_file = {one.file: number for number, one in enumerate(self.images)}
        self._hashes = np.array([one.fingerprint.hash for one in self.images], np.uint64)
        self._remembered: dict[str, Hit | None] = {}

    def find(self, image: EncodedImage, record: str) -> tuple[str, Hit | None]:
        """Return the digest of the image's encoded content, and what was found.

        Raises: ImageError naming `record` if it cannot be decoded.
        """
        try:
            key = content_digest(image)
        except OSError as error:
            raise ImageError(f"{record}: an image cannot be read ({error}).") from error
        if key not in self._remembered:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = self._look_up(key, image, record)
        return key, self._remembered[key]

    def _look_up(self, key: str, image: EncodedImage, record: str) -> Hit | None:
        if key in self._by_file:
            return Hit("image_file", self._by_file[key], 1.0)
        found = fingerprint_image(image, record)
        if found is None:
            return None
        close = np.flatnonzero(
            np.bitwise_count(self._hashes ^ np.uint64(found.hash)) <= DISTANCE
        ).tolist()
        scored = (
            (correlation(found.thumbnail, self.images[number].fingerprint.thumbnail), -number)
            for number in close
        )
        best, number = max(scored, default=(0.0, 0))
        if best < CORRELATION:
            return None
        pixels = pixel_key(image, record)
        same = [number for number in close if self.images[number].pixels == pixels]
        return (
            Hit("image_pixels", same[0], 1.0)
            if same
            else Hit("image_near", -number, round(best, 4))
        )


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An image, a question or a pair of responses of a benchmark."""

    content: Any = field(repr=False)
    """An `IndexedImage` or a `TextFingerprint`."""
    excerpt: str
    rows: dict[str, None] = field(default_factory=dict)
    """The identities of all rows that hold it, an ordered set as `contexts` is."""
    contexts: dict[str, None] = field(default_factory=dict)
    """What the content stands with in the benchmarks; see `OverlapIndex.matches`."""

    def add(self, row: str, context: str) -> None:
        """Note a row that holds the content."""
        self.rows[row] = self.contexts[context] = None


class OverlapIndex:
    """All images, questions and pairs of responses of some benchmarks."""

    def __init__(self, examples: Iterable[Example]) -> None:
        """Index the rows; raises ImageError for an image that cannot be decoded."""
        tables: dict[str, dict[object, IndexEntry]] = {"image": {}, "question": {}, "pair": {}}
        self.blank = 0
        """Blank images, which are not in the index."""
        for example in examples:
            row, names = example.identity, list(map(content_digest, example.images))
            for image, name in zip(example.images, names, strict=True):
                if name not in tables["image"]:
                    found = fingerprint_image(image, row)
                    if found is None:
                        self.blank += 1
                        continue
                    tables["image"][name] = IndexEntry(
                        IndexedImage(name, pixel_key(image, row), found), ""
                    )
                tables["image"][name].add(row, "")
            for table, text, content, context in _texts(example.prompt, example.responses, names):
                tables[table].setdefault(text.key, IndexEntry(text, excerpt(content))).add(
                    row, context
                )
        self.entries = {name: list(table.values()) for name, table in tables.items()}
        self.fingerprint = digest(repr(tables))
        """Changes with the contents of the rows."""
        self._images = ImageIndex(entry.content for entry in self.entries["image"])
        self._texts = {
            kind: TextIndex(kind, (entry.content for entry in self.entries[kind]))
            for kind in ("question", "pair")
        }

    def matches(self, record: Preference) -> list[tuple[Hit, str]]:
        """Return what of a record occurs in the benchmarks: its images, its user turns, its two responses.

        Beside each hit stands what the content belongs to: a question to its images, a pair of responses to its question.
        Raises: ImageError if an image cannot be decoded.
        """
        images = [self._images.find(image, record.identity) for image in record.images]
        asked = _texts(
            record.prompt, (record.chosen, record.rejected), [name for name, _ in images]
        )
        found = [(hit, "") for _, hit in images]
        found += [(self._texts[table].find(text), context) for table, text, _, context in asked]
        return [(hit, context) for hit, context in dict.fromkeys(found) if hit is not None]


def _texts(
    prompt: Sequence[Message], responses: Sequence[str], images: Sequence[str]
) -> list[tuple[str, TextFingerprint, str, str]]:
    """Return table, fingerprint, content and context of each text that has words: the questions, the pair of responses."""
    asked = [(fingerprint_text(content), content) for content in questions(prompt)]
    found = [
        ("question", text, content, " ".join(images)) for text, content in asked if text is not None
    ]
    keys = " ".join(f"{text.key:016x}" for _, text, _, _ in found)
    pair = fingerprint_text(*responses)
    return [*found, ("pair", pair, " | ".join(responses), keys)] if pair else found


def table_of(kind: str) -> str:
    """Return `image`, `question` or `pair`."""
    return kind.partition("_")[0]


def questions(prompt: Sequence[Message]) -> list[str]:
    """Return the text of each user turn."""
    return [" ".join(texts([message])) for message in prompt if message["role"] == "user"]


def excerpt(content: str) -> str:
    """Return the beginning of a text on one line, in characters that can be written as UTF-8."""
    line = " ".join(content.split()).encode(errors="replace").decode()
    return line if len(line) <= 160 else line[:159] + "…"
