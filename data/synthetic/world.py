"""The generated data set: endless preference data about simple scenes that are drawn with Pillow.

There are two kinds of data: items, which are preference pairs, and lessons, which are images with
many stated answers. Every item and lesson depends only on the level of difficulty, the seed, the
split and its index. Splits share no scene.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from PIL import Image

from mmrm.data.preference import Preference, Truth, text, text_responses
from mmrm.data.storage.files import digest
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import (
    LEVELS,
    NUM_BUCKETS,
    SPLITS,
    Scene,
    bucket,
    draw,
    png,
    sample,
)
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.wording import (
    RATIONALES,
    RUBRIC,
    CritiqueTruth,
    Query,
    WordedAnswer,
    critique_truth,
    write_critique,
    write_rationale,
)

REVISION = "0b6d0473d5e2f626"
"""The revision of the generated data. A run resumes only with data of the same revision.

Change it whenever an item or a lesson changes by a character or a pixel, and never otherwise:
`test_what_the_world_draws_belongs_to_its_revision` compares it with a digest of the data.
"""

_ITEM = 0
"""Part of the random key of items, so that they are drawn independently of lessons."""
_LESSON = 1
"""Part of the random key of lessons."""

LESSON_WEIGHTS = dict.fromkeys(QUESTION_TYPES, 1.0) | {
    "description": 3.0,
    "code": 2.0,
    "place": 3.0,
    "attribute": 2.0,
}
"""Weights by which a lesson draws question types. Questions with long answers have larger weights:
from these a small model learns to see far faster than from short ones."""


@dataclass(frozen=True, slots=True)
class GeneratedItem:
    """A generated preference pair, with everything that is known about it.

    Its question is about an image of a scene, a few coloured things on a grid. A text-only item has
    no image.
    """

    source: str
    """The name of the data set and level, such as "shapes-demo"."""
    identity: str
    kind: str
    """The question type: a key of QUESTION_TYPES or TEXT_TYPES."""
    category: str
    question: str
    true: WordedAnswer
    """The right answer."""
    false: WordedAnswer
    """The wrong answer, which is right for `twin`."""
    chosen: str
    """A phrasing of `true`."""
    rejected: str
    """A phrasing of `false`."""
    scene: Scene | None
    """The scene in the image; None for text-only items."""
    twin: Scene | None
    """A scene that differs from `scene` in one thing, and for which `rejected` would be right; None
    for text-only items."""
    rationale_form: str
    """The form of the rationale: a key of RATIONALES, or RUBRIC."""

    def images(self) -> list[Image.Image]:
        """Return the RGB image of the scene in a list, which is empty for a text-only item."""
        return [] if self.scene is None else [draw(self.scene)]

    def critique_truth(self, chosen: bool) -> CritiqueTruth:
        """Return the content of the correct critique of one of the two responses.

        It is about the chosen response if `chosen` is True, and else about the rejected one.
        """
        stated_answer = self.true if chosen else self.false
        return critique_truth(self.true, stated_answer)

    def critique(self, chosen: bool) -> str:
        """Return the text of the correct critique of one of the two responses.

        It is about the chosen response if `chosen` is True, and else about the rejected one.
        """
        return write_critique(self.critique_truth(chosen))

    def rationale(self, chosen_first: bool = True) -> str:
        """Return the rationale: a text that compares the two responses by their numbers.

        It calls the chosen response Response 1 if `chosen_first` is True, and else Response 2.
        """
        return write_rationale(self.true, self.false, chosen_first, self.rationale_form)

    def preference(self) -> Preference:
        """Return the item as a preference record, with its image as a PNG in memory."""
        images = tuple(map(png, self.images()))
        return Preference(
            identity=self.identity,
            prompt=(text("user", self.question, len(images)),),
            responses=text_responses(self.chosen, self.rejected),
            images=images,
            chosen_critique=self.critique(chosen=True),
            rejected_critique=self.critique(chosen=False),
            rationale=self.rationale(),
            source=self.source,
            category=self.category,
            truth=Truth("exact", self.true.phrasings),
        )


class Turn(NamedTuple):
    """A question about a lesson's image, with one answer to it that may be right or wrong."""

    question: str
    answer: str
    right: bool
    """True if the answer is right."""
    critique: str
    """The correct critique of this answer."""
    other: str
    """An answer that is wrong if this one is right, and right if it is wrong."""


