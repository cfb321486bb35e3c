"""Scenes of the generated data set: levels of difficulty, sampling, splits, drawing and changes.

A scene is a few coloured things in the cells of a grid. A change of one thing makes its twin, and a
question is chosen so that the scene and its twin have different answers. Sampling and changing fit
together: p(A) * p(A becomes B) = p(B) * p(B becomes A) for every two scenes A and B. So without the
image, a fact of a scene cannot be distinguished from the same fact of its twin.
"""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from mmrm.data.synthetic.rng import Rng

Kind = Literal["shape", "digit", "word"]
Colour = tuple[int, int, int]
CELL = 28
"""Side of a cell in pixels; it is one merged image token of Qwen2.5-VL."""
_LARGER_DIGITS = 8
"""Difference of the font sizes of written digits and words."""


@dataclass(frozen=True)
class Level:
    """A level of difficulty: what its scenes may contain, and how large things are in pixels."""

    grids: tuple[int, ...]
    """Numbers of cells along one side; one is drawn for each scene."""
    places: tuple[str, ...] | None
    """Names of the cells in reading order; None names them by row and column."""
    things: tuple[int, int]
    """Fewest and most things in a scene."""
    written: tuple[tuple[int, int], ...]
    """Numbers of (digits, words) in a scene; each entry has the same probability."""
    shapes: tuple[str, ...]
    colours: dict[str, Colour]
    """RGB values by the name of the colour."""
    sizes: dict[str, float]
    """Radius of a shape by the name of its size, in ascending order."""
    digits: tuple[str, ...]
    words: tuple[str, ...]
    jitter: int = 2
    """Largest distance of a thing's centre from its cell's centre along each axis."""
    font: int = 13
    """Size of written words; digits are 8 larger."""

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return the shapes, the digits or the words that scenes of the level may contain."""
        return {"shape": self.shapes, "digit": self.digits, "word": self.words}[kind]


_BASIC_COLOURS: dict[str, Colour] = {
    "red": (240, 45, 45),
    "green": (50, 200, 80),
    "blue": (85, 135, 255),
    "yellow": (255, 225, 40),
    "purple": (190, 85, 235),
    "orange": (255, 140, 25),
}
_BASIC_WRITTEN = ((0, 0), (0, 0), (1, 0), (0, 1), (2, 0), (1, 1))
"""Numbers of (digits, words) in a scene; a third of the scenes have none."""

LEVELS: dict[str, Level] = {
    # Small enough for a backbone of two million parameters, which learns to check answers in an
    # hour on two cores.
    "demo": Level(
        grids=(2,),
        places=("top left", "top right", "bottom left", "bottom right"),
        things=(1, 3),
        written=_BASIC_WRITTEN,
        shapes=("circle", "square", "triangle"),
        colours={name: _BASIC_COLOURS[name] for name in ("red", "green", "blue", "yellow")},
        sizes={"small": 6.0, "large": 11.0},
        digits=tuple("1234"),
        words=("cat", "dog", "sun", "box", "cup", "hat"),
    ),
    "medium": Level(
        grids=(3,),
        places=(
            *("top left", "top middle", "top right"),
            *("middle left", "center", "middle right"),
            *("bottom left", "bottom middle", "bottom right"),
        ),
        things=(1, 4),
        written=_BASIC_WRITTEN,
        shapes=("circle", "square", "triangle", "cross"),
        colours=_BASIC_COLOURS,
        sizes={"small": 6.0, "large": 11.0},
        digits=tuple("123456"),
        words=(
            *("cat", "dog", "sun", "box", "cup", "hat", "bed", "key"),
            *("pen", "map", "bus", "fox", "jar", "leg", "nut", "wig"),
        ),
    ),
    "hard": Level(
        grids=(4, 5),
        places=None,
        things=(3, 9),
        written=(*_BASIC_WRITTEN, (2, 1), (2, 2), (1, 2)),
        shapes=("circle", "square", "triangle", "cross", "star", "diamond", "ring"),
        colours=_BASIC_COLOURS
        | {
            "pink": (255, 150, 200),
            "cyan": (60, 225, 225),
            "gray": (165, 165, 165),
            "white": (250, 250, 250),
        },
        sizes={"small": 6.0, "medium": 10.0, "large": 15.0},
        digits=tuple("123456789"),
        words=(
            *("tiger", "house", "bread", "chair", "piano", "river", "storm", "cloud"),
            *("grape", "knife", "lemon", "mouse", "night", "ocean", "paper", "queen"),
            *("robot", "sheep", "table", "uncle", "tooth", "wagon", "water", "zebra"),
        ),
        jitter=7,
        font=11,
    ),
}


class SceneObject(NamedTuple):
    """One thing in a cell: a shape, a written digit or a written word."""

    cell: int
    """Number of the cell, in reading order from 0."""
    kind: Kind
    what: str
    """The name of the shape, the digit or the word."""
    colour: str
    size: str
    """Empty for written things, which have one size."""


class Scene(NamedTuple):
    """A picture's contents: a few coloured things on a grid of cells."""

    things: tuple[SceneObject, ...]
    """Things in reading order, at most one in a cell."""
    level: Level
    grid: int
    """Number of cells along one side."""
    look: int
    """A random number that decides the background and the exact positions; no question depends on
    it."""


