"""Scenes of the embedded world: what levels allow, how a scene is sampled, divided into splits, drawn, and changed.

A scene is a few coloured things on a grid. A change of one thing makes its twin, and a question tells the two apart. Sampling
and changing fit together: p(A) * p(A becomes B) = p(B) * p(B becomes A) for every two scenes A and B. So a fact of a scene and
the same fact of its twin look alike to anybody who does not see the image.
"""

import hashlib
import io
from collections import Counter
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
    """What scenes of a level may hold, and how large they are drawn (pixels)."""

    grids: tuple[int, ...]
    """Cells along one side; one is chosen for each scene."""
    places: tuple[str, ...] | None
    """Names of the cells in reading order; None names them by row and column."""
    things: tuple[int, int]
    """Fewest and most things in a scene."""
    written: tuple[tuple[int, int], ...]
    """(digits, words) in a scene; each entry is as likely."""
    shapes: tuple[str, ...]
    colours: dict[str, Colour]
    sizes: dict[str, float]
    """Name to radius, in ascending order."""
    digits: tuple[str, ...]
    words: tuple[str, ...]
    jitter: int = 2
    """A thing's centre lies up to this far from its cell's centre, along each axis."""
    font: int = 13
    """Size of written words; digits are 8 larger."""

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return what a thing of this kind can be."""
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
    # Small enough for a backbone of two million parameters to learn to check answers in an hour on two cores.
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
            *(
                "tiger",
                "house",
                "bread",
                "chair",
                "piano",
                "river",
                "storm",
                "cloud",
                "grape",
                "knife",
                "lemon",
                "mouse",
            ),
            *(
                "night",
                "ocean",
                "paper",
                "queen",
                "robot",
                "sheep",
                "table",
                "uncle",
                "tooth",
                "wagon",
                "water",
                "zebra",
            ),
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
    """Things in reading order, at most one a cell; `look` decides background and jitter and carries no fact."""

    things: tuple[SceneObject, ...]
    level: Level
    grid: int
    look: int


def random_thing(rng: Rng, level: Level, cell: int, kind: Kind) -> SceneObject:
    """Return a thing with independent, uniform properties."""
    size = rng.choice(tuple(level.sizes)) if kind == "shape" else ""
    return SceneObject(
        cell, kind, rng.choice(level.names(kind)), rng.choice(tuple(level.colours)), size
    )


def sample(
    rng: Rng, level: Level, written: tuple[tuple[int, int], ...] | None = None, fewest: int = 1
) -> Scene:
    """Sample a scene; `written` replaces the level's table of (digits, words), `fewest` raises its least number of things."""
    grid = rng.choice(level.grids)
    digits, words = rng.choice(written or level.written)
    low = max(max(level.things[0], fewest) - digits - words, 0)
    shapes = low + rng.below(level.things[1] - digits - words - low + 1)
    counts: Counter[Kind] = Counter({"shape": shapes, "digit": digits, "word": words})
    kinds = list(counts.elements())
    cells = rng.sample(range(grid * grid), len(kinds))
    things = sorted(
        random_thing(rng, level, cell, kind) for cell, kind in zip(cells, kinds, strict=True)
    )
    return Scene(tuple(things), level, grid, rng.below(1 << 30))


SPLITS: dict[str, range] = {
    "pretrain": range(8),
    "train": range(8, 12),
    "validation": range(12, 14),
    "benchmark": range(14, 16),
}
"""Sixteenths of all scenes: what a scene shows decides its split, so no two splits share a scene, whatever their seeds."""


def bucket(scene: Scene) -> int:
    """Return the sixteenth (0 to 15) that the scene's facts fall into; its look has no say."""
    facts = f"{scene.grid};" + ";".join(
        f"{thing.cell},{thing.what},{thing.colour},{thing.size}" for thing in scene.things
    )
    return hashlib.blake2b(facts.encode(), digest_size=1).digest()[0] % 16


_FINE = (
    8  # masks are drawn this much larger and reduced: Pillow's own polygons have no smooth edges
)

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
    centre, reach = side * _FINE / 2, radius * _FINE
    fine = Image.new("L", (side * _FINE, side * _FINE))
    pen = ImageDraw.Draw(fine)
    if what in _OUTLINES:
        pen.polygon(
            [(centre + x * reach, centre + y * reach) for x, y in _OUTLINES[what]], fill=255
        )
    else:
        pen.circle(
            (centre, centre), reach, outline=255, width=int(reach * (0.35 if what == "ring" else 1))
        )
    return fine.reduce(_FINE)


