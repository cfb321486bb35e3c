"""Adapters: what is trained and saved, and that runs with them resume, shard and reload like any other."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mmrm.data.errors import UserError
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.suite.suite import Suite
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.portable.head_columns import columns_of
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.merging import merge
from mmrm.train.runs.model import make_model
from mmrm.train.runs.model_card import read_results
from tests.models import tiny
from tests.train import worker
from tests.train.ranks import run_ranks
from tests.train.worker import best_of, difference, ended, lines

LORA = [
    "optim.lora={rank: 4, alpha: 8, dropout: 0.2}",
    "backbone.system_prompt=be it",
    "optim.activation_checkpointing=full",
]
"""With dropout, so that a resume also needs the state of the generators."""
ADAPTERS = "adapter_model.safetensors"
STAGES = ("none", "zero3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train adapters on two ranks, in whole runs and in ones that are killed before step 3 and resumed."""
    folder = tmp_path_factory.mktemp("lora")
    recipe = str(worker.prepare(folder))
    for stage in STAGES:
        command = [recipe, *LORA, f"deepspeed={stage}"]
        run_ranks(folder / "log", worker.recipe_run, [*command, f"output.folder={folder}/{stage}"])
        killed = [*command, f"output.folder={folder}/{stage}-killed"]
        run_ranks(folder / "log", worker.dying_run, killed, 3, "step", status=-signal.SIGKILL)
        run_ranks(folder / "log", worker.recipe_run, [*killed, "--resume"])
    return folder


def recipe_of(folder: Path, *changes: str) -> Recipe:
    return read_recipe(folder / "recipe.yaml", [*LORA, *changes])


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_the_head_and_the_language_models_adapters_are_saved_and_nothing_else(
    trained: Path, stage: str
) -> None:
    saved = load_file(ended(trained / stage) / ADAPTERS)
    base = load_file(trained / "base" / "model.safetensors")
    adapters = {name: tensor for name, tensor in saved.items() if "lora_" in name}
    heads = {
        name.split(".model.")[-1]: tensor for name, tensor in saved.items() if name not in adapters
    }
    assert len(adapters) == 2 * 7 * 2  # A and B of seven projections in two layers
    assert all(".language_model.layers." in name for name in adapters)
    assert {name: tensor.shape for name, tensor in heads.items()} == {
        name: tensor.shape for name, tensor in base.items() if name.startswith("head.")
    }
    assert all(float((tensor - base[name]).abs().max()) > 1e-4 for name, tensor in heads.items())
    assert all(float(tensor.abs().max()) > 0 for tensor in adapters.values())


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_ends_like_an_uninterrupted_one(trained: Path, stage: str) -> None:
    here, there = ended(trained / stage), ended(trained / f"{stage}-killed")
    assert [line["loss"] for line in lines(here)] == [line["loss"] for line in lines(there)]
    assert difference(here, there, ADAPTERS) == 0.0
    for folder in (trained / stage, trained / f"{stage}-killed"):
        assert (folder / "best").resolve().name == best_of(folder)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_reloaded_checkpoint_has_the_figures_that_were_logged(
    trained: Path, stage: str, tmp_path: Path
) -> None:
    evaluation = recipe_of(trained).evaluation
    loaded = load_checkpoint(
        trained / stage / "best", Runtime(torch.device("cpu"), 400), load_scalar
    )
    judge = ScalarJudge(
        model=loaded.model, packed=loaded.packed, read="end_of_turn", columns=columns_of({})
    )
    suite = Suite.load(evaluation.benchmarks, evaluation.protocol)
    results, _ = suite.run(judge, tmp_path)
    found = results["vl_rewardbench"]
    logged = read_results((trained / stage / "best").resolve())["vl_rewardbench"]
    assert (found.micro, found.groups) == (logged.micro, logged.groups)


@pytest.mark.slow
def test_merged_adapters_are_an_ordinary_checkpoint_with_the_same_scores(
    trained: Path, tmp_path: Path
) -> None:
    merge(trained / "zero3" / "best", tmp_path / "merged")
    tree, found = worker.Written("it")[0].tree, []
    adapted = load_checkpoint(
        trained / "zero3" / "best", Runtime(torch.device("cpu")), load_scalar
    ).model
    merged = load_scalar(
        BackboneConfig(path=str(tmp_path / "merged"), dtype="float32"), fresh_head=False
    ).eval()
    for model in (adapted, merged):
        with torch.no_grad():
            found.append(model(**tiny.encoder().pack([tree]).score_inputs()))
    assert torch.allclose(found[0], found[1], atol=1e-5)
    base = load_file(trained / "base" / "model.safetensors")
    assert base.keys() == load_file(tmp_path / "merged" / "model.safetensors").keys()
    said = [load_judge(trained / "zero3" / "best").score("it", ["it", "it it"])]
    said.append(load_judge(tmp_path / "merged").score("it", ["it", "it it"]))
    (tmp_path / "merged" / "judge.json").unlink()  # its config.json has the system prompt too
    said.append(load_judge(tmp_path / "merged").score("it", ["it", "it it"]))
    assert [*said[1], *said[2]] == pytest.approx([*said[0], *said[0]], abs=1e-5)
    with pytest.raises(UserError, match="exists already"):
        merge(trained / "zero3" / "best", tmp_path / "merged")
    with pytest.raises(UserError, match="holds no adapters"):
        merge(tmp_path / "merged", tmp_path / "twice")


@pytest.mark.slow
def test_zero3_trains_as_no_zero_does_even_with_dropout(trained: Path) -> None:
    found, expected = ([line["loss"] for line in lines(ended(trained / stage))] for stage in STAGES)
    assert len(found) == 6
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("changes", [[], ["method={type: critic}"]])
def test_only_adapters_and_the_reward_head_are_trained(tmp_path: Path, changes: list[str]) -> None:
    """A critic has an LM head too, whose name also ends with `head`."""
    worker.prepare(tmp_path)
    model = make_model(recipe_of(tmp_path, f"backbone.path={tmp_path}/backbone", *changes))
    parts = {name.rsplit(".default", 1)[0].split(".")[-1] for name in trainable(model)}
    assert parts == {"lora_A", "lora_B", "modules_to_save"}
    assert not any("visual" in name or "lm_head" in name for name in trainable(model))


@pytest.mark.parametrize(
    ("stage", "expected"), [("none", torch.float32), ("zero2", torch.bfloat16)]
)
def test_what_is_trained_is_fp32_unless_deepspeed_keeps_a_copy(
    tmp_path: Path, stage: str, expected: torch.dtype
) -> None:
    worker.prepare(tmp_path)
    model: Any = make_model(recipe_of(tmp_path, "backbone.dtype=bfloat16", f"deepspeed={stage}"))
    assert {parameter.dtype for parameter in trainable(model).values()} == {expected}
    frozen = {p.dtype for p in model.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}


def test_the_recipe_says_how_strong_the_adapters_are(tmp_path: Path) -> None:
    worker.prepare(tmp_path)
    model: Any = make_model(recipe_of(tmp_path))
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 8, 0.2)
    model.save_pretrained(tmp_path / "saved")
    assert (
        json.loads((tmp_path / "saved" / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        == 4
    )
