"""MMRB2: rows of both official schemas, and figures of predictions files with and without labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.errors import PredictionsError, RecordError, UserError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.mmrb2 import MMRB2, TASKS, official_score, parts_of_hub_text, read
from mmrm.eval.candidates import Example, Scores
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.run import main
from mmrm.eval.suite.suite import evaluate
from tests.eval.benchmarks.test_vl_rewardbench import write_parquet
from tests.eval.doubles import PositionFollower
from tests.eval.make import png


def pair(task: str, number: int, **columns: Any) -> dict[str, Any]:
    """Return a pair as build_from_hf.py writes it, with an image in each response."""
    row_id = f"{task}_{number}"
    return {
        "id": row_id,
        "prompt_content": [
            ["image", f"input_images/{row_id}_prompt_0.png"],
            ["text", "make it blue"],
        ],
        "prompt_source": "emu-edit",
        "prompt_metadata": {"id": 1185},
        "response_a": {
            "model_name": "imagen4",
            "response_content": [["text", "here:"], ["image", f"images/{row_id}_a_0.png"]],
        },
        "response_b": {
            "model_name": "gpt-image-1",
            "response_content": [["image", f"images/{row_id}_b_0.png"], ["text", "done"]],
        },
        "chosen": "AB"[number % 2],
        "human_annotations": [6, 2, 5],
        **columns,
    }


def hub_row(number: int) -> dict[str, Any]:
    """Return a row of the hub's parquet files."""
    return {
        "pair_id": f"pair_{number}",
        "prompt_text": "Draw <image_1> as a cat",
        "prompt_images": [{"bytes": png("red"), "path": None}],
        "prompt_source": "emu-edit",
        "prompt_metadata": "{}",
        "response_a_text": "<image_1>",
        "response_a_images": [{"bytes": png("blue"), "path": None}],
        "response_a_model": "imagen4",
        "response_b_text": "",
        "response_b_images": [{"bytes": png("green"), "path": None}],
        "response_b_model": "gpt-image-1",
        "chosen": "ab"[number % 2],
        "human_annotations": "[1]",
    }


def write_tasks(folder: Path, num_pairs: int = 4, without_prompts: bool = False) -> Location:
    """Write the benchmark files of all tasks, and their images."""
    for name in ("images", "input_images"):
        (folder / name).mkdir(parents=True)
    for task in TASKS:
        pairs = [pair(task, number) for number in range(num_pairs)]
        suffix = "_response_only" if without_prompts else ""
        for row in pairs:
            if without_prompts:
                del row["prompt_content"]
            for name, colour in (("a_0", "red"), ("b_0", "blue")):
                (folder / "images" / f"{row['id']}_{name}.png").write_bytes(png(colour))
            (folder / "input_images" / f"{row['id']}_prompt_0.png").write_bytes(png("white"))
        (folder / f"{task}{suffix}.json").write_text(json.dumps({"pairs": pairs}))
    return Location(location=str(folder))


def test_prompts_and_responses_keep_the_order_of_texts_and_images(tmp_path: Path) -> None:
    loaded = MMRB2.load(write_tasks(tmp_path))
    assert [row.group for row in loaded.examples[::4]] == list(TASKS)
    row = loaded.examples[1]
    assert row.images == (tmp_path / "input_images" / "t2i_1_prompt_0.png",)
    assert row.prompt[0]["content"] == [
        {"type": "image"},
        {"type": "text", "text": "make it blue"},
    ]
    assert row.responses[0].content == ("here:", tmp_path / "images" / "t2i_1_a_0.png")
    assert row.responses[1].content == (tmp_path / "images" / "t2i_1_b_0.png", "done")
    assert (row.better, row.identity) == (1, "mmrb2:1 (t2i_1)")
    assert len({row.key for row in loaded.examples}) == 16


