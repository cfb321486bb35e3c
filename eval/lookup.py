"""Indices in which a text or a picture is looked up: equal, or nearly equal.

Exact matches are found by key. Nearly equal texts are found by MinHash and locality-sensitive hashing (datasketch), and the
Jaccard similarity of what that proposes is computed exactly: nothing below the limit is returned, and fewer than one in a
thousand at the limit is missed. Most texts never get that far, since too few of their shingles occur in any entry at all.

Perceptual hashes are compared with all entries' at once. For seven thousand that takes 6 microseconds, against two
milliseconds for decoding a picture, and it is exact; an index by bands of the hash has more to look at, in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from datasketch import MinHash, MinHashLSH

from data.images import ImageError
from data.preference import EncodedImage
from data.whole_files import content_digest
from eval.fingerprints import (
    Hashes,
    Picture,
    Text,
    correlation,
    picture,
    pixel_key,
    similarity,
)

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
