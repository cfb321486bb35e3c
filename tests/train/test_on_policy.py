"""Rounds of on-policy pairs: who asks whom in which order, what a killed command repeats, and one round for real."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.backbone import load_scalar
from models.config import BackboneConfig, HeadConfig
from tests.models import tiny
from tests.train.minimal import MINIMAL, write
from train import on_policy

LAUNCHER = f"{sys.executable} {Path(__file__).with_name('stub_rounds.py')}"
SOURCES = """\
    - {type: shapes, level: demo, rows: 64}
    - {type: project, name: on_policy, path: pairs.jsonl}
"""
RECIPE = MINIMAL.replace("    - {type: shapes, level: demo, rows: 640}\n", SOURCES)
POLICY = """\
backbone: {path: embedded, dtype: float32}
data: {sources: [{type: shapes, level: demo, split: validation, rows: 64}]}
method: {type: policy, rewards: [{type: judge, path: first}]}
optim: {learning_rate: 1.0e-4, records_per_step: 8, max_steps: 2, token_budget: 4096}
output: {folder: runs/policy, save_every_steps: 2}
"""


def rounds(folder: Path, *more: str, number: int = 2) -> list[dict[str, Any]]:
    """Run rounds with the stub, whose folder is `out`; return its table."""
    recipe = write(folder, RECIPE)
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / "stub").touch()
    asked = [
        "--policy",
        "embedded",
        "--questions",
        "{type: shapes, seed: 4{round}}",
        "--rounds",
        str(number),
    ]
    on_policy.main(
        [str(recipe), *more, *asked, "--folder", str(folder / "out"), "--launcher", LAUNCHER]
    )
    found: list[dict[str, Any]] = json.loads((folder / "out" / "rounds.json").read_text())
    return found


def calls(folder: Path) -> list[str]:
    return [
        " ".join(line.split())
        for line in (folder / "out" / "calls").read_text().replace(f"{folder}/", "").splitlines()
    ]


def test_every_round_asks_the_models_of_the_one_before(tmp_path: Path) -> None:
    policy = write(tmp_path, POLICY, "policy.yaml")
    lines = rounds(tmp_path, "--policy-recipe", str(policy))
    made = calls(tmp_path)
    assert [line.partition(" ")[0] for line in made] == ["sample", "score", "rm", "rl"] * 2 + [
        "sample",
        "score",
    ]
    samples = [line for line in made if line.startswith("sample")]
    assert [line.split()[2] for line in samples] == [
        "embedded",
        *(f"out/round-{n}/policy/checkpoint-2" for n in (1, 2)),
    ]
    assert ["seed: 41}" in samples[0], "seed: 42}" in samples[1], "seed: 43}" in samples[2]] == [
        True
    ] * 3
    scores = [line.split()[2] for line in made if line.startswith("score")]
    assert scores[1:] == [f"out/round-{n}/reward_model/checkpoint-2" for n in (1, 2)]
    trained = [
        (tmp_path / "out" / f"round-{n}" / "reward_model" / "recipe.yaml").read_text()
        for n in (1, 2)
    ]
    assert "round-1/reward_model/checkpoint-2" in trained[1]
    assert "round-1/pairs.jsonl" in trained[0]
    assert "round-2/pairs.jsonl" in trained[1]
    paid = (tmp_path / "out" / "round-2" / "policy" / "recipe.yaml").read_text()
    assert "round-2/reward_model/checkpoint-2" in paid
    pairs = [
        json.loads(line)
        for line in (tmp_path / "out" / "round-1" / "pairs.jsonl").read_text().splitlines()
    ]
    assert {(pair["chosen"], pair["rejected"]) for pair in pairs} == {
        (right, wrong) for right in ("it is red", "red") for wrong in ("it is blue", "it is green")
    }
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert [line["auc"][0] for line in lines] == [0.5, 1.0, 1.0]
    assert [line["right"][0] for line in lines] == [0.5] * 3
    assert lines[0]["best"][0] == 1.0
    assert ["vl_rewardbench" in line for line in lines] == [False, True, True]
    assert lines[1]["vl_rewardbench"] == 0.75


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Two rounds that nothing ended: their folder and their table."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, rounds(folder)


@pytest.mark.parametrize(
    "failing",
    ["sample round-2/samples.jsonl", "score round-1/scored.jsonl", "rm round-2/reward_model"],
)
def test_a_command_that_ended_is_continued_where_it_was(
    tmp_path: Path,
    failing: str,
    whole: tuple[Path, list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, table = whole
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "fail").write_text(failing)
    with pytest.raises(SystemExit) as end:
        rounds(tmp_path)
    assert end.value.code == 2
    assert "teapot" in (error := capsys.readouterr().err) or "status 1" in error
    (tmp_path / "out" / "fail").unlink()
    assert rounds(tmp_path) == table
    told = [" ".join(line.split()[:2]) for line in calls(tmp_path)]
    assert sorted(told) == sorted(
        [*(" ".join(line.split()[:2]) for line in calls(folder)), failing]
    )
    assert rounds(tmp_path) == table
    assert len(calls(tmp_path)) == len(told)


def test_a_judge_labels_the_answers_where_nobody_knows_the_truth(tmp_path: Path) -> None:
    rounds(tmp_path, "--judge", "judge.yaml", number=1)
    assert (
        "score round-1/judged.jsonl judge.yaml out/round-1/samples.jsonl out/round-1/judged.jsonl"
        in calls(tmp_path)
    )
    pairs = [
        json.loads(line)
        for line in (tmp_path / "out" / "round-1" / "pairs.jsonl").read_text().splitlines()
    ]
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [
        ("it is red", "red")
    ] * 3  # its best and its worst


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "--policy",
        "embedded",
        "--questions",
        "{type: shapes}",
        "--folder",
        str(tmp_path / "out"),
        "--launcher",
        LAUNCHER,
    ]
    with pytest.raises(SystemExit):
        on_policy.main([str(write(tmp_path, MINIMAL)), *asked])
    assert "required is one with `name: on_policy`" in capsys.readouterr().err
    rounds(tmp_path, number=1)
    with pytest.raises(SystemExit):
        rounds(tmp_path, "--samples", "4", number=1)
    assert "other settings (there / asked for): samples 8 / 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        rounds(tmp_path, "optim.learning_rate=1.0e-3", number=1)
    assert "optim.learning_rate 0.0001 / 0.001" in capsys.readouterr().err


REAL = """\
backbone: {path: FIRST, dtype: float32, max_pixels: 12544}
data:
  sources:
    - {type: shapes, level: demo, rows: 4}
    - {type: project, name: on_policy, path: pairs.jsonl}