def random_thing(rng: Rng, level: Level, cell: int, kind: Kind) -> SceneObject:
    """Return a thing of the given kind in the given cell, with random properties.

    Its name, colour and size are drawn independently and uniformly from those of the level.
    """
    size = rng.choice(tuple(level.sizes)) if kind == "shape" else ""
    what = rng.choice(level.names(kind))
    colour = rng.choice(tuple(level.colours))
    return SceneObject(cell, kind, what, colour, size)


def sample(
    rng: Rng, level: Level, written: tuple[tuple[int, int], ...] | None = None, fewest: int = 1
) -> Scene:
    """Return a random scene.

    Args:
        rng: Draws the scene.
        level: The level of difficulty.
        written: Numbers of (digits, words) to choose from; None takes those of the level.
        fewest: The smallest number of things, if it is larger than the level's.
    """
    grid = rng.choice(level.grids)
    num_digits, num_words = rng.choice(written or level.written)
    num_written = num_digits + num_words
    fewest_shapes = max(max(level.things[0], fewest) - num_written, 0)
    most_shapes = level.things[1] - num_written
    num_shapes = fewest_shapes + rng.below(most_shapes - fewest_shapes + 1)
    kinds: list[Kind] = ["shape"] * num_shapes
    kinds += ["digit"] * num_digits
    kinds += ["word"] * num_words
    cells = rng.sample(range(grid * grid), len(kinds))
    things = [random_thing(rng, level, cell, kind) for cell, kind in zip(cells, kinds, strict=True)]
    return Scene(tuple(sorted(things)), level, grid, look=rng.below(1 << 30))


NUM_BUCKETS = 16
"""Number of parts into which all scenes are divided."""
SPLITS: dict[str, range] = {
    "pretrain": range(8),
    "train": range(8, 12),
    "validation": range(12, 14),
    "benchmark": range(14, 16),
}
"""The numbers of the buckets that belong to each split. The facts of a scene determine its bucket,
so that no two splits share a scene, whatever their seeds are."""


def bucket(scene: Scene) -> int:
    """Return the number of the scene's bucket, 0 to 15, by which scenes are divided into splits.

    It is a hash of the scene's facts, and does not depend on its look.
    """
    things = [f"{thing.cell},{thing.what},{thing.colour},{thing.size}" for thing in scene.things]
    return bucket_of_facts(f"{scene.grid};{';'.join(things)}")


def bucket_of_facts(facts: str) -> int:
    """Return the number of the bucket, 0 to 15, of facts that are written as a text."""
    return hashlib.blake2b(facts.encode(), digest_size=1).digest()[0] % NUM_BUCKETS


_OVERSAMPLING = 8
"""Shapes are drawn this many times larger and then reduced: Pillow's own polygons have no smooth
edges."""

_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
    "triangle": [(0, -1), (1, 0.9), (-1, 0.9)],
    "diamond": [(0, -1), (0.75, 0), (0, 1), (-0.75, 0)],
    "cross": [
        *((-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3)),
        *((0.3, 1), (-0.3, 1), (-0.3, 0.3), (-1, 0.3), (-1, -0.3), (-0.3, -0.3)),
    ],
    "star": [(r * sin(n * pi / 5), -r * cos(n * pi / 5)) for n, r in enumerate((1, 0.45) * 5)],
}
"""Corners (x, y) of shapes in units of the radius, from the centre, y downwards. Circle and ring
have none."""


