"""Generated pictures: known faults, and nothing in the pictures alone that gives away the right one."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrm.data.preference import validate
from mmrm.data.synthetic.drawn_world import FAULTS as DRAWING_FAULTS
from mmrm.data.synthetic.drawn_world import RELATIONS, Description, DrawnGenerator, NamedShape
from mmrm.data.synthetic.edited_world import (
    CATEGORIES,
    ELSE_CHANGED,
    NOT_FOLLOWED,
    EditedGenerator,
)
from mmrm.data.synthetic.rated_pictures import (
    CORNERS,
    CUT_WIDTHS,
    MAX_RESPONSES,
    MAX_SEVERITY,
    NOISE_AMPLITUDES,
    PICTURES_REVISION,
    QUALITY_FAULTS,
    PictureGenerator,
    PictureItem,
    PictureQuality,
)
from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import LEVELS, SPLITS, Scene, SceneObject, draw

WORLDS: tuple[type[PictureGenerator], ...] = (DrawnGenerator, EditedGenerator)
worlds = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


def items(
    world: type[PictureGenerator],
    count: int,
    level: str = "demo",
    split: str = "train",
    num_responses: int = 4,
    ties: bool = True,
) -> list[PictureItem]:
    """Return the first items of a world with these settings."""
    generator = world(level, 0, split, num_responses, ties)
    return [generator.item(index) for index in range(count)]


def scenes_of(item: PictureItem) -> set[str]:
    """Return the things of all scenes of an item."""
    scenes = list(item.task.scenes.values())
    if item.task.before is not None:
        scenes.append(item.task.before)
    return {repr((scene.grid, scene.things)) for scene in scenes}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(WORLDS),
    st.sampled_from(sorted(LEVELS)),
    st.sampled_from(sorted(SPLITS)),
    st.integers(0, 1 << 40),
    st.integers(2, MAX_RESPONSES),
    st.booleans(),
)
def test_every_index_holds_a_whole_record(
    world: type[PictureGenerator],
    level: str,
    split: str,
    index: int,
    num_responses: int,
    ties: bool,
) -> None:
    generator = world(level, 3, split, num_responses, ties)
    item = generator.item(index)
    assert generator.item(index) == item
    target = item.task.target
    for picture in item.pictures:
        num_wrong_facts = (picture.corner[0] != target[0]) + (picture.corner[1] != target[1])
        assert picture.ratings == (-num_wrong_facts, -picture.quality.severity)
        assert len(picture.content_faults) == num_wrong_facts
    record = validate(item.preference())
    images = [response.images[0] for response in record.responses]
    assert len(set(images)) == num_responses
    by_image = {picture.image: picture for picture in item.pictures}
    for position, image in enumerate(images):
        assert isinstance(image, bytes)
        content = record.attributes["content"][position]
        quality = record.attributes["quality"][position]
        assert (content, quality) == by_image[image].ratings
        side = item.task.scenes[by_image[image].corner].grid * 28
        assert Image.open(io.BytesIO(image)).size == (side, side)
    for first, second in combinations(range(num_responses), 2):
        ratings = [
            (record.attributes["content"][position], record.attributes["quality"][position])
            for position in (first, second)
        ]
        assert (record.ranks[first] < record.ranks[second]) == (ratings[0] > ratings[1])
        assert (record.ranks[first] == record.ranks[second]) == (ratings[0] == ratings[1])
        assert ties or record.ranks[first] != record.ranks[second]


@worlds
def test_target_and_shown_scenes_are_independent(world: type[PictureGenerator]) -> None:
    """Chi-square over the 64 combinations of the target and the scenes of two responses."""
    counts: Counter[tuple[object, ...]] = Counter()
    num_items = 640
    for item in items(world, num_items, num_responses=2):
        counts[item.task.target, item.pictures[0].corner, item.pictures[1].corner] += 1
    expected = num_items / 64
    chi_square = 0.0
    for combination in product(CORNERS, repeat=3):
        chi_square += (counts[combination] - expected) ** 2 / expected
    assert chi_square < 111  # 63 degrees of freedom: the chance of more is 2e-4


@worlds
def test_the_opposite_target_reverses_every_comparison_of_the_same_pictures(
    world: type[PictureGenerator],
) -> None:
    """The pictures of a record fit both targets equally well, so they do not show the right one."""
    for item in items(world, 20):
        target = item.task.target
        distances = []
        opposite_distances = []
        for corner in CORNERS:
            distance = len(item.task.faults[corner])
            distances.append(distance)
            opposite_distances.append(2 - distance)
            assert distance == sum(a != b for a, b in zip(corner, target, strict=True))
        assert sorted(distances) == sorted(opposite_distances) == [0, 1, 1, 2]


@worlds
@pytest.mark.parametrize("ties", [True, False])
def test_right_and_wrong_pictures_look_alike(world: type[PictureGenerator], ties: bool) -> None:
    """Every feature of a picture is as frequent among right pictures as among wrong ones."""
    totals: Counter[str] = Counter()
    contents: Counter[str] = Counter()
    for item in items(world, 250, ties=ties):
        for picture in item.pictures:
            scene = item.task.scenes[picture.corner]
            features = {f"{len(scene.things)} things", f"severity {picture.quality.severity}"}
            features |= {thing.colour for thing in scene.things}
            features |= {thing.what for thing in scene.things}
            features |= {f"cell {thing.cell}" for thing in scene.things}
            for feature in features:
                totals[feature] += 1
                contents[feature] += picture.ratings[0]
    for feature, total in totals.items():
        # The content has the mean -1 and the variance 1/2. Pictures of a record are correlated.
        deviation = (0.5 * 4 / total) ** 0.5
        assert abs(contents[feature] / total + 1) < 4.5 * deviation, feature


def test_every_fault_is_drawn() -> None:
    drawings = items(DrawnGenerator, 150)
    edits = items(EditedGenerator, 150)
    drawing_faults = {
        fault for item in drawings for picture in item.pictures for fault in picture.content_faults
    }
    assert drawing_faults == set(DRAWING_FAULTS)
    edit_faults = {picture.content_faults for item in edits for picture in item.pictures}
    assert edit_faults >= {
        (),
        (NOT_FOLLOWED,),
        (ELSE_CHANGED,),
        (NOT_FOLLOWED, ELSE_CHANGED),
        (ELSE_CHANGED, ELSE_CHANGED),
    }
    assert {item.task.category for item in edits} == set(CATEGORIES)
    for world_items in (drawings, edits):
        qualities = {
            (picture.quality.fault, picture.quality.severity)
            for item in world_items
            for picture in item.pictures
        }
        assert qualities == set(product(QUALITY_FAULTS, range(MAX_SEVERITY + 1)))


@worlds
def test_splits_share_no_scene(world: type[PictureGenerator]) -> None:
    scenes_by_split: dict[str, set[str]] = {}
    for split in SPLITS:
        split_items = items(world, 60, split=split)
        scenes_by_split[split] = set().union(*(scenes_of(item) for item in split_items))
    for first, second in combinations(SPLITS, 2):
        assert not scenes_by_split[first] & scenes_by_split[second]


def description_of(scene: Scene) -> str:
    """Return the description of a scene, read from its things alone.

    Of the two large things, the left one is named first, or the upper one in a common column.
    """
    large_size = tuple(scene.level.sizes)[-1]
    large = [thing for thing in scene.things if thing.size == large_size]
    small = [thing for thing in scene.things if thing.size != large_size]
    first, second = sorted(large, key=lambda thing: (thing.cell % scene.grid, thing.cell))
    is_one_column = first.cell % scene.grid == second.cell % scene.grid
    relation = "above" if is_one_column else "left of"
    description = f"{article(first)} {relation} {article(second)}"
    if not small:
        return description
    name = f"{small[0].colour} {small[0].what}"
    if len(small) == 1:
        return f"{description} and a small {name}"
    assert small[0]._replace(cell=0) == small[1]._replace(cell=0)
    plural_name = f"{name}es" if name.endswith("s") else f"{name}s"
    return f"{description} and two small {plural_name}"


def article(thing: SceneObject) -> str:
    """Return the name of a thing with its article, such as "an orange ring"."""
    name = f"{thing.colour} {thing.what}"
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def test_a_description_fits_its_target_alone() -> None:
    for level in LEVELS:
        for item in items(DrawnGenerator, 30, level=level):
            scenes = item.task.scenes
            descriptions = {corner: description_of(scenes[corner]) for corner in CORNERS}
            assert len(set(descriptions.values())) == 4
            wanted = f"{descriptions[item.task.target]}, nothing else."
            assert item.task.prompt in (wanted, f"draw {wanted}")


def test_a_missing_or_extra_fault_is_a_scene_with_fewer_or_more_things() -> None:
    seen: set[str] = set()
    for item in items(DrawnGenerator, 60):
        num_things_of_target = len(item.task.scenes[item.task.target].things)
        for picture in item.pictures:
            num_things = len(item.task.scenes[picture.corner].things)
            if "missing" in picture.content_faults:
                assert num_things < num_things_of_target
            if "extra" in picture.content_faults:
                assert num_things > num_things_of_target
            seen.update(picture.content_faults)
    assert {"missing", "extra"} <= seen


@pytest.mark.parametrize("level", ["demo", "medium"])
def test_every_place_that_fits_a_description_is_drawn(level: str) -> None:
    grid = LEVELS[level].grids[0]
    pairs_of_columns = grid * (grid - 1) // 2
    expected_counts = {"left of": pairs_of_columns * grid * grid, "above": pairs_of_columns * grid}
    red_circle = NamedShape("red", "circle")
    blue_square = NamedShape("blue", "square")
    rng = Rng(3)
    for relation in RELATIONS:
        description = Description(red_circle, relation, blue_square, red_circle, num_small=0)
        places = set()
        for _ in range(1500):
            scene = description.scene(rng, LEVELS[level], grid)
            assert description_of(scene) == description.text
            places.add(tuple((thing.cell, thing.colour) for thing in scene.things))
        assert len(places) == expected_counts[relation]


def test_an_edit_changes_what_the_instruction_names_and_nothing_else() -> None:
    for level in LEVELS:
        for item in items(EditedGenerator, 60, level=level):
            task = item.task
            assert task.before is not None
            target = task.scenes[task.target]
            assert target.look == task.before.look
            removed_things = set(task.before.things) - set(target.things)
            added_things = set(target.things) - set(task.before.things)
            (thing,) = added_things if task.category == "addition" else removed_things
            assert thing.colour in task.prompt or thing.what in task.prompt
            if task.category == "addition":
                assert not removed_things
            elif task.category == "removal":
                assert not added_things
            else:
                assert len(added_things) == 1
                not_followed = task.scenes[not task.target[0], task.target[1]]
                assert not_followed == task.before
            written = set()
            for scene in task.scenes.values():
                written.add(next(thing for thing in scene.things if thing.kind != "shape"))
            assert len(written) == 1


def test_an_instruction_does_not_name_what_a_right_result_shows() -> None:
    """The thing of an instruction to change is named alike in all four scenes."""
    for item in items(EditedGenerator, 200):
        if item.task.category != "change":
            continue
        words = set(item.task.prompt.rstrip(".").split())
        level = LEVELS["demo"]
        named_colours = words & set(level.colours)
        named_shapes = words & set(level.shapes)
        assert named_colours or named_shapes
        for scene in item.task.scenes.values():
            fitting = [
                thing
                for thing in scene.things
                if thing.kind == "shape"
                and (not named_colours or thing.colour in named_colours)
                and (not named_shapes or thing.what in named_shapes)
            ]
            assert len(fitting) == 1


@pytest.mark.parametrize("fault", QUALITY_FAULTS)
def test_a_fault_of_quality_grows_with_its_severity(fault: str) -> None:
    image = draw(items(DrawnGenerator, 1)[0].task.scenes[CORNERS[0]])
    pixels = np.asarray(image, dtype=int)
    errors = []
    for severity in range(MAX_SEVERITY + 1):
        quality = PictureQuality(severity, fault, seed=8)  # type: ignore[arg-type]
        spoiled = quality.spoil(image)
        assert spoiled.size == image.size
        difference = np.abs(np.asarray(spoiled, dtype=int) - pixels)
        errors.append(float(difference.mean()))
        if fault == "noise" and severity:
            assert difference.max() <= NOISE_AMPLITUDES[severity - 1]
        if fault == "cut" and severity:
            width = CUT_WIDTHS[severity - 1]
            assert not np.asarray(spoiled)[:, :width].any()  # seed 8: the left side
            assert not difference[:, width:].any()
    assert errors[0] == 0 < errors[1] < errors[2]


def digest_of_pictures() -> str:
    """Return a digest of records of both worlds at every level."""
    digest = hashlib.blake2b(digest_size=8)
    for world, level, ties in product(WORLDS, sorted(LEVELS), (True, False)):
        for item in items(world, 6, level, "validation", 3, ties):
            record = item.preference()
            digest.update(repr((record.prompt, record.ranks, dict(record.attributes))).encode())
            images = [*record.images, *(response.images[0] for response in record.responses)]
            for image in images:
                assert isinstance(image, bytes)
                digest.update(Image.open(io.BytesIO(image)).tobytes())
    return digest.hexdigest()


def test_the_pictures_belong_to_their_revision() -> None:
    """If this fails, change `PICTURES_REVISION` too: a run must not resume with other data."""
    assert (PICTURES_REVISION, digest_of_pictures()) == ("7c1e0a93b5d24f68", "5f9efc32477d3efb")


@worlds
def test_the_fingerprint_depends_on_every_setting_but_seed_and_split(
    world: type[PictureGenerator],
) -> None:
    first = world("demo", 0, "train", 4, True).fingerprint()
    assert world("demo", 5, "benchmark", 4, True).fingerprint() == first
    others = {
        world("medium", 0, "train", 4, True).fingerprint(),
        world("demo", 0, "train", 3, True).fingerprint(),
        world("demo", 0, "train", 4, False).fingerprint(),
        *(other("demo", 0, "train", 4, True).fingerprint() for other in WORLDS),
    }
    assert len(others) == 5
