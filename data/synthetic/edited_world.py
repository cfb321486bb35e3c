"""Generated edits: a picture, an instruction, and results of the edit as responses.

    paint the circle in another color.

The four scenes of a record differ in a fact about one thing and in a fact about another thing. The
instruction asks to change the first fact. A result in which the first fact is wrong does not follow
the instruction. A result in which the second fact is wrong has something else changed, too. If both
are wrong, the wrong thing was changed.

The instruction never names what a right result shows ("another color"): that depends on the picture
before, and could otherwise be seen without it. For the same reason, every result follows the
instruction to remove a thing, and the two facts are then about other things.

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
from mmrm.data.synthetic.wording import coloured_name

Property = Literal["colour", "what", "size", "cell"]
"""A property of a shape that may be changed: a field of SceneObject."""
PROPERTIES: tuple[Property, ...] = ("colour", "what", "size", "cell")
NOT_FOLLOWED = "not followed"
ELSE_CHANGED = "something else changed"
FAULTS = (NOT_FOLLOWED, ELSE_CHANGED)
"""The faults of content of a result."""
REMOVAL_SHARE = 0.5
"""Share of the instructions that ask to remove a thing. Their results can be judged by differences
from the picture before, whatever the instruction is."""
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

        A grid has four cells or more. They hold the word or digit, the two shapes, and either the
        shape that is to be removed or nothing, so that a shape can move there.
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
        removed_shape = shapes.pop()
        is_removal = rng.unit() < REMOVAL_SHARE
        # Nothing can move to the cell of the shape that is to be removed.
        properties = rng.sample(PROPERTIES[:3] if is_removal else PROPERTIES, 2)
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
        if is_removal:
            category = "removal"
            prompt = f"remove the {coloured_name(removed_shape)}."
            before = parts.scene(target, removed_shape)
        else:
            category = "change"
            prompt = _instruction(shapes[0], properties[0])
            before = parts.scene((not target[0], target[1]))
        return PictureTask(
            category=category,
            prompt=prompt,
            scenes={corner: parts.scene(corner) for corner in CORNERS},
            target=target,
            faults={corner: _faults(target, corner, is_removal) for corner in CORNERS},
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


def _faults(target: Corner, shown: Corner, is_removal: bool) -> tuple[str, ...]:
    """Return the faults of a result that shows the scene `shown` instead of the scene `target`."""
    faults = []
    if shown[0] != target[0]:
        faults.append(ELSE_CHANGED if is_removal else NOT_FOLLOWED)
    if shown[1] != target[1]:
        faults.append(ELSE_CHANGED)
    return tuple(faults)
