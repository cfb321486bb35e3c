"""Scenes of the embedded world: levels, sampling, splits, drawing and changes.

A scene is a few coloured things on a grid. A change of one thing makes its twin, and a question is
chosen so that the scene and its twin have different answers. Sampling and changing fit together:
p(A) * p(A becomes B) = p(B) * p(B becomes A) for every two scenes A and B. So without the image, a
fact of a scene cannot be distinguished from the same fact of its twin.
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


@dataclass(frozen=True)
class Level:
    """The contents of the scenes of a level, and the sizes in which they are drawn (pixels)."""

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
    sizes: dict[str, float]
    """Radius by name, in ascending order."""
    digits: tuple[str, ...]
    words: tuple[str, ...]
    jitter: int = 2
    """Largest distance of a thing's centre from its cell's centre along each axis."""
    font: int = 13
    """Size of written words; digits are 8 larger."""

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return the shapes, digits or words of the level."""
        return {"shape": self.shapes, "digit": self.digits, "word": self.words}[kind]


_BASIC: dict[str, Colour] = {
    "red": (240, 45, 45),
    "green": (50, 200, 80),
    "blue": (85, 135, 255),
    "yellow": (255, 225, 40),
    "purple": (190, 85, 235),
    "orange": (255, 140, 25),
}
_WRITTEN = ((0, 0), (0, 0), (1, 0), (0, 1), (2, 0), (1, 1))

