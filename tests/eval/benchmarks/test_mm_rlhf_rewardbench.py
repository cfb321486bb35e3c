"""MM-RLHF-RewardBench: files, frames, and the official figures by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.encoded_video import Video
from mmrm.data.errors import PredictionsError, RecordError, UserError
from mmrm.data.preference import num_image_parts
from mmrm.eval.benchmarks.benchmark import Location, reward_records
from mmrm.eval.benchmarks.mm_rlhf_rewardbench import MM_RLHF_REWARDBENCH, RULES
from mmrm.eval.benchmarks.mm_rlhf_rewardbench import official_score as score
from mmrm.eval.candidates import Scores
from mmrm.eval.suite.fingerprint import rows_digest
from tests.data.test_frames import video
from tests.eval.make import png

load = MM_RLHF_REWARDBENCH.load


def official_score(records: list[Any]) -> Any:
    """Return what the official script computes."""
    return score(records)["detail"]


def row(identity: str, place: int = 0, **where: Any) -> dict[str, Any]:
    texts = {"prompt": f"what is {identity}?", "chosen": f"yes {place}", "rejected": "no"}
    return {"id": identity, **where, **texts, "chosen_reason": "r", "rejected_reason": "s"}


def write_file(folder: Path, rows: list[dict[str, Any]], frames: int = 0) -> Location:
    for name in ("mcq/a.png", "long/a.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png())
    if frames:
        (folder / "images" / "clip").mkdir(parents=True)
        for place in range(frames):
            (folder / "images" / "clip" / f"{place:04}.jpg").write_bytes(png(size=(2 + place, 2)))
        (folder / "images" / "clip" / "notes.txt").write_text("no frame")
    (folder / "mm_reward_bench.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return Location(location=str(folder))


ROWS = [
    row("a", 0, image="mcq/a.png"),
    row("a", 1, image="mcq/a.png"),
    row("b", image="long/a.png"),
    row("c", video="video/clip"),
]


def test_the_official_file(tmp_path: Path) -> None:
    found = load(write_file(tmp_path, ROWS, frames=3))
    assert [example.group for example in found.examples] == ["mcq", "mcq", "long", "video"]
    assert [example.responses[example.better].text for example in found.examples] == [
        "yes 0",
        "yes 1",
        "yes 0",
        "yes 0",
    ]
    assert [len(example.images) for example in found.examples] == [1, 1, 1, 3]
    assert num_image_parts(found.examples[3].prompt) == 3
    assert found.origin.unavailable == ()
    assert "3 items; the released edition has 46." in found.origin.notes


def test_a_row_without_image_and_video_is_refused(tmp_path: Path) -> None:
    for shown in ({}, {"image": None, "video": None}):
        with pytest.raises(
            RecordError, match=r"mm_rlhf_rewardbench:1 \(d\): the image is null or missing"
        ):
            load(write_file(tmp_path, [ROWS[0], row("d") | shown]))


def test_the_order_of_the_responses_says_nothing(tmp_path: Path) -> None:
    examples = load(
        write_file(tmp_path, [row(f"{place}", place, image="mcq/a.png") for place in range(60)])
    ).examples
    assert 15 < sum(example.better for example in examples) < 45
    assert all(example.official_first == example.better for example in examples)


def test_of_many_frames_32_are_taken_in_the_order_of_their_names(tmp_path: Path) -> None:
    example = load(write_file(tmp_path, ROWS, frames=50)).examples[3]
    names = [path.name for path in example.images if isinstance(path, Path)]
    assert names == [f"{place:04}.jpg" for place in np.linspace(0, 49, 32, dtype=int)]
    assert names[-1] == "0049.jpg"


def test_videos_without_frames_are_counted_as_unavailable(tmp_path: Path) -> None:
    found = load(write_file(tmp_path, ROWS))
    assert len(found.examples) == 3
    assert found.origin.unavailable == (
        f"mm_rlhf_rewardbench:3 (c): no frames of video/clip under {tmp_path}: cut them by data/frames.py",
    )
    assert (
        f"1 of 4 rows are unavailable and in no figure: {found.origin.unavailable[0]}"
        in found.origin.notes
    )
    assert "Group video: 1 rows; the released edition has 25." in found.origin.notes


def test_judges_can_be_given_the_videos_themselves(tmp_path: Path) -> None:
    pytest.importorskip("av")
    place = write_file(tmp_path, [*ROWS, row("d", video="video/other.mp4")], frames=3)
    where = place.model_copy(update={"videos": "video"})
    video(tmp_path / "images" / "clip.mkv", 5)
    found = load(where)
    example = found.examples[3]
    assert example.videos == (Video(tmp_path / "images" / "clip.mkv"),)
    assert example.images == ()
    assert [part["type"] for part in example.prompt[0]["content"]] == ["video", "text"]
    (unavailable,) = found.origin.unavailable
    assert "no video video/other.mp4 under" in unavailable
    assert found.origin.notes[-1] == (
        "The judge is given the videos of 1 of 4 rows, and backbone.videos of its recipe chooses "
        "their frames; the official script takes 32 frames."
    )
    frames = load(place).examples[3]
    assert frames.key != example.key
    assert rows_digest([frames]) != rows_digest([example])
    (tmp_path / "images" / "clip.mkv").write_bytes(b"\x00" * 200)
    with pytest.raises(UserError, match=r"1 of 1 videos are missing or broken"):
        load(where)


def test_a_missing_image_is_an_error_and_a_missing_column_too(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"1 of 2 images are missing or broken:\n  mm_rlhf_rewardbench:0 \(x\)"
    ):
        load(write_file(tmp_path, [row("x", image="short/none.png"), ROWS[0]]))
    with pytest.raises(RecordError, match="no text under chosen"):
        load(write_file(tmp_path, [{"id": "x", "prompt": "p", "rejected": "r", "image": ""}]))


@pytest.mark.parametrize("path", ["../mcq/a.png", "/mcq/a.png", "."])
def test_paths_that_leave_the_image_folder_are_refused(path: str, tmp_path: Path) -> None:
    for kind in ("image", "video"):
        with pytest.raises(RecordError, match="does not stay below the image folder"):
            load(write_file(tmp_path, [{**row("x"), kind: path}]))


def test_the_hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    write_file(tmp_path, [{**ROWS[0], "video": None}, {**ROWS[3], "image": None}], frames=2)
    asked: list[Any] = []

    def snapshot_download(*ids: str, **settings: Any) -> str:
        asked.append((ids, settings))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found = load(Location(revision="0d285ab"))
    assert asked == [
        (("yifanzhang114/MM-RLHF-RewardBench",), {"repo_type": "dataset", "revision": "0d285ab"})
    ]
    assert [example.group for example in found.examples] == ["mcq", "video"]
    records = reward_records(found.examples, [Scores((1.0, 0.0))] * 2)
    assert ["image" in record for record in records] == [True, False]
    assert official_score(records)["overall_stats"]["total"] == 2


def prediction(identity: str, path: str, *rewards: float) -> dict[str, Any]:
    return {"id": identity, "image": path, "rewards": list(rewards)}


def test_accuracy_of_pairs_and_of_whole_items() -> None:
    records = [
        prediction("a", "mcq/1.png", 2, 1),
        prediction("a", "mcq/1.png", 1, 2),
        prediction("b", "mcq/2.png", 0.5, -0.5),
        prediction("c", "long/1.png", 1, 1),
        {"id": "d", "video": "video/1", "rewards": [3, 1]},
        prediction("e", "elsewhere/1.png", 1, 0),
    ]
    found = official_score(records)
    assert found["overall_stats"] == {"accuracy": 4 / 6, "acc_plus": 3 / 5, "total": 6}
    assert found["groups"] == 5
    assert found["category_stats"]["mcq"] == {"accuracy": 2 / 3, "acc_plus": 1 / 2, "total": 3}
    assert found["category_stats"]["long"] == {"accuracy": 0, "acc_plus": 0, "total": 1}
    assert found["category_stats"]["video"] == {"accuracy": 1, "acc_plus": 1, "total": 1}
    assert found["category_stats"]["safety"] == {"accuracy": 0, "acc_plus": 0, "total": 0}
    assert RULES["ties_right"].score(records)["groups"]["long"] == {
        "n": 1,
        "right": 1,
        "accuracy": 1.0,
        "acc_plus": 1.0,
        "items": 1,
    }
    assert RULES["official"].score(records)["acc_plus"] == 3 / 5


def test_categories_are_substrings_of_the_path() -> None:
    found = official_score(
        [
            prediction("a", "/data/long/mcq/1.png", 1, 0),
            prediction("b", "/data/long/safety/1.png", 1, 0),
        ]
    )
    assert {
        word: stats["total"] for word, stats in found["category_stats"].items() if stats["total"]
    } == {"mcq": 1, "long": 1}
    assert (
        found["category_stats"]["long"]["acc_plus"] == 1 / 2
    )  # b is credited to it, a and b count below the line


def test_our_groups_are_folders_before_they_are_substrings(tmp_path: Path) -> None:
    (tmp_path / "belonging" / "mcq").mkdir(parents=True)
    (tmp_path / "belonging" / "mcq" / "a.png").write_bytes(png())
    (tmp_path / "longer.png").write_bytes(png())
    rows = [row("a", image="belonging/mcq/a.png"), row("b", image="longer.png"), row("c", image="")]
    assert [example.group for example in load(write_file(tmp_path, rows)).examples] == [
        "mcq",
        "long",
        "other",
    ]


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {"id": "a", "image": None, "rewards": [1, 0]},
        {"id": "a", "image": "mcq", "rewards": [1]},
    ],
)
def test_lines_that_the_script_cannot_read_are_refused(broken: Any) -> None:
    with pytest.raises(PredictionsError, match="line 1"):
        official_score([broken])