def test_rows_of_the_hub_s_parquet_files_are_read(tmp_path: Path) -> None:
    write_parquet([hub_row(0), hub_row(1)], tmp_path / "edit" / "test-00000-of-00001.parquet")
    for location in (tmp_path, tmp_path / "edit"):
        loaded = MMRB2.load(Location(location=str(location)))
        row = loaded.examples[1]
        assert row.prompt[0]["content"] == [
            {"type": "text", "text": "Draw"},
            {"type": "image"},
            {"type": "text", "text": "as a cat"},
        ]
        assert [response.content for response in row.responses] == [(png("blue"),), (png("green"),)]
        assert (row.images, row.better, row.group) == ((png("red"),), 1, "edit")


@pytest.mark.parametrize(
    ("content", "num_images", "parts"),
    [
        ("a <image_1> b", 1, ["text a", "image 0", "text b"]),
        ("<image_2> <image_1>", 2, ["image 0", "image 1"]),  # in the order of the images
        ("a", 2, ["text a", "image 0", "image 1"]),
        ("", 1, ["image 0"]),
        (None, 1, ["image 0"]),
        ("<image_1> a", 2, ["image 0", "text a"]),  # the second image has no place
        ("<image_1> a <image_2>", 1, ["image 0", "text a"]),
        (" \n", 0, []),
    ],
)
def test_placeholders_are_read_as_build_from_hf_reads_them(
    content: str | None, num_images: int, parts: list[str]
) -> None:
    images = list(range(num_images))
    assert [f"{kind} {value}" for kind, value in parts_of_hub_text(content, images)] == parts


def test_rows_without_prompt_or_images_are_counted_as_unavailable(tmp_path: Path) -> None:
    where = write_tasks(tmp_path)
    (tmp_path / "images" / "edit_2_a_0.png").unlink()
    loaded = MMRB2.load(where)
    assert len(loaded.examples) == 15
    assert loaded.origin.unavailable == (
        f"mmrb2:6 (edit_2): missing under {tmp_path}: images/edit_2_a_0.png",
    )
    only_responses = write_tasks(tmp_path / "fetched", without_prompts=True)
    assert {row.unavailable for row in read(only_responses)} == {
        "its prompt has not been fetched: run build_from_hf.py of the authors"
    }
    with pytest.raises(UserError, match="none of its 16 rows can be shown"):
        MMRB2.load(only_responses)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": "C"}, "chosen is 'C'; required are a text, and A or B"),
        ({"id": None}, "id is None"),
        ({"response_a": {"model_name": "a"}}, "response_a.response_content holds None"),
        ({"prompt_content": [["audio", "a.wav"]]}, r"prompt_content holds \['audio', 'a.wav'\]"),
        ({"prompt_content": [["image", "../a.png"]]}, "does not stay below the image folder"),
    ],
)
def test_broken_rows_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "t2i.json").write_text(json.dumps({"pairs": [pair("t2i", 0, **change)]}))
    with pytest.raises(RecordError, match=message):
        MMRB2.load(Location(location=str(tmp_path)))


def test_other_files_and_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t2i.json").write_text("[]")
    with pytest.raises(RecordError, match="has no list of objects under `pairs`"):
        MMRB2.load(Location(location=str(tmp_path)))
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(UserError, match="is named for no task"):
        MMRB2.check_location(Location(location=str(tmp_path / "mine.json")))
    with pytest.raises(UserError, match=r"holds none of its files.*t2i\.json"):
        MMRB2.check_location(Location(location=str(write_nothing(tmp_path))))
    with pytest.raises(UserError, match="there is no edition with generated rows"):
        MMRB2.check_location(Location(location="embedded-hard"))


def write_nothing(folder: Path) -> Path:
    """Return an empty folder."""
    empty = folder / "empty"
    empty.mkdir()
    return empty


def judgements(*names: str | None) -> list[dict[str, Any]]:
    """Return judgements in the form of the official files."""
    return [{"judgement": name, "evaluator": "sample", "metadata": {}} for name in names]


def line(prediction: Any, chosen: str = "A", task: str = "t2i") -> dict[str, Any]:
    """Return a labelled line."""
    return {"id": "x", "task": task, "chosen": chosen, "prediction": prediction}


