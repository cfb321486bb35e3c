"""Indices in which a text or a picture is looked up: equal, or nearly equal.

Exact matches are found by key. Nearly equal texts are found by MinHash and locality-sensitive hashing (datasketch), and the
Jaccard similarity of what that proposes is computed exactly: nothing below the limit is returned, and fewer than one in a
thousand at the limit is missed. Most texts never get that far, since too few of their shingles occur in any entry at all.

Perceptual hashes are compared with all entries' at once. For seven thousand that takes 6 microseconds, against two
milliseconds for decoding a picture, and it is exact; an index by bands of the hash has more to look at, in Python.

The pictures, questions and pairs of responses of some benchmarks, indexed once, so that training records can be looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from datasketch import MinHash, MinHashLSH

from data.errors import ImageError
from data.preference import EncodedImage, Message, Preference
from data.storage.files import content_digest, digest
from eval.contamination.fingerprints import (
    Hashes,
    Picture,
    Text,
    correlation,
    pair_text,
    picture,
    pixel_key,
    question_text,
    similarity,
)
from eval.protocol import Example

Kind = Literal["image_file", "image_pixels", "image_near", "question", "question_near", "pair", "pair_near"]
KINDS: tuple[Kind, ...] = ("image_file", "image_pixels", "image_near", "question", "question_near", "pair", "pair_near")
IMAGE_KINDS = KINDS[:3]
DISTANCE = 8
"""Bits of 64 in which the hashes of near pictures may differ: re-encoding at quality 20 and halving the size stay within,
as does the share that PDQ, a longer hash of the same kind, recommends (31 of 256)."""
CORRELATION = 0.95
"""Of the thumbnails of near pictures, at least. Re-encoded and halved photographs and charts stay above 0.98; of 3,160 pairs
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
"""Pictures whose matches are kept, since many records of a source share a picture."""


class Hit(NamedTuple):
    """An entry of an index that was found, and how alike it is: 1 is equal; of near pictures, the correlation."""

    kind: Kind
    entry: int
    similarity: float


class TextIndex:
    """Distinct texts: found again exactly, else the most similar one."""

    def __init__(self, exact: Kind, near: Kind, texts: Sequence[Text]) -> None:
        self.exact, self.near, self.texts = exact, near, texts
        self._by_key = {text.key: number for number, text in enumerate(texts)}
        self._occurs = np.zeros(1 << OCCURS_BITS, np.bool_)
        self._blank = MinHash(num_perm=PERMUTATIONS, hashfunc=int)
        self._similar = MinHashLSH(num_perm=PERMUTATIONS, params=(BANDS, ROWS))
        for number, text in enumerate(texts):
            self._similar.insert(number, self._signature(text.shingles))
            self._occurs[text.shingles >> (32 - OCCURS_BITS)] = True

    def find(self, text: Text) -> Hit | None:
        """Return the equal text, else the most similar one within the limit (of several, the first), else None."""
        if text.key in self._by_key:
            return Hit(self.exact, self._by_key[text.key], 1.0)
        if not all(map(self._may_be_near, text.parts)):
            return None
        proposed = self._similar.query(self._signature(text.shingles))
        scored = [(similarity(text, self.texts[number]), -number) for number in proposed]
        best, number = max(scored, default=(0.0, 0))
        return Hit(self.near, -number, round(best, 4)) if best >= SIMILARITY else None

    def _may_be_near(self, found: Hashes) -> bool:
        """Tell whether enough shingles occur in any text at all; the share within one text cannot be larger."""
        return int(np.count_nonzero(self._occurs[found >> (32 - OCCURS_BITS)])) >= SIMILARITY * len(found)

    def _signature(self, found: Hashes) -> MinHash:
        signature = self._blank.copy()
        signature.update_batch(found.tolist())
        return signature


@dataclass(frozen=True, slots=True)
class IndexedPicture:
    """A picture of a benchmark."""

    file: str
    """As `content_digest` returns it."""
    pixels: str
    """As `pixel_key` returns it."""
    picture: Picture


class ImageIndex:
    """Distinct pictures that are not blank: found again by file, else by pixels, else the most alike."""

    def __init__(self, pictures: Sequence[IndexedPicture]) -> None:
        self.pictures = pictures
        self._by_file = {one.file: number for number, one in enumerate(pictures)}
        self._hashes = np.array([one.picture.hash for one in pictures], np.uint64)
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
        one = picture(image, record)
        if one is None:
            return None
        close = np.flatnonzero(np.bitwise_count(self._hashes ^ np.uint64(one.hash)) <= DISTANCE).tolist()
        scored = [(correlation(one.thumbnail, self.pictures[number].picture.thumbnail), -number) for number in close]
        best, number = max(scored, default=(0.0, 0))
        if best < CORRELATION:
            return None
        pixels = pixel_key(image, record)
        same = [number for number in close if self.pictures[number].pixels == pixels]
        return Hit("image_pixels", same[0], 1.0) if same else Hit("image_near", -number, round(best, 4))