class Lesson(NamedTuple):
    """An image with many questions and answers about it, from which a small model learns to see."""

    image: Image.Image | None
    """None for a lesson of text questions."""
    turns: tuple[Turn, ...]
    scene: Scene | None
    """The scene in the image; None for a lesson of text questions."""


class _SceneQuery(NamedTuple):
    """A question about a scene with its answers, and the scene's twin.

    The twin differs from the scene in one thing, and the wrong answer is right for it.
    """

    query: Query
    scene: Scene
    twin: Scene


class ShapesGenerator:
    """A generator of preference pairs ("items"), and of "lessons" with many answers to an image.

    An item or lesson is made from its index when it is requested.
    """

    length = 1 << 40
    """Number of items; any index below it is valid."""

    def __init__(
        self,
        level: str,
        seed: int,
        split: str,
        text_only: float = 0.15,
        kinds: Sequence[str] | None = None,
        *,
        writes_rubrics: bool = False,
        alphabetical_right: float | None = None,
    ) -> None:
        """Store the settings of the data set.

        Args:
            level: The level of difficulty, a key of LEVELS such as "demo".
            seed: Seed of everything that is drawn.
            split: A key of SPLITS such as "train". Splits share no scene.
            text_only: Share of items and lessons without an image.
            kinds: Question types, drawn with equal probability; None takes all.
            writes_rubrics: The rationales of items are criteria and checks. Nothing else changes.
            alphabetical_right: Probability that of the two answers of an item with an image the one
                that comes first in the alphabet is right. None takes 0.5 for every answer, so that
                a judge without the image is right half of the time. The words of items are the
                same with every value.
        """
        self.level = LEVELS[level]
        self.seed = seed
        self.split = split
        self.source = f"shapes-{level}"
        self._buckets = SPLITS[split]
        self._key = (seed, stable_hash(level), stable_hash(split))
        self._text_only = text_only
        self._writes_rubrics = writes_rubrics
        self._alphabetical_right = alphabetical_right
        self._image_kinds = [kind for kind in QUESTION_TYPES if kinds is None or kind in kinds]
        self._text_kinds = [kind for kind in TEXT_TYPES if kinds is None or kind in kinds]

    def item(self, index: int, kinds: Sequence[str] = ()) -> GeneratedItem:
        """Return the generated preference pair number `index`.

        Args:
            index: Number of the item, from 0.
            kinds: Question types to draw from; without any, those of this generator are used.
        """
        rng = Rng(*self._key, _ITEM, index)
        kind = rng.choice(kinds or self._kinds_of_drawn_modality(rng))
        scene: Scene | None = None
        twin: Scene | None = None
        if kind in TEXT_TYPES:
            category = TEXT_TYPES[kind].category
            query = TEXT_TYPES[kind].ask(rng)
        else:
            category = QUESTION_TYPES[kind].category
            query, scene, twin = self._scene_with_question(rng, kind)
        true = query.true
        false = query.false
        question = rng.choice(query.questions)
        chosen = rng.choice(true.phrasings)
        rejected = rng.choice(false.phrasings)
        # Every word is fixed now. This draw alone decides which side is true.
        if scene is not None and rng.unit() < self._probability_of_exchange(true, false):
            true, false = false, true
            scene, twin = twin, scene
            chosen, rejected = rejected, chosen
        # Drawn last: a new form of rationales changes nothing else about an item.
        rationale_form = rng.choice(tuple(RATIONALES))
        if self._writes_rubrics:
            rationale_form = RUBRIC
        return GeneratedItem(
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
            rationale_form=rationale_form,
        )

    def of_shapes(self, max_things: int) -> ShapesGenerator:
        """Return a copy whose images have at most `max_things` things, all of them shapes.

        A model is pretrained on lessons with such images first.
        """
        simpler_data = copy(self)
        no_digits_and_words = ((0, 0),)
        simpler_data.level = replace(
            self.level, things=(1, max_things), written=no_digits_and_words
        )
        return simpler_data

    def lesson(
        self,
        index: int,
        questions: int = 16,
        weights: Mapping[str, float] = LESSON_WEIGHTS,
        *,
        near_misses: bool = True,
    ) -> Lesson:
        """Return lesson `index`: an image with up to `questions` questions and answers about it.

        Each answer is right or wrong with equal probability. A wrong one is a near miss, which is
        right for an image that differs in one thing.

        A question whose type the scene or the drawn change does not allow is left out. It is not
        drawn again until it fits: that would make some answers likelier than their near misses.
        After `4 * questions` attempts, the lesson ends with the questions that it has.

        Args:
            index: Number of the lesson, from 0.
            questions: The largest number of questions.
            weights: Weights by which question types about images are drawn.
            near_misses: False makes all answers right.
        """
        rng = Rng(*self._key, _LESSON, index)
        turns: list[Turn] = []
        if rng.unit() < self._text_only:
            for _ in range(questions):
                query = TEXT_TYPES[rng.choice(self._text_kinds)].ask(rng)
                turns.append(_turn(rng, query, near_misses))
            return Lesson(image=None, turns=tuple(turns), scene=None)
        scene = self._scene(rng)
        for _ in range(4 * questions):
            scene_query = self._query(rng, rng.weighted(weights), scene)
            if scene_query is not None:
                turns.append(_turn(rng, scene_query.query, near_misses))
            if len(turns) == questions:
                break
        return Lesson(image=draw(scene), turns=tuple(turns), scene=scene)

    def corpus(self, num_lessons: int) -> Iterator[str]:
        """Yield the texts of the first `num_lessons` lessons and of as many items.

        These are questions, answers, critiques and rationales. A tokenizer is trained on them.
        """
        for index in range(num_lessons):
            for turn in self.lesson(index).turns:
                yield from (turn.question, turn.answer, turn.critique)
            item = self.item(index)
            yield from (item.question, item.chosen, item.rejected)
            yield from (item.critique(chosen=True), item.critique(chosen=False))
            yield from (item.rationale(chosen_first=True), item.rationale(chosen_first=False))

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change when the generated data change.

        They depend on the revision of the data, the level, the share of texts and the question
        types, but not on the seed or the split.
        """
        settings = repr((self.level, self._text_only, self._image_kinds, self._text_kinds))
        return digest(f"{settings} {REVISION}")

    def _kinds_of_drawn_modality(self, rng: Rng) -> list[str]:
        """Decide at random between image and text, and return the question types of the result."""
        is_text_only = rng.unit() < self._text_only
        return self._text_kinds if is_text_only else self._image_kinds

    def _probability_of_exchange(self, true: WordedAnswer, false: WordedAnswer) -> float:
        """Return the probability with which the drawn twin of a scene replaces the scene.

        `false`, the right answer for the twin, then becomes the right answer of the item.
        """
        if self._alphabetical_right is None or true.quote_if_wrong == false.quote_if_wrong:
            return 0.5
        if true.quote_if_wrong < false.quote_if_wrong:
            return 1 - self._alphabetical_right
        return self._alphabetical_right

    def _scene(
        self, rng: Rng, written: tuple[tuple[int, int], ...] | None = None, fewest: int = 1
    ) -> Scene:
        """Return a random scene that belongs to this split.

        Args:
            rng: Draws the scene.
            written: Numbers of (digits, words) to choose from; None takes those of the level.
            fewest: The smallest number of things, if it is larger than the level's.
        """
        while True:
            scene = sample(rng, self.level, written, fewest)
            if bucket(scene) in self._buckets:
                return scene

    def _scene_with_question(self, rng: Rng, kind: str) -> _SceneQuery:
        """Return a random scene that allows a question of the given type, and such a question."""
        question_type = QUESTION_TYPES[kind]
        while True:
            scene = self._scene(rng, question_type.written, question_type.fewest)
            scene_query = self._query(rng, kind, scene)
            if scene_query is not None:
                return scene_query

    def _query(self, rng: Rng, kind: str, scene: Scene) -> _SceneQuery | None:
        """Return a random twin of `scene`, and a question with different answers for the two.

        The twin differs from the scene in one thing, and belongs to the same split. The result is
        None if the scene or the change allows no such question.

        Args:
            rng: Draws the change and the question.
            kind: The question type, a key of QUESTION_TYPES.
            scene: The scene.
        """
        question_type = QUESTION_TYPES[kind]
        # A change may lead out of the split. So it is drawn up to 8 times as often as is needed on
        # average to stay in it.
        for _ in range(8 * NUM_BUCKETS // len(self._buckets)):
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
    """Return a question with an answer to it, as a turn of a lesson.

    The answer is the right one or, with `near_misses`, the wrong one in half of the cases.
    """
    question = rng.choice(query.questions)
    stated_answer = query.true
    other_answer = query.false
    if near_misses and rng.coin():
        stated_answer, other_answer = other_answer, stated_answer
    truth = critique_truth(query.true, stated_answer)
    stated_text = rng.choice(stated_answer.phrasings)
    other_text = rng.choice(other_answer.phrasings)
    return Turn(question, stated_text, truth.right, write_critique(truth), other_text)
