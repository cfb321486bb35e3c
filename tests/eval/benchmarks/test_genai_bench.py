"""GenAI-Bench: rows of the hub's schema with ties, and figures of predictions files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.encoded_video import Video
from mmrm.data.errors import PredictionsError, RecordError, UserError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.genai_bench import (
    GENAI_BENCH,
    KNOWN,
    RIGHT_VERDICTS,
    TASKS,
    frame_folders,
    official_score,
    outcome_of_response,
    scored_pair,
    verdict_in,
)
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.candidates import RankedExample, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.run import main
from mmrm.eval.suite.suite import evaluate
from tests.data.test_frames import video
from tests.eval.benchmarks.test_vl_rewardbench import write_parquet
from tests.eval.doubles import PositionFollower
from tests.eval.make import png

REAL_FILE = Path(__file__).parent / "genai_bench" / "image_edition" / "random" / "pairwise.jsonl"
"""A released predictions file, whose published accuracy is 25.9."""
VOTES = ("leftvote", "rightvote", "tievote", "bothbad_vote")
VIDEO = "https://huggingface.co/datasets/tianleliphoebe/genai-arena-video-mp4/blob/main/dir/{}.mp4"


def image(colour: str) -> dict[str, Any]:
    """Return an image as the hub's parquet files hold it."""
    return {"bytes": png(colour), "path": f"{colour}.png"}


def generation_row(number: int) -> dict[str, Any]:
    """Return a row of image_generation."""
    return {
        "prompt": f"a picture of {number} cats",
        "left_model": "SDXL",
        "left_image": image("red"),
        "right_model": "Kandinsky",
        "right_image": image("blue"),
        "vote_type": VOTES[number % 4],
        "timestamp": 1.5,
        "anony": True,
    }


def edit_row(number: int) -> dict[str, Any]:
    """Return a row of image_edition."""
    return {
        "source_prompt": "a red square",
        "target_prompt": "a green square",
        "instruct_prompt": f"make it green, {number} times",
        "source_image": image("red"),
        "left_model": "MagicBrush",
        "left_output_image": image("green"),
        "right_model": "CosXLEdit",
        "right_output_image": image("blue"),
        "vote_type": VOTES[number % 4],
    }


def video_row(number: int) -> dict[str, Any]:
    """Return a row of video_generation, whose videos are left{number} and right{number}."""
    return {
        "prompt": f"{number} dogs",
        "left_model": "T2VTurbo",
        "left_video": VIDEO.format(f"left{number}"),
        "right_model": "LaVie",
        "right_video": VIDEO.format(f"right{number}"),
        "vote_type": VOTES[number % 4],
    }


ROWS = {
    "image_generation": generation_row,
    "image_edition": edit_row,
    "video_generation": video_row,
}


def write_tasks(folder: Path, num_rows: int = 4) -> Location:
    """Write the parquet files of all tasks, and frames of all videos but right3."""
    for task, row in ROWS.items():
        rows = [row(number) for number in range(num_rows)]
        write_parquet(rows, folder / task / "test_v1-00000-of-00001.parquet")
    for number in range(num_rows):
        for side in ("left", "right"):
            if (side, number) != ("right", 3):
                shade = 64 if side == "right" else 0
                write_frames(folder / "dir" / f"{side}{number}", 20, shade)
    return Location(location=str(folder))


def write_frames(folder: Path, num_frames: int, shade: int) -> None:
    """Write frames of a video as data/frames.py names them; each has another colour.

    Args:
        folder: The folder, which is made.
        num_frames: Number of frames.
        shade: The red part of the colours, 0 to 255.
    """
    folder.mkdir(parents=True)
    for frame in range(num_frames):
        (folder / f"{frame:06}.png").write_bytes(png(f"#{shade:02x}{frame:04x}"))


def test_all_tasks_are_read_with_images_in_prompts_and_responses(tmp_path: Path) -> None:
    loaded = GENAI_BENCH.load(write_tasks(tmp_path))
    generated = loaded.examples[0]
    edited = loaded.examples[4]
    video_row = loaded.examples[8]
    assert [row.group for row in loaded.examples] == [TASKS[0]] * 4 + [TASKS[1]] * 4 + [
        TASKS[2]
    ] * 3

    assert generated.prompt[0]["content"] == [{"type": "text", "text": "a picture of 0 cats"}]
    assert [response.content for response in generated.responses] == [(png("red"),), (png("blue"),)]
    assert edited.images == (png("red"),)
    assert edited.prompt[0]["content"] == [
        {"type": "image"},
        {"type": "text", "text": "make it green, 0 times"},
    ]
    # 8 of 20 frames, as numpy.arange(0, 20, 20 / 8) picks them in the official script
    frames = [path.name for path in video_row.responses[0].images if isinstance(path, Path)]
    assert frames == [f"{frame:06}.png" for frame in (0, 2, 5, 7, 10, 12, 15, 17)]

    assert [row.ranks for row in loaded.examples[:4]] == [(0, 1), (1, 0), (0, 0), (0, 0)]
    assert [row.row["human_vote"] for row in loaded.examples[:4]] == list(VOTES)
    assert edited.identity == "genai_bench:4 (image_edition/0)"


