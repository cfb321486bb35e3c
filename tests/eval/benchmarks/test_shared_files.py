"""The official scorers' figures for predictions that the project may read but not carry: skipped where they are not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrm.eval.benchmarks import mm_rlhf_rewardbench as mm_rlhf_rewardbench_rules
from mmrm.eval.benchmarks import multimodal_rewardbench as multimodal_rewardbench_rules
from mmrm.eval.benchmarks import vl_rewardbench_scoring as vl_rewardbench_official
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig, load
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.result import Result
from mmrm.eval.suite.baselines import baseline_scores
from mmrm.eval.suite.suite import evaluate

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(
    not (DATA / "scored").is_dir(), reason="../shared/data is not there"
)


def scored(name: str) -> tuple[list[Any], Any]:
    lines = (DATA / "scored" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], json.loads(
        (DATA / "scored" / f"{name}.expected.json").read_text()
    )


def test_vl_rewardbench_to_the_last_digit() -> None:
    records, expected = scored("vl_rewardbench")
    found = vl_rewardbench_official.official_score(records)["detail"]
    assert expected.keys() == found.keys() == {"k=1", "k=3", "k=5", "k=7", "k=9"}
    for limit, figures in expected.items():
        for name, value in figures.items():
            here = found[limit][name]
            assert value == (
                {key: count for key, count in here.items() if count} if name == "classes" else here
            ), (limit, name)


def test_multimodal_rewardbench_to_the_last_digit() -> None:
    records, expected = scored("multimodal_rewardbench")
    assert multimodal_rewardbench_rules.official_score(records)["detail"] == expected


def test_mm_rlhf_rewardbench_to_the_last_digit() -> None:
    records, expected = scored("mm_rlhf_rewardbench")
    assert mm_rlhf_rewardbench_rules.official_score(records)["detail"] == expected


def test_a_file_is_scored_as_its_records() -> None:
    found = score_predictions_file(
        DATA / "scored" / "multimodal_rewardbench.jsonl", BENCHMARKS["multimodal_rewardbench"]
    )[0]
    assert found["micro"] == 0.5349182763744428


def test_every_verdict_string() -> None:
    for line in (DATA / "scored" / "vl_verdict_strings.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        assert vl_rewardbench_official.named_answer(row["text"]) == row["answer"], row


def longest(name: str, file: str, folder: Path) -> Result:
    """Return the result of the longer-is-better judge on the real rows, with blank images in place of the real ones."""
    shutil.copy(DATA / name / file, folder)
    for line in (folder / file).open(encoding="utf-8"):
        row = json.loads(line)
        path = folder / (row["image"] if row.get("image") else f"{row['video']}/1.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    found = load(BenchmarkConfig(name=name, location=str(folder)))
    return evaluate(
        found.examples,
        baseline_scores("longest", found.examples),
        BENCHMARKS[name],
        ProtocolConfig(),
        found.origin,
    )


def test_the_real_rows_of_vl_rewardbench(tmp_path: Path) -> None:
    result = longest("vl_rewardbench", "data.jsonl", tmp_path)
    assert result.notes == ()
    assert {
        name: (group.n, round(group.accuracy or 0, 3)) for name, group in result.groups.items()
    } == {
        "hallucination": (749, 0.403),
        "reasoning": (318, 0.513),
        "general": (183, 0.372),
    }
    counts = {
        name: [group["n"] for group in rule["groups"].values()]
        for name, rule in result.published.items()
    }
    assert (counts["r1_reward"], counts["unified_reward"]) == ([484, 448, 318], [631, 301, 318])
    assert round(result.micro.accuracy or 0, 3) == 0.426


def test_the_real_rows_of_mm_rlhf_rewardbench(tmp_path: Path) -> None:
    result = longest("mm_rlhf_rewardbench", "mm_reward_bench.jsonl", tmp_path)
    note = "Videos are shown as 1 to 1 frames; the official script takes 32."
    assert (result.notes, result.unavailable) == ((note,), ())
    assert result.clusters is not None
    assert (result.micro.n, result.clusters.n, round(result.micro.accuracy or 0, 3)) == (
        170,
        46,
        0.718,
    )


def test_the_real_rows_of_multimodal_rewardbench(tmp_path: Path) -> None:
    rows = json.loads((DATA / "multimodal_rewardbench" / "sample.json").read_text())
    for row in rows:
        (tmp_path / row["Image"]).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / row["Image"])
    (tmp_path / "all_data.json").write_text(json.dumps(rows))
    found = load(BenchmarkConfig(name="multimodal_rewardbench", location=str(tmp_path)))
    assert len(found.examples) == 156
    assert len({example.source for example in found.examples}) == 11
    assert {example.group for example in found.examples} == set(
        BENCHMARKS["multimodal_rewardbench"].known[0].groups
    )
