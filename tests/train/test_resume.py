"""Promise 8: after a SIGKILL, the same command with --resume gives the same curve, weights and figures, to the last bit."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any, Literal

import pytest

from mmrm.data.preparation.mixing import Mixture
from mmrm.train.checkpoints.rotation import whole_checkpoints
from mmrm.train.recipe.parsing import read_recipe
from tests.train import worker
from tests.train.conftest import share_images, share_prompts
from tests.train.ranks import run_ranks
from tests.train.worker import difference, ended, lines

pytestmark = pytest.mark.slow


SPEED = ("records_per_second", "tokens_per_second", "data_wait", "eval_judging/seconds_per_pair")
Moment = Literal["step", "save", "mark", "copy"]
MOMENTS: list[tuple[str, Moment, int, int]] = [
    ("none", "step", 3, 1),
    ("zero2", "mark", 4, 0),
    ("zero3", "save", 4, 0),
    ("zero3", "copy", 4, 0),
]
"""Stage, what the kill cuts off, at which step, and loader workers. A whole checkpoint is there after step 2."""


def curve(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if name not in SPEED} for line in lines(folder)
    ]


def figures(folder: Path) -> Any:
    return json.loads((folder / "eval" / "vl_rewardbench.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("stage", "moment", "step", "workers"), MOMENTS)
def test_a_killed_run_ends_like_an_uninterrupted_one(
    runs: Path, tmp_path: Path, stage: str, moment: Moment, step: int, workers: int
) -> None:
    whole, killed = runs / f"2-{stage}", tmp_path / "killed"
    command = [
        str(runs / "recipe.yaml"),
        f"deepspeed={stage}",
        f"output.folder={killed}",
        f"workers={workers}",
    ]
    if moment == "copy":
        command.append(f"output.staging={tmp_path / 'staging'}")
    run_ranks(tmp_path / "first", worker.dying_run, command, step, moment, status=-signal.SIGKILL)
    assert [path.name for path in whole_checkpoints(killed)] == ["checkpoint-2"]
    assert (killed / "checkpoint-4").exists() == (moment != "step")
    printed = run_ranks(tmp_path / "second", worker.recipe_run, [*command, "--resume"])
    assert ("checkpoint-4 was cut off" in printed) == (moment != "step")
    assert "step 0" not in printed  # what is evaluated before the first step is not evaluated again
    assert curve(ended(killed)) == curve(ended(whole))
    assert difference(ended(killed), ended(whole)) == 0.0
    assert figures(ended(killed)) == figures(ended(whole))
    assert (killed / "best").resolve().name == (whole / "best").resolve().name


@pytest.mark.parametrize("stage", ["none", "zero2"])
def test_usr1_on_one_rank_saves_and_ends_all_and_the_run_continues_alike(
    runs: Path, tmp_path: Path, stage: str
) -> None:
    """Step 3 is none after which the recipe saves."""
    whole, folder = runs / f"2-{stage}", tmp_path / "run"
    command = [str(runs / "recipe.yaml"), f"deepspeed={stage}", f"output.folder={folder}"]
    printed = run_ranks(tmp_path / "first", worker.signalled_run, command, 3, signal.SIGUSR1, [1])
    assert (
        "SIGUSR1: checkpoint-3 of 6 steps is complete, the run ends; continue with --resume"
        in printed
    )
    assert whole_checkpoints(folder)[-1].name == "checkpoint-3"
    run_ranks(tmp_path / "second", worker.recipe_run, [*command, "--resume"])
    assert [line for line in curve(ended(folder)) if "loss" in line] == [
        line for line in curve(ended(whole)) if "loss" in line
    ]
    assert difference(ended(folder), ended(whole)) == 0.0


def test_ctrl_c_is_a_line_and_no_traceback(runs: Path, tmp_path: Path) -> None:
    command = [str(runs / "recipe.yaml"), f"output.folder={tmp_path / 'run'}"]
    printed = run_ranks(
        tmp_path / "log", worker.signalled_run, command, 3, signal.SIGINT, [0, 1], status=130
    )
    assert "Traceback" not in printed
    assert (
        printed.count(
            "Interrupted. Complete checkpoints are kept: continue from the last one with --resume."
        )
        == 1
    )
    assert [path.name for path in whole_checkpoints(tmp_path / "run")] == ["checkpoint-2"]


def test_a_killed_run_of_images_together_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    """Steps of questions about one image are the same on one rank, on two, and after a kill."""
    recipe = worker.prepare(tmp_path)
    share_images(recipe)
    command = [str(recipe), "evaluation.benchmarks=[]", "evaluation.best_metric=null"]
    together = [*command, "method.images_together=8"]
    for name, changes, ranks in (
        ("apart", command, 1),
        ("alone", together, 1),
        ("whole", together, 2),
    ):
        folder = f"output.folder={tmp_path / name}"
        run_ranks(tmp_path / f"log-{name}", worker.recipe_run, [*changes, folder], ranks=ranks)
    killed = [*together, f"output.folder={tmp_path / 'killed'}"]
    run_ranks(tmp_path / "first", worker.dying_run, killed, 3, "step", status=-signal.SIGKILL)
    run_ranks(tmp_path / "second", worker.recipe_run, [*killed, "--resume"])
    assert curve(ended(tmp_path / "killed")) == curve(ended(tmp_path / "whole"))
    assert difference(ended(tmp_path / "killed"), ended(tmp_path / "whole")) == 0.0
    losses = {
        name: [line["loss"] for line in lines(ended(tmp_path / name)) if "loss" in line]
        for name in ("apart", "alone", "whole")
    }
    assert losses["whole"] == pytest.approx(losses["alone"], abs=2e-5)
    assert difference(ended(tmp_path / "whole"), ended(tmp_path / "alone")) < 2e-4
    assert losses["apart"] != pytest.approx(losses["alone"], abs=1e-3)  # another order


def test_a_finished_run_is_left_as_it_is(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "2-none", folder, symlinks=True)
    before = (ended(folder) / "model.safetensors").stat().st_mtime_ns
    (folder / "best").unlink()  # a kill may have come before it was set
    command = [str(runs / "recipe.yaml"), f"output.folder={folder}", "--resume"]
    run_ranks(tmp_path / "log", worker.recipe_run, command)
    assert (ended(folder) / "model.safetensors").stat().st_mtime_ns == before
    assert (folder / "best" / "model.safetensors").exists()


def test_a_run_from_before_sets_were_placed_at_random_keeps_its_order(tmp_path: Path) -> None:
    """A resume of such a run, a resume of that, and more steps follow the order that was begun."""
    recipe = worker.prepare(tmp_path)
    share_prompts(recipe)
    run = tmp_path / "run"
    command = [str(recipe), "evaluation.benchmarks=[]", "evaluation.best_metric=null"]
    run_ranks(tmp_path / "log", worker.recipe_run, [*command, "optim.max_steps=2"], ranks=1)

    mixture = Mixture(read_recipe(recipe).data)
    new_order = [*mixture.order(0, 4).tolist(), *mixture.order(1, 4)[:8].tolist()]
    mixture.set_placement = "first_member"
    old_order = [*mixture.order(0, 4).tolist(), *mixture.order(1, 4)[:8].tolist()]
    assert sorted(new_order[:16]) == sorted(old_order[:16]) == list(range(16))
    assert new_order[8:] != old_order[8:]

    resume = [*command, "--resume"]  # six steps, which are an epoch and a half
    printed = run_ranks(tmp_path / "log", worker.print_order, resume, ranks=1)
    assert f"ORDER {new_order}" in printed
    assert "continues in that order" not in printed

    launches = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    for launch in launches:
        del launch["set_placement"]  # it was not recorded when there was only one
    (run / "provenance.json").write_text(json.dumps(launches), encoding="utf-8")
    for _ in range(2):
        printed = run_ranks(tmp_path / "log", worker.print_order, resume, ranks=1)
        assert f"ORDER {old_order}" in printed
        assert printed.count("continues in that order") == 1


def test_other_settings_are_refused_and_nothing_is_told_of_old_weights(
    runs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "2-none", folder, symlinks=True)
    before = [(folder / name).read_text() for name in ("recipe.yaml", "provenance.json")]
    command = [
        str(runs / "recipe.yaml"),
        f"output.folder={folder}",
        "--resume",
        "optim.learning_rate=0.5",
    ]
    printed = run_ranks(tmp_path / "log", worker.recipe_run, command, ranks=1, status=1)
    assert "optim.learning_rate: 0.001 -> 0.5" in printed
    assert "Traceback" not in printed
    assert [(folder / name).read_text() for name in ("recipe.yaml", "provenance.json")] == before


def test_without_resume_an_old_run_is_not_written_over(runs: Path, tmp_path: Path) -> None:
    command = [str(runs / "recipe.yaml"), f"output.folder={runs}/2-none"]
    printed = run_ranks(tmp_path, worker.recipe_run, command, ranks=1, status=2)
    assert "add --resume to continue that run" in printed