method: {type: naive}
optim: {learning_rate: 1.0e-4, records_per_step: 2, max_steps: 1, token_budget: 600, activation_checkpointing: false}
output: {folder: runs/test, save_every_steps: 1}
workers: 0
"""


def test_a_round_for_real(tmp_path: Path) -> None:
    """A tiny policy answers, a tiny reward model scores its answers, and learns from the best and the worst by its own scores."""
    policy, first = tiny.checkpoint(tmp_path / "policy"), tmp_path / "first"
    model = load_scalar(BackboneConfig(path=str(policy), dtype="float32"), HeadConfig())
    tiny.stir(model.head, 0.5)
    model.save_pretrained(first)
    tiny.encoder().save_pretrained(first)
    (tmp_path / "recipes").mkdir()
    recipe = write(tmp_path / "recipes", REAL.replace("FIRST", str(first)))
    source = "{type: shapes, level: demo, split: train, rows: 4, seed: {round}, text_only: 0.0}"
    asked = [
        "--policy",
        str(policy),
        "--questions",
        source,
        "--samples",
        "3",
        "--max-new-tokens",
        "5",
        "--judge",
        str(first),
    ]
    on_policy.main([str(recipe), *asked, "--folder", str(tmp_path / "out")])
    before, after = json.loads((tmp_path / "out" / "rounds.json").read_text())
    assert (before["questions"], after["round"]) == (4, 1)
    files = [tmp_path / "out" / f"round-{n}" / "samples.jsonl" for n in (1, 2)]
    assert files[0].read_text() != files[1].read_text()  # other questions
    pairs = [
        json.loads(line)
        for line in (tmp_path / "out" / "round-1" / "pairs.jsonl").read_text().splitlines()
    ]
    assert len(pairs) == 4
    assert all(pair["images"][0].startswith("data:image/png") for pair in pairs)
    trained = tmp_path / "out" / "round-1" / "reward_model"
    assert json.loads((trained / "run.json").read_text())["checkpoint"] == "checkpoint-1"
    weights = [
        load_file(folder / "model.safetensors") for folder in (first, trained / "checkpoint-1")
    ]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
