"""An index of the contents of benchmarks, to find them in training data.

The contents are images, videos, questions and pairs of responses.

Texts. Two texts are equal if their words are equal. Words are runs of letters and digits (single
characters in Chinese and Japanese), in NFKC form and lower case. Punctuation, signs, white space
and left-over image markers do not count. Two texts are nearly equal if the Jaccard similarity of
their shingles (the sets of hashes of three successive words) is high.

Images. Two images are the same file if their bytes are equal, and have the same pixels if they
decode to the same upright RGB. Two images are nearly the same if their perceptual hashes differ in
few bits and their colour thumbnails are highly correlated. The hash is the 64-bit pHash of Zauner
(Implementation and Benchmarking of Perceptual Image Hash Functions, 2010), as the imagehash package
defines it. Its bits tell which of the 8 x 8 lowest DCT coefficients of the 32 x 32 luma are above
their median. Re-encoding and scaling change a few bits. Crops, mirror images and rotations are not
found. The thumbnails distinguish images that the hash cannot: charts of one template, drawings on
one background, images that differ in colour.

Videos. Two videos are the same if the bytes of their files are equal. A video that was encoded again
is not found.

Looking up. Exact matches are found by key. Nearly equal texts are found by MinHash and
locality-sensitive hashing (datasketch), and the Jaccard similarity of its proposals is computed
exactly. No result is below the limit, and fewer than one in a thousand at the limit is missed. Most
texts need no such look-up, because too few of their shingles occur in any entry.

The perceptual hash of an image is compared with those of all entries at once. For seven thousand
entries that takes 6 microseconds, against two milliseconds for decoding an image, and it is exact.
An index by bands of the hash would have more to look at, in Python.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH
from PIL import Image

from mmrm.data.encoded_video import Video
from mmrm.data.errors import ImageError
from mmrm.data.images import decode
from mmrm.data.preference import EncodedImage, Message, Preference, Response, texts
from mmrm.data.preparation.row_index import LEFT_OVER_MARKER
from mmrm.data.scanning import compatibility_form
from mmrm.data.storage.files import content_digest, digest, hash64
from mmrm.eval.candidates import BenchmarkRow

Hashes = npt.NDArray[np.uint32]
"""Hashes of shingles, distinct and ascending, of shape (shingles,)."""
Thumbnail = npt.NDArray[np.uint8]
"""An RGB image of shape (32, 32, 3)."""

SHINGLE = 3
"""Words of a shingle. One changed word in a text of n leaves a similarity of (n - 1) / (n + 5)."""
EDGE_WORDS = ("",) * (SHINGLE - 1)
"""Empty words before and after a text, so that its first and last words are in three shingles
too."""
WORD_WEIGHTS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
"""Odd multipliers (of xxHash) for the words of a shingle, so that their order counts."""
UNSPACED = "\u3040-\u30ff\u3400-\u9fff"
"""Characters of Chinese and Japanese, which are written without spaces between words."""
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
THUMBNAIL_SIDE = 32
"""Pixels a side of the thumbnail that the perceptual hash is computed from."""
BLANK_DEVIATION = 2.0
"""An image is blank if the standard deviation of its thumbnail is below this many levels of 255."""
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""The weights of red, green and blue in Rec. 601, as Pillow converts to grey."""
COSINES = np.cos(
    np.pi / THUMBNAIL_SIDE * np.outer(np.arange(8), np.arange(THUMBNAIL_SIDE) + 0.5)
).astype(np.float32)
"""The first 8 rows of the DCT-II matrix, unscaled, of shape (8, 32)."""

