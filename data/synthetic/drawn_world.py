"""Generated descriptions with drawings of them as responses.

    draw a red circle left of a blue square and two small green triangles, nothing else.

A scene has two large things and up to two small ones, which are alike. Scene and description
determine each other, except for the cells that the description leaves open. Splits share no
description, and therefore no scene.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from mmrm.data.synthetic.rated_pictures import CORNERS, Corner, PictureGenerator, PictureTask
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import (
    SPLITS,
    Level,
    Scene,
    SceneObject,
    bucket_of_facts,
)
from mmrm.data.synthetic.wording import coloured_name, plural, with_article

Fact = Literal["colour", "shape", "relation", "presence", "count"]
FACTS: tuple[tuple[Fact, Fact], ...] = (
    *(("colour", "shape"), ("colour", "relation"), ("colour", "presence"), ("colour", "count")),
    *(("shape", "relation"), ("shape", "presence"), ("shape", "count")),
    *(("relation", "presence"), ("relation", "count")),
)
"""The pairs of facts in which the four scenes of a record may differ. The presence and the count of
the small things exclude each other."""
_VARIATIONS = 16
"""Number of times that the facts of a blueprint are drawn before another blueprint is."""
FAULTS = ("attribute", "relation", "missing", "extra", "count")
"""The faults of content of a drawing."""


class Blueprint(NamedTuple):
    """The things of a record's four scenes, and what the second value of each fact is."""

    level: Level
    grid: int
    changing: SceneObject
    """The large thing whose colour and shape have second values."""
    partner: SceneObject
    """The other large thing."""
    small_things: tuple[SceneObject, SceneObject]
    """Two small things that are alike, of which a scene has none, one or both."""
    num_small: int
    """Number of small things in a scene if neither `presence` nor `count` has its second value."""
    second_colour: str
    second_shape: str

    def scene(self, changed: Collection[Fact]) -> Scene:
        """Return the scene in which the given facts have their second value, and no others."""
        changing = self.changing
        partner = self.partner
        num_small = self.num_small
        if "colour" in changed:
            changing = changing._replace(colour=self.second_colour)
        if "shape" in changed:
            changing = changing._replace(what=self.second_shape)
        if "relation" in changed:
            changing = changing._replace(cell=partner.cell)
            partner = partner._replace(cell=self.changing.cell)
        if "presence" in changed:
            num_small = 0
        if "count" in changed:
            num_small = 2
        things = (changing, partner, *self.small_things[:num_small])
        return Scene(tuple(sorted(things)), self.level, self.grid, look=0)


class DrawnGenerator(PictureGenerator):
    """A generator of descriptions with drawings."""

    name = "shapes-drawn"

    def task(self, rng: Rng) -> PictureTask:
        """Return a description and four scenes, one of which fits it."""
        scenes = None
        while scenes is None:
            blueprint = _blueprint(rng, self.level)
            if not self._has(blueprint.scene(())):
                continue
            # One blueprint has four scenes of the split seldom, and is faster to vary than to draw.
            for _ in range(_VARIATIONS):
                facts = rng.choice(FACTS)
                scenes = self._scenes(_variation(rng, blueprint, facts), facts)
                if scenes is not None:
                    break
        target = rng.choice(CORNERS)
        description = describe(scenes[target])
        return PictureTask(
            category="drawing",
            prompt=rng.choice(
                (f"draw {description}, nothing else.", f"{description}, nothing else.")
            ),
            scenes=scenes,
            target=target,
            faults={corner: _faults(facts, scenes, target, corner) for corner in CORNERS},
        )

    def _scenes(self, blueprint: Blueprint, facts: tuple[Fact, Fact]) -> dict[Corner, Scene] | None:
        """Return the four scenes that differ in two facts, or None if the split lacks one."""
        scenes = {}
        for corner in CORNERS:
            scene = blueprint.scene(_changed(facts, corner))
            if not self._has(scene):
                return None
            scenes[corner] = scene
        return scenes

    def _has(self, scene: Scene) -> bool:
        """Return True if the scene belongs to this split.

        Each split has a quarter of all descriptions. Four scenes have to belong to it, of which
        smaller splits would have very few.
        """
        split_index = bucket_of_facts(describe(scene)) % len(SPLITS)
        return split_index == tuple(SPLITS).index(self.split)


def describe(scene: Scene) -> str:
    """Return the description of a scene, such as "a red circle above a blue square".

    The first of the two large things is the left one, or the upper one if they are in one column.
    """
    large, small = large_and_small_things(scene)
    first, second = sorted(large, key=lambda thing: (thing.cell % scene.grid, thing.cell))
    is_one_column = first.cell % scene.grid == second.cell % scene.grid
    relation = "above" if is_one_column else "left of"
    description = f"a {coloured_name(first)} {relation} a {coloured_name(second)}"
    if not small:
        return description
    name = f"small {coloured_name(small[0])}"
    if len(small) == 1:
        return f"{description} and {with_article(name)}"
    return f"{description} and two {plural(name)}"


def large_and_small_things(scene: Scene) -> tuple[list[SceneObject], list[SceneObject]]:
    """Return the things of the level's largest size, and the others."""
    largest_size = tuple(scene.level.sizes)[-1]
    large = [thing for thing in scene.things if thing.size == largest_size]
    small = [thing for thing in scene.things if thing.size != largest_size]
    return large, small


def _blueprint(rng: Rng, level: Level) -> Blueprint:
    """Return random things for four scenes."""
    grid = rng.choice(level.grids)
    cells = rng.sample(range(grid * grid), 4)
    # The colours differ, so that the two large things never look alike, whatever facts change.
    colours = rng.sample(tuple(level.colours), 4)
    shapes = [rng.choice(level.shapes) for _ in range(3)]
    small_size, *_, large_size = level.sizes
    small = SceneObject(cells[2], "shape", shapes[2], colours[2], small_size)
    return Blueprint(
        level=level,
        grid=grid,
        changing=SceneObject(cells[0], "shape", shapes[0], colours[0], large_size),
        partner=SceneObject(cells[1], "shape", shapes[1], colours[1], large_size),
        small_things=(small, small._replace(cell=cells[3])),
        num_small=rng.below(3),
        second_colour=colours[3],
        second_shape=shapes[0],
    )


def _variation(rng: Rng, blueprint: Blueprint, facts: tuple[Fact, Fact]) -> Blueprint:
    """Return the blueprint for scenes that differ in the given facts, with random second values."""
    changing = blueprint.changing
    partner = blueprint.partner
    if rng.coin():
        changing, partner = partner, changing
    other_shapes = [shape for shape in blueprint.level.shapes if shape != changing.what]
    num_small = blueprint.num_small
    if "presence" in facts or "count" in facts:
        num_small = 1
    return blueprint._replace(
        changing=changing,
        partner=partner,
        second_shape=rng.choice(other_shapes),
        num_small=num_small,
    )


def _changed(facts: tuple[Fact, Fact], corner: Corner) -> list[Fact]:
    """Return the facts that have their second value in the scene of a corner."""
    return [fact for fact, has_second_value in zip(facts, corner, strict=True) if has_second_value]


def _faults(
    facts: tuple[Fact, Fact], scenes: dict[Corner, Scene], target: Corner, shown: Corner
) -> tuple[str, ...]:
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
