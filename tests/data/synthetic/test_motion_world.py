"""Films with questions: answers that are read off the pixels, and what the order of frames decides."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.frame_sampling import decoded_frames
from mmrm.data.synthetic import motion_world
from mmrm.data.synthetic.film_questions import FILM_QUESTION_TYPES
from mmrm.data.synthetic.films import WAYS_TO_PLAY, Film, drawn_frames, encoded, played_frames
from mmrm.data.synthetic.motion_world import MOTION_REVISION, MotionGenerator, MotionItem
from mmrm.data.synthetic.plots import Actor, growing, moving, random_stage, taking_turns
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import LEVELS, SPLITS, bucket_of_facts

pytest.importorskip("av")

Pixels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ORDER = [kind for kind, question in FILM_QUESTION_TYPES.items() if question.category == "order"]
FRAME = [kind for kind, question in FILM_QUESTION_TYPES.items() if question.category == "frame"]
levels = st.sampled_from(sorted(LEVELS))
splits = st.sampled_from(sorted(SPLITS))
kinds = st.sampled_from(sorted(FILM_QUESTION_TYPES))


def frames_of(video: bytes) -> list[Pixels]:
    """Return the frames of a video file, each (rows, columns, 3)."""
    return [np.asarray(frame.to_image()).astype(np.int64) for frame in decoded_frames(video)]


def mask_of(frame: Pixels, level: str, colour: str) -> Mask:
    """Return which pixels of a frame, (rows, columns), have a colour of the level."""
    difference = frame - np.array(LEVELS[level].colours[colour])
    is_colour: Mask = np.abs(difference).max(axis=2) < 8
    return is_colour


def colours_in(frame: Pixels, level: str) -> set[str]:
    """Return the colours of the level that more than a few pixels of a frame have."""
    return {colour for colour in LEVELS[level].colours if mask_of(frame, level, colour).sum() > 12}


def shift(before: Mask, after: Mask, axis: int) -> int:
    """Return by how many pixels a shape moved along an axis, around the picture if it is closer."""
    first = before.sum(axis=1 - axis)
    second = after.sum(axis=1 - axis)
    side = len(first)
    agreements = [int(np.roll(first, distance) @ second) for distance in range(side)]
    distance = int(np.argmax(agreements))
    return distance if distance <= side // 2 else distance - side


def place(mask: Mask, axis: int) -> float:
    """Return the mean row (axis 0) or column (axis 1) of a shape."""
    return float(np.nonzero(mask)[axis].mean())


def named_colours(text: str, level: str) -> list[str]:
    """Return the colours that a text names, in its order."""
    return [word for word in re.findall(r"\w+", text) if word in LEVELS[level].colours]


def answer_by_pixels(question: str, kind: str, frames: list[Pixels], level: str) -> str:
    """Return words that the right answer contains and the wrong one does not, from pixels alone."""
    named = named_colours(question, level)
    if kind in ("direction", "drift"):
        masks = [mask_of(frame, level, named[0]) for frame in frames]
        rows = sum(shift(first, second, 0) for first, second in pairwise(masks))
        columns = sum(shift(first, second, 1) for first, second in pairwise(masks))
        if abs(rows) > abs(columns):
            return "down" if rows > 0 else " up"
        return "to the right" if columns > 0 else "to the left"
    if kind == "growth":
        first, last = (mask_of(frame, level, named[0]).sum() for frame in (frames[0], frames[-1]))
        return "grow" if last > first else "shrink"
    if kind == "colours":
        first_colours = colours_in(frames[0], level)
        last_colours = colours_in(frames[-1], level)
        [before] = first_colours - last_colours
        [after] = last_colours - first_colours
        return f"{before} and then {after}"
    if kind == "first":
        [colour] = set(named) & colours_in(frames[0], level)
        return colour
    if kind == "overtaking":
        axis = 1 if re.search("left|right", question) else 0
        places = {colour: place(mask_of(frames[-1], level, colour), axis) for colour in named}
        first, second = sorted(named, key=lambda colour: places[colour])
        return first if re.search("left|up", question) else second
    if kind == "number":
        return str(len(colours_in(frames[0], level)))
    raise AssertionError(kind)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["demo", "medium"]),
    st.sampled_from([*ORDER, "number"]),
    st.integers(0, 1 << 40),
    st.integers(4, 16),
)
def test_the_chosen_answer_is_right_by_the_pixels_of_the_video(
    level: str, kind: str, index: int, num_frames: int
) -> None:
    item = MotionGenerator(level, 0, "train", num_frames, [kind]).item(index)
    frames = frames_of(item.video("forwards"))
    assert len(frames) == num_frames
    words = answer_by_pixels(item.question, kind, frames, level)
    assert words in item.chosen
    assert words not in item.rejected


@settings(max_examples=60, deadline=None)
@given(levels, st.sampled_from(["colour", "shape"]), st.integers(0, 1 << 40))
def test_one_shape_alone_has_the_property_that_is_asked_for(
    level: str, kind: str, index: int
) -> None:
    item = MotionGenerator(level, 0, "train", 8, [kind]).item(index)
    for frame in item.film.frames:
        if kind == "colour":
            shape = re.search(r"the (\w+)( have)?\?", item.question)
            assert shape is not None
            [colour] = [sprite.colour for sprite in frame if sprite.shape == shape[1]]
            assert colour in item.chosen
            assert colour not in item.rejected
        else:
            [asked] = named_colours(item.question, level)
            [name] = [sprite.shape for sprite in frame if sprite.colour == asked]
            assert name in item.chosen
            assert name not in item.rejected


@settings(max_examples=80, deadline=None)
@given(levels, splits, kinds, st.integers(0, 1000), st.integers(0, 1 << 40), st.integers(4, 16))
def test_every_index_holds_a_whole_item(
    level: str, split: str, kind: str, seed: int, index: int, num_frames: int
) -> None:
    item = MotionGenerator(level, seed, split, num_frames, [kind]).item(index)
    for film in (item.film, item.twin):
        assert bucket_of_facts(film.facts) in SPLITS[split]
        assert len(film.frames) == num_frames
        for frame in film.frames:
            colours = [sprite.colour for sprite in frame]
            assert len(set(colours)) == len(colours)
    assert item.chosen in item.true.phrasings
    assert item.rejected in item.false.phrasings
    assert not set(item.true.phrasings) & set(item.false.phrasings)
    again = MotionGenerator(level, seed, split, num_frames, [kind]).item(index)
    assert again == item


@settings(max_examples=30, deadline=None)
@given(levels, st.sampled_from(ORDER), st.integers(0, 1 << 40), st.integers(4, 16))
def test_a_question_about_order_has_the_reversed_film_as_its_twin(
    level: str, kind: str, index: int, num_frames: int
) -> None:
    """Without their order, the frames of a film and of its twin are the same.

    So are the shuffled videos: nothing in one tells the two answers apart.
    """
    item = MotionGenerator(level, 0, "train", num_frames, [kind]).item(index)
    assert item.twin == item.film.reversed()
    assert item.twin != item.film
    frames = drawn_frames(item.film)
    twin_frames = drawn_frames(item.twin)
    assert encoded(played_frames(frames, "shuffled")) == encoded(
        played_frames(twin_frames, "shuffled")
    )
    assert encoded(played_frames(frames, "grey")) == encoded(played_frames(twin_frames, "grey"))
    assert encoded(played_frames(frames, "reversed")) == encoded(
        played_frames(twin_frames, "forwards")
    )


def test_a_shuffled_film_has_the_same_frames_in_any_order() -> None:
    generator = MotionGenerator("demo", 0, "train", 4, ["growth"])
    orders: Counter[tuple[int, ...]] = Counter()
    for index in range(600):
        frames = drawn_frames(generator.item(index).film)
        places = {frame.tobytes(): place for place, frame in enumerate(frames)}
        shuffled = played_frames(frames, "shuffled")
        orders[tuple(places[frame.tobytes()] for frame in shuffled)] += 1
    assert len(orders) == 24
    assert sum(orders.values()) == 600
    for order, count in orders.items():
        assert sorted(order) == [0, 1, 2, 3]
        assert 5 <= count <= 55  # 25 on average; this is seven standard deviations away


def test_each_way_to_play_a_film() -> None:
    item = MotionGenerator("demo", 0, "train", 6, ["direction"]).item(0)
    frames = [np.asarray(frame).tolist() for frame in drawn_frames(item.film)]
    shown = {}
    for played in WAYS_TO_PLAY:
        shown[played] = [frame.tolist() for frame in frames_of(item.video(played))]
    assert shown["forwards"] == frames
    assert shown["reversed"] == frames[::-1]
    assert shown["shuffled"] != frames
    assert sorted(shown["shuffled"]) == sorted(frames)
    assert shown["first"] == [frames[0]] * 6
    assert np.unique(shown["grey"]).tolist() == [128]
    assert np.shape(shown["grey"]) == np.shape(frames)


def first_frames(direction: int, num_frames: int) -> Counter[object]:
    """Return how often each first frame occurs over all places where a shape may start.

    Args:
        direction: 1 for a film, and -1 for its reversal.
        num_frames: Number of frames.
    """
    stage = random_stage(Rng(4), LEVELS["demo"], num_frames)
    actor = Actor("red", "circle", "large")
    counts: Counter[object] = Counter()
    for start in range(stage.side):
        film = moving(stage._replace(start=start), actor, ())
        counts[film.frames[::direction][0]] += 1
    return counts


@pytest.mark.parametrize("num_frames", [4, 8, 13])
def test_the_first_frame_tells_nothing_about_the_direction(num_frames: int) -> None:
    assert first_frames(1, num_frames) == first_frames(-1, num_frames)


class FlippedCoins(Rng):
    """A source of draws in which every coin falls on the other side."""

    def coin(self) -> bool:
        """Return the opposite of the coin of `Rng`."""
        return not super().coin()


@pytest.mark.parametrize("kind", FILM_QUESTION_TYPES)
def test_a_coin_alone_decides_which_answer_is_right(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the texts, this is exact: every question is as likely with both answers exchanged."""
    generator = MotionGenerator("demo", 3, "train", 8, [kind])
    items = [generator.item(index) for index in range(50)]
    monkeypatch.setattr(motion_world, "Rng", FlippedCoins)
    flipped = [generator.item(index) for index in range(50)]
    for item, other in zip(items, flipped, strict=True):
        assert other.question == item.question
        assert (other.chosen, other.rejected) == (item.rejected, item.chosen)
        if kind in ORDER:
            assert (other.film, other.twin) == (item.twin, item.film)
        else:
            # Another coin decides whether the film is reversed.
            assert other.film == item.twin.reversed()


