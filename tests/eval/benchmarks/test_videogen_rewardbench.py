"""VideoGen-RewardBench: rows with frames, and figures against hand-computed and official ones."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.encoded_video import Video
from mmrm.data.errors import PredictionsError, RecordError, UserError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.benchmarks.videogen_rewardbench import (
    VIDEOGEN_REWARDBENCH,
    num_frames_of_video,
    official_score,
)
from mmrm.eval.candidates import Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.suite.fingerprint import rows_digest
from mmrm.eval.suite.suite import evaluate
from tests.data.test_frames import video
from tests.eval.doubles import PositionFollower, scores_under
from tests.eval.make import png

LABELS = ("A", "B", "same", "A")
"""The overall label of each row."""


def table_rows() -> list[dict[str, Any]]:
    """Return rows of the table; the videos of the last one have no frames."""
    rows = []
    for number, label in enumerate(LABELS):
        rows.append(
            {
                "path_A": f"videos/{number}a.mp4",
                "path_B": f"./videos/{number}b.mp4",
                "A_model": "x",
                "B_model": "y",
                "prompt": f"a cat, and {number} dogs",
                "VQ": "same" if number == 0 else "B",
                "MQ": label,
                "TA": label,
                "Overall": label,
                "fps_A": 24.0,
                "num_frames_A": 126.0,
                "fps_B": 8.0,
                "num_frames_B": 24.0,
            }
        )
    return rows


def write_table(folder: Path, rows: list[dict[str, Any]] | None = None) -> Location:
    """Write the table, and 12 frames of each video but those of the last row."""
    rows = rows or table_rows()
    folder.mkdir(exist_ok=True)
    with (folder / "videogen-rewardbench.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows[:3]:
        for side, colour in (("A", "red"), ("B", "blue")):
            frames = (folder / row[f"path_{side}"]).with_suffix("")
            frames.mkdir(parents=True)
            for number in range(12):
                (frames / f"{number:06}.jpg").write_bytes(png(colour))
    return Location(location=str(folder))


# Rows


def test_rows_have_frames_as_responses(tmp_path: Path) -> None:
    loaded = VIDEOGEN_REWARDBENCH.load(write_table(tmp_path))
    assert [example.ranks for example in loaded.examples] == [(0, 1), (1, 0), (0, 0)]
    for number, example in enumerate(loaded.examples):
        assert example.images == ()
        first, second = example.responses
        # 126 frames at 24 a second and 24 at 8, two shown a second
        assert (len(first.images), len(second.images)) == (10, 6)
        assert [Path(frame).parent.name for frame in second.images] == [f"{number}b"] * 6
        assert [Path(frame).stem for frame in second.images] == [
            *("000000", "000002", "000004", "000006", "000008", "000011")
        ]
    (unavailable,) = loaded.origin.unavailable
    assert "no frames of videos/3a.mp4" in unavailable
    assert [note for note in loaded.origin.notes if "other numbers of frames" in note] == []


def test_responses_can_be_the_videos_themselves(tmp_path: Path) -> None:
    pytest.importorskip("av")
    where = write_table(tmp_path).model_copy(update={"videos": "video"})
    for number in range(3):
        video(tmp_path / f"videos/{number}a.mp4", 5)
        video(tmp_path / f"videos/{number}b.mp4", 7)
    loaded = VIDEOGEN_REWARDBENCH.load(where)
    assert len(loaded.examples) == 3
    for number, example in enumerate(loaded.examples):
        first, second = example.responses
        assert first.content == (Video(tmp_path / f"videos/{number}a.mp4"),)
        assert second.content == (Video(tmp_path / f"videos/{number}b.mp4"),)
    (unavailable,) = loaded.origin.unavailable
    assert "no video videos/3a.mp4 under" in unavailable
    assert loaded.origin.notes[-1].startswith("The judge is given the videos of 3 of 3 rows")
    by_frames = VIDEOGEN_REWARDBENCH.load(write_table(tmp_path / "other"))
    assert rows_digest(by_frames.examples) != rows_digest(loaded.examples)
    with pytest.raises(UserError, match="unpack its videos, and set the location to the folder"):
        VIDEOGEN_REWARDBENCH.load(Location(location="hub", videos="video"))


def test_other_numbers_of_frames_are_noted(tmp_path: Path) -> None:
    where = write_table(tmp_path).model_copy(update={"frames": 3})
    loaded = VIDEOGEN_REWARDBENCH.load(where)
    assert all(len(response.images) == 3 for row in loaded.examples for response in row.responses)
    assert any("3 of 3 rows show other numbers of frames" in note for note in loaded.origin.notes)


def test_a_video_of_unknown_length_has_the_largest_number(tmp_path: Path) -> None:
    rows = [{**row, "fps_A": "", "num_frames_B": "nan"} for row in table_rows()]
    loaded = VIDEOGEN_REWARDBENCH.load(write_table(tmp_path, rows))
    assert all(len(response.images) == 12 for row in loaded.examples for response in row.responses)


def test_a_row_without_an_overall_label_is_unavailable(tmp_path: Path) -> None:
    rows = table_rows()
    rows[0]["Overall"] = ""
    loaded = VIDEOGEN_REWARDBENCH.load(write_table(tmp_path, rows))
    assert len(loaded.examples) == 2
    assert "Overall is '', not A, B or same" in loaded.origin.unavailable[0]


def test_the_hub_and_tables_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cut the frames with `python data/frames\.py"):
        VIDEOGEN_REWARDBENCH.load(Location(location="hub"))
    rows = table_rows()
    for row in rows:
        del row["TA"]
    with pytest.raises(RecordError, match="no text under TA"):
        VIDEOGEN_REWARDBENCH.load(write_table(tmp_path, rows))
    with (tmp_path / "videogen-rewardbench.csv").open("a") as file:
        file.write("one,two\n")
    with pytest.raises(UserError, match="record 6 has 2 values; required are 12"):
        VIDEOGEN_REWARDBENCH.load(Location(location=str(tmp_path)))


def test_frames_are_a_setting_of_this_benchmark() -> None:
    assert BenchmarkConfig(name="videogen_rewardbench", location="x", frames=4).frames == 4


def test_videos_are_a_setting_of_benchmarks_with_videos() -> None:
    config = BenchmarkConfig(name="videogen_rewardbench", location="x")
    assert "videos" not in config.model_dump()  # digests of earlier recipes stay as they are
    shown = config.model_copy(update={"videos": "video"})
    assert shown.model_dump()["videos"] == "video"
    with pytest.raises(ValueError, match=r"`frames` is 4 and `videos` is 'video'.* Remove one"):
        BenchmarkConfig(name="videogen_rewardbench", location="x", frames=4, videos="video")
    with pytest.raises(ValueError, match="and vl_rewardbench has no videos of its own"):
        BenchmarkConfig(name="vl_rewardbench", location="x", videos="video")


@pytest.mark.parametrize(
    ("total", "fps", "shown"),
    [
        (126, 24.0, 10),
        (152, 24.0, 12),
        (30, 30.0, 4),
        (3, 30.0, 2),
        (10_000, 8.0, 768),
        (1, 30.0, 0),
    ],
)
def test_numbers_of_frames(total: int, fps: float, shown: int) -> None:
    assert num_frames_of_video(total, fps) == shown


# Figures by hand


def line(label: Any, first: Any, second: Any) -> dict[str, Any]:
    """Return a line of the official format, in which all attributes have these rewards."""
    record = {"path_A": "a.mp4", "path_B": "b.mp4", "prompt": "a cat"}
    for name in ("VQ", "MQ", "TA", "Overall"):
        record |= {name: label, f"reward_{name}_A": first, f"reward_{name}_B": second}
    return record


def test_figures_by_hand() -> None:
    figures = official_score(
        [
            line("A", 3.0, 1.0),
            line("B", 3.0, 1.5),
            line("same", 1.0, 1.1),
            line("invalid", 5.0, 1.0),
            line("A", None, 1.0),
        ]
    )
    overall = figures["detail"]["Overall"]
    assert overall["with_ties"] == 2 / 5
    assert overall["without_ties"] == 1 / 4
    assert (overall["tied"], overall["unlabelled"]) == (1, 1)
    assert figures["micro"] == figures["groups"]["VQ"]["accuracy"] == 2 / 5


def test_attributes_without_rewards_have_no_figures() -> None:
    record = line("A", 1.0, 0.0)
    record |= {"reward_VQ_A": None, "reward_VQ_B": None}
    del record["reward_MQ_A"], record["reward_MQ_B"]
    assert list(official_score([record])["groups"]) == ["TA", "Overall"]


@pytest.mark.parametrize(
    "change",
    [
        {"Overall": 1},
        {"reward_Overall_A": "1.0"},
        {"reward_TA_B": float("inf")},
        {"reward_VQ_B": True},
    ],
)
def test_a_line_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PredictionsError, match=r"line 2: .* Required are path_A"):
        official_score([line("A", 1.0, 0.0), {**line("A", 1.0, 0.0), **change}])


# Evaluation


def test_a_judge_with_attributes_has_the_same_figures_from_its_files(tmp_path: Path) -> None:
    where = write_table(tmp_path / "table")
    loaded = VIDEOGEN_REWARDBENCH.load(where)
    scores = []
    for first in (1.0, 0.0, 0.5):
        attributes = {"VQ": (first, 0.4), "std": (0.1, 0.1)}
        scores.append(Scores((first, 0.45), attributes=attributes))
    protocol = ProtocolConfig()
    result = evaluate(loaded.examples, scores, VIDEOGEN_REWARDBENCH, protocol, loaded.origin)
    official = result.published["official"]
    assert result.micro.right == 2  # the tie is wrong without a threshold
    assert official["micro"] == 1.0
    # VQ: a tie and two B, with differences of 0.6, -0.4 and 0.1
    assert official["detail"]["VQ"]["with_ties"] == 1 / 3
    assert official["detail"]["VQ"]["without_ties"] == 1 / 2
    assert list(official["groups"]) == ["VQ", "Overall"]

    write_predictions(loaded.examples, scores, VIDEOGEN_REWARDBENCH, protocol, tmp_path)
    figures, compared = score_predictions_file(
        tmp_path / "official.jsonl", VIDEOGEN_REWARDBENCH, where=where
    )
    assert figures["detail"] == official["detail"]
    assert compared.missing == ("videos/3a.mp4 ./videos/3b.mp4",)  # the row without frames
    figures, _ = score_predictions_file(
        tmp_path / "predictions.jsonl", VIDEOGEN_REWARDBENCH, where=where
    )
    assert figures["detail"]["Overall"] == official["detail"]["Overall"]


def test_the_table_that_the_official_script_writes_is_scored(tmp_path: Path) -> None:
    lines = [line("A", 2.5, 1.0), line("same", 0.5, 0.25), line("", "", 1.0)]
    with (tmp_path / "out_pair.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    figures, _ = score_predictions_file(tmp_path / "out_pair.csv", VIDEOGEN_REWARDBENCH)
    assert figures["micro"] == 2 / 3
    assert figures["detail"]["TA"]["unlabelled"] == 1


def test_a_judge_that_compares_finds_ties_by_its_two_orders(tmp_path: Path) -> None:
    loaded = VIDEOGEN_REWARDBENCH.load(write_table(tmp_path))
    scores = scores_under(PositionFollower(), loaded.examples, benchmark=VIDEOGEN_REWARDBENCH)
    result = evaluate(
        loaded.examples, scores, VIDEOGEN_REWARDBENCH, ProtocolConfig(), loaded.origin
    )
    assert (result.micro.right, result.micro.ties) == (1, 2)
    assert result.published["official"]["detail"]["Overall"]["with_ties"] == 1 / 3
