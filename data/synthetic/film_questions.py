"""The types of questions about films in the generated data set.

A question is about a film and its twin, for which it has different answers. A coin that is tossed
after every word is fixed decides which of the two is shown. So a judge that does not see the film
is right half of the time.

The twin of a question about the order of things is the reversed film, which has the same frames. So
a judge that does not see their order is right half of the time as well. The twin of a question that
any single frame answers has other shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from mmrm.data.synthetic.films import Film
from mmrm.data.synthetic.plots import (
    MAX_BYSTANDERS,
    Actor,
    FilmOfActor,
    Stage,
    crossing,
    growing,
    moving,
    overtaking,
    random_one_actor_plot,
    taking_turns,
)
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.wording import Query, WordedAnswer, make_answer, with_article

FilmCategory = Literal["order", "frame"]
"""What answers a question: the order of the frames, or any single frame."""


class FilmQuery(NamedTuple):
    """A question with a film, for which its right answer is right, and with the film's twin."""

    query: Query
    film: Film
    twin: Film
    """The film for which the wrong answer is right."""


class _Cast(NamedTuple):
    """Shapes for a film, all of different colours. Bystanders have other shapes than the others."""

    first: Actor
    second: Actor
    """Another actor, or what `first` is in the twin."""
    bystanders: tuple[Actor, ...]
    """MAX_BYSTANDERS of them."""


def _random_cast(rng: Rng, stage: Stage, *, one_shape: bool = False) -> _Cast:
    """Return random shapes for a film.

    Args:
        rng: Draws the shapes.
        stage: The stage of the film, whose level has the shapes, colours and sizes.
        one_shape: True gives `first` and `second` the same shape, and False different ones.
    """
    level = stage.level
    first_shape, second_shape, *other_shapes = rng.sample(level.shapes, len(level.shapes))
    if one_shape:
        second_shape = first_shape
    colours = rng.sample(tuple(level.colours), 2 + MAX_BYSTANDERS)
    sizes = tuple(level.sizes)
    first = Actor(colours[0], first_shape, rng.choice(sizes))
    second = Actor(colours[1], second_shape, rng.choice(sizes))
    bystanders = []
    for colour in colours[2:]:
        bystanders.append(Actor(colour, rng.choice(other_shapes), rng.choice(sizes)))
    return _Cast(first, second, tuple(bystanders))


def _some(rng: Rng, bystanders: Sequence[Actor]) -> Sequence[Actor]:
    """Return the first few of the bystanders: none, some or all, with equal probability."""
    return bystanders[: rng.below(len(bystanders) + 1)]


