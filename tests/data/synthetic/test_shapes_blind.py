"""Nobody who does not see the picture can tell chosen from rejected, or a right answer from a near miss."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import (
    LEVELS,
    Edit,
    Level,
    add_or_remove,
    move,
    recolour,
    rename,
    resize,
    sample,
)
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.world import GeneratedItem, ShapesGenerator

pytestmark = pytest.mark.slow


Vector = npt.NDArray[np.float64]
FEATURES = 4096
PICTURES = tuple(QUESTION_TYPES)


def _items(level: str, kinds: tuple[str, ...], count: int) -> list[GeneratedItem]:
    world = ShapesGenerator(level, 11, "train")
    return [world.item(index, kinds) for index in range(count)]


def _hashed(text: str) -> int:
    return zlib.crc32(text.encode()) % FEATURES


def _features(question: str, answer: str) -> Vector:
    """Words, pairs of words, words crossed with the question's words and with the whole question; and the length."""
    words = answer.split()
    names = [*words, *map(" ".join, pairwise(words)), *(f"{question}|{word}" for word in words)]
    names += [f"{asked}|{word}" for asked in set(question.split()) for word in set(words)]
    vector = np.bincount([_hashed(name) for name in names], minlength=FEATURES).astype(float)
    vector[0] = len(answer) / 50
    return vector


