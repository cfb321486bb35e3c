"""Records with images in their responses: indexed, counted, keyed, limited and shown."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.browse import page, suspicious
from mmrm.data.errors import RecordError
from mmrm.data.images import DEFAULT_IMAGE_TOKENS
from mmrm.data.limits import Limits
from mmrm.data.preference import Preference, Response, text, text_responses, validate
from mmrm.data.preparation.inspection import inspect
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.row_index import pair_key, prompt_key
from mmrm.data.storage.content import record_key
from tests.data.mixtures import mixture, project
from tests.data.sources.fixtures import BLUE, RED, png, write_jsonl

GREEN = png("green", (80, 80))
DRAWN = Preference(
    "a:0", (text("user", "Draw it."),), (Response((RED,)), Response(("Here: ", BLUE)))
)
EDITED = replace(DRAWN, prompt=(text("user", "Paint it.", 1),), images=(GREEN,))


def test_keys_of_texts_are_those_of_versions_without_images_in_responses() -> None:
    """The digests were computed by the version whose responses were texts."""
    pair = Preference(
        "a:0",
        (text("user", "What?", 1),),
        text_responses("Yes", "no \u00e9"),
        (b"one image",),
        margin=1.0,
        source="s",
    )
    ranked = replace(
        pair,
        responses=text_responses("a", "b", "c"),
        ranks=(0, 1, 1),
        attributes={"wit": (2.0, 1.0, 0.5)},
    )
    assert record_key(pair) == "d6c0c65d709133c8fc447db138baed3ad315f3b6e8f601de7e956fe39b0e3a5c"
    assert record_key(ranked) == "905ed3ba94b2e2ebb9c8850eb6a03389beadea4e40b2a7ba9874174e37a6c602"


def test_keys_depend_on_the_images_of_responses(tmp_path: Path) -> None:
    changed = [
        replace(DRAWN, responses=(Response((BLUE,)), Response(("Here: ", BLUE)))),
        replace(DRAWN, responses=(Response((RED,)), Response((BLUE, "Here: ")))),
        replace(DRAWN, responses=(Response((RED, RED)), Response(("Here: ", BLUE)))),
        replace(DRAWN, responses=text_responses("", "Here: ")),
    ]
    keys = {record_key(record) for record in (DRAWN, *changed)}
    assert len(keys) == 5
    # Whichever response is preferred, it is the same pair.
    turned = replace(DRAWN, responses=DRAWN.responses[::-1])
    assert pair_key(turned) == pair_key(DRAWN) != pair_key(changed[0])
    assert prompt_key(changed[0]) == prompt_key(DRAWN)
    # An image counts by its bytes and not by its place.
    (tmp_path / "red.png").write_bytes(RED)
    in_file = replace(DRAWN, responses=(Response((tmp_path / "red.png",)), DRAWN.responses[1]))
    assert record_key(in_file) == record_key(DRAWN)


def test_an_image_is_a_response_and_nothing_is_none() -> None:
    assert validate(DRAWN) is DRAWN
    with pytest.raises(RecordError, match="the rejected response is empty"):
        validate(replace(DRAWN, responses=(Response((RED,)), Response(()))))
    with pytest.raises(RecordError, match="control token"):
        # The token is spread over two texts, which a chat template joins.
        validate(replace(DRAWN, responses=(Response(("<|im_", "end|>", RED)), Response((BLUE,)))))


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"images": 2}, "3 images"), ({"parts": 4}, "5 parts"), ({"characters": 14}, "15 characters")],
)
def test_images_and_parts_of_responses_count(limits: dict[str, int], message: str) -> None:
    assert Limits().check(EDITED) is EDITED
    with pytest.raises(RecordError, match=message):
        Limits(**limits).check(EDITED)


def drawn_row(prompt: str, chosen: bytes, rejected: bytes, *images: bytes) -> dict[str, Any]:
    """Return a row of the project's format whose responses are one image each."""
    return {
        "prompt": prompt,
        "chosen": "<image>",
        "rejected": "<image>",
        "images": [data_uri(image) for image in images],
        "chosen_images": [data_uri(chosen)],
        "rejected_images": [data_uri(rejected)],
    }


def data_uri(image: bytes) -> str:
    """Return a PNG file as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def drawn_mixture(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Mixture:
    return mixture(folder, [project(folder, "drawn", rows)], **settings)


def test_the_tokens_of_all_images_are_planned_and_those_of_the_prompt_are_shared(
    tmp_path: Path,
) -> None:
    rows = [drawn_row("Paint it.", RED, BLUE, GREEN), drawn_row("Paint it.", BLUE, RED, GREEN)]
    found = drawn_mixture(tmp_path, rows)
    red, blue, green = DEFAULT_IMAGE_TOKENS(np.array([(40, 60), (90, 32), (80, 80)], np.uint32))
    assert found.lengths()[:, 1].tolist() == [red + blue + green] * 2
    assert found.first_image_tokens().tolist() == [green] * 2
    index = found.splits[0].row_index
    assert index is not None
    assert index.rows["images"].tolist() == [3, 3]
    assert index.rows["prompt_images"].tolist() == [1, 1]
    assert index.prompt_image_tokens(DEFAULT_IMAGE_TOKENS).tolist() == [green] * 2
    # Without images in the prompt there is nothing to share, and no first image.
    alone = drawn_mixture(tmp_path / "alone", [drawn_row("Draw it.", RED, BLUE)])
    assert alone.first_image_tokens().tolist() == [0]
    assert alone.lengths()[0, 1] == red + blue


def test_equal_drawings_are_identical_and_different_ones_are_not(tmp_path: Path) -> None:
    rows = [drawn_row("One.", RED, RED), drawn_row("Two.", RED, BLUE)]
    found = drawn_mixture(tmp_path, rows, filters={"identical": True})
    assert len(found) == 1
    kinds = [suspicion.kind for suspicion in suspicious(found.splits)]
    assert kinds.count("chosen equals rejected") == 1


def test_contradictory_drawings_are_found(tmp_path: Path) -> None:
    found = drawn_mixture(tmp_path, [drawn_row("One.", RED, BLUE), drawn_row("One.", BLUE, RED)])
    assert "contradictory labels" in [suspicion.kind for suspicion in suspicious(found.splits)]


def test_images_of_responses_become_grey_with_the_others(tmp_path: Path) -> None:
    found = drawn_mixture(tmp_path, [drawn_row("Paint it.", RED, BLUE, GREEN)], images="grey")
    record = found[0]
    assert len(set(record.all_images) & {RED, BLUE, GREEN}) == 0
    assert len(record.all_images) == 3


def test_the_page_shows_the_image_in_the_answer(tmp_path: Path) -> None:
    found = drawn_mixture(tmp_path, [drawn_row("Draw it.", RED, BLUE)])
    html = page(found, samples_per_source=1, title="drawn")
    assert 'alt="Image 1 of the chosen response of drawn:0"' in html
    assert 'alt="Image 1 of the rejected response of drawn:0"' in html


def test_the_inspection_prints_the_sizes_of_drawings(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "rows.jsonl",
        [drawn_row(f"Draw {number}.", RED, BLUE) for number in range(3)],
    )
    printed = "\n".join(inspect(path, None, tmp_path / "cache", 1))
    assert "[image of 60 x 40 pixels]" in printed
    assert "[image of 32 x 90 pixels]" in printed
