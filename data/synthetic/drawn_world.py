"""Generated descriptions with drawings of them as responses.

    draw a red circle left of a blue square and two small green triangles, nothing else.

A scene has two large things and up to two small ones, which are alike. A scene has one description.
A description leaves open in which cells the things are, so several scenes fit it. Splits share no
scene, but they share descriptions, as the splits of questions share questions.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mmrm.data.synthetic.rated_pictures import CORNERS, Corner, PictureGenerator, PictureTask
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import SPLITS, Level, Scene, SceneObject, bucket
from mmrm.data.synthetic.wording import plural, with_article

Relation = Literal["left of", "above"]
RELATIONS: tuple[Relation, ...] = ("left of", "above")
"""How two things lie. One that is left of another is in a column further left, in any row. One that
is above another is in the same column."""
Fact = Literal["colour", "shape", "relation", "presence", "count"]
FACTS: tuple[tuple[Fact, Fact], ...] = (
    *(("colour", "shape"), ("colour", "relation"), ("colour", "presence"), ("colour", "count")),
    *(("shape", "relation"), ("shape", "presence"), ("shape", "count")),
    *(("relation", "presence"), ("relation", "count")),
)
"""The pairs of facts in which the four scenes of a record may differ. The presence and the count of
the small things exclude each other."""
FAULTS = ("attribute", "relation", "missing", "extra", "count")
"""The faults of content of a drawing."""
_TRIES = 16
"""Number of times that the cells of a description's things are drawn to find a scene of a split.
There may be none: without small things, the things of a 2 x 2 grid have two to four places."""


class NamedShape(NamedTuple):
    """A coloured shape, as a description names it."""

    colour: str
    shape: str

    @property
    def name(self) -> str:
        """The name without an article, such as "red circle"."""
        return f"{self.colour} {self.shape}"

    def placed(self, cell: int, size: str) -> SceneObject:
        """Return the shape as a thing of a scene."""
        return SceneObject(cell, "shape", self.shape, self.colour, size)


class Description(NamedTuple):
    """What a drawing is to show."""

    first: NamedShape
    """The large thing that is left of the other one, or above it."""
    relation: Relation
    second: NamedShape
    """The other large thing."""
    small: NamedShape
    """The small things."""
    num_small: int
    """Number of small things, from 0 to 2."""

    @property
    def text(self) -> str:
        """The description in words, such as "a red circle above a blue square"."""
        first = with_article(self.first.name)
        second = with_article(self.second.name)
        large_things = f"{first} {self.relation} {second}"
        small_name = f"small {self.small.name}"
        if self.num_small == 0:
            return large_things
        if self.num_small == 1:
            return f"{large_things} and {with_article(small_name)}"
        return f"{large_things} and two {plural(small_name)}"

    def scene(self, rng: Rng, level: Level, grid: int) -> Scene:
        """Return a random scene that fits the description, on a grid with `grid` cells a side."""
        first_cell, second_cell = _related_cells(rng, self.relation, grid)
        small_size, *_, large_size = level.sizes
        things = [
            self.first.placed(first_cell, large_size),
            self.second.placed(second_cell, large_size),
        ]
        free_cells = [cell for cell in range(grid * grid) if cell not in (first_cell, second_cell)]
        for cell in rng.sample(free_cells, self.num_small):
            things.append(self.small.placed(cell, small_size))
        return Scene(tuple(sorted(things)), level, grid, look=0)


def _related_cells(rng: Rng, relation: Relation, grid: int) -> tuple[int, int]:
    """Return the cells of two things of which the first is left of the second, or above it."""
    if relation == "left of":
        first_column, second_column = sorted(rng.sample(range(grid), 2))
        return rng.below(grid) * grid + first_column, rng.below(grid) * grid + second_column
    column = rng.below(grid)
    first_row, second_row = sorted(rng.sample(range(grid), 2))
    return first_row * grid + column, second_row * grid + column


class Variants(NamedTuple):
    """A description, and what the second value of each fact is."""

    description: Description
    """The description if every fact has its first value."""
    is_first_changing: bool
    """True if the colour and the shape of the first large thing have second values; False if those
    of the second large thing have."""
    other_colour: str
    """The second value of the colour."""
    other_shape: str
    """The second value of the shape."""

    def with_changed(self, facts: tuple[Fact, ...]) -> Description:
        """Return the description in which the given facts have their second value."""
        first = self.description.first
        second = self.description.second
        num_small = self.description.num_small
        changing = first if self.is_first_changing else second
        if "colour" in facts:
            changing = changing._replace(colour=self.other_colour)
        if "shape" in facts:
            changing = changing._replace(shape=self.other_shape)
        if self.is_first_changing:
            first = changing
        else:
            second = changing
        if "relation" in facts:
            first, second = second, first
        if "presence" in facts:
            num_small = 0
        if "count" in facts:
            num_small = 2
        return self.description._replace(first=first, second=second, num_small=num_small)


class DrawnGenerator(PictureGenerator):
    """A generator of descriptions with drawings."""

    name = "shapes-drawn"

    def task(self, rng: Rng) -> PictureTask:
        """Return a description and four scenes, one of which fits it."""
        scenes = None
        while scenes is None:
            facts = rng.choice(FACTS)
            variants = _random_variants(rng, self.level, facts)
            grid = rng.choice(self.level.grids)
            scenes = self._scenes(rng, variants, facts, grid)
        target = rng.choice(CORNERS)
        description = variants.with_changed(_changed(facts, target)).text
        return PictureTask(
            category="drawing",
            prompt=rng.choice(
                (f"draw {description}, nothing else.", f"{description}, nothing else.")
            ),
            scenes=scenes,
            target=target,
            faults={corner: _faults(facts, target, corner) for corner in CORNERS},
        )

    def _scenes(
        self, rng: Rng, variants: Variants, facts: tuple[Fact, Fact], grid: int
    ) -> dict[Corner, Scene] | None:
        """Return scenes for the four combinations of two facts' values.

        The cells of each scene are drawn independently. The result is None if no scene of this
        split was found for one of the combinations.
        """
        scenes = {}
        for corner in CORNERS:
            scene = self._scene(rng, variants.with_changed(_changed(facts, corner)), grid)
            if scene is None:
                return None
            scenes[corner] = scene
        return scenes

    def _scene(self, rng: Rng, description: Description, grid: int) -> Scene | None:
        """Return a random scene of this split that fits a description, or None if none is found."""
        for _ in range(_TRIES):
            scene = description.scene(rng, self.level, grid)
            if bucket(scene) in SPLITS[self.split]:
                return scene
        return None


def _random_variants(rng: Rng, level: Level, facts: tuple[Fact, Fact]) -> Variants:
    """Return a random description, and second values for two facts of it."""
    # The colours differ, so that the two large things never look alike, whatever facts change.
    first_colour, second_colour, small_colour, other_colour = rng.sample(tuple(level.colours), 4)
    first = NamedShape(first_colour, rng.choice(level.shapes))
    second = NamedShape(second_colour, rng.choice(level.shapes))
    small = NamedShape(small_colour, rng.choice(level.shapes))
    # One small thing becomes none or two of them.
    num_small = 1 if "presence" in facts or "count" in facts else rng.below(3)
    is_first_changing = rng.coin()
    changing = first if is_first_changing else second
    other_shapes = [shape for shape in level.shapes if shape != changing.shape]
    return Variants(
        description=Description(first, rng.choice(RELATIONS), second, small, num_small),
        is_first_changing=is_first_changing,
        other_colour=other_colour,
        other_shape=rng.choice(other_shapes),
    )


def _changed(facts: tuple[Fact, Fact], corner: Corner) -> tuple[Fact, ...]:
    """Return the facts that have their second value in the scene of a corner."""
    return tuple(fact for fact, is_second in zip(facts, corner, strict=True) if is_second)


def _faults(facts: tuple[Fact, Fact], target: Corner, shown: Corner) -> tuple[str, ...]:
    """Return the faults of a picture of the scene `shown`, if the scene `target` is asked for."""
    faults = []
    for index, fact in enumerate(facts):
        if shown[index] == target[index]:
            continue
        if fact in ("colour", "shape"):
            faults.append("attribute")
        elif fact == "presence":
            # The small thing is absent if the fact has its second value.
            faults.append("missing" if shown[index] else "extra")
        else:
            faults.append(fact)
    return tuple(faults)