def test_rows_without_their_images_are_counted_as_unavailable(tmp_path: Path) -> None:
    rows = [edit_row(0), {**edit_row(1), "source_image": None}, edit_row(2)]
    rows[2]["left_output_image"] = {"bytes": None, "path": "not_there.png"}
    write_parquet(rows, tmp_path / "test_v1-00000-of-00001.parquet")
    loaded = GENAI_BENCH.load(Location(location=str(tmp_path)))
    assert len(loaded.examples) == 1
    assert loaded.origin.unavailable == (
        f"genai_bench:1 (image_edition/1): missing under {tmp_path}: (none)",
        f"genai_bench:2 (image_edition/2): missing under {tmp_path}: not_there.png",
    )


def test_a_video_without_frames_is_unavailable_and_frames_can_be_set(tmp_path: Path) -> None:
    where = write_tasks(tmp_path)
    loaded = GENAI_BENCH.load(where)
    assert len(loaded.origin.unavailable) == 1
    assert "missing under" in loaded.origin.unavailable[0]
    assert "dir/right3.mp4" in loaded.origin.unavailable[0]
    few = GENAI_BENCH.load(
        BenchmarkConfig(
            name="genai_bench",
            location=str(tmp_path / "video_generation"),
            frames=3,
            image_root=str(tmp_path),
        )
    )
    assert [len(row.responses[0].images) for row in few.examples] == [3, 3, 3]
    assert frame_folders("https://host/a/b.mp4") == ["b"]


def test_responses_can_be_the_videos_themselves(tmp_path: Path) -> None:
    pytest.importorskip("av")
    write_tasks(tmp_path)
    for number in range(3):
        video(tmp_path / "dir" / f"left{number}.mp4", 5)
        video(tmp_path / f"right{number}.mp4", 5)  # without the folders of the repository
    where = Location(
        location=str(tmp_path / "video_generation"), videos="video", image_root=str(tmp_path)
    )
    loaded = GENAI_BENCH.load(where)
    for number, example in enumerate(loaded.examples):
        left, right = example.responses
        assert left.content == (Video(tmp_path / "dir" / f"left{number}.mp4"),)
        assert right.content == (Video(tmp_path / f"right{number}.mp4"),)
    assert len(loaded.examples) == 3
    assert len(loaded.origin.unavailable) == 1
    assert "the official script takes 8 frames" in loaded.origin.notes[-1]


def test_a_task_alone_is_compared_with_its_own_number_of_rows(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    loaded = GENAI_BENCH.load(Location(location=str(tmp_path / "image_edition")))
    assert loaded.origin.notes[0] == "4 rows; the released edition's image_edition has 919."
    whole = GENAI_BENCH.load(Location(location=str(tmp_path)))
    assert whole.origin.notes[0] == "12 rows; the released edition (test_v1) has 3723."
    assert sum(edition.rows for edition in KNOWN[:-1]) == KNOWN[-1].rows == 3723


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vote_type": "draw"}, r"vote_type is 'draw'; required is one of leftvote"),
        ({"prompt": None}, r"no text under prompt"),
        ({"left_image": 3}, r"the image is a int"),
    ],
)
def test_broken_rows_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_parquet([{**generation_row(0), **change}], tmp_path / "test_v1-00000-of-00001.parquet")
    with pytest.raises(RecordError, match=message):
        GENAI_BENCH.load(Location(location=str(tmp_path)))