STAGE = random_stage(Rng(4), LEVELS["demo"], 8)._replace(
    axis="horizontal", lanes=(0, 1), cells=(0, 1), offsets=(0, 0), change=4
)
RED = Actor("red", "circle", "large")
BLUE = Actor("blue", "square", "small")


@pytest.mark.parametrize(
    ("film", "same_film"),
    [
        (
            taking_turns(STAGE, RED, BLUE, (), in_place=False),
            taking_turns(STAGE._replace(cells=(1, 0)), BLUE, RED, (), in_place=False).reversed(),
        ),
        (
            taking_turns(STAGE, RED, BLUE, (), in_place=True),
            taking_turns(STAGE, BLUE, RED, (), in_place=True).reversed(),
        ),
        (growing(STAGE, RED, ()), growing(STAGE, RED._replace(size="small"), ())),
        (growing(STAGE, RED, ()), growing(STAGE._replace(axis="vertical"), RED, ())),
        (growing(STAGE, RED, (BLUE,)), growing(STAGE, RED, (BLUE,)).reversed().reversed()),
    ],
    ids=["turns", "colours", "size", "axis", "reversed"],
)
def test_films_that_look_alike_are_in_one_split(film: Film, same_film: Film) -> None:
    assert film.frames == same_film.frames
    assert film.facts == same_film.facts
    assert film.reversed().facts == film.facts


