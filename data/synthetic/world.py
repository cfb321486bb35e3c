"""The embedded world: endless, labelled image preference data about simple scenes, made with Pillow.

Every item is a function of (level, seed, split, index) alone. Splits share no scene.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from PIL import Image

from data.preference import ImagePart, Message, Preference, TextPart
from data.storage.code import code_digest
from data.storage.files import digest
from data.synthetic.questions import QUESTION_TYPES
from data.synthetic.rng import Rng, number
from data.synthetic.scenes import LEVELS, SPLITS, Change, Level, Scene, bucket, draw, png, sample
from data.synthetic.text_questions import TEXT_TYPES
from data.synthetic.wording import RATIONALES, CritiqueTruth, Query, Side, critique_truth, write_critique, write_rationale

LESSON_WEIGHTS = dict.fromkeys(QUESTION_TYPES, 1.0) | {"description": 3.0, "code": 2.0, "place": 3.0, "attribute": 2.0}
"""How often a lesson asks what: dense answers teach a small model to see far faster than short ones."""
ENDLESS = 1 << 40


@dataclass(frozen=True, slots=True)
class Item:
    """A preference pair with its whole truth."""

    level: Level
    identity: str
    kind: str
    """The question type: a key of QUESTION_TYPES or TEXT_TYPES."""
    category: str
    question: str
    true: Side
    false: Side
    chosen: str
    rejected: str
    scene: Scene | None
    twin: Scene | None
    """The scene for which `rejected` would be right; None for text-only items."""
    form: str
    """What the rationale begins with, of RATIONALES."""

    def picture(self) -> Image.Image | None:
        """Draw the scene (RGB)."""
        return None if self.scene is None else draw(self.level, self.scene)

    def critique_truth(self, chosen: bool) -> CritiqueTruth:
        """Return what the correct critique of the chosen or of the rejected response asserts."""
        return critique_truth(self.true, self.true if chosen else self.false)

    def critique(self, chosen: bool) -> str:
        """Write the correct critique of the chosen or of the rejected response."""
        return write_critique(self.critique_truth(chosen))

    def rationale(self, chosen_first: bool = True) -> str:
        """Compare the responses, with `chosen` shown as Response 1 or as Response 2."""
        return write_rationale(self.true, self.false, chosen_first, self.form)


class Turn(NamedTuple):
    """One stated answer about a lesson's picture."""

    question: str
    answer: str
    right: bool
    kind: str
    critique: str
    """The correct critique of this answer."""
    other: str
    """An answer that is wrong if this one is right, and right if it is wrong."""


class Lesson(NamedTuple):
    """One picture and many stated answers about it, about half of them right."""

    image: Image.Image | None
    turns: tuple[Turn, ...]
    scene: Scene | None