@pytest.mark.parametrize(
    ("prediction", "right", "of"),
    [
        ({"forward": judgements("A"), "reverse": judgements("B")}, 2, 2),
        ({"forward": judgements("A"), "reverse": judgements("A")}, 1, 2),
        ({"forward": judgements("A", "B"), "reverse": []}, 1, 1),  # the first of several
        ({"forward": judgements(None), "reverse": judgements("")}, 0, 0),
        ({"forward": judgements("tie"), "reverse": judgements("tie")}, 0, 2),
        ({"forward": [{}]}, 0, 0),
        ({}, 0, 0),
    ],
)
def test_judgements_are_counted_as_the_script_counts_them(
    prediction: dict[str, Any], right: int, of: int
) -> None:
    figures = official_score([line(prediction)])
    assert figures["groups"]["t2i"]["right"] == right
    assert figures["groups"]["t2i"]["n"] == of
    assert figures["micro"] == (right / of if of else 0.0)


@pytest.mark.parametrize(
    "prediction",
    [
        None,
        3,
        {"forward": None},
        {"forward": "A"},
        {"reverse": {"judgement": "A"}},
        {"forward": [1]},
    ],
)
def test_predictions_that_stop_the_script_are_refused(prediction: Any) -> None:
    with pytest.raises(PredictionsError, match="line 2"):
        official_score([line({}), line(prediction)])


def write_predictions_of_tasks(folder: Path, num_pairs: int = 4) -> Path:
    """Write predictions of all tasks in the official form: A in both orders."""
    folder.mkdir()
    for task, name in TASKS.items():
        both = {"forward": judgements("A"), "reverse": judgements("B")}
        content = {f"{task}_{number}": both for number in range(num_pairs)}
        (folder / f"sample_{name}.json").write_text(json.dumps(content, indent=2))
    return folder


def test_official_files_are_scored_with_the_labels_of_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = write_tasks(tmp_path / "rows", without_prompts=True)
    predictions = write_predictions_of_tasks(tmp_path / "outputs")
    figures, coverage = score_predictions_file(predictions, MMRB2, where=where)
    assert (figures["micro"], figures["macro"]) == (0.5, 0.5)
    assert coverage.whole
    main(["--score", str(predictions), "--benchmark", f"mmrb2={where.location}"])
    assert "16 of 16 rows" in capsys.readouterr().out

    one_file = predictions / "sample_task2_edit.json"
    place = Location(location=str(tmp_path / "rows" / "edit_response_only.json"))
    figures, coverage = score_predictions_file(one_file, MMRB2, where=place)
    assert list(figures["groups"]) == ["edit"]
    assert coverage.whole
    figures, coverage = score_predictions_file(one_file, MMRB2, where=where)
    assert list(figures["groups"]) == ["edit"]
    assert len(coverage.missing) == 12
    with pytest.raises(PredictionsError, match=r"Name the place.*--benchmark mmrb2=PATH"):
        score_predictions_file(one_file, MMRB2)


def test_missing_pairs_are_counted_and_unknown_ones_left_out(tmp_path: Path) -> None:
    where = write_tasks(tmp_path / "rows", without_prompts=True)
    content = {"edit_0": {"forward": judgements("A")}, "edit_9": None}
    file = tmp_path / "predictions.json"
    file.write_text(json.dumps(content))
    figures, coverage = score_predictions_file(file, MMRB2, where=where)
    assert figures["detail"]["edit"] == {
        "total_pairs": 4,
        "evaluated_pairs": 1,
        "missing_pairs": 3,
    }
    assert (figures["micro"], coverage.invented) == (1.0, ("edit_9",))


def test_folders_of_two_judges_and_other_files_are_refused(tmp_path: Path) -> None:
    where = write_tasks(tmp_path / "rows", without_prompts=True)
    predictions = write_predictions_of_tasks(tmp_path / "outputs")
    (predictions / "other_judge.json").write_text(json.dumps({"edit_0": {}}))
    with pytest.raises(PredictionsError, match=r"'edit_0' is in .*other_judge.*the\s+files of one"):
        score_predictions_file(predictions, MMRB2, where=where)
    with pytest.raises(PredictionsError, match=r"holds no \*\.json"):
        score_predictions_file(write_nothing(tmp_path), MMRB2, where=where)
    file = tmp_path / "list.json"
    file.write_text("[]")
    with pytest.raises(PredictionsError, match="holds a JSON list; required is an object"):
        score_predictions_file(file, MMRB2, where=where)