def ask_direction(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "in which direction does the red circle move?".

    The shape goes from one side of the picture to the other.
    """
    return _ask_direction(rng, stage, crossing)


def ask_drift(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "in which direction does the red circle move?".

    The shape starts anywhere, and comes back at the other side of the picture. So no frame tells
    its direction, not even one whose time is known.
    """
    return _ask_direction(rng, stage, moving)


def _ask_direction(rng: Rng, stage: Stage, plot: FilmOfActor) -> FilmQuery:
    """Return a question about the direction of a shape in a film of the given kind."""
    cast = _random_cast(rng, stage)
    name = cast.first.name
    film = plot(stage, cast.first, _some(rng, cast.bystanders))
    questions = (f"in which direction does the {name} move?", f"where does the {name} move?")
    directions = ("to the right", "to the left")
    if stage.axis == "vertical":
        directions = ("down", "up")
    answers = []
    for direction in directions:
        phrasings = (
            f"the {name} moves {direction}",
            f"it moves {direction}",
            f"i see it move {direction}",
        )
        answers.append(make_answer(phrasings, direction))
    return FilmQuery(Query(questions, *answers), film, film.reversed())


def ask_growth(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "does the red circle grow or shrink?"."""
    cast = _random_cast(rng, stage)
    name = cast.first.name
    film = growing(stage, cast.first, _some(rng, cast.bystanders))
    questions = (f"does the {name} grow or shrink?", f"how does the size of the {name} change?")
    answers = []
    for verb in ("grow", "shrink"):
        phrasings = (f"the {name} {verb}s", f"it {verb}s", f"i see it {verb}")
        answers.append(make_answer(phrasings, f"it {verb}s"))
    return FilmQuery(Query(questions, *answers), film, film.reversed())


def ask_colours(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "how does the colour of the circle change?"."""
    cast = _random_cast(rng, stage, one_shape=True)
    name = cast.first.shape
    bystanders = _some(rng, cast.bystanders)
    film = taking_turns(stage, cast.first, cast.second, bystanders, in_place=True)
    questions = (
        f"how does the colour of the {name} change?",
        f"which colours does the {name} have one after the other?",
    )
    answers = []
    for first, second in ((cast.first, cast.second), (cast.second, cast.first)):
        colours = f"{first.colour} and then {second.colour}"
        phrasings = (f"the {name} is {colours}", f"it is {colours}", f"i see {colours}")
        answers.append(make_answer(phrasings, colours))
    return FilmQuery(Query(questions, *answers), film, film.reversed())


def ask_first(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "what is shown first, the red circle or the blue square?"."""
    cast = _random_cast(rng, stage)
    bystanders = _some(rng, cast.bystanders)
    film = taking_turns(stage, cast.first, cast.second, bystanders, in_place=False)
    names = _names_in_random_order(rng, cast)
    questions = (f"what is shown first, {names}?", f"what do you see first, {names}?")
    answers = []
    for actor in (cast.first, cast.second):
        phrasings = (
            f"the {actor.name} is shown first",
            f"it is the {actor.name}",
            f"i see the {actor.name} first",
        )
        answers.append(make_answer(phrasings, f"the {actor.name}"))
    return FilmQuery(Query(questions, *answers), film, film.reversed())


def ask_overtaking(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "what is further left at the end, the red circle or the blue square?".

    One of the two overtakes the other, so that it is on different sides of it at the beginning and
    at the end.
    """
    cast = _random_cast(rng, stage)
    film = overtaking(stage, cast.first, cast.second)
    places = ("further right", "further left")
    if stage.axis == "vertical":
        places = ("further down", "further up")
    place = rng.choice(places)
    in_order = (cast.first, cast.second)
    if place == places[1]:
        in_order = (cast.second, cast.first)
    names = _names_in_random_order(rng, cast)
    questions = (f"what is {place} at the end, {names}?", f"what ends {place}, {names}?")
    answers = []
    for actor in in_order:
        phrasings = (
            f"the {actor.name} is {place} at the end",
            f"it is the {actor.name}",
            f"i see the {actor.name} {place} at the end",
        )
        answers.append(make_answer(phrasings, f"the {actor.name}"))
    return FilmQuery(Query(questions, *answers), film, film.reversed())


def ask_actor_colour(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "what colour is the circle?"."""
    cast = _random_cast(rng, stage, one_shape=True)
    name = cast.first.shape
    questions = (f"what colour is the {name}?", f"which colour does the {name} have?")
    answers = []
    for actor in (cast.first, cast.second):
        phrasings = (
            f"the {name} is {actor.colour}",
            f"it is {actor.colour}",
            f"i see {with_article(actor.name)}",
        )
        answers.append(make_answer(phrasings, actor.colour))
    bystanders = _some(rng, cast.bystanders)
    plot = random_one_actor_plot(rng)
    film = plot.film(stage, cast.first, bystanders)
    twin = plot.film(stage, cast.first._replace(colour=cast.second.colour), bystanders)
    return FilmQuery(Query(questions, *answers), film, twin)


def ask_actor_shape(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "what is the red thing?"."""
    cast = _random_cast(rng, stage)
    name = f"{cast.first.colour} thing"
    questions = (f"what is the {name}?", f"which shape does the {name} have?")
    answers = []
    for actor in (cast.first, cast.second):
        shape = with_article(actor.shape)
        phrasings = (f"the {name} is {shape}", f"it is {shape}", f"i see {shape}")
        answers.append(make_answer(phrasings, shape))
    bystanders = _some(rng, cast.bystanders)
    plot = random_one_actor_plot(rng)
    film = plot.film(stage, cast.first, bystanders)
    twin = plot.film(stage, cast.first._replace(shape=cast.second.shape), bystanders)
    return FilmQuery(Query(questions, *answers), film, twin)


def ask_number(rng: Rng, stage: Stage) -> FilmQuery:
    """Return a question like "how many things are there?"."""
    cast = _random_cast(rng, stage)
    questions = ("how many things are there?", "count the things.", "how many things do you see?")
    plot = random_one_actor_plot(rng)
    answers: list[WordedAnswer] = []
    films: list[Film] = []
    for num_bystanders in rng.sample(range(MAX_BYSTANDERS + 1), 2):
        count = num_bystanders + 1
        things = "1 thing" if count == 1 else f"{count} things"
        verb = "is" if count == 1 else "are"
        phrasings = (f"there {verb} {things}", f"i see {things}", f"i count {things}")
        answers.append(make_answer(phrasings, str(count)))
        films.append(plot.film(stage, cast.first, cast.bystanders[:num_bystanders]))
    return FilmQuery(Query(questions, *answers), *films)


def _names_in_random_order(rng: Rng, cast: _Cast) -> str:
    """Return the names of both actors, such as "the red circle or the blue square"."""
    first, second = rng.sample((cast.first, cast.second), 2)
    return f"the {first.name} or the {second.name}"


class FilmQuestionType(NamedTuple):
    """A type of question about a film."""

    category: FilmCategory
    ask: Callable[[Rng, Stage], FilmQuery]
    """A function that makes a question about a random film on a stage."""


FILM_QUESTION_TYPES: dict[str, FilmQuestionType] = {
    "direction": FilmQuestionType("order", ask_direction),
    "drift": FilmQuestionType("order", ask_drift),
    "growth": FilmQuestionType("order", ask_growth),
    "colours": FilmQuestionType("order", ask_colours),
    "first": FilmQuestionType("order", ask_first),
    "overtaking": FilmQuestionType("order", ask_overtaking),
    "colour": FilmQuestionType("frame", ask_actor_colour),
    "shape": FilmQuestionType("frame", ask_actor_shape),
    "number": FilmQuestionType("frame", ask_number),
}