KINDS = (
    "image_file",
    "image_pixels",
    "image_near",
    "video_file",
    "question",
    "question_near",
    "pair",
    "pair_near",
)
"""The kinds of matches. The word before `_` is the table of the index."""
MEDIA_KINDS = KINDS[:4]
"""The kinds of matches of images and videos."""
MAX_DIFFERENT_BITS = 8
"""The most bits of 64 in which the hashes of near images may differ. Re-encoding at quality 20 and
halving the size stay within it, as does the share that PDQ, a longer hash of the same kind,
recommends (31 of 256)."""
MIN_CORRELATION = 0.95
"""The least correlation of the thumbnails of near images. Re-encoded and halved photographs and
charts stay above 0.98. Of 3,160 pairs of different charts from two templates none was above 0.9."""
MIN_SIMILARITY = 0.8
"""The least Jaccard similarity of near texts: one word in 25 may be another. Between 0.7 and 0.8
are different questions in the same frame ("Please first conduct reasoning, ... Question: Find the
volume ..." in VL-RewardBench)."""
PERMUTATIONS = 128
BANDS = 32
ROWS = 4
"""MinHash signatures of 128 numbers in 32 bands of 4. A text of similarity s is proposed with
probability 1 - (1 - s^4)^32. That is 0.999 at 2/3, the least that the joint shingles of two pairs
have if their responses reach 0.8 one by one."""
SHINGLE_BITS = 24
"""Bits of a shingle's hash by which it is noted as occurring: 16 MB for millions of shingles."""
MAX_REMEMBERED_IMAGES = 1 << 17
"""The number of images whose matches are kept, because many records of a source share an image."""
MAX_EXCERPT_LENGTH = 160
"""The most characters of a text in a report."""


# Texts


def words(text: str) -> list[str]:
    """Return the words of a text in lower case and the Unicode form NFKC.

    Words are runs of letters and digits, and in Chinese and Japanese single characters. Image
    markers that were left in the text are no words.
    """
    folded = compatibility_form(LEFT_OVER_MARKER.sub(" ", text)).casefold()
    # Casefolding can undo the normal form, so the text is normalised again.
    return WORD.findall(compatibility_form(folded))


def shingles(text_words: Sequence[str]) -> Hashes:
    """Return the shingles of a text: the hashes of every three successive words.

    They are distinct and ascending. The text has two empty words before and after it, so that its
    first and last words are in three shingles too.
    """
    padded_text = " ".join([*EDGE_WORDS, *text_words, *EDGE_WORDS])
    padded_words = padded_text.encode(errors="surrogatepass").split(b" ")
    word_hashes = np.fromiter(map(zlib.crc32, padded_words), np.uint64, len(padded_words))
    windows = np.lib.stride_tricks.sliding_window_view(word_hashes, SHINGLE)
    hashes = windows @ WORD_WEIGHTS
    # The upper half of a sum of products is the better mixed one.
    return np.unique((hashes >> np.uint64(32)).astype(np.uint32))


@dataclass(frozen=True, slots=True)
class TextFingerprint:
    """The hashes by which a question, or a pair of responses in any order, is compared."""

    key: int
    """64 bits, equal for equal words."""
    parts: tuple[Hashes, ...]
    """The shingles of the question, or the shingles of each response."""

    @property
    def shingles(self) -> Hashes:
        """The distinct shingles of all parts, ascending. A shingle is the hash of three words."""
        return np.unique(np.concatenate(self.parts))


def fingerprint_text(*texts: str) -> TextFingerprint | None:
    """Return the fingerprint of a question, or of a pair of responses.

    The order of two responses does not matter: the `key` is the same, and `similarity` compares the
    `parts` in both orders.

    Args:
        texts: One question, or two responses.

    Returns:
        The fingerprint, or None if a text has no words.
    """
    words_of_texts = [words(text) for text in texts]
    if not all(words_of_texts):
        return None
    sorted_texts = sorted(" ".join(text_words) for text_words in words_of_texts)
    parts = tuple(shingles(text_words) for text_words in words_of_texts)
    return TextFingerprint(hash64("\n".join(sorted_texts)), parts)


