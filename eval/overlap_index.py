"""The pictures, questions and pairs of responses of some benchmarks, indexed once, so that training records can be looked up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from data.preference import EncodedImage, Message, Preference
from data.whole_files import content_digest, digest
from eval.fingerprints import Text, pair_text, picture, pixel_key, question_text
from eval.lookup import Hit, ImageIndex, IndexedPicture, Kind, TextIndex
from eval.protocol import Example


class Match(NamedTuple):
    """A hit of one record."""

    hit: Hit
    context: str
    """What a text belongs to: a question to its pictures, a pair of responses to its question; empty for a picture."""


@dataclass(frozen=True, slots=True)
class Entry:
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
        self.entries: dict[str, list[Entry]] = {name: list(table.values()) for name, table in tables.entries.items()}
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
        self.entries: dict[str, dict[object, Entry]] = {"image": {}, "question": {}, "pair": {}}
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
        entry = self.entries[table].setdefault(key, Entry([], excerpt(content), {}))
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