def test_a_table_of_another_schema_and_a_missing_place_are_refused(tmp_path: Path) -> None:
    write_parquet([{"a": "b"}], tmp_path / "test_v1-00000-of-00001.parquet")
    with pytest.raises(RecordError, match="the columns are a; required are left_image and"):
        GENAI_BENCH.load(Location(location=str(tmp_path)))
    with pytest.raises(UserError, match="is not there"):
        GENAI_BENCH.check_location(Location(location=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="there is no edition with generated rows"):
        GENAI_BENCH.check_location(Location(location="embedded"))


def scores_of(values: list[tuple[float, float]]) -> list[Scores]:
    """Return the scores of a judge that scores."""
    return [Scores(pair) for pair in values]


def evaluated(
    folder: Path, values: list[tuple[float, float]] | None = None
) -> tuple[dict[str, Any], Path]:
    """Evaluate a judge on four rows of image_generation, and write its predictions.

    Args:
        folder: The folder of rows and predictions.
        values: The scores of the judge. None takes a judge that always names the first response.

    Returns:
        The published figures of the result, and the folder of predictions.
    """
    rows = folder / "rows"
    write_parquet(
        [generation_row(number) for number in range(4)], rows / "test_v1-00000-of-00001.parquet"
    )
    loaded = GENAI_BENCH.load(Location(location=str(rows)))
    protocol = ProtocolConfig()
    examples = with_presentations(loaded.examples, protocol)
    scores = scores_of(values) if values else PositionFollower().score_batch(examples)
    result = evaluate(examples, scores, GENAI_BENCH, protocol, loaded.origin)
    predictions = folder / "predictions"
    predictions.mkdir()
    ranked = [example for example in examples if isinstance(example, RankedExample)]
    write_predictions(ranked, scores, GENAI_BENCH, protocol, predictions)
    accuracy = result.published["official"]["micro"]
    assert accuracy == result.micro.accuracy
    return result.published, predictions


def test_a_judge_that_scores_is_right_on_ties_if_scores_are_equal(tmp_path: Path) -> None:
    values = [(2.0, 1.0), (0.5, 0.0), (1.0, 1.0), (0.3, 0.2)]
    published, folder = evaluated(tmp_path, values)
    assert published["official"]["micro"] == published["responses"]["micro"] == 0.5
    # Right of three rows: the first one at any threshold below 1, both ties at one above 0.1.
    assert published["with_ties"]["micro"] == 0.75
    assert published["without_ties"]["micro"] == 0.5
    records = [json.loads(line) for line in (folder / "official.jsonl").open()]
    assert [record["model_vote"] for record in records] == [
        *("[[A>B]]", "[[A>B]]", "[[A=B]]", "[[A>B]]")
    ]
    where = Location(location=str(tmp_path / "rows"))
    for name in ("official.jsonl", "predictions.jsonl", "image_generation.json"):
        for rules in ("official", "responses", "with_ties", "without_ties"):
            figures, coverage = score_predictions_file(
                folder / name, GENAI_BENCH, rules, where=where
            )
            assert figures["micro"] == published[rules]["micro"], (name, rules)
            assert coverage.whole, coverage.lines()


def test_a_judge_that_compares_is_right_on_ties_if_the_orders_disagree(tmp_path: Path) -> None:
    published, folder = evaluated(tmp_path)
    assert published["official"]["micro"] == 0.5  # the first response won: a tie over both orders
    figures, _ = score_predictions_file(folder / "predictions.jsonl", GENAI_BENCH)
    assert figures["micro"] == 0.5
    assert figures["groups"]["image_generation"]["right"] == 2


def test_votes_that_cannot_be_read_are_no_tie() -> None:
    vote = {"text": "", "shown": [0, 1], "names": None}
    prediction = {
        "identity": "genai_bench:2 (image_edition/2)",
        "group": "image_edition",
        "ranks": [0, 0],
        "scores": [0.5, 0.5],
        "votes": [vote, vote],
        "key": "",
        "credit": 0.0,
    }
    convert = GENAI_BENCH.files["predictions"].convert
    assert convert is not None
    assert convert(prediction)["model_vote"] is None
    assert convert({**prediction, "votes": [vote, {**vote, "names": 0}]})["model_vote"] == "[[A=B]]"
    row = RankedExample(
        "",
        (),
        (),
        (),
        "",
        ranks=(0, 0),
        group="",
        source="",
        row={"id": "image_edition/2", "task": "image_edition", "idx": 2, "human_vote": "tievote"},
    )
    scores = Scores((0.5, 0.5), votes=(Vote((0, 1), None, ""), Vote((1, 0), None, "")))
    (official,) = GENAI_BENCH.formats["official"]([row], [scores])
    assert (official["model_vote"], official["correct"]) == (None, False)


def test_unreadable_scores_have_no_verdict(tmp_path: Path) -> None:
    nan = float("nan")
    published, folder = evaluated(tmp_path, [(nan, 1.0), (0.0, 1.0), (nan, nan), (1.0, 1.0)])
    assert published["official"]["micro"] == 0.5
    records = [json.loads(line) for line in (folder / "official.jsonl").open()]
    assert [record["scores"] for record in records[:2]] == [[None, 1.0], [0.0, 1.0]]
    assert records[0]["model_vote"] is None
    figures, _ = score_predictions_file(folder / "predictions.jsonl", GENAI_BENCH)
    assert figures["micro"] == 0.5


def test_a_released_file_has_its_published_accuracy() -> None:
    figures, coverage = score_predictions_file(REAL_FILE, GENAI_BENCH)
    assert figures["micro"] == 0.2589771490750816  # as show_results.py computes it
    assert figures["detail"] == {"image_edition": 25.9}
    assert figures["groups"]["image_edition"] == {
        "n": 919,
        "right": 238,
        "accuracy": 0.2589771490750816,
    }
    assert coverage.whole
    again, _ = score_predictions_file(REAL_FILE, GENAI_BENCH, "responses")
    assert again["micro"] == figures["micro"]


def test_the_command_scores_a_released_file(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--score", str(REAL_FILE), "--benchmark", "genai_bench"])
    assert "0.2589771490750816" in capsys.readouterr().out


def test_a_file_with_too_few_rows_of_its_task_is_not_whole(tmp_path: Path) -> None:
    lines = REAL_FILE.read_text().splitlines()
    folder = tmp_path / "image_edition" / "random"
    folder.mkdir(parents=True)
    (folder / "pairwise.jsonl").write_text("\n".join([*lines[:900], lines[0]]))
    _, coverage = score_predictions_file(folder / "pairwise.jsonl", GENAI_BENCH)
    assert coverage.duplicated == ("image_edition/0",)
    assert coverage.miscounted == (
        "category 'image_edition': 901 lines; the released edition (test_v1) has 919 rows of it",
    )


def record(**columns: Any) -> dict[str, Any]:
    """Return a line of a predictions file."""
    return {
        "idx": 0,
        "prompt": "a cat",
        "response": "[[A>B]]",
        "model_vote": "[[A>B]]",
        "human_vote": "leftvote",
        "correct": True,
        **columns,
    }


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ("so [[A>B]]", "[[A>B]]"),
        ("[[A>B]] or [[B>A]]", "[[A>B]] or [[B>A]]"),  # to the last brackets of the line
        ("[[A>B]]\n[[B>A]]", "[[A>B]]"),
        ("[[\nA>B]]", None),
        ("A>B", None),
    ],
)
def test_the_verdict_is_read_as_inference_py_reads_it(response: str, verdict: str | None) -> None:
    assert verdict_in(response) == verdict
    _, is_right = outcome_of_response(record(response=response, correct=None))
    assert is_right == (verdict == "[[A>B]]")


