"""What happens in the films of the generated data set, one function for each kind of film.

A film shows actors on a stage. The actors are coloured shapes, and the stage holds all places and
times. Every film can be played backwards, and the same frames then tell another story: what moved
to the right moves to the left, and what grew shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from mmrm.data.synthetic.films import Film, Frame, Sprite
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import CELL, NUM_BACKGROUNDS, Level

Axis = Literal["horizontal", "vertical"]
AXES: tuple[Axis, ...] = ("horizontal", "vertical")
MOST_FRAMES_TO_CROSS = 10
FEWEST_FRAMES_TO_CROSS = 6
"""Frames in which a shape that moves crosses the picture. It moves by at most a sixth of the picture
from one frame to the next, so that its direction is clear although it comes back at the other
side."""
JITTER = 2
"""Largest distance in pixels of a shape from the middle of its row or column."""
SMALLEST = 4.0
LARGEST = 12.0
"""The radius of a shape before and after it grows, in pixels."""
MAX_BYSTANDERS = 2
"""Largest number of shapes that nothing happens to."""


class Actor(NamedTuple):
    """A shape of a film. All shapes of a film have different colours."""

    colour: str
    shape: str
    size: str
    """A key of the level's `sizes`. A shape that grows or shrinks does not have this size."""

    @property
    def name(self) -> str:
        """The colour and the shape, such as "red circle"."""
        return f"{self.colour} {self.shape}"

    @property
    def sized_name(self) -> str:
        """The name with the size, such as "small red circle"."""
        return f"{self.size} {self.name}"


class Stage(NamedTuple):
    """Everything that decides a film next to its kind and its actors."""

    level: Level
    grid: int
    """Number of cells along one side."""
    num_frames: int
    tone: int
    """Determines the background."""
    axis: Axis
    """The direction in which shapes move. A lane is a row if it is horizontal, else a column."""
    lanes: tuple[int, int]
    """Two different lanes. What a question is about happens in the first one. In the second one are
    the bystanders, or the shape that is overtaken."""
    cells: tuple[int, int]
    """Two different cells of a lane, counted from its beginning."""
    offsets: tuple[int, int]
    """Distances in pixels of the shapes in each of the two lanes from the middle of the lane."""
    start: int
    """Where a shape that moves is in the first frame, in pixels from the beginning of its lane."""
    speed: int
    """Pixels by which it moves from frame to frame."""
    change: int
    """Number of the first frame after a shape is replaced by another one."""

    @property
    def side(self) -> int:
        """Width and height of the pictures in pixels."""
        return self.grid * CELL

    def sprite(self, actor: Actor, along: int, lane: int, radius: float | None = None) -> Sprite:
        """Return an actor at one moment.

        Args:
            actor: The shape.
            along: Pixels from the beginning of its lane.
            lane: 0 if it is in the first of the two lanes, 1 if it is in the second.
            radius: The radius in pixels; None takes that of the actor's size.
        """
        across = middle_of_cell(self.lanes[lane]) + self.offsets[lane]
        x, y = (along, across) if self.axis == "horizontal" else (across, along)
        if radius is None:
            radius = self.level.sizes[actor.size]
        return Sprite(actor.shape, actor.colour, radius, x, y)

    def place(self, cell: int, lane: int) -> str:
        """Return a cell of the first (0) or the second (1) of the two lanes as "column,row"."""
        along = self.cells[cell]
        across = self.lanes[lane]
        return f"{along},{across}" if self.axis == "horizontal" else f"{across},{along}"

    def film(self, frames: Sequence[Frame], facts: Sequence[str]) -> Film:
        """Return a film on this stage.

        Args:
            frames: The frames.
            facts: For each shape, what is seen of it and what happens to it, without the direction
                and without exact times and places. Films that look alike have equal facts.
        """
        all_facts = "; ".join((str(self.grid), *sorted(facts)))
        return Film(tuple(frames), self.level, self.grid, self.tone, all_facts)


def random_stage(rng: Rng, level: Level, num_frames: int) -> Stage:
    """Return a random stage of a level, for films of the given number of frames."""
    grid = rng.choice(level.grids)
    side = grid * CELL
    slowest = side // MOST_FRAMES_TO_CROSS
    fastest = side // FEWEST_FRAMES_TO_CROSS
    first_change = num_frames // 4
    last_change = num_frames - first_change
    first_lane, second_lane = rng.sample(range(grid), 2)
    first_cell, second_cell = rng.sample(range(grid), 2)
    num_offsets = 2 * JITTER + 1
    return Stage(
        level=level,
        grid=grid,
        num_frames=num_frames,
        tone=rng.below(NUM_BACKGROUNDS),
        axis=rng.choice(AXES),
        lanes=(first_lane, second_lane),
        cells=(first_cell, second_cell),
        offsets=(rng.below(num_offsets) - JITTER, rng.below(num_offsets) - JITTER),
        start=rng.below(side),
        speed=slowest + rng.below(fastest - slowest + 1),
        change=first_change + rng.below(last_change - first_change + 1),
    )


def middle_of_cell(cell: int) -> int:
    """Return the distance in pixels of a cell's middle from the beginning of its lane."""
    return cell * CELL + CELL // 2


