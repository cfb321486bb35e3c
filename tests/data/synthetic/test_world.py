"""The embedded world: addressed by index, true to its pictures, divided into splits that share no scene."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrm.data.preference import num_image_parts
from mmrm.data.rationales import swapped
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import CELL, LEVELS, SPLITS, Scene, bucket, draw, sample
from mmrm.data.synthetic.source import ShapesConfig, ShapesSource
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.wording import RATIONALES, caption, read_critique, short_name
from mmrm.data.synthetic.world import REVISION, GeneratedItem, ShapesGenerator

ROOT = Path(__file__).resolve().parents[3]
levels = st.sampled_from(sorted(LEVELS))
splits = st.sampled_from(sorted(SPLITS))
kinds = st.sampled_from(sorted(QUESTION_TYPES))
indices = st.integers(0, ShapesGenerator.length - 1)
seeds = st.integers(0, 1000)


@settings(max_examples=100, deadline=None)
@given(levels, splits, seeds, indices, st.sampled_from([*QUESTION_TYPES, *TEXT_TYPES]))
def test_every_index_holds_a_whole_item(
    level: str, split: str, seed: int, index: int, kind: str
) -> None:
    item = ShapesGenerator(level, seed, split).item(index, (kind,))
    assert item.kind == kind
    assert item.chosen in item.true.phrasings
    assert item.rejected in item.false.phrasings
    assert not set(item.true.phrasings) & set(item.false.phrasings)
    assert (item.scene is None) == (kind in TEXT_TYPES)
    if item.scene is not None:
        assert item.true.quote_if_wrong in item.chosen
        assert item.false.quote_if_wrong in item.rejected
        assert bucket(item.scene) in SPLITS[split]
        assert item.twin is not None
        assert item.scene.things != item.twin.things
        low, high = LEVELS[level].things
        assert low <= len(item.scene.things) <= high
        assert len({thing.cell for thing in item.scene.things}) == len(item.scene.things)


def _independent_answer(item: GeneratedItem) -> str | None:
    """Answer the question from the scene, by other means than the generator; None where this test does not know how."""
    scene, question = item.scene, item.question
    assert scene is not None
    things = scene.things
    if counted := re.search(
        r"(?:how many|count the) (.*?)(?: are there\?| do you see\?|\.)$", question
    ):
        group = counted[1]
        if group.endswith(" things"):
            return str(sum(thing.colour == group.split()[0] for thing in things))
        singular = {"crosses": "cross"}.get(group, group[:-1])
        return str(sum(singular in (thing.what, thing.kind, "thing") for thing in things))
    if existence := re.match(r"(?:is there|do you see|does the picture show) an? (.*)\?", question):
        wanted = existence[1].removesuffix(" thing")
        names = {
            name
            for thing in things
            for name in (thing.colour, short_name(thing), f"{thing.colour} {short_name(thing)}")
        }
        return "yes" if wanted in names else "no"
    if item.kind == "arithmetic":
        return str(sum(int(thing.what) for thing in things if thing.kind == "digit"))
    if more := re.search(r"more (.*) than (.*)\?", question):
        counts = [
            sum(
                group in (f"{thing.colour} things", f"{thing.what}s", f"{thing.what}es")
                for thing in things
            )
            for group in more.groups()
        ]
        return "yes" if counts[0] > counts[1] else "no"
    if sides := re.search(
        r"the (.*) (left of|right of|above|below|bigger than|smaller than) the (.*)\?", question
    ):
        named = {f"{thing.colour} {short_name(thing)}": thing for thing in things}
        first, second = (named[name.removesuffix(" is")] for name in sides.group(1, 3))
        sizes = ["", *scene.level.sizes]
        (row, column), (row2, column2) = (
            divmod(first.cell, scene.grid),
            divmod(second.cell, scene.grid),
        )
        holds = {
            "left of": column < column2,
            "right of": column > column2,
            "above": row < row2,
            "below": row > row2,
            "bigger than": sizes.index(first.size) > sizes.index(second.size),
            "smaller than": sizes.index(first.size) < sizes.index(second.size),
        }
        return "yes" if holds[sides[2]] else "no"
    return None


@pytest.mark.parametrize("level", sorted(LEVELS))
@pytest.mark.parametrize("kind", ["counting", "existence", "arithmetic", "comparison", "spatial"])
def test_chosen_is_right_and_rejected_is_wrong(level: str, kind: str) -> None:
    world = ShapesGenerator(level, 5, "validation")
    checked = 0
    for index in range(300):
        item = world.item(index, (kind,))
        answer = _independent_answer(item)
        if answer is not None:
            checked += 1
            assert answer == item.true.quote_if_wrong, item
            assert answer != item.false.quote_if_wrong, item
    assert checked > 100


@pytest.mark.parametrize("kind", ["description", "code", "place", "attribute", "reading"])
def test_one_fact_is_changed(kind: str) -> None:
    world = ShapesGenerator("demo", 5, "train")
    for index in range(200):
        item = world.item(index, (kind,))
        assert item.scene is not None
        assert item.twin is not None
        gone = Counter(item.scene.things) - Counter(item.twin.things)
        came = Counter(item.twin.things) - Counter(item.scene.things)
        (before,), (after,) = gone.elements(), came.elements()
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
        if kind == "description":
            assert caption(item.scene) in item.chosen
            assert caption(item.twin) in item.rejected
        if kind == "reading":
            assert item.chosen.endswith(f" {before.what}")
            assert item.rejected.endswith(f" {after.what}")


@pytest.mark.slow
def test_splits_share_no_scene() -> None:
    seen: dict[tuple[int, object], str] = {}
    for split in SPLITS:
        for seed in (0, 1):
            world = ShapesGenerator("demo", seed, split, text_only=0.0)
            scenes: list[Scene | None] = [world.item(index).scene for index in range(400)]
            scenes += [world.lesson(index, 1).scene for index in range(100)]
            for scene in scenes:
                assert scene is not None
                assert seen.setdefault((scene.grid, scene.things), split) == split
    assert Counter(len(part) for part in SPLITS.values()).total() == len(SPLITS)
    assert sorted(number for part in SPLITS.values() for number in part) == list(range(16))


def test_an_item_depends_on_its_index_alone() -> None:
    world = ShapesGenerator("hard", 3, "train")
    forwards = [world.item(index).preference() for index in range(40)]
    assert [world.item(index).preference() for index in reversed(range(40))] == forwards[::-1]
    assert pickle.loads(pickle.dumps(world)).item(7).preference() == forwards[7]
    assert ShapesGenerator("hard", 4, "train").item(7).preference() != forwards[7]


@pytest.mark.slow
def test_another_process_makes_the_same_records() -> None:
    program = (
        "import hashlib; from mmrm.data.synthetic.world import ShapesGenerator; world = ShapesGenerator('demo', 1, 'train')\n"
        "items = [repr(world.item(index).preference()) + repr(world.lesson(index).turns) for index in range(60)]\n"
        "print(hashlib.sha256(''.join(items).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_a_record_shows_its_picture_before_its_question(level: str) -> None:
    world = ShapesGenerator(level, 0, "train")
    for index in range(60):
        record = world.item(index).preference()
        assert len(record.images) == num_image_parts(record.prompt)
        content = record.prompt[-1]["content"]
        assert [part["type"] for part in content] == ["image"] * len(record.images) + ["text"]
        for image in record.images:
            assert isinstance(image, bytes)
            picture = Image.open(io.BytesIO(image))
            assert picture.mode == "RGB"
            assert (
                picture.size[0] == picture.size[1] in {grid * CELL for grid in LEVELS[level].grids}
            )


def test_the_picture_shows_the_scene_in_its_cells() -> None:
    level, world = LEVELS["demo"], ShapesGenerator("demo", 2, "train", text_only=0.0)
    palette = {name: np.array(colour) for name, colour in level.colours.items()}
    for index in range(100):
        scene = world.item(index).scene
        assert scene is not None
        pixels = np.asarray(draw(scene)).astype(int)
        colours = {thing.cell: thing.colour for thing in scene.things}
        for cell in range(scene.grid**2):
            top, left = (place * CELL + 1 for place in divmod(cell, scene.grid))
            square = pixels[top : top + CELL - 2, left : left + CELL - 2].reshape(-1, 3)
            counts = {
                name: int((np.abs(square - colour).max(1) < 3).sum())
                for name, colour in palette.items()
            }
            found = max(counts, key=lambda name: counts[name])
            assert (found if counts[found] > 6 else None) == colours.get(cell)


@settings(max_examples=60, deadline=None)
@given(levels, indices, kinds, st.booleans())
def test_a_written_critique_can_be_checked(level: str, index: int, kind: str, chosen: bool) -> None:
    item = ShapesGenerator(level, 0, "train").item(index, (kind,))
    truth = item.critique_truth(chosen)
    assert truth.right == chosen
    assert read_critique(item.critique(chosen)) == truth
    assert read_critique(item.critique(chosen).replace("the response says", "it says")) is None
    assert item.critique_truth(True).fact == item.critique_truth(False).fact


RIGHT_SECOND = "Response 2 is right. Response 1 is wrong."
RIGHT_FIRST = "Response 2 is wrong. Response 1 is right."


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        (
            "verdicts",
            f"{RIGHT_FIRST} {{fact}}. Response 1 is better.",
            f"{RIGHT_SECOND} {{fact}}. Response 2 is better.",
        ),
        (
            "fact",
            f"{{fact}}. {RIGHT_FIRST} Response 1 is better.",
            f"{{fact}}. {RIGHT_SECOND} Response 2 is better.",
        ),
        (
            "quotes",
            "Response 1 says {true}. Response 2 says {false}. {fact}. Response 1 is better.",
            "Response 1 says {false}. Response 2 says {true}. {fact}. Response 2 is better.",
        ),
    ],
)
def test_the_rationale_follows_the_order_of_the_responses(
    form: str, first: str, second: str
) -> None:
    item = replace(ShapesGenerator("demo", 0, "train").item(0, ("counting",)), rationale_form=form)
    words = {
        "fact": item.true.fact,
        "true": item.true.quote_if_right,
        "false": item.false.quote_if_wrong,
    }
    assert item.rationale(True) == first.format_map(words)
    assert item.rationale(False) == second.format_map(words)
    assert swapped(item.rationale(True)) == item.rationale(False)


def test_rationales_come_in_every_form_and_the_form_decides_nothing_else() -> None:
    items = [ShapesGenerator("demo", 0, "train").item(index) for index in range(300)]
    found = Counter(item.rationale_form for item in items)
    assert set(found) == set(RATIONALES)
    assert min(found.values()) > 70
    for form in RATIONALES:
        assert (
            0.3
            < np.mean(
                [
                    len(item.chosen) > len(item.rejected)
                    for item in items
                    if item.rationale_form == form
                ]
            )
            < 0.7
        )


def test_kinds_and_the_text_share_are_kept() -> None:
    world = ShapesGenerator(
        "demo", 0, "train", text_only=0.5, kinds=("counting", "place", "safety")
    )
    found = Counter(world.item(index).kind for index in range(2000))
    assert set(found) == {"counting", "place", "safety"}
    assert abs(found["safety"] - 1000) < 100
    assert abs(found["counting"] - 500) < 100


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_a_level_leaves_room_to_move_and_names_every_cell(level: str) -> None:
    settings = LEVELS[level]
    assert settings.things[1] < min(settings.grids) ** 2
    assert settings.places is None or {len(settings.places)} == {grid**2 for grid in settings.grids}
    assert all(digits + words <= settings.things[1] for digits, words in settings.written)


def test_the_vocabulary_is_small() -> None:
    words = {
        word
        for text in ShapesGenerator("demo", 0, "pretrain").corpus(400)
        for word in re.findall(r"\w+", text)
    }
    assert len(words) < 300
    assert [word for word in words if word != word.lower()] == ["Response"]


def test_sampling_is_uniform_over_shapes_colours_and_cells() -> None:
    level, rng = LEVELS["demo"], Rng(0)
    things = [thing for _ in range(4000) for thing in sample(rng, level).things]
    for values, size in (
        ([t.cell for t in things], level.grids[0] ** 2),
        ([t.colour for t in things], len(level.colours)),
    ):
        counts = np.array(list(Counter(values).values()))
        assert len(counts) == size
        assert (
            (counts - counts.mean()) ** 2 / counts.mean()
        ).sum() < 35  # chi-square, p about 1e-5


def digest_of_what_is_drawn() -> str:
    """Return a digest of the texts and scenes of items and lessons of every level and split.

    Pixels are left out, because another version of Pillow may round them differently.
    """
    content = hashlib.sha256()
    for level in sorted(LEVELS):
        for split in sorted(SPLITS):
            world = ShapesGenerator(level, 5, split)
            for index in range(12):
                item = world.item(index)
                texts = [repr(item.preference().prompt), item.chosen, item.rejected]
                texts += [item.critique(True), item.critique(False)]
                texts += [item.rationale(True), item.rationale(False)]
                texts += [repr(item.scene), repr(item.twin)]
                texts += [repr(turn) for turn in world.lesson(index).turns]
                content.update("\n".join(texts).encode())
    return content.hexdigest()[:16]


def test_what_the_world_draws_belongs_to_its_revision() -> None:
    """If this fails, change `REVISION` too: a run must not resume with other data."""
    assert (REVISION, digest_of_what_is_drawn()) == ("0b6d0473d5e2f626", "f552819e0af026e1")


def test_rubrics_change_nothing_but_the_rationale() -> None:
    compared = ShapesConfig(type="shapes", level="demo", rows=40)
    rubrics = ShapesConfig(type="shapes", level="demo", rows=40, rationales="rubric")
    # Recipes and row indices of versions without the key stay as they are.
    assert "rationales" not in compared.settings
    assert "rationales" in rubrics.settings
    plain_source = ShapesSource(compared)
    rubric_source = ShapesSource(rubrics)
    for index in range(40):
        plain = plain_source.record(index)
        rubric = rubric_source.record(index)
        assert rubric.rationale is not None
        assert rubric.rationale.startswith("<rubric>")
        assert replace(rubric, rationale=plain.rationale) == plain