LEVELS: dict[str, Level] = {
    # Small enough for a backbone of two million parameters, which learns to check answers in an
    # hour on two cores.
    "demo": Level(
        grids=(2,),
        places=("top left", "top right", "bottom left", "bottom right"),
        things=(1, 3),
        written=_WRITTEN,
        shapes=("circle", "square", "triangle"),
        colours={name: _BASIC[name] for name in ("red", "green", "blue", "yellow")},
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
        written=_WRITTEN,
        shapes=("circle", "square", "triangle", "cross"),
        colours=_BASIC,
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
        written=(*_WRITTEN, (2, 1), (2, 2), (1, 2)),
        shapes=("circle", "square", "triangle", "cross", "star", "diamond", "ring"),
        colours=_BASIC
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
    kind: Kind
    what: str
    colour: str
    size: str
    """Empty for written things, which have one size."""


class Scene(NamedTuple):
    """Things on a grid of cells."""

    things: tuple[SceneObject, ...]
    """Things in reading order, at most one in a cell."""
    level: Level
    grid: int
    """Number of cells along one side."""
    look: int
    """Determines background and jitter; no question depends on it."""


def random_thing(rng: Rng, level: Level, cell: int, kind: Kind) -> SceneObject:
    """Return a thing whose properties are drawn independently and uniformly."""
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
        level: The level.
        written: Replaces the level's table of (digits, words).
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


SPLITS: dict[str, range] = {
    "pretrain": range(8),
    "train": range(8, 12),
    "validation": range(12, 14),
    "benchmark": range(14, 16),
}
"""Buckets of each split, of 16. The facts of a scene determine its bucket, so that no two splits
share a scene, whatever their seeds are."""


def bucket(scene: Scene) -> int:
    """Return the bucket of a scene, 0 to 15, which depends on its facts and not on its look."""
    things = [f"{thing.cell},{thing.what},{thing.colour},{thing.size}" for thing in scene.things]
    facts = f"{scene.grid};{';'.join(things)}"
    return hashlib.blake2b(facts.encode(), digest_size=1).digest()[0] % 16


_FINE = 8
"""Masks are drawn this many times larger and reduced: Pillow's own polygons have no smooth
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
"""Corners in units of the radius, from the centre, y downwards; circle and ring have none."""


@lru_cache(maxsize=256)
def _mask(what: str, radius: float) -> Image.Image:
    """Return the coverage of a shape, 8 bits a pixel."""
    side = 2 * int(radius + 1)
    fine = Image.new("L", (side * _FINE, side * _FINE))
    pen = ImageDraw.Draw(fine)
    centre = side * _FINE / 2
    reach = radius * _FINE
    if what in _OUTLINES:
        corners = [(centre + x * reach, centre + y * reach) for x, y in _OUTLINES[what]]
        pen.polygon(corners, fill=255)
    else:
        line_share = 0.35 if what == "ring" else 1
        pen.circle((centre, centre), reach, outline=255, width=int(reach * line_share))
    return fine.reduce(_FINE)


@lru_cache(maxsize=256)
def _writing(text: str, size: int) -> Image.Image:
    """Return the coverage of a text in Pillow's own font, cropped to the ink."""
    font = ImageFont.load_default(size)
    canvas = Image.new("L", (size * (len(text) + 2), size * 2))
    ImageDraw.Draw(canvas).text((size, size // 4), text, fill=255, font=font, stroke_width=0.3)
    return canvas.crop(canvas.getbbox())


PAPERS = 16
"""Number of backgrounds."""


@lru_cache(maxsize=256)
def _paper(side: int, tone: int) -> Image.Image:
    """Return the background, in which red grows to the right and green downwards.

    Each patch thus shows its position. A vision tower that has rotary positions alone would first
    have to learn to count patches, which takes a small tower most of its training. `tone` changes
    the blue channel; no question depends on it.
    """
    brightness = [10 + value * 110 // 255 for value in range(256)]
    downwards = Image.linear_gradient("L").resize((side, side)).point(brightness)
    to_the_right = downwards.transpose(Image.Transpose.ROTATE_90)
    blue = Image.new("L", (side, side), 30 + 3 * tone)
    return Image.merge("RGB", (to_the_right, downwards, blue))


def draw(scene: Scene) -> Image.Image:
    """Return the RGB image of a scene, grid * CELL pixels a side, with shapes below writing."""
    level = scene.level
    side = scene.grid * CELL
    image = _paper(side, scene.look % PAPERS).copy()
    for thing in sorted(scene.things, key=lambda thing: thing.kind != "shape"):
        mask = _mask_of(thing, level)
        noise = (scene.look >> 5) * (2 * thing.cell + 1) * 40503
        num_offsets = 2 * level.jitter + 1
        x_offset = (noise >> 8) % num_offsets - level.jitter
        y_offset = (noise >> 16) % num_offsets - level.jitter
        row, column = divmod(thing.cell, scene.grid)
        left = column * CELL + (CELL - mask.width) // 2 + x_offset
        top = row * CELL + (CELL - mask.height) // 2 + y_offset
        left_inside = min(max(left, 0), side - mask.width)
        top_inside = min(max(top, 0), side - mask.height)
        image.paste(level.colours[thing.colour], (left_inside, top_inside), mask)
    return image


def _mask_of(thing: SceneObject, level: Level) -> Image.Image:
    """Return the coverage of a thing, 8 bits a pixel."""
    if thing.kind == "shape":
        return _mask(thing.what, level.sizes[thing.size])
    if thing.kind == "word":
        return _writing(thing.what, level.font)
    return _writing(thing.what, level.font + 8)


def png(image: Image.Image) -> bytes:
    """Return `image` as the bytes of a PNG file, compressed fast rather than well."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


class Change(NamedTuple):
    """Two scenes that differ in one thing."""

    scenes: tuple[Scene, Scene]
    """The scene before and after the change."""
    things: tuple[SceneObject, ...]
    """The thing before and after the change; a single one was added or removed."""


Edit = Callable[[Rng, Scene, tuple[Kind, ...]], Change | None]
"""Changes one thing of the given kinds. The result is None if the scene has none, or the limits of
the level forbid the change."""


def recolour(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Give a thing another colour."""
    thing = _draw_thing(rng, scene, kinds)
    if thing is None:
        return None
    colour = _other(rng, tuple(scene.level.colours), thing.colour)
    return _replace(scene, thing, thing._replace(colour=colour))


def rename(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Replace a shape, digit or word by another one."""
    thing = _draw_thing(rng, scene, kinds)
    if thing is None:
        return None
    what = _other(rng, scene.level.names(thing.kind), thing.what)
    return _replace(scene, thing, thing._replace(what=what))


def resize(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Give a shape another size."""
    thing = _draw_thing(rng, scene, kinds, with_size=True)
    if thing is None:
        return None
    size = _other(rng, tuple(scene.level.sizes), thing.size)
    return _replace(scene, thing, thing._replace(size=size))


def move(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Move a thing to a free cell."""
    thing = _draw_thing(rng, scene, kinds)
    if thing is None:
        return None
    return _replace(scene, thing, thing._replace(cell=_free_cell(rng, scene)))


def come_or_go(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Add or remove one shape, with equal probability.

    Given the written things, the number of shapes is uniform, so that adding and removing are
    equally likely.
    """
    shapes = [thing for thing in scene.things if thing.kind == "shape"]
    fewest, most = scene.level.things
    is_added = rng.coin()
    if is_added:
        if len(scene.things) == most:
            return None
        cell = _free_cell(rng, scene)
        return _replace(scene, None, random_thing(rng, scene.level, cell, "shape"))
    if len(scene.things) == fewest or not shapes:
        return None
    return _replace(scene, rng.choice(shapes), None)


def _draw_thing(
    rng: Rng, scene: Scene, kinds: tuple[Kind, ...], *, with_size: bool = False
) -> SceneObject | None:
    """Return one thing of the given kinds, with `with_size` one with a size; None without one."""
    eligible = []
    for thing in scene.things:
        has_size = thing.size != ""
        if thing.kind in kinds and (has_size or not with_size):
            eligible.append(thing)
    if not eligible:
        return None
    return rng.choice(eligible)


def _other(rng: Rng, options: tuple[str, ...], current: str) -> str:
    """Return one of `options` that is not `current`, each with equal probability."""
    drawn = options[rng.below(len(options) - 1)]
    return drawn if drawn != current else options[-1]


def _replace(scene: Scene, before: SceneObject | None, after: SceneObject | None) -> Change:
    """Return the change in which `before` is removed and `after` is added."""
    things = [thing for thing in scene.things if thing is not before]
    if after is not None:
        things.append(after)
    twin = scene._replace(things=tuple(sorted(things)))
    changed = tuple(thing for thing in (before, after) if thing is not None)
    return Change((scene, twin), changed)


def _free_cell(rng: Rng, scene: Scene) -> int:
    """Return a cell without a thing."""
    taken = {thing.cell for thing in scene.things}
    return rng.choice([cell for cell in range(scene.grid * scene.grid) if cell not in taken])
