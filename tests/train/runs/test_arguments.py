"""What a recipe's numbers become in the arguments of the three trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from tests.models import tiny
from tests.train.minimal import MINIMAL, write
from train.recipe.methods import StableReinforceConfig
from train.recipe.parsing import Entry, read_recipe
from train.recipe.recipe import OptimConfig
from train.runs.arguments import reinforce_arguments, training_arguments

METHODS = {
    "rm": "{type: naive}",
    "sft": "{type: language_model, target: lessons}",
    "rl": "{type: stable_reinforce}",
}
STEPS = 20


def arguments(folder: Path, entry: Entry, *changes: str) -> TrainingArguments:
    path = write(folder, MINIMAL.replace("{type: naive}", METHODS[entry]))
    recipe = read_recipe(path, [*changes, f"output.folder={folder / 'run'}"], entry=entry)
    if isinstance(recipe.method, StableReinforceConfig):
        return reinforce_arguments(recipe, recipe.method, STEPS, tiny.encoder(), resumes=False)
    return training_arguments(recipe, STEPS, resumes=False)


@pytest.mark.parametrize("schedule", get_args(OptimConfig.model_fields["schedule"].annotation))
@pytest.mark.parametrize("entry", METHODS)
def test_every_schedule_begins_with_the_warm_up(tmp_path: Path, entry: Any, schedule: str) -> None:
    found = arguments(tmp_path, entry, f"optim.schedule={schedule}", "optim.warmup_ratio=0.2", "optim.learning_rate=0.5")
    model = nn.Linear(1, 1)
    scheduler = Trainer(model=model, args=found).create_scheduler(STEPS, torch.optim.AdamW(model.parameters(), lr=0.5))
    rates = []
    for _ in range(STEPS + 1):
        rates += scheduler.get_last_lr()
        scheduler.optimizer.step()
        scheduler.step()
    assert (rates[0], rates[2], rates[4]) == (0.0, 0.25, 0.5)
    assert rates[STEPS] == pytest.approx(0.5 if schedule == "constant" else 0.0)


@pytest.mark.parametrize("correction", get_args(StableReinforceConfig.model_fields["importance_correction"].annotation))
def test_what_vllm_sampled_is_weighted_as_the_recipe_says(tmp_path: Path, correction: str) -> None:
    found = arguments(tmp_path, "rl", "method.engine=vllm_colocate", f"method.importance_correction={correction}")
    assert found.vllm_importance_sampling_correction == (correction != "none")
    assert found.vllm_importance_sampling_mode == correction
    assert (found.vllm_importance_sampling_clip_min, found.vllm_importance_sampling_clip_max) == (None, 3.0)
