"""The embedded world: endless, labelled image preference data about simple scenes, made with Pillow.

Every item is a function of (level, seed, split, index) alone. Splits share no scene.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from PIL import Image

from mmrm.data.preference import Preference, Truth, text
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import digest
from mmrm.data.synthetic.rng import Rng, number
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import LEVELS, SPLITS, Scene, bucket, draw, png, sample
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.wording import (
    RATIONALES,
    CritiqueTruth,
    Query,
    Side,
    critique_truth,
    write_critique,
    write_rationale,
)

LESSON_WEIGHTS = dict.fromkeys(QUESTION_TYPES, 1.0) | {
    "description": 3.0,
    "code": 2.0,
    "place": 3.0,
    "attribute": 2.0,
}
"""How often a lesson asks what: dense answers teach a small model to see far faster than short ones."""


@dataclass(frozen=True, slots=True)
class Item:
    """A preference pair with its whole truth."""

    source: str
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

    def images(self) -> list[Image.Image]:
        """Draw the scene (RGB); none for a text-only item."""
        return [] if self.scene is None else [draw(self.scene)]

    def critique_truth(self, chosen: bool) -> CritiqueTruth:
        """Return what the correct critique of the chosen or of the rejected response asserts."""
        return critique_truth(self.true, self.true if chosen else self.false)

    def critique(self, chosen: bool) -> str:
        """Write the correct critique of the chosen or of the rejected response."""
        return write_critique(self.critique_truth(chosen))

    def rationale(self, chosen_first: bool = True) -> str:
        """Compare the responses, with `chosen` shown as Response 1 or as Response 2."""
        return write_rationale(self.true, self.false, chosen_first, self.form)

    def preference(self) -> Preference:
        """Return the item as a record; its image is a PNG in memory."""
        images = tuple(map(png, self.images()))
        return Preference(
            identity=self.identity,
            prompt=(text("user", self.question, len(images)),),
            chosen=self.chosen,
            rejected=self.rejected,
            images=images,
            chosen_critique=self.critique(True),
            rejected_critique=self.critique(False),
            rationale=self.rationale(),
            source=self.source,
            category=self.category,
            truth=Truth("exact", self.true.phrasings),
        )


class Turn(NamedTuple):
    """One stated answer about a lesson's image."""

    question: str
    answer: str
    right: bool
    critique: str
    """The correct critique of this answer."""
    other: str
    """An answer that is wrong if this one is right, and right if it is wrong."""


class Lesson(NamedTuple):
    """One image and many stated answers about it, about half of them right."""

    image: Image.Image | None
    turns: tuple[Turn, ...]
    scene: Scene | None


