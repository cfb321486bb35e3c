"""Generated questions with two to eight rated answers, whose truth is known claim by claim.

A question asks for the shape and the place of one coloured thing, and for the number of all things
in the image. Each answer makes these three claims, and each claim of each answer is right or wrong
with equal probability, independently of all other claims. The wording of an answer is drawn
independently of its claims. Every record depends only on the settings, the seed, the split and its
index. Splits share no scene.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, log, pi, sqrt
from typing import NamedTuple

from mmrm.data.preference import Preference, Truth, dense_ranks, text, text_responses
from mmrm.data.storage.files import digest
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.data.synthetic.scenes import (
    LEVELS,
    SPLITS,
    Level,
    Scene,
    SceneObject,
    bucket,
    draw,
    png,
    random_thing,
)
from mmrm.data.synthetic.wording import location, with_article

RATED_REVISION = "7c1d40e2a95b8f36"
"""The revision of the rated data. A run resumes only with data of the same revision.

Change it whenever a record changes by a character, a number or a pixel, and never otherwise:
`test_the_rated_records_belong_to_their_revision` compares it with a digest of the data.
"""

_RATED = 2
"""Part of the random key of rated records. Items of `shapes` have 0 there, and lessons have 1."""

CLAIMS = ("object", "count", "place")
"""The names of the three claims of an answer. Each is an attribute of a record: 1 is right."""
MAX_RESPONSES = 8
"""Largest number of answers in a record. Answers with equal claims differ in their wording, which
has 12 variants, so that all texts of a record are different."""
SURE_SHARE = 0.25
"""Deviation of the ratings of an answer that does not hedge, as a share of the deviation of the
ratings of an answer that does."""
RATING_DIGITS = 2
"""Number of decimals of a rating."""


class Style(NamedTuple):
    """The wording of an answer, which has nothing to do with its claims."""

    form: int
    """Number of the sentence, an index into the result of `_sentences`."""
    is_courteous: bool
    """The answer begins with "sure,"."""
    is_hedged: bool
    """The answer says "i think", and raters disagree about it."""


class RatingRule(NamedTuple):
    """The rule by which the raters of the generated data rate an answer.

    A rating is the number of right claims, from 0 to 3, plus `courtesy` if the answer is courteous,
    plus noise from a normal distribution with mean 0. The standard deviation of the noise is
    `noise` if the answer hedges ("i think ..."), and a quarter of it (SURE_SHARE) if not.
    """

    courtesy: float = 0.0
    noise: float = 0.0

    def expected(self, style: Style, num_right: int) -> float:
        """Return the mean of the ratings of an answer with `num_right` right claims."""
        return num_right + self.courtesy * style.is_courteous

    def deviation(self, style: Style) -> float:
        """Return the standard deviation of the ratings of an answer with the given wording."""
        return self.noise if style.is_hedged else self.noise * SURE_SHARE


class Facts(NamedTuple):
    """The three facts that a question asks for, or the same three things claimed by an answer."""

    shape: str
    num_things: int
    cell: int


class RatedResponse(NamedTuple):
    """An answer with everything that is known about it."""

    text: str
    is_right: tuple[bool, ...]
    """Whether each claim is right, in the order of CLAIMS."""
    style: Style
    rating: float
    """The rating of one rater, drawn by the `RatingRule`."""

    @property
    def quality(self) -> int:
        """The number of right claims, from 0 to 3: the true score, without wording and noise."""
        return sum(self.is_right)


@dataclass(frozen=True, slots=True)
class RatedItem:
    """A generated question with its rated answers, in the order in which they were drawn."""

    source: str
    """The name of the data set and level, such as "shapes-rated-demo"."""
    identity: str
    question: str
    scene: Scene
    answers: tuple[str, ...]
    """All texts that the rules of the data set accept as a right answer."""
    responses: tuple[RatedResponse, ...]

    def preference(self) -> Preference:
        """Return the question with its ranked answers, and its image as a PNG in memory.

        The answers are ranked by their ratings. The attributes of a record are the three CLAIMS and
        `wording` (1 if the answer is courteous), each 0 or 1, the true score `quality`, and
        `rating`.
        """
        best_first = sorted(self.responses, key=lambda response: -response.rating)
        attributes: dict[str, tuple[float, ...]] = {}
        for index, name in enumerate(CLAIMS):
            attributes[name] = tuple(float(response.is_right[index]) for response in best_first)
        attributes["wording"] = tuple(float(response.style.is_courteous) for response in best_first)
        attributes["quality"] = tuple(float(response.quality) for response in best_first)
        attributes["rating"] = tuple(response.rating for response in best_first)
        return Preference(
            identity=self.identity,
            prompt=(text("user", self.question, images=1),),
            responses=text_responses(*[response.text for response in best_first]),
            images=(png(draw(self.scene)),),
            source=self.source,
            category="rated",
            truth=Truth("exact", self.answers),
            ranks=tuple(dense_ranks([-response.rating for response in best_first])),
            attributes=attributes,
        )


class RatedShapesGenerator:
    """A generator of questions with rated answers, each made from its index when requested."""

    def __init__(
        self,
        level: str,
        seed: int,
        split: str,
        num_responses: int,
        rule: RatingRule,
        ties: bool,
    ) -> None:
        """Store the settings of the data set.

        Args:
            level: The level of difficulty, a key of LEVELS such as "demo".
            seed: Seed of everything that is drawn.
            split: A key of SPLITS such as "train". Splits share no scene.
            num_responses: Number of answers to each question, from 2 to MAX_RESPONSES.
            rule: The rule by which answers are rated.
            ties: False draws the answers to a question again until no two have equal ratings.
        """
        self.level = LEVELS[level]
        self.source = f"shapes-rated-{level}"
        self._split = split
        self._key = (seed, stable_hash(level), stable_hash(split), _RATED)
        self._num_responses = num_responses
        self._rule = rule
        self._ties = ties

    def item(self, index: int) -> RatedItem:
        """Return the question number `index` with its answers."""
        rng = Rng(*self._key, index)
        scene, subject, true, false = self._question(rng)
        name = f"{subject.colour} thing"
        question = rng.choice(
            (
                f"what is the {name}, where is it, and how many things are there?",
                f"tell me the shape of the {name}, where it is, and how many things you see.",
            )
        )
        right_answers = []
        for sentence in _sentences(scene, name, true):
            for opening in ("", "sure, ", "i think ", "sure, i think "):
                right_answers.append(opening + sentence)
        while True:
            responses = self._responses(rng, scene, name, true, false)
            ratings = {response.rating for response in responses}
            if self._ties or len(ratings) == len(responses):
                break
        return RatedItem(
            source=self.source,
            identity=f"{self.source}-{self._split}:{index}",
            question=question,
            scene=scene,
            answers=tuple(right_answers),
            responses=tuple(responses),
        )

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change when the generated data change.

        They depend on the revision of the data and on all settings except the seed and the split.
        """
        settings = repr((self.level, self._num_responses, tuple(self._rule), self._ties))
        return digest(f"{settings} {RATED_REVISION}")

    def _question(self, rng: Rng) -> tuple[Scene, SceneObject, Facts, Facts]:
        """Return a scene of this split, the thing that is asked about, and right and wrong facts.

        The right and the wrong shape, place and count are drawn in the same way, so that they
        cannot be told apart without the image.
        """
        level = self.level
        while True:
            grid = rng.choice(level.grids)
            true_shape, false_shape = rng.sample(level.shapes, 2)
            true_cell, false_cell = rng.sample(range(grid * grid), 2)
            true_count, false_count = rng.sample(_counts(level), 2)
            subject = random_thing(rng, level, true_cell, "shape")._replace(what=true_shape)
            things = [subject, *_other_shapes(rng, level, grid, subject, true_count - 1)]
            scene = Scene(tuple(sorted(things)), level, grid, look=rng.below(1 << 30))
            if bucket(scene) in SPLITS[self._split]:
                true = Facts(true_shape, true_count, true_cell)
                false = Facts(false_shape, false_count, false_cell)
                return scene, subject, true, false

    def _responses(
        self, rng: Rng, scene: Scene, name: str, true: Facts, false: Facts
    ) -> list[RatedResponse]:
        """Return rated answers with different texts.

        Args:
            rng: Draws the claims, the wording and the ratings.
            scene: The scene in the image.
            name: The name of the thing that is asked about, such as "red thing".
            true: The right facts.
            false: The facts that are claimed in place of the right ones.
        """
        responses: list[RatedResponse] = []
        texts: set[str] = set()
        while len(responses) < self._num_responses:
            is_right = (rng.coin(), rng.coin(), rng.coin())
            shape_right, count_right, place_right = is_right
            claims = false
            if shape_right:
                claims = claims._replace(shape=true.shape)
            if count_right:
                claims = claims._replace(num_things=true.num_things)
            if place_right:
                claims = claims._replace(cell=true.cell)
            sentences = _sentences(scene, name, claims)
            # Only the wording is drawn again for a text that is taken: the claims stay independent.
            while True:
                style = Style(rng.below(len(sentences)), rng.coin(), rng.coin())
                worded = _worded(sentences[style.form], style)
                if worded not in texts:
                    break
            texts.add(worded)
            expected = self._rule.expected(style, sum(is_right))
            noise = self._rule.deviation(style) * _normal(rng)
            rating = round(expected + noise, RATING_DIGITS)
            responses.append(RatedResponse(worded, is_right, style, rating))
        return responses


