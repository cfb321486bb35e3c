"""Data sets whose responses are pictures: EditReward-Data and HPDv3, in exactly their schemas."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import ImageError, RecordError
from mmrm.data.preference import Response
from tests.data.sources.fixtures import (
    BLUE,
    RED,
    asked,
    left_out,
    record,
    source_of,
    write_images,
)

# TIGER-AI-Lab/EditReward edb027e, EditReward/TRAIN_README.md
EDIT = {
    "prompt": "Make the donut an apple.",
    "choice_dist": None,
    "confidence": None,
    "path_src": "1397/source.png",
    "path1": "1397/ovis_u1.png",
    "path2": "1397/flux_kontext.png",
    "model1": "ovis_u1_seed2025",
    "model2": "flux_kontext_seed2025",
    "model1_dim1_score": 4,
    "model1_dim2_score": 3,
    "model1_overall_score": 7,
    "model2_dim1_score": 3,
    "model2_dim2_score": 3,
    "model2_overall_score": 6,
    "tie_case": False,
}
# hpsv3 1.0.0, README and hpsv3/dataset/pairwise_dataset.py
DRAWN = {
    "prompt": "A beautiful landscape painting",
    "path1": "images/better.png",
    "path2": "images/worse.png",
    "confidence": 0.95,
}


def write_rows(tmp_path: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder = tmp_path / "set"
    write_images(folder / "1397", source=RED, ovis_u1=BLUE, flux_kontext=RED)
    write_images(folder / "images", better=BLUE, worse=RED)
    (folder / name).write_text(json.dumps(rows))


def picture(tmp_path: Path, name: str) -> Response:
    return Response((tmp_path / "set" / name,))


def test_an_edit_is_compared_with_the_picture_before_it(tmp_path: Path) -> None:
    write_rows(tmp_path, "train.json", [EDIT])
    found = record(source_of(tmp_path, "edit_reward"))
    assert asked(found) == [None, "Make the donut an apple."]
    assert found.images == (tmp_path / "set" / "1397/source.png",)
    assert found.responses == (
        picture(tmp_path, "1397/ovis_u1.png"),
        picture(tmp_path, "1397/flux_kontext.png"),
    )
    assert found.ranks == (0, 1)
    assert found.attributes == {
        "instruction_following": (4.0, 3.0),
        "visual_quality": (3.0, 3.0),
        "overall": (7.0, 6.0),
    }


def test_tied_edits_are_left_out_or_kept(tmp_path: Path) -> None:
    write_rows(tmp_path, "train.json", [EDIT | {"tie_case": True}])
    assert left_out(source_of(tmp_path, "edit_reward"), 0) == "tie"
    kept = record(source_of(tmp_path, "edit_reward", ties="keep"))
    assert kept.ranks == (0, 0)
    assert kept.responses[0] == picture(tmp_path, "1397/ovis_u1.png")


def test_a_missing_rating_is_unknown(tmp_path: Path) -> None:
    row = {name: value for name, value in EDIT.items() if "dim2" not in name}
    row["model2_dim1_score"] = None
    del row["tie_case"]  # the authors' validation set has none
    write_rows(tmp_path, "train.json", [row])
    found = record(source_of(tmp_path, "edit_reward"))
    assert list(found.attributes) == ["instruction_following", "overall"]
    known, unknown = found.attributes["instruction_following"]
    assert (known, isnan(unknown)) == (4.0, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path_src": None}, "'path_src'"),
        ({"path1": "1397/none.png"}, "none.png"),
        ({"prompt": None}, "'prompt'"),
        ({"tie_case": "no"}, "'tie_case'"),
        ({"model1_dim1_score": "4"}, "'model1_dim1_score'"),
    ],
)
def test_a_row_of_another_form_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_rows(tmp_path, "train.json", [EDIT | changes])
    with pytest.raises((RecordError, ImageError), match=rf"edit_reward:0: .*{message}"):
        source_of(tmp_path, "edit_reward").record(0)


def test_pictures_of_a_text_are_compared(tmp_path: Path) -> None:
    write_rows(tmp_path, "train.json", [DRAWN])
    found = record(source_of(tmp_path, "hpdv3"))
    assert asked(found) == ["A beautiful landscape painting"]
    assert found.images == ()
    assert found.responses == (
        picture(tmp_path, "images/better.png"),
        picture(tmp_path, "images/worse.png"),
    )


def test_pairs_below_a_confidence_are_left_out(tmp_path: Path) -> None:
    """The authors' trainer keeps what has no confidence, and what has exactly the threshold."""
    unrated = {name: value for name, value in DRAWN.items() if name != "confidence"}
    rows = [DRAWN, DRAWN | {"confidence": 0.9499}, unrated, unrated | {"confidence": None}]
    write_rows(tmp_path, "train.json", rows)
    source = source_of(tmp_path, "hpdv3", minimum_confidence=0.95)
    assert left_out(source, 1) == "not_asked_for"
    for index in (0, 2, 3):
        record(source, index)
    record(source_of(tmp_path, "hpdv3"), 1)


def test_the_split_names_the_file(tmp_path: Path) -> None:
    write_rows(tmp_path, "train.json", [DRAWN])
    write_rows(tmp_path, "test.json", [DRAWN, DRAWN])
    assert len(source_of(tmp_path, "hpdv3")) == 1
    assert len(source_of(tmp_path, "hpdv3", split="test")) == 2
