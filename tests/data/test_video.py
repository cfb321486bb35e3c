"""Videos in the place of images are refused by name, with the advice, wherever rows come from."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.images import data_uri, decode, image_size
from mmrm.data.preference import Preference, text, text_responses, validate
from mmrm.data.video import VIDEO_PART_ADVICE, is_video, is_video_name
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from tests.data.mixtures import mixture, project
from tests.data.mixtures import row as plain
from tests.data.sources.fixtures import RED, source_of, write_images, write_jsonl, write_parquet

MP4 = b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2avc1mp41" + bytes(100)
HEADS = {
    "mp4": MP4,
    "quicktime": b"\x00\x00\x00\x14ftypqt  " + bytes(20),
    "old quicktime": b"\x00\x00\x00\x08wide\x00\x00\x00\x00mdat",
    "webm": b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81",
    "avi": b"RIFF\x00\x00\x10\x00AVI LIST",
    "flash": b"FLV\x01\x05\x00\x00\x00\x09\x00\x00\x00\x00\x12\x00\x00",
    "mpeg": b"\x00\x00\x01\xba" + bytes(12),
}
PAIR = {"prompt": "What happens?", "chosen": "A cat runs.", "rejected": "Nothing."}
DATA_URI = "data:video/mp4;base64," + base64.b64encode(MP4).decode()
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "a path": ("project", PAIR | {"images": ["clip.mp4"]}),
    "a path that is not there": ("project", PAIR | {"images": ["gone.MOV"]}),
    "an address": ("project", PAIR | {"images": ["https://example.org/clip.webm?size=1"]}),
    "a data URI": ("project", PAIR | {"images": [DATA_URI]}),
    "the token": ("project", PAIR | {"prompt": "<|vision_start|><|video_pad|><|vision_end|>What?"}),
    "the token in a response": ("project", PAIR | {"chosen": "It is <|video_pad|>."}),
    "MM-RLHF's image column": ("mm_rlhf", PAIR | {"image": "clip.mp4"}),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_video_in_the_place_of_an_image_is_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, row = ROWS[name]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "clip.mp4").write_bytes(MP4)
    write_jsonl(
        tmp_path / "set" / ("dpo_pairs.jsonl" if kind == "mm_rlhf" else "train.jsonl"), [row]
    )
    with pytest.raises(RecordError, match="video") as refused:
        validate(source_of(tmp_path, kind).record(0))
    assert VIDEO_PART_ADVICE in str(refused.value)
    assert ":0" in str(refused.value)


@pytest.mark.parametrize("name", HEADS)
def test_a_video_in_the_place_of_an_image_is_told_by_its_content(name: str, tmp_path: Path) -> None:
    (tmp_path / "no_ending").write_bytes(HEADS[name])
    images: tuple[bytes | Path, ...] = (HEADS[name], tmp_path / "no_ending")
    for image in images:
        for look in (decode, image_size, data_uri):
            with pytest.raises(
                ImageError,
                match=r"r:1: the image .* is a video\. Write the place of a video as a video part",
            ):
                look(image, "r:1")


def test_pictures_are_no_videos() -> None:
    heads = (
        RED,
        b"GIF89a" + bytes(20),
        b"RIFF\x00\x00\x00\x00WEBPVP8 ",
        b"\x00\x00\x00\x1cftypavif\x00\x00",
        b"",
    )
    assert not any(map(is_video, heads))
    assert not any(
        map(is_video_name, ("a.png", "mp4", "video/v_K-Scene-016", "a.mp4/0001.jpg", ""))
    )


def test_a_mixture_counts_them(tmp_path: Path) -> None:
    """Bytes in a parquet column, and a file without an ending: what only the first pass over the data can find."""
    write_images(tmp_path, one=RED)
    (tmp_path / "clip.png").write_bytes(MP4)
    rows = [plain(f"q{number}") | {"images": ["one.png"]} for number in range(4)] + [
        plain("v") | {"images": ["clip.png"]}
    ]
    found = mixture(tmp_path, [project(tmp_path, "mine", rows)], bad_records={"limit": 0.5})
    assert len(found) == 4
    table = tmp_path / "set" / "rows.parquet"
    write_parquet(table, [PAIR | {"images": [{"bytes": MP4, "path": "clip.mp4"}]}])
    record = source_of(tmp_path, "project").record(0)
    with pytest.raises(ImageError, match="is a video"):
        image_size(record.images[0], record.identity)


BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "an image column": ("vl_rewardbench", {"image_path": "clip.mp4"}),
    "a video column": ("vl_rewardbench", {"image": "", "video": "clip.mp4"}),
    "the token": ("vl_rewardbench", {"image": "", "prompt": "<|video_pad|>"}),
    "content": ("vl_rewardbench", {"image_path": "clip.png"}),
    "MM-RLHF's image column": ("mm_rlhf_rewardbench", {"image": "clip.mp4"}),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_with_a_video_is_refused_by_name(name: str, tmp_path: Path) -> None:
    benchmark, changes = BENCHMARKS[name]
    for file in ("clip.mp4", "clip.png"):
        (tmp_path / file).write_bytes(MP4)
    file = {"vl_rewardbench": "data.jsonl", "mm_rlhf_rewardbench": "mm_reward_bench.jsonl"}[
        benchmark
    ]
    (tmp_path / file).write_text(json.dumps({"id": "RLAIF-V-1"} | PAIR | changes) + "\n")
    with pytest.raises(UserError, match=r"video"):
        load(BenchmarkConfig(name=benchmark, location=str(tmp_path)))


def test_frames_are_a_setting_of_the_benchmark_with_videos(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"`frames` is for mm_rlhf_rewardbench, .* and vl_rewardbench shows no videos",
    ):
        BenchmarkConfig(name="vl_rewardbench", frames=8)
    write_images(tmp_path / "video" / "clip", **{f"{number:03}": RED for number in range(40)})
    row = {"id": "a", "video": "video/clip.mp4", **PAIR}
    (tmp_path / "mm_reward_bench.jsonl").write_text(json.dumps(row) + "\n")
    for frames, names in (
        (8, ["000", "005", "011", "016", "022", "027", "033", "039"]),
        (None, 32),
    ):
        found = load(
            BenchmarkConfig(name="mm_rlhf_rewardbench", location=str(tmp_path), frames=frames)
        )
        stems = [image.stem for image in found.examples[0].images if isinstance(image, Path)]
        assert stems == names if frames else len(stems) == names
        said = (
            "Videos are shown as 8 to 8 frames; the official script takes 32." in found.origin.notes
        )
        assert said == (frames == 8)


def test_the_advice_stands_in_the_refusal_of_the_token_alone() -> None:
    for token, advised in (("<|video_pad|>", True), ("<|im_end|>", False)):
        with pytest.raises(RecordError, match="would read as a control token") as refused:
            validate(Preference("r", (text("user", token),), text_responses("a", "b")))
        assert (VIDEO_PART_ADVICE in str(refused.value)) == advised