class ShapesWorld:
    """Preference items and lessons of one level and split, addressed by index; nothing is stored."""

    length = ENDLESS

    def __init__(
        self, level: str, seed: int, split: str, text_only: float = 0.15, weights: Mapping[str, float] | None = None
    ) -> None:
        """Choose the level and the split.

        `text_only` is the share of items and lessons without a picture; `weights` replaces the equal weights of the question
        types (those it does not name get none). Raises: ValueError for unknown names, and for a share that no type can fill.
        """
        weights = dict.fromkeys((*QUESTION_TYPES, *TEXT_TYPES), 1.0) if weights is None else weights
        _known("level", level, LEVELS)
        _known("split", split, SPLITS)
        for kind in weights:
            _known("question type", kind, (*QUESTION_TYPES, *TEXT_TYPES))
        self.level = LEVELS[level]
        self.seed = seed
        self.split = split
        self.source = f"shapes-{level}"
        self._buckets = SPLITS[split]
        self._key = (seed, number(level), number(split))
        self._text_only = text_only
        self._picture_weights = {kind: weights[kind] for kind in QUESTION_TYPES if weights.get(kind, 0.0) > 0}
        self._text_weights = {kind: weights[kind] for kind in TEXT_TYPES if weights.get(kind, 0.0) > 0}
        _fillable(text_only, self._text_weights, TEXT_TYPES)
        _fillable(1 - text_only, self._picture_weights, QUESTION_TYPES)

    def item(self, index: int, kinds: tuple[str, ...] | None = None) -> Item:
        """Return item `index` with all its truth; `kinds` narrows the question types (each then as likely)."""
        rng = Rng(*self._key, 0, index)
        kind = rng.choice(kinds) if kinds else self._draw_kind(rng)
        identity = f"{self.source}-{self.split}:{index}"
        if kind in TEXT_TYPES:
            category, ask = TEXT_TYPES[kind]
            query = ask(rng)
            true, false, scene, twin = *query.sides, None, None
        else:
            category = QUESTION_TYPES[kind].category
            query, scene, twin = self._twins(rng, kind)
            true, false = query.sides
        chosen, rejected = rng.choice(true.phrasings), rng.choice(false.phrasings)
        if scene is not None and rng.coin():  # after every word is fixed: this coin alone makes a side true
            true, false, scene, twin, chosen, rejected = false, true, twin, scene, rejected, chosen
        form = rng.choice(RATIONALES)  # drawn last: everything else is as it would be without it
        return Item(self.level, identity, kind, category, query.question, true, false, chosen, rejected, scene, twin, form)

    def preference(self, index: int, kinds: tuple[str, ...] | None = None) -> Preference:
        """Return item `index` as a record; its picture is a PNG in memory."""
        return as_preference(self.item(index, kinds), self.source)

    def of_shapes(self, most: int) -> ShapesWorld:
        """Return this world with at most `most` things in a picture and nothing written: for lessons, where learning starts."""
        world = copy(self)
        world.level = replace(self.level, things=(1, most), written=((0, 0),))
        return world

    def lesson(
        self, index: int, questions: int = 16, weights: Mapping[str, float] = LESSON_WEIGHTS, *, near_misses: bool = True
    ) -> Lesson:
        """Return one picture with up to `questions` stated answers, each right or a near miss by the toss of a coin.

        Without `near_misses` all answers are right.

        A question type that the scene or a change does not allow is left out, not tried again until it fits: that would
        make some answers likelier than their near misses. After four attempts a question the lesson ends as it is.
        """
        rng = Rng(*self._key, 1, index)
        if rng.unit() < self._text_only:
            queries = (TEXT_TYPES[rng.weighted(self._text_weights)][1](rng) for _ in range(questions))
            return Lesson(None, tuple(_turn(rng, query, near_misses) for query in queries), None)
        scene = self._scene(rng, None, 1)
        turns: list[Turn] = []
        for _ in range(4 * questions):
            query = self._query(rng, rng.weighted(weights), scene)
            if query is not None:
                turns.append(_turn(rng, query[0], near_misses))
            if len(turns) == questions:
                break
        return Lesson(draw(self.level, scene), tuple(turns), scene)

    def corpus(self, lessons: int) -> Iterator[str]:
        """Yield the texts of `lessons` lessons and as many items: questions, answers, critiques, rationales."""
        for index in range(lessons):
            for turn in self.lesson(index).turns:
                yield from (turn.question, turn.answer, turn.critique)
            item = self.item(index)
            yield from (item.question, item.chosen, item.rejected, item.critique(True), item.critique(False))
            yield from (item.rationale(True), item.rationale(False))

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the world's code, level or weights."""
        drawn = repr((self.level, self._text_only, self._picture_weights, self._text_weights))
        return digest(f"{drawn} {code_digest('data.synthetic.world')}")

    def _draw_kind(self, rng: Rng) -> str:
        """Draw a question type: first whether it comes with a picture, then which."""
        return rng.weighted(self._text_weights if rng.unit() < self._text_only else self._picture_weights)

    def _scene(self, rng: Rng, written: tuple[tuple[int, int], ...] | None, fewest: int) -> Scene:
        """Sample a scene of this split."""
        while True:
            scene = sample(rng, self.level, written, fewest)
            if bucket(scene) in self._buckets:
                return scene

    def _query(self, rng: Rng, kind: str, scene: Scene) -> tuple[Query, Change] | None:
        """Change `scene` into a twin of this split and ask a question on which the two disagree."""
        question_type = QUESTION_TYPES[kind]
        for _ in range(8 * 16 // len(self._buckets)):
            change = rng.choice(question_type.edits)(rng, self.level, scene, question_type.kinds)
            if change is None:
                return None
            if bucket(change.scene) in self._buckets:
                query = question_type.ask(rng, self.level, scene, change)
                return None if query is None else (query, change)
        return None

    def _twins(self, rng: Rng, kind: str) -> tuple[Query, Scene, Scene]:
        """Sample two scenes of this split and a question on which they disagree."""
        question_type = QUESTION_TYPES[kind]
        while True:
            scene = self._scene(rng, question_type.written, question_type.fewest)
            found = self._query(rng, kind, scene)
            if found is not None:
                return found[0], scene, found[1].scene


def _turn(rng: Rng, query: Query, near_misses: bool) -> Turn:
    """State the answer of the query's first side (which is right) or, by a coin, that of its second."""
    wrong = near_misses and rng.coin()
    stated, other = query.sides[wrong], query.sides[not wrong]
    truth = critique_truth(query.sides[0], stated)
    answer, opposite = rng.choice(stated.phrasings), rng.choice(other.phrasings)
    return Turn(query.question, answer, truth.right, query.kind, write_critique(truth), opposite)


def _known(what: str, name: str, table: Collection[str]) -> None:
    """Raise ValueError if `name` is not in `table`."""
    if name not in table:
        raise ValueError(f"the embedded world has no {what} {name!r}; it has {', '.join(table)}")


def _fillable(share: float, weights: Mapping[str, float], table: Collection[str]) -> None:
    """Raise ValueError if a share of the items is negative, or is wanted although no question type has a weight."""
    if share < 0 or (share > 0 and not weights):
        raise ValueError(
            f"a share of {share:g} of the items cannot be filled: text_only must lie in [0, 1] and, "
            f"unless the share is 0, one of these question types needs a positive weight: {', '.join(table)}"
        )


def as_preference(item: Item, source: str) -> Preference:
    """Return `item` as a record: the image part first, then the question."""
    parts: list[TextPart | ImagePart] = [{"type": "text", "text": item.question}]
    picture = item.picture()
    if picture is not None:
        parts.insert(0, {"type": "image"})
    message: Message = {"role": "user", "content": parts}
    return Preference(
        identity=item.identity,
        prompt=(message,),
        chosen=item.chosen,
        rejected=item.rejected,
        images=() if picture is None else (png(picture),),
        chosen_critique=item.critique(True),
        rejected_critique=item.critique(False),
        rationale=item.rationale(),
        source=source,
        category=item.category,
    )