def moving(stage: Stage, actor: Actor, bystanders: Sequence[Actor]) -> Film:
    """Return the film in which an actor moves to the right or downwards, and none stops it.

    It comes back at the left or at the top. So its place in any one frame, even in the first one,
    tells nothing about the direction.
    """
    frames = []
    for number in range(stage.num_frames):
        along = (stage.start + number * stage.speed) % stage.side
        frames.append((*_standing(stage, bystanders), stage.sprite(actor, along, lane=0)))
    movement = f"{actor.sized_name} moves, {stage.axis} {stage.lanes[0]}"
    return stage.film(frames, (movement, *_places(stage, bystanders)))


def crossing(stage: Stage, actor: Actor, bystanders: Sequence[Actor]) -> Film:
    """Return the film in which an actor goes from the left side to the right, or from top to bottom.

    It is easier than `moving`: the first frame alone tells where it goes, if it is known to be the
    first.
    """
    last = stage.num_frames - 1
    distance = stage.side - CELL
    frames = []
    for number in range(stage.num_frames):
        along = CELL // 2 + round(distance * number / last)
        frames.append((*_standing(stage, bystanders), stage.sprite(actor, along, lane=0)))
    movement = f"{actor.sized_name} crosses, {stage.axis} {stage.lanes[0]}"
    return stage.film(frames, (movement, *_places(stage, bystanders)))


def growing(stage: Stage, actor: Actor, bystanders: Sequence[Actor]) -> Film:
    """Return the film in which an actor grows."""
    along = middle_of_cell(stage.cells[0])
    frames = []
    for number in range(stage.num_frames):
        share = number / (stage.num_frames - 1)
        radius = SMALLEST + share * (LARGEST - SMALLEST)
        frames.append((*_standing(stage, bystanders), stage.sprite(actor, along, 0, radius)))
    growth = f"{actor.name} grows at {stage.place(cell=0, lane=0)}"
    return stage.film(frames, (growth, *_places(stage, bystanders)))


def taking_turns(
    stage: Stage, first: Actor, second: Actor, bystanders: Sequence[Actor], *, in_place: bool
) -> Film:
    """Return the film in which an actor is seen first, and then another one in place of it.

    Args:
        stage: The places and times.
        first: The actor of the first frames.
        second: The actor of the other frames.
        bystanders: The other shapes.
        in_place: True shows the second actor where the first one was. If both have one shape, it
            changes its colour.
    """
    second_cell = 0 if in_place else 1
    first_along = middle_of_cell(stage.cells[0])
    second_along = middle_of_cell(stage.cells[second_cell])
    frames = []
    for number in range(stage.num_frames):
        is_first = number < stage.change
        actor = first if is_first else second
        along = first_along if is_first else second_along
        sprite = stage.sprite(actor, along, lane=0)
        frames.append((*_standing(stage, bystanders), sprite))
    turns = (
        f"{first.sized_name} has a turn at {stage.place(cell=0, lane=0)}",
        f"{second.sized_name} has a turn at {stage.place(second_cell, lane=0)}",
    )
    return stage.film(frames, (*turns, *_places(stage, bystanders)))


def overtaking(stage: Stage, fast: Actor, slow: Actor) -> Film:
    """Return the film in which an actor overtakes another one, to the right or downwards.

    The fast actor is further left (or higher) at first, and further right (or lower) at the end.
    """
    last = stage.num_frames - 1
    middle = stage.side // 2
    frames = []
    for number in range(stage.num_frames):
        time = (2 * number - last) / last  # from -1 to 1
        fast_along = middle + round(time * (middle - CELL // 2))
        slow_along = middle + round(time * CELL / 8)
        frames.append((stage.sprite(fast, fast_along, 0), stage.sprite(slow, slow_along, 1)))
    facts = (
        f"{fast.sized_name} overtakes, {stage.axis} {stage.lanes[0]}",
        f"{slow.sized_name} is overtaken, {stage.axis} {stage.lanes[1]}",
    )
    return stage.film(frames, facts)


def _standing(stage: Stage, bystanders: Sequence[Actor]) -> Frame:
    """Return the bystanders, which stand in the second lane."""
    sprites = []
    for cell, actor in zip(stage.cells, bystanders, strict=False):
        sprites.append(stage.sprite(actor, middle_of_cell(cell), lane=1))
    return tuple(sprites)


def _places(stage: Stage, bystanders: Sequence[Actor]) -> list[str]:
    """Return the facts about the bystanders."""
    facts = []
    for cell, actor in enumerate(bystanders):
        facts.append(f"{actor.sized_name} stands at {stage.place(cell, lane=1)}")
    return facts


FilmOfActor = Callable[[Stage, Actor, Sequence[Actor]], Film]
"""A function that makes a film of one actor and some bystanders on a stage."""


class OneActorPlot(NamedTuple):
    """A kind of film in which one actor is seen in every frame, with one colour."""

    make: FilmOfActor
    is_reversed: bool

    def film(self, stage: Stage, actor: Actor, bystanders: Sequence[Actor]) -> Film:
        """Return the film of this kind on a stage, with an actor and some bystanders."""
        film = self.make(stage, actor, bystanders)
        return film.reversed() if self.is_reversed else film


def random_one_actor_plot(rng: Rng) -> OneActorPlot:
    """Return one of the four kinds: an actor moves or grows, and the film is reversed or not."""
    return OneActorPlot(rng.choice((moving, growing)), rng.coin())
