"""The stress comparison: what counts as diverged, which curve is read, and that it can be drawn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from train import stress

LOG = [
    {"step": 1, "reward": 1.0, "entropy": 0.5},
    {"step": 2, "loss": 0.1},
    {"step": 2, "eval_vl_rewardbench/accuracy": 0.5},
    {"step": 3, "reward": 0.5, "entropy": 0.25},
]


def checkpoint(folder: Path, step: int) -> None:
    """Write what a run leaves at a step: all log lines up to it."""
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    lines = [line for line in LOG if line["step"] <= step]
    (place / "trainer_state.json").write_text(json.dumps({"log_history": lines}), encoding="utf-8")


def ends(monkeypatch: pytest.MonkeyPatch, status: int, said: str) -> list[list[str]]:
    """Let runs end at once, as told; return the commands that were started."""
    started: list[list[str]] = []

    def run(command: list[str], **rest: Any) -> subprocess.CompletedProcess[str]:
        started.append(command)
        (folder := next(Path(word.removeprefix("output.folder=")) for word in command if word.startswith("output.folder=")))
        checkpoint(folder, 3)
        return subprocess.CompletedProcess(command, status, "", said)

    monkeypatch.setattr(stress.subprocess, "run", run)  # type: ignore[attr-defined]
    return started


def test_the_curve_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    assert stress.curve(tmp_path) == {"steps": [], "reward": [], "entropy": []}
    checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 2)
    assert stress.curve(tmp_path) == {"steps": [1, 3], "reward": [1.0, 0.5], "entropy": [0.5, 0.25]}


@pytest.mark.parametrize(("status", "said", "diverged"), [(0, "", False), (1, "Not finite at step 3: the weights", True)])
def test_numbers_that_are_not_finite_are_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str, diverged: bool
) -> None:
    started = ends(monkeypatch, status, said)
    found = stress.outcome(Path("recipe.yaml"), ["a=1"], tmp_path / "run", 2)
    assert found == {"diverged": diverged, "steps": [1, 3], "reward": [1.0, 0.5], "entropy": [0.5, 0.25]}
    assert {"a=1", "seed=2", "--resume"} < set(started[0])
    assert stress.outcome(Path("recipe.yaml"), ["a=1"], tmp_path / "run", 2) == found
    assert len(started) == 1  # what is there is not trained again


def test_any_other_end_is_an_error_even_behind_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, 1, "OSError: no space left on device")
    with pytest.raises(SystemExit, match="no space left"):
        stress.outcome(Path("recipe.yaml"), [], tmp_path / "run", 0)
    assert not (tmp_path / "run" / stress.DONE).exists()


def test_the_arms_differ_in_nothing_but_the_protections() -> None:
    assert stress.ARMS == {"StableReinforce": (), "Reinforce++": ("method.pre_clip=null", "method.advantages.filter=null")}


def test_runs_are_drawn_whether_they_diverged_or_not(tmp_path: Path) -> None:
    curve = {"steps": [1, 3], "reward": [1.0, 0.5], "entropy": [0.5, 0.25]}
    nothing: dict[str, list[float]] = {"steps": [], "reward": [], "entropy": []}
    runs = {
        "StableReinforce/0": {"diverged": False, **curve},
        "Reinforce++/0": {"diverged": True, **curve},
        "Reinforce++/1": {"diverged": True, **nothing},
    }
    stress.draw(runs, tmp_path / "stress.png")
    with Image.open(tmp_path / "stress.png") as picture:
        assert picture.width > 1000
