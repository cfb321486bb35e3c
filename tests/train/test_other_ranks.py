"""A run continues on another number of ranks, as it would have without the change."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrm.train.checkpoints.rotation import whole_checkpoints
from mmrm.train.checkpoints.universal import LATEST_UNIVERSAL, ranks_of_states
from tests.train import worker
from tests.train.ranks import run_ranks
from tests.train.worker import difference, lines

pytestmark = pytest.mark.slow

STEPS = 60


def arguments(recipe: Path, folder: Path, changes: Sequence[str]) -> list[str]:
    return [
        str(recipe),
        *changes,
        f"output.folder={folder}",
        f"optim.max_steps={STEPS}",
        "optim.learning_rate=1e-4",
        "output.save_every_steps=10",
        "evaluation.benchmarks=[]",
        "evaluation.best_metric=null",
    ]


def last(folder: Path) -> Path:
    return whole_checkpoints(folder)[-1]


def losses(folder: Path) -> list[float]:
    """Return the losses of all steps, from the state of the last checkpoint."""
    return [line["loss"] for line in lines(last(folder))]


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        (["deepspeed=zero2"], "model.safetensors"),
        (["deepspeed=zero3"], "model.safetensors"),
        (["deepspeed=zero2", "optim.lora={rank: 4}"], "adapter_model.safetensors"),
        (["deepspeed=zero3", "optim.lora={rank: 4}"], "adapter_model.safetensors"),
    ],
    ids=["zero2", "zero3", "zero2-lora", "zero3-lora"],
)
def test_two_ranks_then_one_then_two(tmp_path: Path, changes: Sequence[str], weights: str) -> None:
    """Each change comes after a kill: the run on one rank also saves states that two ranks load."""
    recipe = worker.prepare(tmp_path)
    whole = tmp_path / "whole"
    changed = tmp_path / "changed"
    run_ranks(tmp_path / "log-whole", worker.recipe_run, arguments(recipe, whole, changes))
    command = arguments(recipe, changed, changes)
    killed = -signal.SIGKILL
    run_ranks(tmp_path / "first", worker.dying_run, command, 25, "step", status=killed)
    command.append("--resume")
    printed = run_ranks(
        tmp_path / "second", worker.dying_run, command, 45, "step", ranks=1, status=killed
    )
    assert "checkpoint-20 was saved on 2 ranks: its states are converted for 1" in printed
    assert ranks_of_states(last(changed)) == 1
    printed = run_ranks(tmp_path / "third", worker.dying_run, command, 55, "step", status=killed)
    assert "checkpoint-40 was saved on 1 rank: its states are converted for 2" in printed
    # What was saved after a change is loaded on as many ranks: DeepSpeed issue 7546.
    printed = run_ranks(tmp_path / "fourth", worker.recipe_run, command)
    assert "converted" not in printed
    assert losses(changed) == pytest.approx(losses(whole), rel=1e-5)
    assert len(losses(changed)) == STEPS
    assert difference(last(changed), last(whole), weights) < 1e-5


def test_an_interrupted_conversion_begins_again(tmp_path: Path) -> None:
    recipe = worker.prepare(tmp_path)
    folder = tmp_path / "run"
    command = arguments(recipe, folder, ["deepspeed=zero2"])
    run_ranks(tmp_path / "first", worker.dying_run, command, 12, "step", status=-signal.SIGKILL)
    checkpoint = last(folder)
    command.append("--resume")
    run_ranks(
        tmp_path / "second", worker.killed_conversion, command, ranks=1, status=-signal.SIGKILL
    )
    (half,) = checkpoint.glob("converting-*")
    assert any(half.rglob("*.pt"))
    assert not (checkpoint / LATEST_UNIVERSAL).exists()
    printed = run_ranks(tmp_path / "third", worker.recipe_run, command, ranks=1)
    assert "its states are converted for 1" in printed
    assert not half.exists()
    assert len(losses(folder)) == STEPS