def evaluated(folder: Path, scores: list[Scores] | None, votes: int = 1) -> tuple[Any, Path]:
    """Evaluate a judge on 16 rows and write its predictions; return its result and their folder.

    Args:
        folder: The folder of rows and predictions.
        scores: The scores of a judge; None takes a judge that always names the first response.
        votes: Rounds of votes.
    """
    loaded = MMRB2.load(write_tasks(folder / "rows"))
    protocol = ProtocolConfig(votes=votes)
    examples = with_presentations(loaded.examples, protocol)
    all_scores = scores or PositionFollower().score_batch(examples)
    result = evaluate(examples, all_scores, MMRB2, protocol, loaded.origin)
    predictions = folder / "predictions"
    predictions.mkdir()
    pairs = [example for example in examples if isinstance(example, Example)]
    write_predictions(pairs, all_scores, MMRB2, protocol, predictions)
    return result, predictions


@pytest.mark.parametrize("votes", [1, 2])
def test_a_judge_that_compares_has_a_judgement_for_each_order(votes: int, tmp_path: Path) -> None:
    result, folder = evaluated(tmp_path, None, votes)
    assert result.published["official"]["micro"] == 0.5
    record = json.loads((folder / "official.jsonl").read_text().splitlines()[0])
    assert record["prediction"] == {
        "forward": [{"judgement": "A"}] * votes,
        "reverse": [{"judgement": "A"}] * votes,
    }
    check_scored_again(result, folder, tmp_path / "rows")


def test_a_judge_that_scores_has_the_same_winner_in_both_orders(tmp_path: Path) -> None:
    values = [(2.0, 1.0), (1.0, 2.0), (1.0, 1.0), (float("nan"), 1.0)] * 4
    result, folder = evaluated(tmp_path, [Scores(pair) for pair in values])
    # Of four rows two are right, one is a tie, and one cannot be read and counts in no figure.
    assert result.published["official"]["micro"] == 4 / 6
    assert result.micro.accuracy == 2 / 4
    check_scored_again(result, folder, tmp_path / "rows")


def check_scored_again(result: Any, folder: Path, rows: Path) -> None:
    """Check that all written files have the result's official figures."""
    where = Location(location=str(rows))
    expected = result.published["official"]
    for name in ("official.jsonl", "predictions.jsonl"):
        figures, coverage = score_predictions_file(folder / name, MMRB2, where=where)
        assert figures["groups"] == expected["groups"], name
        assert coverage.whole, coverage.lines()
    script_folder = folder / "script"
    script_folder.mkdir()
    for name in TASKS.values():
        (folder / f"{name}.json").rename(script_folder / f"{name}.json")
    figures, _ = score_predictions_file(script_folder, MMRB2, where=where)
    assert figures["groups"] == expected["groups"]


NAMES = st.sampled_from(["A", "B", "tie", "", None])


@given(
    st.lists(
        st.tuples(st.sampled_from("AB"), st.lists(NAMES, max_size=2), st.lists(NAMES, max_size=2)),
        min_size=1,
        max_size=20,
    )
)
def test_the_accuracy_is_the_share_of_right_judgements(
    rows: list[tuple[str, list[str | None], list[str | None]]],
) -> None:
    lines = []
    outcomes = []
    for chosen, forward, reverse in rows:
        prediction = {"forward": judgements(*forward), "reverse": judgements(*reverse)}
        lines.append(line(prediction, chosen))
        outcomes += [name == chosen for name in forward[:1] if name]
        outcomes += [name not in (chosen, "tie") for name in reverse[:1] if name]
    expected = sum(outcomes) / len(outcomes) if outcomes else 0.0
    assert official_score(lines)["micro"] == expected