class ShapesWorld:
    """Preference items and lessons of one level and split, addressed by index; nothing is stored."""

    length = 1 << 40

    def __init__(
        self,
        level: str,
        seed: int,
        split: str,
        text_only: float = 0.15,
        kinds: Sequence[str] | None = None,
    ) -> None:
        """Choose the level and the split.

        `text_only` is the share of items and lessons without an image; `kinds` are the question types, each as likely; None
        takes all.
        """
        self.level = LEVELS[level]
        self.seed = seed
        self.split = split
        self.source = f"shapes-{level}"
        self._buckets = SPLITS[split]
        self._key = (seed, number(level), number(split))
        self._text_only = text_only
        self._image_kinds = [kind for kind in QUESTION_TYPES if kinds is None or kind in kinds]
        self._text_kinds = [kind for kind in TEXT_TYPES if kinds is None or kind in kinds]

    def item(self, index: int, kinds: Sequence[str] = ()) -> Item:
        """Return item `index` with all its truth; `kinds` narrows the question types (each then as likely)."""
        rng = Rng(*self._key, 0, index)
        kind = rng.choice(
            kinds or (self._text_kinds if rng.unit() < self._text_only else self._image_kinds)
        )
        scene: Scene | None = None
        twin: Scene | None = None
        if kind in TEXT_TYPES:
            category, ask = TEXT_TYPES[kind]
            query = ask(rng)
        else:
            question_type, found = QUESTION_TYPES[kind], None
            while found is None:
                found = self._query(
                    rng, kind, self._scene(rng, question_type.written, question_type.fewest)
                )
            category, (query, (scene, twin)) = question_type.category, found
        questions, true, false = query
        asked = rng.choice(questions)
        chosen, rejected = rng.choice(true.phrasings), rng.choice(false.phrasings)
        if (
            scene is not None and rng.coin()
        ):  # after every word is fixed: this coin alone makes a side true
            true, false, scene, twin, chosen, rejected = false, true, twin, scene, rejected, chosen
        identity = f"{self.source}-{self.split}:{index}"
        form = rng.choice(
            tuple(RATIONALES)
        )  # drawn last: everything else is as it would be without it
        return Item(
            self.source,
            identity,
            kind,
            category,
            asked,
            true,
            false,
            chosen,
            rejected,
            scene,
            twin,
            form,
        )

    def of_shapes(self, most: int) -> ShapesWorld:
        """Return this world with at most `most` things in an image and nothing written: for lessons, where learning starts."""
        world = copy(self)
        world.level = replace(self.level, things=(1, most), written=((0, 0),))
        return world

    def lesson(
        self,
        index: int,
        questions: int = 16,
        weights: Mapping[str, float] = LESSON_WEIGHTS,
        *,
        near_misses: bool = True,
    ) -> Lesson:
        """Return one image with up to `questions` stated answers, each right or a near miss by the toss of a coin.

        Without `near_misses` all answers are right.

        A question type that the scene or a change does not allow is left out, not tried again until it fits: that would
        make some answers likelier than their near misses. After four attempts a question the lesson ends as it is.
        """
        rng = Rng(*self._key, 1, index)
        if rng.unit() < self._text_only:
            queries = (TEXT_TYPES[rng.choice(self._text_kinds)][1](rng) for _ in range(questions))
            return Lesson(None, tuple(_turn(rng, query, near_misses) for query in queries), None)
        scene = self._scene(rng)
        turns: list[Turn] = []
        for _ in range(4 * questions):
            query = self._query(rng, rng.weighted(weights), scene)
            if query is not None:
                turns.append(_turn(rng, query[0], near_misses))
            if len(turns) == questions:
                break
        return Lesson(draw(scene), tuple(turns), scene)

    def corpus(self, lessons: int) -> Iterator[str]:
        """Yield the texts of `lessons` lessons and as many items: questions, answers, critiques, rationales."""
        for index in range(lessons):
            for turn in self.lesson(index).turns:
                yield from (turn.question, turn.answer, turn.critique)
            item = self.item(index)
            yield from (
                item.question,
                item.chosen,
                item.rejected,
                item.critique(True),
                item.critique(False),
            )
            yield from (item.rationale(True), item.rationale(False))

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the world's code, level or question types."""
        drawn = repr((self.level, self._text_only, self._image_kinds, self._text_kinds))
        return digest(f"{drawn} {code_digest('mmrm.data.synthetic.world')}")

    def _scene(
        self, rng: Rng, written: tuple[tuple[int, int], ...] | None = None, fewest: int = 1
    ) -> Scene:
        """Sample a scene of this split."""
        while True:
            scene = sample(rng, self.level, written, fewest)
            if bucket(scene) in self._buckets:
                return scene

    def _query(self, rng: Rng, kind: str, scene: Scene) -> tuple[Query, tuple[Scene, Scene]] | None:
        """Return a question on which `scene` and a twin of this split disagree, and these two."""
        question_type = QUESTION_TYPES[kind]
        for _ in range(8 * 16 // len(self._buckets)):
            change = rng.choice(question_type.edits)(rng, scene, question_type.kinds)
            if change is None:
                return None
            if bucket(change.scenes[1]) in self._buckets:
                query = question_type.ask(rng, change)
                return None if query is None else (query, change.scenes)
        return None


def _turn(rng: Rng, query: Query, near_misses: bool) -> Turn:
    """State the right answer to a query or, by a coin, the wrong one."""
    question, stated, other = rng.choice(query.questions), query.true, query.false
    if near_misses and rng.coin():
        stated, other = other, stated
    truth = critique_truth(query.true, stated)
    answer, opposite = rng.choice(stated.phrasings), rng.choice(other.phrasings)
    return Turn(question, answer, truth.right, write_critique(truth), opposite)
