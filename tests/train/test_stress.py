"""The stress comparison: what counts as diverged, which curve is read, and that it can be drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mmrm.data.errors import UserError
from mmrm.train import stress as stress_command
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.reinforce.stable_reinforce.config import StableReinforceConfig
from mmrm.train.runs.provenance import recipe_yaml
from mmrm.train.studies import stress
from mmrm.train.studies.ablation.variants import LOG as LOG_FILE
from mmrm.train.studies.ablation.variants import Run
from tests.train.minimal import write

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


def ends(monkeypatch: pytest.MonkeyPatch, status: int, said: str) -> list[Run]:
    """Let runs end at once with a status and a console; return those that were started."""
    started: list[Run] = []

    def launch(run: Run, launcher: list[str], lock: int) -> int:
        started.append(run)
        checkpoint(run.folder, 3)
        (run.folder / LOG_FILE).write_text(said, encoding="utf-8")
        return status

    monkeypatch.setattr(stress, "launch", launch)
    return started


def one_run(folder: Path) -> Run:
    recipe = read_recipe(
        write(folder), ["method={type: stable_reinforce}", f"output.folder={folder / 'run'}"]
    )
    return Run("StableReinforce", 2, recipe)


def test_the_curve_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    assert stress.curve(tmp_path) == {"steps": [], "reward": [], "entropy": []}
    checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 2)
    assert stress.curve(tmp_path) == {"steps": [1, 3], "reward": [1.0, 0.5], "entropy": [0.5, 0.25]}


@pytest.mark.parametrize(
    ("status", "said", "diverged"), [(0, "", False), (1, "Not finite at step 3: the weights", True)]
)
def test_numbers_that_are_not_finite_are_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str, diverged: bool
) -> None:
    started, run = ends(monkeypatch, status, said), one_run(tmp_path)
    found = stress.trained_outcome(run, 0)
    assert found == {
        "diverged": diverged,
        "steps": [1, 3],
        "reward": [1.0, 0.5],
        "entropy": [0.5, 0.25],
    }
    assert stress.trained_outcome(run, 0) == found
    assert started == [run]  # what is there is not trained again


def test_any_other_end_is_an_error_even_behind_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch, 1, "OSError: no space left on device")
    with pytest.raises(UserError, match="no space left"):
        stress.trained_outcome(one_run(tmp_path), 0)
    assert not (tmp_path / "run" / stress.DONE).exists()


def test_the_command_runs_both_arms_with_every_seed_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, path = ends(monkeypatch, 0, ""), str(write(tmp_path))
    arguments = [
        "method={type: stable_reinforce}",
        f"output.folder={tmp_path / 'out'}",
        "--seeds",
        "3",
        "4",
    ]
    monkeypatch.setattr("sys.argv", ["stress.py", path, *arguments])
    stress_command.main()
    recipes = [run.recipe for run in started]
    assert [(str(run.folder.relative_to(tmp_path)), run.recipe.seed) for run in started] == [
        ("out/StableReinforce/3", 3),
        ("out/StableReinforce/4", 4),
        ("out/Reinforce++/3", 3),
        ("out/Reinforce++/4", 4),
    ]
    assert [
        isinstance(recipe.method, StableReinforceConfig) and recipe.method.pre_clip is None
        for recipe in recipes
    ] == [
        False,
        False,
        True,
        True,
    ]
    assert {recipe.output.resume for recipe in recipes} == {"auto"}
    assert json.loads((tmp_path / "out" / "stress.json").read_text()).keys() == {
        f"{arm}/{seed}" for arm in stress.ARMS for seed in (3, 4)
    }
    assert (tmp_path / "out" / "stress.png").exists()
    assert "finished" in capsys.readouterr().out
    (tmp_path / "out" / "StableReinforce" / "3" / "recipe.yaml").write_text(
        recipe_yaml(recipes[2]), encoding="utf-8"
    )
    with pytest.raises(SystemExit, match="holds a run with another recipe"):
        stress_command.main()


def test_the_arms_differ_in_nothing_but_the_protections() -> None:
    assert stress.ARMS == {
        "StableReinforce": (),
        "Reinforce++": ("method.pre_clip=null", "method.advantages.filter=null"),
    }


def test_runs_are_drawn_whether_they_diverged_or_not(tmp_path: Path) -> None:
    curve = {"steps": [1, 3], "reward": [1.0, 0.5], "entropy": [0.5, 0.25]}
    nothing: dict[str, list[float]] = {"steps": [], "reward": [], "entropy": []}
    runs = {
        "StableReinforce/0": {"diverged": False, **curve},
        "Reinforce++/0": {"diverged": True, **curve},
        "Reinforce++/1": {"diverged": True, **nothing},
    }
    result = stress.study_result(runs, tmp_path / "stress.png")
    stress.write(result, tmp_path)
    assert [chart.title for chart in result.charts] == ["reward", "entropy"]
    assert [series.shape for series in result.charts[0].series] == ["dot", "dot", "cross"]
    assert "Reinforce++/1         diverged after step 0" in result.sentences[2]
    with Image.open(tmp_path / "stress.png") as picture:
        assert picture.width > 1000