def similarity(left: TextFingerprint, right: TextFingerprint) -> float:
    """Return the Jaccard similarity of two questions, or of two pairs of responses, from 0 to 1.

    Two pairs of responses are as similar as their less similar responses. The responses are
    compared in both orders, and the larger similarity counts.
    """
    in_same_order = min(map(jaccard, left.parts, right.parts))
    in_opposite_order = min(map(jaccard, left.parts, reversed(right.parts)))
    return max(in_same_order, in_opposite_order)


def jaccard(left: Hashes, right: Hashes) -> float:
    """Return the number of common hashes of two sets as a share of all their distinct hashes."""
    num_common = len(np.intersect1d(left, right, assume_unique=True))
    return num_common / (len(left) + len(right) - num_common)


# Images


@dataclass(frozen=True, slots=True)
class ImageFingerprint:
    """The properties by which an image is compared with images in other files."""

    hash: int
    """The perceptual hash, 64 bits."""
    thumbnail: Thumbnail


def fingerprint_image(image: EncodedImage, record: str) -> ImageFingerprint | None:
    """Return the fingerprint of an image, or None if the image is blank.

    Blank images have none, because all of them are alike.

    Args:
        image: The image, not decoded.
        record: The name of the image's record in messages.

    Raises:
        ImageError: If the image cannot be decoded.
    """
    decoded = decode(image, record)
    thumbnail = np.asarray(
        decoded.resize(
            (THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0
        )
    )
    if _centred(thumbnail).std() < BLANK_DEVIATION:
        return None
    luma = thumbnail.astype(np.float32) @ LUMA
    return ImageFingerprint(perceptual_hash(luma), thumbnail)


def correlation(left: Thumbnail, right: Thumbnail) -> float:
    """Return the correlation of the pixels of two thumbnails, from -1 to 1.

    The mean of each colour channel is subtracted first. The thumbnails must not be blank, since the
    correlation with a blank image is not defined.
    """
    left_pixels = _centred(left)
    right_pixels = _centred(right)
    norm = np.sqrt((left_pixels**2).sum() * (right_pixels**2).sum())
    return float((left_pixels * right_pixels).sum() / norm)


def _centred(thumbnail: Thumbnail) -> npt.NDArray[np.float32]:
    """Return a thumbnail less the mean of each colour channel, of shape (32, 32, 3)."""
    pixels = thumbnail.astype(np.float32)
    centred: npt.NDArray[np.float32] = pixels - pixels.mean((0, 1))
    return centred


def perceptual_hash(luma: npt.NDArray[np.float32]) -> int:
    """Return the perceptual hash (pHash) of a grey image of shape (32, 32), an integer of 64 bits.

    Each bit tells whether one of the 8 x 8 lowest coefficients of the image's cosine transform
    (DCT) is above their median. The bits are in the order of the coefficients, row by row.
    """
    lowest_coefficients = COSINES @ luma @ COSINES.T
    is_above_median = lowest_coefficients > np.median(lowest_coefficients)
    return int.from_bytes(np.packbits(is_above_median).tobytes(), "big")


def pixel_key(image: EncodedImage, record: str) -> str:
    """Return a digest of an image's size and pixels, which is equal for equal pixels in any format.

    Args:
        image: The image, not decoded.
        record: The name of the image's record in messages.

    Raises:
        ImageError: If the image cannot be decoded.
    """
    pixels = decode(image, record)
    return content_digest(f"{pixels.size}".encode() + pixels.tobytes())


# Indices


class Hit(NamedTuple):
    """A text, an image or a video of a training record that is like one of a benchmark."""

    kind: str
    """One of KINDS."""
    entry: int
    """The position of the benchmark's content in its table of the index."""
    similarity: float
    """1 for equal contents. It is the correlation of near images, and the Jaccard similarity of
    near texts."""


class TextIndex:
    """Finds, for a text, the equal or the most similar text in a set of distinct texts.

    `kind` is `question`, or `pair` if each of the texts is a pair of responses.
    """

    def __init__(self, kind: str, texts: Iterable[TextFingerprint]) -> None:
        self.kind = kind
        self.texts = list(texts)
        self._index_by_key = {text.key: index for index, text in enumerate(self.texts)}
        # For each value of a shingle's first bits: True if a text of the index has such a shingle.
        self._has_shingle = np.zeros(1 << SHINGLE_BITS, np.bool_)
        self._empty_signature = MinHash(num_perm=PERMUTATIONS, hashfunc=int)
        self._index_of_signatures = MinHashLSH(num_perm=PERMUTATIONS, params=(BANDS, ROWS))
        for index, text in enumerate(self.texts):
            self._index_of_signatures.insert(index, self._signature(text))
            self._has_shingle[_first_bits(text.shingles)] = True

    def find(self, text: TextFingerprint) -> Hit | None:
        """Look up a text, and return the equal text of the index or else the most similar one.

        Of several equally similar texts it is the first. Returns None if no similarity is at least
        MIN_SIMILARITY.
        """
        if text.key in self._index_by_key:
            return Hit(self.kind, self._index_by_key[text.key], 1.0)
        for part in text.parts:
            # A quick test before the look-up: a similar text has most of these shingles, so at
            # least as many of them occur in some text of the index.
            num_in_index = np.count_nonzero(self._has_shingle[_first_bits(part)])
            if num_in_index < MIN_SIMILARITY * len(part):
                return None
        best_similarity = 0.0
        best_index = 0
        for index in sorted(self._index_of_signatures.query(self._signature(text))):
            text_similarity = similarity(text, self.texts[index])
            if text_similarity > best_similarity:
                best_similarity = text_similarity
                best_index = index
        if best_similarity < MIN_SIMILARITY:
            return None
        return Hit(f"{self.kind}_near", best_index, round(best_similarity, 4))

    def _signature(self, text: TextFingerprint) -> MinHash:
        """Return the MinHash signature of a text's shingles."""
        signature = self._empty_signature.copy()
        signature.update_batch(text.shingles.tolist())
        return signature


def _first_bits(hashes: Hashes) -> npt.NDArray[np.uint32]:
    """Return the first SHINGLE_BITS bits of each hash of a shingle."""
    return hashes >> np.uint32(32 - SHINGLE_BITS)


class IndexedImage(NamedTuple):
    """An image of a benchmark that is not blank."""

    file: str
    """The digest of the file, as `content_digest` returns it."""
    pixels: str
    """The digest of the pixels, as `pixel_key` returns it."""
    fingerprint: ImageFingerprint


class ImageIndex:
    """Finds, for an image, the same or a similar image in a set of distinct images.

    It looks for the same file, else for the same pixels, else for the most similar image.
    """

    def __init__(self, images: Iterable[IndexedImage]) -> None:
        self.images = list(images)
        self._index_by_file = {image.file: index for index, image in enumerate(self.images)}
        self._hashes = np.array([image.fingerprint.hash for image in self.images], np.uint64)
        self._hit_by_file: dict[str, Hit | None] = {}

    def find(self, image: EncodedImage, record: str) -> tuple[str, Hit | None]:
        """Look up an image, and return the digest of its file and the image that was found.

        The latter is None if the index has no equal or similar image.

        Args:
            image: The image, not decoded.
            record: The name of the image's record in messages.

        Raises:
            ImageError: If the image cannot be read or decoded.
        """
        try:
            file = content_digest(image)
        except OSError as error:
            raise ImageError(
                f"{record}: an image cannot be read ({error}). Check that the file is there."
            ) from error
        if file not in self._hit_by_file:
            if len(self._hit_by_file) >= MAX_REMEMBERED_IMAGES:
                self._hit_by_file.clear()
            self._hit_by_file[file] = self._look_up(file, image, record)
        return file, self._hit_by_file[file]

    def _look_up(self, file: str, image: EncodedImage, record: str) -> Hit | None:
        """Return the image of the index that is equal or similar to an image, or None.

        Args:
            file: The digest of the image's file.
            image: The image, not decoded.
            record: The name of the image's record in messages.
        """
        if file in self._index_by_file:
            return Hit("image_file", self._index_by_file[file], 1.0)
        fingerprint = fingerprint_image(image, record)
        if fingerprint is None:
            return None
        num_different_bits = np.bitwise_count(self._hashes ^ np.uint64(fingerprint.hash))
        close_indices = np.flatnonzero(num_different_bits <= MAX_DIFFERENT_BITS).tolist()
        best_correlation = 0.0
        best_index = 0
        for index in close_indices:
            thumbnail = self.images[index].fingerprint.thumbnail
            image_correlation = correlation(fingerprint.thumbnail, thumbnail)
            if image_correlation > best_correlation:
                best_correlation = image_correlation
                best_index = index
        if best_correlation < MIN_CORRELATION:
            return None
        # Equal pixels have equal hashes, so an image with the same pixels is among the close ones.
        pixels = pixel_key(image, record)
        for index in close_indices:
            if self.images[index].pixels == pixels:
                return Hit("image_pixels", index, 1.0)
        return Hit("image_near", best_index, round(best_correlation, 4))


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An image, a video, a question or a pair of responses of a benchmark, and the rows with it."""

    content: Any = field(repr=False)
    """An `IndexedImage`, the digest of a video's file, or a `TextFingerprint`."""
    excerpt: str
    """The beginning of a text; empty for an image or a video."""
    rows: dict[str, None] = field(default_factory=dict)
    """The identities of all rows that hold the content, as an ordered set."""
    contexts: dict[str, None] = field(default_factory=dict)
    """The contexts of the content in the benchmarks, as an ordered set. See `TextContent`."""

    def add(self, row: str, context: str) -> None:
        """Add a row that holds the content, with its context: the images or questions beside it."""
        self.rows[row] = None
        self.contexts[context] = None


class TextContent(NamedTuple):
    """A question or a pair of responses, with the images or the questions beside it as context."""

    table: str
    """`question` or `pair`."""
    fingerprint: TextFingerprint
    text: str
    context: str
    """The digests of the images and videos that a question is about, or the keys of the questions that a pair
    answers."""


class OverlapIndex:
    """All images, videos, questions and pairs of responses of some benchmarks.

    `matches` finds those that occur in a training record.
    """

    def __init__(self, examples: Iterable[BenchmarkRow]) -> None:
        """Index the contents of the benchmark rows `examples`.

        Raises:
            ImageError: If an image cannot be decoded, or a video cannot be read.
        """
        tables: dict[str, dict[object, IndexEntry]] = {
            "image": {},
            "video": {},
            "question": {},
            "pair": {},
        }
        self.num_blank_images = 0
        """The number of times that a blank image, which is not in the index, occurs in the rows."""
        for example in examples:
            row = example.identity
            files = [content_digest(image) for image in example.images]
            for image in example.all_images:
                file = content_digest(image)
                if file not in tables["image"]:
                    fingerprint = fingerprint_image(image, row)
                    if fingerprint is None:
                        self.num_blank_images += 1
                        continue
                    indexed_image = IndexedImage(file, pixel_key(image, row), fingerprint)
                    tables["image"][file] = IndexEntry(indexed_image, excerpt="")
                tables["image"][file].add(row, context="")
            files += [video_digest(video, row) for video in example.videos]
            for video in example.all_videos:
                file = video_digest(video, row)
                entry = tables["video"].setdefault(file, IndexEntry(file, excerpt=""))
                entry.add(row, context="")
            for content in _text_contents(example.prompt, example.responses, files):
                new_entry = IndexEntry(content.fingerprint, excerpt(content.text))
                table = tables[content.table]
                entry = table.setdefault(content.fingerprint.key, new_entry)
                entry.add(row, content.context)
        self.entries = {name: list(table.values()) for name, table in tables.items()}
        self.fingerprint = digest(repr(tables))
        """A digest that changes with the contents of the rows."""
        self._images = ImageIndex(entry.content for entry in self.entries["image"])
        self._index_by_video: dict[str, int] = {}
        for index, entry in enumerate(self.entries["video"]):
            self._index_by_video[entry.content] = index
        self._texts = {}
        for kind in ("question", "pair"):
            fingerprints = [entry.content for entry in self.entries[kind]]
            self._texts[kind] = TextIndex(kind, fingerprints)

    def matches(self, record: Preference) -> list[tuple[Hit, str]]:
        """Return the contents of the benchmarks that occur in a training record.

        The record's images and videos, its user turns and every two of its responses are looked up.
        Each match is returned once, with the context of the content in the record (see
        `TextContent`).

        Raises:
            ImageError: If an image cannot be decoded, or a video cannot be read.
        """
        matches: dict[tuple[Hit, str], None] = {}
        files = []
        for number, image in enumerate(record.all_images):
            file, hit = self._images.find(image, record.identity)
            is_of_prompt = number < len(record.images)
            if is_of_prompt:
                files.append(file)
            if hit is not None:
                matches[hit, ""] = None  # an image has no context
        for number, video in enumerate(record.all_videos):
            file = video_digest(video, record.identity)
            if number < len(record.videos):
                files.append(file)
            if file in self._index_by_video:
                matches[Hit("video_file", self._index_by_video[file], 1.0), ""] = None
        for content in _text_contents(record.prompt, record.responses, files):
            hit = self._texts[content.table].find(content.fingerprint)
            if hit is not None:
                matches[hit, content.context] = None
        return list(matches)


def _text_contents(
    prompt: Sequence[Message], responses: Sequence[Response], media: Sequence[str]
) -> list[TextContent]:
    """Return the user turns of a record and every pair of its responses.

    Texts without words are left out.

    Args:
        prompt: The prompt of the record.
        responses: Its responses, two or more.
        media: The digests of the images and videos of its prompt.
    """
    contents: list[TextContent] = []
    for question in questions(prompt):
        fingerprint = fingerprint_text(question)
        if fingerprint is not None:
            contents.append(TextContent("question", fingerprint, question, " ".join(media)))
    question_keys = " ".join(f"{content.fingerprint.key:016x}" for content in contents)
    texts_of_responses = [response.text for response in responses]
    for pair in combinations(texts_of_responses, 2):
        pair_fingerprint = fingerprint_text(*pair)
        if pair_fingerprint is not None:
            pair_text = " | ".join(pair)
            contents.append(TextContent("pair", pair_fingerprint, pair_text, question_keys))
    return contents


def video_digest(video: Video, record: str) -> str:
    """Return the digest of a video's file, as `content_digest` does.

    Args:
        video: The video.
        record: The name of the video's record in messages.

    Raises:
        ImageError: If the file cannot be read.
    """
    try:
        return content_digest(video.content)
    except OSError as error:
        raise ImageError(
            f"{record}: a video cannot be read ({error}). Check that the file is there."
        ) from error


def table_of(kind: str) -> str:
    """Return the table of the index that a kind of match is about, such as `image` or `pair`.

    Example: the kinds `image_file` and `image_near` are about `image`.
    """
    return kind.partition("_")[0]


def questions(prompt: Sequence[Message]) -> list[str]:
    """Return the text of each user turn of a prompt."""
    return [" ".join(texts([message])) for message in prompt if message["role"] == "user"]


def excerpt(text: str) -> str:
    """Return the first MAX_EXCERPT_LENGTH characters of a text on one line.

    Characters that UTF-8 cannot hold are replaced by question marks.
    """
    line = " ".join(text.split()).encode(errors="replace").decode()
    if len(line) > MAX_EXCERPT_LENGTH:
        line = line[: MAX_EXCERPT_LENGTH - 1] + "…"
    return line
