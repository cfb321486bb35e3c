"""Overlap of training data and benchmarks: what is found, what is not, and that a mixture leaves out exactly what was found."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from mmrm.data.encoded_video import Video
from mmrm.data.preference import Response
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.row_index import pair_key
from mmrm.data.synthetic.benchmark_files import edition, write_records
from mmrm.data.synthetic.world import ShapesGenerator
from mmrm.eval import overlap
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.vl_rewardbench import VL_REWARDBENCH
from mmrm.eval.candidates import Example
from mmrm.eval.contamination import search as overlap_search
from mmrm.eval.contamination.index import KINDS, MEDIA_KINDS, OverlapIndex
from tests.data.sources.fixtures import write_jsonl
from tests.eval.overlap_world import config, details, encoded, find, item, photo, project

ROOT = Path(__file__).resolve().parents[2]


def changed(text: str, word: int) -> str:
    return " ".join("another" if place == word else one for place, one in enumerate(text.split()))


@pytest.fixture
def benchmark() -> list[Example]:
    return [item(number) for number in range(8)]


@pytest.fixture
def planted(tmp_path: Path, benchmark: list[Example]) -> dict[str, Any]:
    """Return a source with two unrelated records between each two that hold something of a benchmark row."""
    first, second = [response.text for response in benchmark[1].responses]
    question = benchmark[2].prompt[0]["content"][1]
    assert question["type"] == "text"
    original = photo(3)
    rows: list[dict[str, Any]] = [
        {"image": benchmark[0].images[0]},
        {"image": encoded(original, "WEBP", lossless=True)},
        {"image": encoded(original, "JPEG", quality=60)},
        {"image": encoded(original.resize((80, 60)), "JPEG")},
        {"prompt": question["text"].upper() + "?!"},
        {"prompt": changed(question["text"], 12)},
        {"chosen": second.replace(" ", "\n"), "rejected": f" {first.title()}."},
        {"chosen": changed(first, 5), "rejected": changed(second, 30)},
    ]
    between: list[dict[str, Any]] = [{"image": encoded(photo(900))}, {}]
    return project(tmp_path, "some", [one for row in rows for one in (row, *between)])


def test_each_kind_of_match_is_found_and_nothing_else(
    tmp_path: Path, benchmark: list[Example], planted: dict[str, Any]
) -> None:
    found = find(tmp_path, [planted], benchmark)
    lines = details(tmp_path)
    assert [(line["record"], line["kind"], line["benchmark_rows"]) for line in lines] == [
        ("some:0", "image_file", ["bench:0"]),
        ("some:3", "image_pixels", ["bench:3"]),
        ("some:6", "image_near", ["bench:3"]),
        ("some:9", "image_near", ["bench:3"]),
        ("some:12", "question", ["bench:2"]),
        ("some:15", "question_near", ["bench:2"]),
        ("some:18", "pair", ["bench:1"]),
        ("some:21", "pair_near", ["bench:1"]),
    ]
    assert all(line["left_out"] and not line["common"] for line in lines)
    count = found.sources["some"]
    assert (count["records"], count["unusable"], count["left_out"], count["only_common_texts"]) == (
        24,
        0,
        8,
        0,
    )
    kinds = [kind for kind in KINDS if kind != "video_file"]
    assert {kind: count[kind] for kind in kinds} == Counter(line["kind"] for line in lines)
    assert count["video_file"] == 0
    assert not (tmp_path / "overlap.txt.parts").exists()
    shown = io.StringIO()
    Console(file=shown, width=200).print(found.table())
    assert "some:21 is bench:1" in shown.getvalue()


def test_videos_are_found_by_equal_files(tmp_path: Path, benchmark: list[Example]) -> None:
    for name in ("clip", "film", "another"):
        (tmp_path / f"{name}.mp4").write_bytes(name.encode())
    video_part = [{"type": "video"}]
    films = {"chosen_videos": ["film.mp4"], "rejected_videos": ["another.mp4"]}
    rows: list[dict[str, Any]] = [
        {"videos": ["clip.mp4"]},
        {"chosen": video_part, "rejected": video_part} | films,
        {"videos": ["another.mp4"]},
        {"videos": ["gone.mp4"]},
    ]
    benchmark[4] = replace(benchmark[4], videos=(Video(b"clip"),))
    film = Response((Video(b"film"),))
    benchmark[5] = replace(benchmark[5], responses=(film, benchmark[5].responses[1]))
    found = find(tmp_path, [project(tmp_path, "some", rows)], benchmark)
    assert [
        (line["record"], line["kind"], line["benchmark_rows"], line["left_out"])
        for line in details(tmp_path)
    ] == [
        ("some:0", "video_file", ["bench:4"], True),
        ("some:1", "video_file", ["bench:5"], True),
    ]
    count = found.sources["some"]
    assert (count["video_file"], count["left_out"], count["unusable"]) == (2, 2, 1)
    assert KINDS.index("video_file") == len(MEDIA_KINDS) - 1
    other_videos = [replace(row, videos=(Video(b"other"),)) for row in benchmark]
    assert OverlapIndex(other_videos).fingerprint != OverlapIndex(benchmark).fingerprint


def test_a_pair_of_a_benchmark_is_found_among_several_responses(
    tmp_path: Path, benchmark: list[Example]
) -> None:
    first, second = [response.text for response in benchmark[1].responses]
    prompt = "An unrelated question about nothing in particular"
    rows = [
        {"prompt": prompt, "responses": ["One.", second, "Two.", first], "ranks": [0, 1, 1, 2]},
        {"prompt": prompt, "responses": ["One.", second, "Two."], "ranks": [0, 1, 1]},
    ]
    path = write_jsonl(tmp_path / "lists.jsonl", rows)
    source = {"type": "project", "name": "lists", "path": str(path), "pairs": "none"}
    find(tmp_path, [source], benchmark)
    (line,) = details(tmp_path)
    assert (line["record"], line["kind"], line["benchmark_rows"]) == (
        "lists:0",
        "pair",
        ["bench:1"],
    )
    filters = {"leave_out": str(tmp_path / "overlap.txt")}
    left = Mixture(config(tmp_path, [source], filters=filters))
    assert [left[index].identity for index in range(len(left))] == ["lists:1"]


def test_the_mixture_leaves_out_exactly_what_was_found(
    tmp_path: Path, benchmark: list[Example], planted: dict[str, Any]
) -> None:
    other = project(tmp_path, "other", [{}, {"image": benchmark[5].images[0]}, {}])
    find(tmp_path, [planted, other], benchmark)
    before = Mixture(config(tmp_path, [planted, other]))
    after = Mixture(
        config(tmp_path, [planted, other], filters={"leave_out": str(tmp_path / "overlap.txt")})
    )
    left = [
        {record.identity for record in (mixture[index] for index in range(len(mixture)))}
        for mixture in (before, after)
    ]
    assert (
        left[0] - left[1]
        == {line["record"] for line in details(tmp_path)}
        == {f"some:{3 * n}" for n in range(8)} | {"other:1"}
    )
    assert [source.left_out for source in after.card().sources] == [{"overlap": 8}, {"overlap": 1}]


@pytest.mark.slow
def test_neither_workers_nor_an_interruption_change_the_result(
    tmp_path: Path,
    benchmark: list[Example],
    planted: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlap_search, "BLOCK", 5)
    find(tmp_path, [planted], benchmark)
    whole = [(tmp_path / name).read_bytes() for name in ("overlap.txt", "overlap.jsonl")]
    assert [line["record"] for line in details(tmp_path)] == [
        f"some:{3 * number}" for number in range(8)
    ]
    find(tmp_path, [planted], benchmark, workers=3)
    assert [(tmp_path / name).read_bytes() for name in ("overlap.txt", "overlap.jsonl")] == whole

    (tmp_path / "overlap.txt").unlink()
    asked: list[str] = []
    look_up = OverlapIndex.matches

    def stops_at_13(index: OverlapIndex, record: Any) -> Any:
        asked.append(record.identity)
        if record.identity == "some:13" and asked.count("some:13") == 1:
            raise KeyboardInterrupt
        return look_up(index, record)

    monkeypatch.setattr(OverlapIndex, "matches", stops_at_13)
    with pytest.raises(KeyboardInterrupt):
        find(tmp_path, [planted], benchmark)
    assert not (tmp_path / "overlap.txt").exists()
    find(tmp_path, [planted], benchmark)
    assert [(tmp_path / name).read_bytes() for name in ("overlap.txt", "overlap.jsonl")] == whole
    assert Counter(asked) == {f"some:{row}": 2 if 10 <= row <= 13 else 1 for row in range(24)}


def test_another_benchmark_does_not_continue_an_interrupted_run(
    tmp_path: Path,
    benchmark: list[Example],
    planted: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(overlap, "write_overlap_report", stops)
    with pytest.raises(KeyboardInterrupt):
        find(tmp_path, [planted], benchmark)
    assert list(tmp_path.glob("overlap.txt.parts/*/*.jsonl"))
    monkeypatch.undo()
    find(tmp_path, [planted], benchmark[4:])
    assert details(tmp_path) == []


def test_unusable_rows_are_counted(tmp_path: Path) -> None:
    broken = encoded(photo(1))[:2000]
    rows = project(
        tmp_path,
        "rows",
        [
            {"image": broken},
            {"chosen": ""},
            {},
            {"prompt": "odd \ud800"},
            {"image": encoded(photo(7))},
        ],
    )
    found = find(tmp_path, [rows], [item(7)])
    assert [found.sources["rows"][name] for name in ("records", "unusable", "left_out")] == [
        5,
        3,
        1,
    ]


def test_the_fingerprints_are_those_of_the_records(
    tmp_path: Path, benchmark: list[Example], planted: dict[str, Any]
) -> None:
    found = find(tmp_path, [planted], benchmark)
    records = {record.identity: record for record in Mixture(config(tmp_path, [planted])).records}
    assert list(found.fingerprints) == [
        f"{pair_key(records[f'some:{3 * n}']):016x}" for n in range(8)
    ]


@pytest.mark.slow
def test_the_command_on_the_embedded_world(tmp_path: Path) -> None:
    write_records(tmp_path / "train", ShapesGenerator("demo", 3, "train"), 40)
    row = VL_REWARDBENCH.load(Location(location=str(edition("vl_rewardbench", "demo")))).examples[
        30
    ]
    image = row.images[0]
    assert isinstance(image, bytes)
    larger = (
        Image.open(io.BytesIO(image)).convert("RGB").resize((400, 400), Image.Resampling.LANCZOS)
    )
    (tmp_path / "train" / "planted.webp").write_bytes(encoded(larger, "WEBP", quality=95))
    with (tmp_path / "train" / "records.jsonl").open("a") as file:
        plant = {
            "images": ["planted.webp"],
            "prompt": "is it pretty",
            "chosen": "rather so",
            "rejected": "not that i see",
        }
        file.write(json.dumps(plant) + "\n")
    (tmp_path / "recipe.yaml").write_text(
        f"optim: not looked at\ndata: {{cache: {tmp_path}/cache, sources: [{{type: project, path: {tmp_path}/train}}]}}\n"
    )
    command = [
        sys.executable,
        str(ROOT / "eval/overlap.py"),
        "recipe.yaml",
        "--benchmarks",
        "vl_rewardbench=embedded",
    ]
    done = subprocess.run(
        [*command, "--output", "overlap.txt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "image_near" in done.stdout
    left_out = {line["record"] for line in details(tmp_path) if line["left_out"]}
    assert "project:40" in left_out
    sources = [{"type": "project", "path": str(tmp_path / "train")}]
    after = Mixture(config(tmp_path, sources, filters={"leave_out": str(tmp_path / "overlap.txt")}))
    assert {record.identity for record in after.records} == {
        f"project:{row}" for row in range(41)
    } - left_out


def test_wrong_arguments_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(recipe: str, benchmark: str) -> str:
        (tmp_path / "recipe.yaml").write_text(recipe)
        named = [
            str(tmp_path / "recipe.yaml"),
            "--output",
            str(tmp_path / "o.txt"),
            "--benchmarks",
            benchmark,
        ]
        monkeypatch.setattr(sys, "argv", ["overlap.py", *named])
        with pytest.raises(SystemExit) as stopped:
            overlap.main()
        return f"{stopped.value} {capsys.readouterr().err}"

    shapes = "data: {sources: [{type: shapes, level: demo, rows: 3}]}"
    assert "Did you mean vl_rewardbench" in call(shapes, "vl_rewardbanch=hub")
    assert "gone is not there" in call(shapes, "vl_rewardbench=gone")
    assert "this key is required" in call("optim: {}", "vl_rewardbench=embedded")
    assert "demoo" in call(shapes.replace("demo", "demoo"), "vl_rewardbench=embedded")