@lru_cache(maxsize=256)
def shape_mask(shape: str, radius: float) -> Image.Image:
    """Return the mask of a shape: for each pixel the share that the shape covers, in 8 bits."""
    side = 2 * int(radius + 1)
    large_mask = Image.new("L", (side * _OVERSAMPLING, side * _OVERSAMPLING))
    pen = ImageDraw.Draw(large_mask)
    centre = side * _OVERSAMPLING / 2
    large_radius = radius * _OVERSAMPLING
    if shape in _OUTLINES:
        corners = []
        for x, y in _OUTLINES[shape]:
            corners.append((centre + x * large_radius, centre + y * large_radius))
        pen.polygon(corners, fill=255)
    else:
        # A circle is a ring whose line reaches the centre.
        line_share = 0.35 if shape == "ring" else 1
        line_width = int(large_radius * line_share)
        pen.circle((centre, centre), large_radius, outline=255, width=line_width)
    return large_mask.reduce(_OVERSAMPLING)


@lru_cache(maxsize=256)
def _text_mask(text: str, size: int) -> Image.Image:
    """Return the mask of a text in Pillow's font: coverage in 8 bits, cropped to the letters."""
    font = ImageFont.load_default(size)
    canvas = Image.new("L", (size * (len(text) + 2), size * 2))
    ImageDraw.Draw(canvas).text((size, size // 4), text, fill=255, font=font, stroke_width=0.3)
    return canvas.crop(canvas.getbbox())


NUM_BACKGROUNDS = 16
"""Number of different backgrounds."""


@lru_cache(maxsize=256)
def background(side: int, tone: int) -> Image.Image:
    """Return an RGB image in which red increases to the right, and green downwards.

    So each part of the image shows its position. A vision tower that has rotary positions alone
    would first have to learn to count patches, which takes a small tower most of its training.

    Args:
        side: Width and height in pixels.
        tone: Determines the blue channel, 0 to NUM_BACKGROUNDS - 1.
    """
    brightness = [10 + value * 110 // 255 for value in range(256)]  # darker than all things
    downwards = Image.linear_gradient("L").resize((side, side)).point(brightness)
    to_the_right = downwards.transpose(Image.Transpose.ROTATE_90)
    blue = Image.new("L", (side, side), 30 + 3 * tone)
    return Image.merge("RGB", (to_the_right, downwards, blue))


_HASH_FACTOR = 40503
"""The factor of a multiplicative hash: 2^16 divided by the golden ratio."""


def draw(scene: Scene) -> Image.Image:
    """Return the RGB image of a scene, of `scene.grid * CELL` pixels a side.

    If things overlap, digits and words are in front of shapes.
    """
    level = scene.level
    side = scene.grid * CELL
    image = background(side, scene.look % NUM_BACKGROUNDS).copy()
    for thing in sorted(scene.things, key=lambda thing: thing.kind != "shape"):
        mask = _mask_of(thing, level)
        x_offset, y_offset = _offset_in_cell(scene, thing.cell)
        row, column = divmod(thing.cell, scene.grid)
        left = column * CELL + (CELL - mask.width) // 2 + x_offset
        top = row * CELL + (CELL - mask.height) // 2 + y_offset
        # A long word or a large offset must not lead out of the image.
        left_inside = min(max(left, 0), side - mask.width)
        top_inside = min(max(top, 0), side - mask.height)
        image.paste(level.colours[thing.colour], (left_inside, top_inside), mask)
    return image


def _offset_in_cell(scene: Scene, cell: int) -> tuple[int, int]:
    """Return the distance (x, y) in pixels of a thing's centre from the centre of its cell.

    It is a hash of the scene's look and the cell, from -jitter to jitter of the level.
    """
    # The lowest bits of `look` choose the background already.
    noise = (scene.look >> 5) * (2 * cell + 1) * _HASH_FACTOR
    jitter = scene.level.jitter
    num_offsets = 2 * jitter + 1
    return (noise >> 8) % num_offsets - jitter, (noise >> 16) % num_offsets - jitter


def _mask_of(thing: SceneObject, level: Level) -> Image.Image:
    """Return the mask of a thing: for each pixel the share that the thing covers, in 8 bits."""
    if thing.kind == "shape":
        return shape_mask(thing.what, level.sizes[thing.size])
    if thing.kind == "word":
        return _text_mask(thing.what, level.font)
    return _text_mask(thing.what, level.font + _LARGER_DIGITS)


def png(image: Image.Image) -> bytes:
    """Return `image` as the bytes of a PNG file. Compression is fast rather than good."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


class Change(NamedTuple):
    """A scene and its twin: two scenes that differ in one thing."""

    scenes: tuple[Scene, Scene]
    """The scene before and after the change."""
    things: tuple[SceneObject, ...]
    """The thing before and after the change. A thing that was added or removed is the only one."""


Edit = Callable[[Rng, Scene, tuple[Kind, ...]], Change | None]
"""A function that changes one random thing of the given kinds in a scene. It returns None if the
scene has no such thing, or the limits of the level forbid the change."""


def recolour(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Return the change that gives a random thing another colour.

    The thing is of one of the given kinds. The result is None if the scene has no such thing.
    """
    thing = _draw_thing(rng, scene, kinds)
    if thing is None:
        return None
    new_colour = _different_option(rng, tuple(scene.level.colours), thing.colour)
    return _replacement(scene, thing, thing._replace(colour=new_colour))


def rename(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Return the change that gives a random thing another shape, digit or word.

    The thing is of one of the given kinds. The result is None if the scene has no such thing.
    """
    thing = _draw_thing(rng, scene, kinds)
    if thing is None:
        return None
    new_name = _different_option(rng, scene.level.names(thing.kind), thing.what)
    return _replacement(scene, thing, thing._replace(what=new_name))


def resize(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Return the change that gives a random shape another size.

    The result is None if the scene has no shape, or `kinds` does not contain "shape". Digits and
    words have no size.
    """
    thing = _draw_thing(rng, scene, kinds, with_size=True)
    if thing is None:
        return None
    new_size = _different_option(rng, tuple(scene.level.sizes), thing.size)
    return _replacement(scene, thing, thing._replace(size=new_size))


def move(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Return the change that moves a random thing to a random free cell.

    The thing is of one of the given kinds. The result is None if the scene has no such thing.
    """
    thing = _draw_thing(rng, scene, kinds)
    if thing is None:
        return None
    return _replacement(scene, thing, thing._replace(cell=_free_cell(rng, scene)))


def add_or_remove(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Return the change that adds or removes a random shape, with equal probability.

    The result is None if the scene would have more or fewer things than its level allows, or if
    there is no shape to remove. Since the number of shapes in scenes is uniformly distributed,
    adding and removing stay equally likely.

    Args:
        rng: Draws the change.
        scene: The scene.
        kinds: Not used; other functions that change a scene need it.
    """
    shapes = [thing for thing in scene.things if thing.kind == "shape"]
    fewest, most = scene.level.things
    is_added = rng.coin()
    if is_added:
        if len(scene.things) == most:
            return None
        cell = _free_cell(rng, scene)
        new_shape = random_thing(rng, scene.level, cell, "shape")
        return _replacement(scene, before=None, after=new_shape)
    if len(scene.things) == fewest or not shapes:
        return None
    return _replacement(scene, before=rng.choice(shapes), after=None)


def _draw_thing(
    rng: Rng, scene: Scene, kinds: tuple[Kind, ...], *, with_size: bool = False
) -> SceneObject | None:
    """Return a random thing of the scene that is of one of the given kinds; None without one.

    With `with_size`, only a thing that has a size is returned, which is a shape.
    """
    eligible = []
    for thing in scene.things:
        has_size = thing.size != ""
        if thing.kind in kinds and (has_size or not with_size):
            eligible.append(thing)
    if not eligible:
        return None
    return rng.choice(eligible)


def _different_option(rng: Rng, options: tuple[str, ...], current: str) -> str:
    """Return one of `options` that is not `current`, each with equal probability."""
    drawn = options[rng.below(len(options) - 1)]
    # The last option is never drawn. It takes the place of the current one.
    return drawn if drawn != current else options[-1]


def _replacement(scene: Scene, before: SceneObject | None, after: SceneObject | None) -> Change:
    """Return the change of a scene in which the thing `before` is replaced by `after`.

    If `before` is None, `after` is added. If `after` is None, `before` is removed.
    """
    twin_things = [thing for thing in scene.things if thing is not before]
    if after is not None:
        twin_things.append(after)
    twin = scene._replace(things=tuple(sorted(twin_things)))
    changed_things = tuple(thing for thing in (before, after) if thing is not None)
    return Change((scene, twin), changed_things)


def _free_cell(rng: Rng, scene: Scene) -> int:
    """Return a random cell of the grid that holds no thing."""
    taken = {thing.cell for thing in scene.things}
    free_cells = [cell for cell in range(scene.grid * scene.grid) if cell not in taken]
    return rng.choice(free_cells)