@given(st.text(st.sampled_from("[]A>B=\n\r "), max_size=30))
def test_the_verdict_is_what_the_pattern_of_inference_py_finds(response: str) -> None:
    match = re.search(r"\[\[.*\]\]", response)
    assert verdict_in(response) == (None if match is None else match.group())


def test_a_tie_without_its_kind_is_right_for_both_kinds() -> None:
    for vote in ("tievote", "bothbad_vote"):
        assert outcome_of_response(record(response="[[A=B]]", human_vote=vote))[1]
    assert not outcome_of_response(record(response="[[A=B=Good]]", human_vote="bothbad_vote"))[1]
    assert set(RIGHT_VERDICTS) == set(VOTES)


@pytest.mark.parametrize(
    "line",
    [
        None,
        {},
        {"correct": 1, "human_vote": "leftvote"},
        {"correct": "true", "human_vote": "leftvote"},
        record(task="painting"),
    ],
)
def test_malformed_lines_are_refused_with_their_number(line: dict[str, Any] | None) -> None:
    with pytest.raises(PredictionsError, match="line 2"):
        official_score([record(), line])


def test_files_of_another_form_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pairwise.json"
    for content, message in (
        ('{"0": {}}', "holds a JSON dict; required is a list of objects"),
        ("[1]", "holds a JSON list; required is a list of objects"),
        ("[", "not JSON"),
        ("[]", "the file holds no record"),
        (json.dumps([record(idx="first")]), "idx is 'first'"),
        (json.dumps([{"a": 1}]), "in none of the formats"),
    ):
        file.write_text(content)
        with pytest.raises(PredictionsError, match=message):
            score_predictions_file(file, GENAI_BENCH)


def test_scores_of_other_judges_need_two_numbers() -> None:
    assert scored_pair(record(scores=[1, 3], human_vote="rightvote")).difference == -2
    assert scored_pair(record(scores=[1, 3], human_vote="rightvote")).label == -1
    assert scored_pair(record(scores=[1, 3], human_vote="bothbad_vote")).label == 0
    for scores in ([1], "12", [1, "2"], [True, 2]):
        with pytest.raises(ValueError, match="scores are"):
            scored_pair(record(scores=scores))
