"""A user's own benchmark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import UserError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER, load
from mmrm.eval.cli import benchmark
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.suite.baselines import baseline_scores
from mmrm.eval.suite.suite import evaluate
from tests.eval.make import png


def write(folder: Path, **change: Any) -> Location:
    (folder / "cat.png").write_bytes(png())
    record = {
        "images": ["cat.png"],
        "prompt": "which?",
        "chosen": "the black one",
        "rejected": "no",
        "category": "colour",
    }
    rows = [{**record, "prompt": f"which {place}?"} for place in range(40)]
    rows[7].update(change)
    (folder / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return Location(location=str(folder))


def test_a_folder_of_preference_records_is_a_benchmark(tmp_path: Path) -> None:
    found = load(write(tmp_path, category="shape", source="mine"))
    assert [found.examples[7].group, found.examples[7].source] == ["shape", "mine"]
    assert {example.responses[example.better].text for example in found.examples} == {
        "the black one"
    }
    assert 8 < sum(example.better for example in found.examples) < 32
    assert found.examples[0].prompt[0]["content"][-1] == {"type": "text", "text": "which 0?"}
    result = evaluate(
        found.examples,
        baseline_scores("longest", found.examples),
        PREFERENCE_FOLDER,
        ProtocolConfig(),
        found.origin,
    )
    assert result.micro.accuracy == 1.0
    assert result.published["plain"]["groups"]["colour"] == {"n": 39, "right": 39, "accuracy": 1.0}
    assert result.notes == ()


def test_records_that_cannot_be_used_are_listed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 of 40 records cannot be used:\n  .*none.png"):
        load(write(tmp_path, images=["none.png"]))
    with pytest.raises(UserError, match="rejected"):
        load(write(tmp_path, rejected="  "))
    with pytest.raises(UserError, match="both responses are the same"):
        load(write(tmp_path, rejected="the black one"))
    assert len(load(Location(location=str(tmp_path), limit=5)).examples) == 5


def test_records_without_a_category_are_no_total(tmp_path: Path) -> None:
    assert load(write(tmp_path, category=None)).examples[7].group == "uncategorised"


def test_it_has_no_place_on_the_hub() -> None:
    with pytest.raises(UserError, match="required is the path"):
        load(Location())


def conversational(folder: Path, **change: Any) -> Path:
    """Write 22 records in TRL's conversational form, their images behind a link."""
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "cat.png").write_bytes(png())
    (folder / "images").symlink_to(folder / "elsewhere")
    said = {name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    rows = [
        {
            "images": ["images/cat.png"],
            "prompt": [{"role": "user", "content": f"which {place}?"}],
            **said,
            "id": place,
            **change,
        }
        for place in range(22)
    ]
    (folder / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder / "mine.jsonl"


def test_formats_that_training_reads_are_recognised(tmp_path: Path) -> None:
    path = conversational(tmp_path)
    found = load(benchmark(f"preference_folder={path}"))
    assert {example.responses[example.better].text for example in found.examples} == {"chosen"}
    assert found.examples[3].prompt[0]["content"] == [
        {"type": "image"},
        {"type": "text", "text": "which 3?"},
    ]
    assert found.examples[3].identity == "preference_folder:3"
    assert found.origin.notes == (
        f"Read as {{type: trl, path: {path}}}. Columns that are not read: id.",
    )
    named = load(benchmark(f"preference_folder={path},type=trl"))
    assert named.examples == found.examples
    assert (
        len(
            load(
                benchmark(f"preference_folder={path},type=trl,limit=3,image_root={tmp_path}")
            ).examples
        )
        == 3
    )


def test_a_wrong_type_is_told_once_with_the_one_that_fits(tmp_path: Path) -> None:
    path = conversational(tmp_path)
    with pytest.raises(UserError) as caught:
        load(Location(location=str(path), type="project"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "preference_folder: 22 of 22 records cannot be used:"
    assert "preference_folder:0: the record has the unknown key 'id'." in lines[1]
    assert lines[1].endswith("… and 21 more records with the same fault")
    assert (
        lines[2]
        == f"{path} is in the format `trl`, not `project`. Write in a recipe: - {{type: trl, path: {path}}}"
    )
    assert lines[3:] == [f"For a benchmark: preference_folder={path},type=trl"]
    for wrong in ("shapes", "tlr"):
        with pytest.raises(
            UserError, match=rf"no files are of type '{wrong}'\. Required is one of .*, trl, "
        ):
            load(Location(location=str(path), type=wrong))
    with pytest.raises(argparse.ArgumentTypeError, match="`type` is for preference_folder"):
        benchmark("vl_rewardbench=hub,type=trl")


def test_missing_images_name_the_folder_and_the_setting(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=rf"Looked in: {tmp_path / 'elsewhere'}\. .*image_root: FOLDER.* and 21 more records",
    ):
        load(
            Location(location=str(conversational(tmp_path)), image_root=str(tmp_path / "elsewhere"))
        )


def test_rows_that_the_source_leaves_out_are_counted(tmp_path: Path) -> None:
    rated = [
        {"response": "a", "annotations": {"x": {"Rating": "5"}}},
        {"response": "b", "annotations": {"x": {"Rating": "1"}}},
    ]
    rows = [
        {"instruction": f"{place}?", "completions": rated[: 1 + place % 2], "source": "x"}
        for place in range(6)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = load(Location(location=str(tmp_path)))
    assert len(found.examples) == 3
    assert found.origin.notes[-1] == "3 of 6 records are left out by the rules of `ultrafeedback`."


def test_repeated_and_contradicting_records_are_counted(tmp_path: Path) -> None:
    one = {"prompt": "What is 1 + 1?", "chosen": "2", "rejected": "3"}
    other = {"prompt": "What is 1 + 2?", "chosen": "3", "rejected": "2"}
    opposite = {**one, "chosen": one["rejected"], "rejected": one["chosen"]}
    records = [one, other, one, opposite]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = PREFERENCE_FOLDER.load(Location(location=str(file)))
    assert len(found.examples) == 4
    notes = "\n".join(found.origin.notes)
    assert "2 of 4 records repeat the images, prompt and responses of an earlier one" in notes
    assert "1 contents occur with both labels" in notes

    file.write_text("".join(json.dumps(record) + "\n" for record in (one, other)))
    notes = "\n".join(PREFERENCE_FOLDER.load(Location(location=str(file))).origin.notes)
    assert "repeat" not in notes
    assert "both labels" not in notes