@lru_cache(maxsize=256)
def _writing(text: str, size: int) -> Image.Image:
    """Return the coverage of a written text in Pillow's own font, cut to its ink."""
    font = ImageFont.load_default(size)
    canvas = Image.new("L", (size * (len(text) + 2), size * 2))
    ImageDraw.Draw(canvas).text((size, size // 4), text, fill=255, font=font, stroke_width=0.3)
    return canvas.crop(canvas.getbbox())


PAPERS = 16


@lru_cache(maxsize=256)
def _paper(side: int, tone: int) -> Image.Image:
    """Return the background: red grows to the right, green downwards, so that a patch shows where in the image it lies.

    A vision tower with rotary positions only must otherwise first learn to count patches, which costs a small one most of
    its training. `tone` varies the blue channel and carries nothing.
    """
    ramp = (
        Image.linear_gradient("L")
        .resize((side, side))
        .point([10 + value * 110 // 255 for value in range(256)])
    )
    blue = Image.new("L", (side, side), 30 + 3 * tone)
    return Image.merge("RGB", (ramp.transpose(Image.Transpose.ROTATE_90), ramp, blue))


def draw(scene: Scene) -> Image.Image:
    """Return the RGB image of `scene`: grid * CELL pixels a side, shapes first, written things on top."""
    level = scene.level
    side = scene.grid * CELL
    image = _paper(side, scene.look % PAPERS).copy()
    for thing in sorted(scene.things, key=lambda thing: thing.kind != "shape"):
        size = level.font if thing.kind == "word" else level.font + 8
        mask = (
            _mask(thing.what, level.sizes[thing.size])
            if thing.kind == "shape"
            else _writing(thing.what, size)
        )
        noise = (scene.look >> 5) * (2 * thing.cell + 1) * 40503
        spread = 2 * level.jitter + 1
        row, column = divmod(thing.cell, scene.grid)
        left = column * CELL + (CELL - mask.width) // 2 + (noise >> 8) % spread - level.jitter
        top = row * CELL + (CELL - mask.height) // 2 + (noise >> 16) % spread - level.jitter
        inside = (min(max(left, 0), side - mask.width), min(max(top, 0), side - mask.height))
        image.paste(level.colours[thing.colour], inside, mask)
    return image


def png(image: Image.Image) -> bytes:
    """Return `image` as the bytes of a PNG file, packed lightly (speed counts more than size here)."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


class Change(NamedTuple):
    """Two scenes that differ in one thing."""

    scenes: tuple[Scene, Scene]
    things: tuple[SceneObject, ...]
    """The thing before and after; a single one came or went."""


Edit = Callable[[Rng, Scene, tuple[Kind, ...]], Change | None]
"""Changes one thing of these kinds; None where the scene holds none, or the level's limits forbid it."""


def _other(rng: Rng, options: tuple[str, ...], current: str) -> str:
    """Return one of `options` that is not `current`."""
    place = rng.below(len(options) - 1)
    return options[place] if options[place] != current else options[-1]


def _replace(scene: Scene, before: SceneObject | None, after: SceneObject | None) -> Change:
    """Return the change to the scene with `before` gone and `after` come."""
    things = [
        thing for thing in (*scene.things, after) if thing is not None and thing is not before
    ]
    return Change(
        (scene, scene._replace(things=tuple(sorted(things)))), tuple(filter(None, (before, after)))
    )


def _edit(alter: Callable[[Rng, Scene, SceneObject], SceneObject], *, sized: bool = False) -> Edit:
    """Return the edit that draws one thing of the kinds asked for, with `sized` one that has a size, and alters it."""

    def edit(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
        eligible = [
            thing for thing in scene.things if thing.kind in kinds and (thing.size or not sized)
        ]
        if not eligible:
            return None
        thing = rng.choice(eligible)
        return _replace(scene, thing, alter(rng, scene, thing))

    return edit


recolour = _edit(
    lambda rng, scene, thing: thing._replace(
        colour=_other(rng, tuple(scene.level.colours), thing.colour)
    )
)
rename = _edit(
    lambda rng, scene, thing: thing._replace(
        what=_other(rng, scene.level.names(thing.kind), thing.what)
    )
)
resize = _edit(
    lambda rng, scene, thing: thing._replace(
        size=_other(rng, tuple(scene.level.sizes), thing.size)
    ),
    sized=True,
)
move = _edit(lambda rng, scene, thing: thing._replace(cell=_free_cell(rng, scene)))


def come_or_go(rng: Rng, scene: Scene, kinds: tuple[Kind, ...]) -> Change | None:
    """Add or remove one shape, half each; None where the level's limits forbid it.

    Given the written things, the number of shapes is uniform: that makes coming and going equally likely.
    """
    shapes = [thing for thing in scene.things if thing.kind == "shape"]
    comes, (fewest, most) = rng.coin(), scene.level.things
    if len(scene.things) == (most if comes else fewest) or not (comes or shapes):
        return None
    if comes:
        return _replace(
            scene, None, random_thing(rng, scene.level, _free_cell(rng, scene), "shape")
        )
    return _replace(scene, rng.choice(shapes), None)


def _free_cell(rng: Rng, scene: Scene) -> int:
    """Return a cell that holds nothing."""
    taken = {thing.cell for thing in scene.things}
    return rng.choice([cell for cell in range(scene.grid * scene.grid) if cell not in taken])
