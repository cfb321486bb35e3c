"""What a recipe's numbers become in the arguments of the three trainers, and where wandb writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from rich.console import Console
from torch import nn
from transformers import Trainer, TrainingArguments

from mmrm.data.errors import RecipeError
from mmrm.train.methods.trainer_arguments import prepare_wandb, training_arguments
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.sections import OptimConfig, Script
from mmrm.train.reinforce.stable_reinforce.config import StableReinforceConfig
from mmrm.train.reinforce.stable_reinforce.method import StableReinforceMethod
from tests.models import tiny
from tests.train.minimal import MINIMAL, write

METHODS = {
    "rm": "{type: naive}",
    "sft": "{type: language_model, target: lessons}",
    "rl": "{type: stable_reinforce}",
}
STEPS = 20


def arguments(folder: Path, entry: Script, *changes: str) -> TrainingArguments:
    path = write(folder, MINIMAL.replace("{type: naive}", METHODS[entry]))
    optim = f"optim={{learning_rate: 1e-4, records_per_step: 4, epochs: null, max_steps: {STEPS}}}"
    recipe = read_recipe(path, [optim, *changes, f"output.folder={folder / 'run'}"], entry=entry)
    if isinstance(recipe.method, StableReinforceConfig):
        method = StableReinforceMethod(recipe, tiny.encoder(), Console(quiet=True))
        method.setup()
        return method.arguments()
    return training_arguments(recipe, STEPS)


@pytest.mark.parametrize("schedule", get_args(OptimConfig.model_fields["schedule"].annotation))
@pytest.mark.parametrize("entry", METHODS)
def test_every_schedule_begins_with_the_warm_up(tmp_path: Path, entry: Any, schedule: str) -> None:
    found = arguments(
        tmp_path,
        entry,
        f"optim.schedule={schedule}",
        "optim.warmup_ratio=0.2",
        "optim.learning_rate=0.5",
    )
    model = nn.Linear(1, 1)
    scheduler = Trainer(model=model, args=found).create_scheduler(
        STEPS, torch.optim.AdamW(model.parameters(), lr=0.5)
    )
    rates = []
    for _ in range(STEPS + 1):
        rates += scheduler.get_last_lr()
        scheduler.optimizer.step()
        scheduler.step()
    assert (rates[0], rates[2], rates[4]) == (0.0, 0.25, 0.5)
    assert rates[STEPS] == pytest.approx(0.5 if schedule == "constant" else 0.0)


@pytest.mark.parametrize(
    "correction", get_args(StableReinforceConfig.model_fields["importance_correction"].annotation)
)
def test_what_vllm_sampled_is_weighted_as_the_recipe_says(tmp_path: Path, correction: str) -> None:
    found = arguments(
        tmp_path, "rl", "method.engine=vllm_colocate", f"method.importance_correction={correction}"
    )
    assert found.vllm_importance_sampling_correction == (correction != "none")
    assert found.vllm_importance_sampling_mode == correction
    assert (found.vllm_importance_sampling_clip_min, found.vllm_importance_sampling_clip_max) == (
        None,
        3.0,
    )


@pytest.mark.parametrize(("login", "mode"), [(False, "offline"), (True, None)])
def test_the_mode_follows_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: bool, mode: str | None
) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.setenv(
            name, "to be forgotten"
        )  # so that monkeypatch takes back what is set below
        monkeypatch.delenv(name)
    monkeypatch.setattr("wandb.login", lambda **asked: login)
    prepare_wandb("shapes", tmp_path / "run")
    assert os.environ.get("WANDB_MODE") == mode
    assert os.environ["WANDB_PROJECT"] == "shapes"
    assert Path(os.environ["WANDB_DIR"]) == tmp_path / "run"
    assert (tmp_path / "run").is_dir()


def test_what_is_set_stays_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(**keywords: object) -> bool:
        raise AssertionError("wandb was asked")

    monkeypatch.setattr("wandb.login", asked)
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "mine")
    prepare_wandb("shapes", tmp_path)
    assert {os.environ[name] for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT")} == {"mine"}


def test_tensorboard_writes_into_the_run_folder_and_nobody_logs_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "elsewhere")
    assert arguments(tmp_path, "rm").report_to == []
    monkeypatch.setattr("mmrm.train.recipe.input_paths.find_spec", lambda name: None)
    with pytest.raises(
        RecipeError, match=r"(?s)output\.tensorboard = true.*pip install -e \.\[tensorboard\]"
    ):
        arguments(tmp_path, "rm", "output.tensorboard=true")
    monkeypatch.setattr("mmrm.train.recipe.input_paths.find_spec", lambda name: object())
    assert arguments(tmp_path, "rm", "output.tensorboard=true").report_to == ["tensorboard"]
    assert Path(os.environ["TENSORBOARD_LOGGING_DIR"]) == tmp_path / "run" / "tensorboard"