class Match(NamedTuple):
    """A hit of one record."""

    hit: Hit
    context: str
    """What a text belongs to: a question to its pictures, a pair of responses to its question; empty for a picture."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A picture, a question or a pair of responses of a benchmark."""

    rows: list[str]
    """The identities of all rows that hold it."""
    excerpt: str
    contexts: dict[str, None]
    """What the content stands with in the benchmarks: an ordered set; see `Match.context`."""


class OverlapIndex:
    """All pictures, questions and pairs of responses of some benchmarks."""

    def __init__(self, examples: Iterable[Example]) -> None:
        """Index the rows; raises ImageError for an image that cannot be decoded."""
        tables = _Tables()
        for example in examples:
            tables.add(example)
        self.entries: dict[str, list[IndexEntry]] = {name: list(table.values()) for name, table in tables.entries.items()}
        self.blank = tables.blank
        """Blank pictures, which are not in the index."""
        self._images = ImageIndex(list(tables.pictures.values()))
        self._questions = TextIndex("question", "question_near", list(tables.questions.values()))
        self._pairs = TextIndex("pair", "pair_near", list(tables.pairs.values()))
        self.fingerprint = digest(repr(tables.entries))
        """Changes with the contents of the rows."""

    def matches(self, record: Preference) -> list[Match]:
        """Return what of a record occurs in the benchmarks: its pictures, its user turns, its two responses.

        Raises: ImageError if a picture cannot be decoded.
        """
        pictures = [self._images.find(image, record.identity) for image in record.images]
        seen = " ".join(name for name, _ in pictures)
        asked = [text for text in map(question_text, questions(record.prompt)) if text is not None]
        pair = pair_text((record.chosen, record.rejected))
        found = [
            *((hit, "") for _, hit in pictures),
            *((self._questions.find(text), seen) for text in asked),
            *([(self._pairs.find(pair), _names(asked))] if pair else []),
        ]
        return [Match(hit, context) for hit, context in dict.fromkeys(found) if hit is not None]


class _Tables:
    """The distinct contents of benchmarks, by key, while they are read."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[object, IndexEntry]] = {"image": {}, "question": {}, "pair": {}}
        self.pictures: dict[object, IndexedPicture] = {}
        self.questions: dict[object, Text] = {}
        self.pairs: dict[object, Text] = {}
        self.blank = 0

    def add(self, example: Example) -> None:
        """Add a row."""
        seen = " ".join([self._add_image(image, example.identity) for image in example.images])
        asked = []
        for content in questions(example.prompt):
            text = question_text(content)
            if text is not None:
                asked.append(text)
                self.questions.setdefault(text.key, text)
                self._enter("question", text.key, example.identity, content, seen)
        pair = pair_text(example.responses)
        if pair is not None:
            self.pairs.setdefault(pair.key, pair)
            self._enter("pair", pair.key, example.identity, " | ".join(example.responses), _names(asked))

    def _add_image(self, image: EncodedImage, identity: str) -> str:
        key = content_digest(image)
        if key not in self.pictures:
            found = picture(image, identity)
            if found is None:
                self.blank += 1
                return key
            self.pictures[key] = IndexedPicture(key, pixel_key(image, identity), found)
        self._enter("image", key, identity, "", "")
        return key

    def _enter(self, table: str, key: object, identity: str, content: str, context: str) -> None:
        entry = self.entries[table].setdefault(key, IndexEntry([], excerpt(content), {}))
        if identity not in entry.rows:
            entry.rows.append(identity)
        entry.contexts[context] = None


def table_of(kind: Kind) -> str:
    """Return `image`, `question` or `pair`."""
    return kind.partition("_")[0]


def questions(prompt: Sequence[Message]) -> list[str]:
    """Return the text of each user turn."""
    turns = (message["content"] for message in prompt if message["role"] == "user")
    return [" ".join(part["text"] for part in parts if part["type"] == "text") for parts in turns]


def excerpt(content: str) -> str:
    """Return the beginning of a text on one line, in characters that can be written as UTF-8."""
    line = " ".join(content.split()).encode(errors="replace").decode()
    return line if len(line) <= 160 else line[:159] + "…"


def _names(asked: Sequence[Text]) -> str:
    return " ".join(f"{text.key:016x}" for text in asked)
