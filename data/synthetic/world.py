"""The embedded world: endless preference data about simple scenes that are drawn with Pillow.

The world makes two kinds of data: items, which are preference pairs, and lessons, which are images
with many stated answers. Every item depends on (level, seed, split, index) alone. Splits share no
scene.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from PIL import Image

from mmrm.data.preference import Preference, Truth, text
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

REVISION = "0b6d0473d5e2f626"
"""The revision of the generated items and lessons. A run resumes only with data of the same revision.

Change it whenever an item or a lesson changes by a character or a pixel, and never otherwise:
`test_what_the_world_draws_belongs_to_its_revision` holds both.
"""

LESSON_WEIGHTS = dict.fromkeys(QUESTION_TYPES, 1.0) | {
    "description": 3.0,
    "code": 2.0,
    "place": 3.0,
    "attribute": 2.0,
}
"""Weights by which a lesson draws question types. Long answers teach a small model to see far
faster than short ones."""


@dataclass(frozen=True, slots=True)
class WorldItem:
    """A preference pair with everything that is known about it."""

    source: str
    identity: str
    kind: str
    """The question type: a key of QUESTION_TYPES or TEXT_TYPES."""
    category: str
    question: str
    true: Side
    """The right answer."""
    false: Side
    """The wrong answer, which is right for `twin`."""
    chosen: str
    """A phrasing of `true`."""
    rejected: str
    """A phrasing of `false`."""
    scene: Scene | None
    """None for text-only items."""
    twin: Scene | None
    """The scene for which `rejected` would be right; None for text-only items."""
    form: str
    """The form of the rationale: a key of RATIONALES."""

    def images(self) -> list[Image.Image]:
        """Draw the scene (RGB); the list is empty for a text-only item."""
        return [] if self.scene is None else [draw(self.scene)]

    def critique_truth(self, chosen: bool) -> CritiqueTruth:
        """Return the content of the correct critique of the chosen or of the rejected response."""
        stated = self.true if chosen else self.false
        return critique_truth(self.true, stated)

    def critique(self, chosen: bool) -> str:
        """Return the correct critique of the chosen or of the rejected response."""
        return write_critique(self.critique_truth(chosen))

    def rationale(self, chosen_first: bool = True) -> str:
        """Return a comparison of the responses; `chosen` is Response 1 if it is shown first."""
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


class _SceneQuery(NamedTuple):
    """A query about a scene, and the twin for which the wrong answer would be right."""

    query: Query
    scene: Scene
    twin: Scene


class ShapesWorld:
    """Items and lessons of one level and split, addressed by index and made when accessed."""

    length = 1 << 40

    def __init__(
        self,
        level: str,
        seed: int,
        split: str,
        text_only: float = 0.15,
        kinds: Sequence[str] | None = None,
    ) -> None:
        """Set the level and the split.

        Args:
            level: A key of LEVELS.
            seed: Seed of everything that is drawn.
            split: A key of SPLITS.
            text_only: Share of items and lessons without an image.
            kinds: Question types, drawn with equal probability; None takes all.
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

    def item(self, index: int, kinds: Sequence[str] = ()) -> WorldItem:
        """Return item `index`.

        With `kinds`, its question type is one of them, drawn with equal probability.
        """
        rng = Rng(*self._key, 0, index)
        kind = rng.choice(kinds or self._kinds_of_drawn_modality(rng))
        scene: Scene | None = None
        twin: Scene | None = None
        if kind in TEXT_TYPES:
            category = TEXT_TYPES[kind].category
            query = TEXT_TYPES[kind].ask(rng)
        else:
            category = QUESTION_TYPES[kind].category
            query, scene, twin = self._asked_scene(rng, kind)
        true = query.true
        false = query.false
        question = rng.choice(query.questions)
        chosen = rng.choice(true.phrasings)
        rejected = rng.choice(false.phrasings)
        # Every word is fixed now. This coin alone decides which side is true.
        if scene is not None and rng.coin():
            true, false = false, true
            scene, twin = twin, scene
            chosen, rejected = rejected, chosen
        # The form is drawn last, so that everything else is the same without it.
        form = rng.choice(tuple(RATIONALES))
        return WorldItem(
            source=self.source,
            identity=f"{self.source}-{self.split}:{index}",
            kind=kind,
            category=category,
            question=question,
            true=true,
            false=false,
            chosen=chosen,
            rejected=rejected,
            scene=scene,
            twin=twin,
            form=form,
        )

    def of_shapes(self, most: int) -> ShapesWorld:
        """Return this world with at most `most` things in an image, all of them shapes.

        Lessons begin with such images.
        """
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
        """Return one image with up to `questions` stated answers.

        Each answer is right or a near miss, by the toss of a coin. Without `near_misses` all
        answers are right.

        A question type that the scene or a change does not allow is left out, and not tried again
        until it fits: that would make some answers likelier than their near misses. After four
        attempts a question the lesson ends with the questions that it has.
        """
        rng = Rng(*self._key, 1, index)
        turns: list[Turn] = []
        if rng.unit() < self._text_only:
            for _ in range(questions):
                query = TEXT_TYPES[rng.choice(self._text_kinds)].ask(rng)
                turns.append(_turn(rng, query, near_misses))
            return Lesson(None, tuple(turns), None)
        scene = self._scene(rng)
        for _ in range(4 * questions):
            asked = self._query(rng, rng.weighted(weights), scene)
            if asked is not None:
                turns.append(_turn(rng, asked.query, near_misses))
            if len(turns) == questions:
                break
        return Lesson(draw(scene), tuple(turns), scene)

    def corpus(self, lessons: int) -> Iterator[str]:
        """Yield the texts of `lessons` lessons and as many items.

        These are questions, answers, critiques and rationales.
        """
        for index in range(lessons):
            for turn in self.lesson(index).turns:
                yield from (turn.question, turn.answer, turn.critique)
            item = self.item(index)
            yield from (item.question, item.chosen, item.rejected)
            yield from (item.critique(True), item.critique(False))
            yield from (item.rationale(True), item.rationale(False))

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the world's revision, level or question types."""
        settings = repr((self.level, self._text_only, self._image_kinds, self._text_kinds))
        return digest(f"{settings} {REVISION}")

    def _kinds_of_drawn_modality(self, rng: Rng) -> list[str]:
        """Draw whether an item has an image, and return the question types of such items."""
        is_text_only = rng.unit() < self._text_only
        return self._text_kinds if is_text_only else self._image_kinds

    def _scene(
        self, rng: Rng, written: tuple[tuple[int, int], ...] | None = None, fewest: int = 1
    ) -> Scene:
        """Draw a scene of this split; the arguments are those of `sample`."""
        while True:
            scene = sample(rng, self.level, written, fewest)
            if bucket(scene) in self._buckets:
                return scene

    def _asked_scene(self, rng: Rng, kind: str) -> _SceneQuery:
        """Draw scenes until one allows a question of the given type."""
        question_type = QUESTION_TYPES[kind]
        while True:
            scene = self._scene(rng, question_type.written, question_type.fewest)
            asked = self._query(rng, kind, scene)
            if asked is not None:
                return asked

    def _query(self, rng: Rng, kind: str, scene: Scene) -> _SceneQuery | None:
        """Draw a twin of `scene` in this split, and a question to which the two have other answers.

        The result is None if the scene or the change allows no such question.
        """
        question_type = QUESTION_TYPES[kind]
        # The smaller the split, the rarer are twins in it, and the more often a change is drawn.
        for _ in range(8 * 16 // len(self._buckets)):
            edit = rng.choice(question_type.edits)
            change = edit(rng, scene, question_type.kinds)
            if change is None:
                return None
            twin = change.scenes[1]
            if bucket(twin) in self._buckets:
                query = question_type.ask(rng, change)
                return None if query is None else _SceneQuery(query, scene, twin)
        return None


def _turn(rng: Rng, query: Query, near_misses: bool) -> Turn:
    """Return the right answer to a query or, with `near_misses` and by a coin, the wrong one."""
    question = rng.choice(query.questions)
    stated = query.true
    other = query.false
    if near_misses and rng.coin():
        stated, other = other, stated
    truth = critique_truth(query.true, stated)
    answer = rng.choice(stated.phrasings)
    other_answer = rng.choice(other.phrasings)
    return Turn(question, answer, truth.right, write_critique(truth), other_answer)
