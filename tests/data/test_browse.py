"""The page of samples, and what counts as suspicious."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrm.data.browse import count_duplicates, histogram, page, suspicious
from mmrm.data.display.chart import Chart
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from tests.data.sources.fixtures import RED, write_images, write_jsonl
from tests.data.test_frames import video

ROOT = Path(__file__).resolve().parents[2]


def section(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    path = str(write_jsonl(folder / "a.jsonl", rows))
    others = [{"type": "shapes", "level": "demo", "rows": 40}]
    bad = {"limit": 0.9}
    return {
        "sources": [{"type": "project", "path": path}, *others],
        "cache": str(folder / "cache"),
        "bad_records": bad,
    } | settings


def pairs(folder: Path) -> list[dict[str, Any]]:
    write_images(folder, red=RED, cut=RED[:70], head=RED[:10])
    good = {
        "prompt": "What <b>colour</b>?",
        "chosen": "Red.",
        "rejected": "Blue.",
        "images": ["red.png"],
    }
    return [
        good,
        good | {"chosen": "blue. ", "rejected": "red."},  # contradicts the first
        good | {"chosen": "Green.", "rejected": "green."},  # equal but for case
        good | {"images": ["cut.png"], "prompt": "cut"},
        good | {"images": ["head.png"], "prompt": "head"},
        good | {"images": [], "prompt": "text only", "margin": 1.5, "rationale": "Because."},
        good | {"prompt": "same"},
        good | {"prompt": "same"},  # a duplicate, labelled alike
        good | {"prompt": "alike", "chosen": "Aqua."},
        good | {"prompt": "alike", "chosen": "Aqua."},
    ]


def test_the_page_shows_every_source_and_needs_no_other_file(tmp_path: Path) -> None:
    mixture = Mixture(MixtureConfig.model_validate(section(tmp_path, pairs(tmp_path))))
    html = page(mixture, 20, "naive")
    # In the table of tenths, and in the table of what is left to compute.
    assert html.count('<th scope="row">shapes</th>') == 2
    assert "left to compute with pairs_together 1 and images_together 1" in html
    assert html.count('<article class="card sample">') == 9 + 20
    assert "What &lt;b&gt;colour&lt;/b&gt;?" in html
    assert "<b>colour" not in html
    assert "cannot be shown: project:3" in html
    assert "margin 1.5" in html
    assert "Rationale: Because." in html
    assert "3 of 9 records repeat another one" in html
    assert "bad_image 1" in html
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)
    assert html == page(mixture, 20, "naive")


def test_videos_are_shown_as_strips_of_frames(tmp_path: Path) -> None:
    pytest.importorskip("av")
    video(tmp_path / "a.mp4", 20)
    generated = [{"type": "text", "text": "Here:"}, {"type": "video"}]
    rows: list[dict[str, Any]] = [
        {"prompt": "See <video>", "videos": ["a.mp4"], "chosen": "A cat.", "rejected": "A dog."},
        {"prompt": "Film a cat.", "chosen": generated, "chosen_videos": ["a.mp4"]}
        | {"rejected": [{"type": "video"}], "rejected_videos": ["a.mp4"]},
    ]
    html = page(Mixture(MixtureConfig.model_validate(section(tmp_path, rows))), 20, "naive")
    assert html.count('<img class="strip" src="data:image/webp;base64,') == 3
    assert 'alt="Frames of video 1 of project:0"' in html
    assert 'alt="Frames of video 1 of the rejected response of project:1"' in html
    assert "[video]" in html


def test_suspicious_records_are_found_and_good_ones_are_not(tmp_path: Path) -> None:
    mixture = Mixture(MixtureConfig.model_validate(section(tmp_path, pairs(tmp_path))))
    found = [(suspicion.kind, suspicion.identity) for suspicion in suspicious(mixture.splits)]
    repeated = [identity for kind, identity in found if kind == "repeated record"]
    assert sorted(repeated) == ["project:6", "project:8"]
    others = [suspicion for suspicion in found if suspicion[0] != "repeated record"]
    assert others == [
        ("contradictory labels", "project:0"),
        ("chosen equals rejected", "project:2"),
        ("cannot be used", "project:3"),
        ("cannot be used", "project:4"),
    ]


def test_images_of_one_length_and_one_size_are_told_apart(tmp_path: Path) -> None:
    for number, name in [*((number, f"{number}.bmp") for number in range(6)), (0, "copy.bmp")]:
        Image.new("RGB", (30, 30), (40 * number, 99, 7)).save(tmp_path / name)
    assert len({path.stat().st_size for path in tmp_path.glob("*.bmp")}) == 1
    answers = [{"chosen": "Red.", "rejected": "Green."}, {"chosen": "Green.", "rejected": "Red."}]
    rows = [
        {"images": [f"{number}.bmp"], "prompt": "Which colour?", **answers[number % 2]}
        for number in range(6)
    ]
    part = Mixture(MixtureConfig.model_validate(section(tmp_path, rows, validation=4))).splits[0]
    assert part.row_index is not None
    assert (
        count_duplicates(part.row_index, np.arange(6, dtype=np.int32)),
        list(suspicious([part])),
    ) == (
        0,
        [],
    )
    assert (len(part.held_out), len(part.rows), part.left_out) == (
        2,
        4,
        {},
    )  # none shares its prompt with one held out
    again = [*rows, rows[0] | answers[1] | {"images": ["copy.bmp"]}]
    part = Mixture(MixtureConfig.model_validate(section(tmp_path, again))).splits[0]
    assert [suspicion.detail for suspicion in suspicious([part])] == [
        "the same pair in project:0, project:6"
    ]


def test_a_histogram_counts_every_positive_value() -> None:
    chart = histogram("Response", "characters", "records", np.array([0, 1, 1, 7, 100, 4000]))
    assert isinstance(chart, Chart)
    assert chart.facts == ["1: 2", "6 to 7: 1", "89 to 125: 1", "2,832 to 4,000: 1"]
    assert chart.value == "median 7"
    assert [words for _, words in chart.x.ticks][:4] == ["1", "2", "5", "10"]
    assert [words for _, words in chart.y.ticks] == ["0", "1", "2"]


def test_one_value_is_a_sentence() -> None:
    assert (
        histogram("Response", "tokens", "records", np.array([5, 5]))
        == "Response: 5 tokens in all 2 records."
    )
    assert (
        histogram("Side", "pixels", "images", np.zeros(4, np.int64)) == "Side: there are no images."
    )
    two = histogram("Response", "tokens", "records", np.array([6, 7]))
    assert isinstance(two, Chart)
    assert two.facts == ["6: 1", "7: 1"]
    assert [words for _, words in two.x.ticks] == ["6", "7"]


def test_duplicates_are_counted_once_each(tmp_path: Path) -> None:
    mixture = Mixture(MixtureConfig.model_validate(section(tmp_path, pairs(tmp_path))))
    part = mixture.splits[0]
    assert part.row_index is not None
    assert count_duplicates(part.row_index, part.rows) == 3


@pytest.mark.slow
def test_the_command_writes_the_page_and_prints_what_it_finds(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(json.dumps({"data": section(tmp_path, pairs(tmp_path))}))
    command = [
        sys.executable,
        str(ROOT / "data" / "browse.py"),
        str(tmp_path / "r.yaml"),
        "--out",
        str(tmp_path / "p.html"),
        "--find",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert (
        "in all: 1 contradictory labels, 2 repeated record, 1 chosen equals rejected, 2 cannot be used"
        in done.stdout
    )
    assert "the same pair in project:0, project:1" in done.stdout
    assert "project:2: project:2" not in done.stdout


@pytest.mark.slow
def test_unusable_records_are_found_however_many_they_are(tmp_path: Path) -> None:
    Image.new("RGB", (4000, 8)).save(tmp_path / "long.png")
    rows = [
        {"images": ["long.png"], "prompt": f"which {n}?", "chosen": "this", "rejected": "that"}
        for n in range(3)
    ]
    strict = section(tmp_path, rows, bad_records={"policy": "strict"})
    (tmp_path / "r.yaml").write_text(json.dumps({"data": strict}))
    command = [sys.executable, str(ROOT / "data" / "browse.py"), str(tmp_path / "r.yaml"), "--find"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "cannot be used: project:1: the image is 4000 pixels wide and 8 high" in done.stdout
    assert "in all: 3 cannot be used" in done.stdout
