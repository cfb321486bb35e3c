"""Generated edits: a picture, an instruction, and results of the edit as responses.

    paint the circle in another color.

The four scenes of a record differ in a fact about one thing and in a fact about another thing. The
instruction asks to change the first fact. A result in which the first fact is wrong does not follow
the instruction. A result in which the second fact is wrong has something else changed, too. If both
are wrong, the wrong thing was changed.

The instruction to change a fact never names what a right result shows ("another color"): that
depends on the picture before, and could otherwise be seen without it. For the same reason, every
result follows an instruction to add or to remove a thing, and the two facts are then about other
things, which should have stayed as they were.

Every scene has one written word or digit, which no edit changes. It determines the split, so that
splits share no scene.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mmrm.data.synthetic.rated_pictures import CORNERS, Corner, PictureGenerator, PictureTask
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import (
    SPLITS,
    Kind,
    Level,
    Scene,
    SceneObject,
    bucket_of_facts,
    random_thing,
)
from mmrm.data.synthetic.wording import coloured_name, full_name

Property = Literal["colour", "what", "size", "cell"]
"""A property of a shape that may be changed: a field of SceneObject."""
PROPERTIES: tuple[Property, ...] = ("colour", "what", "size", "cell")
NOT_FOLLOWED = "not followed"
ELSE_CHANGED = "something else changed"
FAULTS = (NOT_FOLLOWED, ELSE_CHANGED)
"""The faults of content of a result."""
Category = Literal["addition", "removal", "change"]
CATEGORIES: tuple[Category, ...] = ("addition", "removal", "change")
"""What instructions ask for: to add a thing, to remove one, or to change a property of one. A third
of the instructions belong to each."""
_WRITTEN_KINDS: tuple[Kind, ...] = ("digit", "word")


class EditParts(NamedTuple):
    """The parts that the scenes of a record share."""

    level: Level
    grid: int
    look: int
    written: SceneObject
    """The word or digit, which is in every scene."""
    shapes: tuple[SceneObject, SceneObject]
    """The two shapes that a fact is about, with the first values of the facts."""
    second_shapes: tuple[SceneObject, SceneObject]
    """The same two shapes with the second values of the facts."""

    def scene(self, corner: Corner, *further_shapes: SceneObject) -> Scene:
        """Return the scene of a corner, with further shapes."""
        things = [self.written, *further_shapes]
        for index, has_second_value in enumerate(corner):
            things.append((self.second_shapes if has_second_value else self.shapes)[index])
        return Scene(tuple(sorted(things)), self.level, self.grid, self.look)


class EditedGenerator(PictureGenerator):
    """A generator of edits."""

    name = "shapes-edited"

    def task(self, rng: Rng) -> PictureTask:
        """Return a picture with an instruction, and four scenes, one of which is the right result.

        A grid has four cells or more. They hold the word or digit, the two shapes, and either a
        third shape, which is to be added or removed, or nothing, so that a shape can move there.
        """
        level = self.level
        grid = rng.choice(level.grids)
        cells = rng.sample(range(grid * grid), 4)
        colours = rng.sample(tuple(level.colours), 4)
        names = rng.sample(level.shapes, 3)
        shapes = []
        for cell, colour, name in zip(cells, colours[:3], names, strict=False):
            thing = random_thing(rng, level, cell, "shape")
            shapes.append(thing._replace(colour=colour, what=name))
        third_shape = shapes.pop()
        category = rng.choice(CATEGORIES)
        # A shape can move only if no third shape is in the free cell.
        properties = rng.sample(PROPERTIES if category == "change" else PROPERTIES[:3], 2)
        second_shapes = []
        for shape, changed_property in zip(shapes, properties, strict=True):
            if changed_property == "colour":
                second_shapes.append(shape._replace(colour=colours[3]))
            elif changed_property == "what":
                second_shapes.append(shape._replace(what=names[2]))
            elif changed_property == "size":
                other_sizes = [size for size in level.sizes if size != shape.size]
                second_shapes.append(shape._replace(size=rng.choice(other_sizes)))
            else:
                second_shapes.append(shape._replace(cell=cells[2]))
        parts = EditParts(
            level=level,
            grid=grid,
            look=rng.below(1 << 30),
            written=self._written(rng, cells[3]),
            shapes=(shapes[0], shapes[1]),
            second_shapes=(second_shapes[0], second_shapes[1]),
        )
        target = rng.choice(CORNERS)
        further_shapes: tuple[SceneObject, ...] = ()
        if category == "addition":
            prompt = f"add {full_name(third_shape)}."
            before = parts.scene(target)
            further_shapes = (third_shape,)
        elif category == "removal":
            prompt = f"remove the {coloured_name(third_shape)}."
            before = parts.scene(target, third_shape)
        else:
            prompt = _instruction(shapes[0], properties[0])
            before = parts.scene((not target[0], target[1]))
        return PictureTask(
            category=category,
            prompt=prompt,
            scenes={corner: parts.scene(corner, *further_shapes) for corner in CORNERS},
            target=target,
            faults={corner: _faults(target, corner, category) for corner in CORNERS},
            before=before,
        )

    def _written(self, rng: Rng, cell: int) -> SceneObject:
        """Return a random word or digit that belongs to this split."""
        while True:
            written = random_thing(rng, self.level, cell, rng.choice(_WRITTEN_KINDS))
            if bucket_of_facts(f"{cell},{coloured_name(written)}") in SPLITS[self.split]:
                return written


def _instruction(shape: SceneObject, changed_property: Property) -> str:
    """Return the instruction to change a property of a shape.

    It names the shape by properties that stay, and in which the two shapes of a scene differ.
    """
    if changed_property == "colour":
        return f"paint the {shape.what} in another color."
    if changed_property == "what":
        return f"turn the {shape.colour} shape into another shape."
    if changed_property == "size":
        return f"change the size of the {shape.what}."
    return f"move the {coloured_name(shape)} to another place."


def _faults(target: Corner, shown: Corner, category: Category) -> tuple[str, ...]:
    """Return the faults of a result that shows the scene `shown` instead of the scene `target`."""
    faults = []
    if shown[0] != target[0]:
        faults.append(NOT_FOLLOWED if category == "change" else ELSE_CHANGED)
    if shown[1] != target[1]:
        faults.append(ELSE_CHANGED)
    return tuple(faults)