def _trained_accuracy(rows: Vector, labels: Vector) -> float:
    """Train logistic regression on the first two thirds of the rows; return its accuracy on the rest."""
    cut = len(rows) * 2 // 3
    scale = np.sqrt((rows**2).mean(0)) + 1e-3
    rows = rows / scale
    weights = np.zeros(FEATURES)
    rng = np.random.default_rng(0)
    for epoch in range(8):
        for batch in np.array_split(rng.permutation(cut), cut // 32):
            chance = 1 / (1 + np.exp(-np.clip(rows[batch] @ weights, -30, 30)))
            weights += (
                0.02 / (1 + epoch) * ((labels[batch] - chance) @ rows[batch] / 32 - 1e-3 * weights)
            )
    return float(((rows[cut:] @ weights > 0) == labels[cut:]).mean())


def _pair_accuracy(items: Sequence[GeneratedItem]) -> float:
    """Return how often a judge trained on texts alone finds the chosen response of held-out items."""
    sign = np.where(np.random.default_rng(1).random(len(items)) < 0.5, 1.0, -1.0)
    difference = np.stack(
        [
            _features(item.question, item.chosen) - _features(item.question, item.rejected)
            for item in items
        ]
    )
    return _trained_accuracy(difference * sign[:, None], (sign > 0).astype(float))


def _rule_accuracy(items: Sequence[GeneratedItem], prefers: Callable[[str, str], float]) -> float:
    """Return how often a rule prefers the chosen response; ties count half."""
    return float(
        np.mean([0.5 + 0.5 * np.sign(prefers(item.chosen, item.rejected)) for item in items])
    )


@pytest.mark.parametrize("level", sorted(LEVELS))
@pytest.mark.parametrize(
    "prefers",
    [
        lambda first, second: len(first) - len(second),
        lambda first, second: len(first.split()) - len(second.split()),
        lambda first, second: (first > second) - (first < second),
        lambda first, second: first.startswith("yes") - second.startswith("yes"),
    ],
    ids=["longer", "more words", "alphabet", "yes"],
)
def test_no_rule_of_thumb_finds_the_chosen_response(
    level: str, prefers: Callable[[str, str], float]
) -> None:
    assert 0.46 < _rule_accuracy(_items(level, PICTURES, 3000), prefers) < 0.54


def test_length_says_nothing_about_texts_without_a_picture() -> None:
    items = _items("demo", tuple(TEXT_TYPES), 3000)
    assert 0.46 < _rule_accuracy(items, lambda first, second: len(first) - len(second)) < 0.54


def test_refusing_is_right_half_of_the_time() -> None:
    items = _items("demo", ("safety",), 2000)
    assert (
        0.46
        < np.mean([item.chosen.startswith(("sorry", "no", "i will not")) for item in items])
        < 0.54
    )


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_a_trained_judge_without_the_picture_stays_at_chance(level: str) -> None:
    assert 0.46 < _pair_accuracy(_items(level, PICTURES, 5400)) < 0.54


def test_the_same_judge_learns_what_texts_alone_decide() -> None:
    assert _pair_accuracy(_items("demo", ("safety",), 1500)) > 0.9


@pytest.mark.parametrize("kind", PICTURES)
def test_chosen_and_rejected_can_be_swapped(kind: str) -> None:
    """The two answers to a question, in either role: chi-square over the pairs, and over their order in the alphabet."""
    counts: Counter[tuple[str, str]] = Counter(
        (item.true.quote_if_wrong, item.false.quote_if_wrong)
        for item in _items("demo", (kind,), 2000)
    )
    pairs = [
        (counts[a, b], counts[b, a])
        for a, b in counts.keys() | {(b, a) for a, b in counts}
        if a < b
    ]
    forwards, total = sum(first for first, _ in pairs), sum(map(sum, pairs))
    assert abs(forwards - total / 2) < 4 * np.sqrt(total / 4)
    common = [(first, second) for first, second in pairs if first + second >= 10]
    statistic = sum((first - second) ** 2 / (first + second) for first, second in common)
    assert statistic < len(common) + 4.5 * np.sqrt(2 * len(common)) + 5


TINY = Level(
    grids=(2,),
    places=("a", "b", "c", "d"),
    things=(1, 3),
    written=((0, 0), (1, 0)),
    shapes=("circle", "square"),
    colours={"red": (255, 0, 0), "blue": (0, 0, 255)},
    sizes={"small": 5.0, "large": 9.0},
    digits=("1", "2"),
    words=("cat", "dog"),
    jitter=1,
    font=10,
)


@pytest.mark.parametrize("edit", [recolour, rename, resize, move, add_or_remove])
def test_a_change_is_as_likely_as_its_reversal(edit: Edit) -> None:
    """Counts of (number of things, first thing) before and after: a symmetric table, up to chance."""
    rng, counts = Rng(3), Counter[tuple[object, object]]()
    for _ in range(30000):
        scene = sample(rng, TINY)
        change = edit(rng, scene, ("shape", "digit"))
        if change is not None:
            before, after = ((len(one.things), one.things[0]) for one in change.scenes)
            counts[before, after] += 1
    pairs = [
        (counts[a, b], counts[b, a])
        for a, b in counts.keys() | {(b, a) for a, b in counts}
        if repr(a) < repr(b)
    ]
    pairs = [(first, second) for first, second in pairs if first + second >= 10]
    statistic = sum((first - second) ** 2 / (first + second) for first, second in pairs)
    assert len(pairs) > 5
    assert statistic < len(pairs) + 4.5 * np.sqrt(2 * len(pairs))


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_a_trained_judge_without_the_picture_cannot_mark_a_lesson(level: str) -> None:
    world = ShapesGenerator(level, 7, "pretrain", text_only=0.0)
    turns = [turn for index in range(900) for turn in world.lesson(index, 6).turns]
    rows = np.stack([_features(turn.question, turn.answer) for turn in turns])
    assert (
        0.46 < _trained_accuracy(rows, np.array([turn.right for turn in turns], dtype=float)) < 0.54
    )


def test_half_of_a_lesson_is_right_for_each_question_type() -> None:
    for kind in (*QUESTION_TYPES, *TEXT_TYPES):
        world = ShapesGenerator(
            "demo", 7, "pretrain", text_only=float(kind in TEXT_TYPES), kinds=(kind,)
        )
        right = [
            turn.right
            for index in range(60)
            for turn in world.lesson(index, weights={kind: 1.0}).turns
        ]
        assert len(right) > 100, kind
        assert abs(np.mean(right) - 0.5) < 2.5 / np.sqrt(len(right)), kind