def _counts(level: Level) -> range:
    """Return the numbers of things in a scene.

    A scene has at least two things, one of which no question mentions. With one thing alone, a
    question and its answer would nearly give away the split to which the scene belongs.
    """
    fewest, most = level.things
    return range(max(2, fewest), most + 1)


def _other_shapes(
    rng: Rng, level: Level, grid: int, subject: SceneObject, count: int
) -> list[SceneObject]:
    """Return random shapes in other cells and of other colours than the subject.

    Args:
        rng: Draws the shapes.
        level: The level of difficulty.
        grid: Number of cells along one side.
        subject: The thing that is asked about.
        count: The number of shapes.
    """
    free_cells = [cell for cell in range(grid * grid) if cell != subject.cell]
    other_colours = [colour for colour in level.colours if colour != subject.colour]
    shapes = []
    for cell in rng.sample(free_cells, count):
        colour = rng.choice(other_colours)
        shapes.append(random_thing(rng, level, cell, "shape")._replace(colour=colour))
    return shapes


def _sentences(scene: Scene, name: str, claims: Facts) -> tuple[str, ...]:
    """Return the ways to make the three claims in one sentence.

    Args:
        scene: The scene, whose level names its cells.
        name: The name of the thing that is asked about, such as "red thing".
        claims: The facts that are claimed.
    """
    shape = with_article(claims.shape)
    place = location(scene, claims.cell)
    return (
        f"the {name} is {shape}, it is {place}, and there are {claims.num_things} things",
        f"it is {shape}, i see it {place}, and i count {claims.num_things} things",
        f"there are {claims.num_things} things, the {name} is {shape}, and it is {place}",
    )


def _worded(sentence: str, style: Style) -> str:
    """Return an answer with the given sentence in the given wording."""
    if style.is_hedged:
        sentence = f"i think {sentence}"
    if style.is_courteous:
        sentence = f"sure, {sentence}"
    return sentence


def _normal(rng: Rng) -> float:
    """Return a random number from the standard normal distribution (Box and Muller, 1958)."""
    radius = sqrt(-2 * log(1 - rng.unit()))
    return radius * cos(2 * pi * rng.unit())