def test_films_of_different_splits_differ() -> None:
    facts_by_split = {}
    for split in SPLITS:
        generator = MotionGenerator("demo", 0, split, 8)
        facts_by_split[split] = {generator.item(index).film.facts for index in range(60)}
    for split, facts in facts_by_split.items():
        for other, other_facts in facts_by_split.items():
            assert split == other or not facts & other_facts


def test_equal_films_are_equal_files() -> None:
    generator = MotionGenerator("demo", 0, "train", 8)
    for index in range(5):
        item = generator.item(index)
        assert item.video("forwards") == item.video("forwards")
        assert len(item.video("forwards")) < 40_000


def digest_of(items: list[MotionItem]) -> str:
    """Return a digest of the texts, the prompts and the pixels of items."""
    content = hashlib.sha256()
    for item in items:
        texts = (item.identity, item.question, item.chosen, item.rejected)
        content.update(repr((texts, item.preference("forwards").prompt)).encode())
        films: tuple[Film, ...] = (item.film, item.twin)
        for film in films:
            for played in WAYS_TO_PLAY:
                for frame in played_frames(drawn_frames(film), played):
                    content.update(frame.tobytes())
    return content.hexdigest()[:16]


def test_the_films_belong_to_their_revision() -> None:
    items = []
    for level in sorted(LEVELS):
        for kind in FILM_QUESTION_TYPES:
            generator = MotionGenerator(level, 0, "train", 5, [kind])
            items += [generator.item(index) for index in range(3)]
    assert digest_of(items) == MOTION_REVISION
