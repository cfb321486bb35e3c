"""What a run is put together from: the budget of passes without gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eval.judges.checkpoint import TOKEN_BUDGET
from train.recipe.parsing import read_recipe
from train.runs import parts
from train.supervised.budget import FIRST_BUDGET, LOWERED

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "shapes" / "naive.yaml"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_evaluation_in_a_run_packs_as_one_of_its_checkpoint_does(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "device", lambda: torch.device(device))
    recipe = read_recipe(RECIPE, ["optim.token_budget=auto"])
    assert parts.inference_budget(recipe) == TOKEN_BUDGET[device]
    assert parts.token_budget(recipe) == FIRST_BUDGET
    assert parts.inference_budget(read_recipe(RECIPE, ["optim.token_budget=777"])) == 777


@pytest.mark.parametrize(
    ("deepspeed", "device", "begin"), [("zero3", "cuda", FIRST_BUDGET), ("zero3", "cpu", 9000), ("zero2", "cuda", 9000)]
)
def test_under_zero3_rows_begin_small_because_it_cannot_take_a_lack_of_memory_back(
    deepspeed: str, device: str, begin: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parts, "device", lambda: torch.device(device))
    changes = ["optim.token_budget=9000", f"deepspeed={deepspeed}", f"output.folder={tmp_path}"]
    assert parts.token_budget(read_recipe(RECIPE, changes)) == begin
    (tmp_path / LOWERED).write_text("500")
    assert parts.token_budget(read_recipe(RECIPE, changes)) == 500
