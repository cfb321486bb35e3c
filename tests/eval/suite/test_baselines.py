"""Judges that ignore the content, and examples without their picture."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrm.data.errors import UserError
from mmrm.data.preference import Response, num_image_parts
from mmrm.eval.candidates import Example
from mmrm.eval.suite.baselines import BASELINES, baseline_scores
from mmrm.eval.suite.image_ablation import with_ablated_images
from tests.eval.make import example, png

COLOURS = ("red", "green", "blue", "white")


def test_what_the_content_blind_judges_prefer() -> None:
    examples = [
        example("a", responses=("long one", "short")),
        example("b", responses=("same", "size")),
    ]
    assert [verdict.values for verdict in baseline_scores("longest", examples)] == [(8, 5), (4, 4)]
    assert [verdict.values for verdict in baseline_scores("shortest", examples)] == [
        (-8, -5),
        (-4, -4),
    ]
    assert [verdict.values for verdict in baseline_scores("first", examples)] == [(1, 0), (1, 0)]
    assert set(BASELINES) == {"longest", "shortest", "first", "random"}


def test_the_coin_depends_on_the_row_and_the_seed_alone() -> None:
    examples = [example(str(row)) for row in range(400)]
    found = [verdict.values for verdict in baseline_scores("random", examples)]
    assert found == [verdict.values for verdict in baseline_scores("random", examples[::-1])][::-1]
    assert found != [verdict.values for verdict in baseline_scores("random", examples, seed=1)]
    assert 150 < found.count((1.0, 0.0)) < 250


def test_without_images_the_prompt_has_no_place_for_one() -> None:
    (bare,) = with_ablated_images([example("a", images=(png(), png()))], "none")
    assert bare.images == ()
    assert num_image_parts(bare.prompt) == 0
    assert bare.prompt[0]["content"] == [{"type": "text", "text": f"what? {bare.key}"}]
    assert bare.key == "a"


def test_grey_keeps_the_size(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red", (20, 10)))
    (grey,) = with_ablated_images([example("a", images=(tmp_path / "a.png", png("blue")))], "grey")
    opened = [Image.open(io.BytesIO(image)) for image in grey.images if isinstance(image, bytes)]
    assert [image.size for image in opened] == [(20, 10), (8, 6)]
    assert {image.getpixel((3, 3)) for image in opened} == {(128, 128, 128)}


@given(
    st.lists(st.lists(st.sampled_from(COLOURS), max_size=3).map(tuple), min_size=1, max_size=12),
    st.integers(0, 3),
)
def test_shuffling_gives_every_row_something_else(rows: list[tuple[str, ...]], seed: int) -> None:
    pictures = {colour: png(colour) for colour in COLOURS}
    examples = [
        example(str(place), images=tuple(pictures[name] for name in row))
        for place, row in enumerate(rows)
    ]
    if any(rows) and (
        len({row for row in rows if row}) == 1
        or len({colour for row in rows for colour in row}) == 1
    ):
        with pytest.raises(UserError, match="same image"):
            with_ablated_images(examples, "shuffled", seed)
        return
    shuffled = with_ablated_images(examples, "shuffled", seed)
    for before, after in zip(examples, shuffled, strict=True):
        assert len(after.images) == len(before.images)
        assert after.images != before.images or not before.images
    assert shuffled == with_ablated_images(examples, "shuffled", seed)


def test_rows_of_one_picture_are_not_given_it_again(tmp_path: Path) -> None:
    for name, colour in (("a", "red"), ("b", "red"), ("c", "green")):
        (tmp_path / name).write_bytes(png(colour))
    examples = [example(name, images=(tmp_path / name,)) for name in "abc"]
    first, second, third = with_ablated_images(examples, "shuffled")
    assert first.images == second.images == (tmp_path / "c",)
    assert third.images[0] in (tmp_path / "a", tmp_path / "b")


def test_real_images_stay() -> None:
    examples = [example("a", images=(png(),))]
    assert with_ablated_images(examples, "real") == examples


def drawn(key: str, *images: bytes) -> Example:
    """Return a row whose responses are one image each, after the images of the prompt."""
    *before, first, second = images
    row = example(key, images=tuple(before))
    return replace(row, responses=(Response(("Here: ", first)), Response((second,))))


def test_images_of_responses_are_ablated_as_well() -> None:
    rows = [
        drawn("a", png("red"), png("blue"), png("green")),
        drawn("b", png("black"), png("white"), png("grey")),
    ]
    bare = with_ablated_images(rows, "none")
    assert [row.all_images for row in bare] == [(), ()]
    assert [response.text for response in bare[0].responses] == ["Here: ", ""]

    grey = with_ablated_images(rows, "grey")
    assert len(set(grey[0].all_images)) == 1
    assert len(grey[0].all_images) == 3
    assert grey[0].responses[0].content[0] == "Here: "

    shuffled = with_ablated_images(rows, "shuffled")
    assert [row.images for row in shuffled] == [rows[1].images, rows[0].images]
    for row, other in zip(shuffled, rows[::-1], strict=True):
        assert set(row.all_images) == set(other.all_images)
    assert [len(response.images) for response in shuffled[0].responses] == [1, 1]
    assert [row.key for row in shuffled] == ["a", "b"]


def test_shuffled_images_of_responses_do_not_keep_their_order() -> None:
    """Rows that list the best response first must not put the best image there again."""
    sizes = [(8 + number, 6) for number in range(300)]
    rows = [drawn(str(size), png("green", size), png("red", size)) for size in sizes]
    best_images = {row.responses[0].images[0] for row in rows}
    shuffled = with_ablated_images(rows, "shuffled")
    num_first = sum(row.responses[0].images[0] in best_images for row in shuffled)
    assert 110 < num_first < 190
