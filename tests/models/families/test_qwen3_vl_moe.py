"""What only Qwen3-VL with experts has: two layouts of experts on disk, and refusals of what cannot be told apart."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrm.data.errors import CheckpointError, UserError
from mmrm.models.backbone import load_critic, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.qwen3_vl_moe import FAMILY, PUBLISHED, Qwen3VLMoeShape
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.lora import with_adapters
from mmrm.train.recipe.parsing import parse_arguments, read_recipe
from mmrm.train.recipe.sections import LoraConfig
from mmrm.train.runs.model import add_adapters
from tests.models import stock, tiny
from tests.models.exactness import assert_exact
from tests.models.families.arrangements import arrangement, packed, reward_model, stock_cases
from tests.train import worker
from tests.train.minimal import write
from tests.train.ranks import run_ranks

NAME = "qwen3_vl_moe"


def at(folder: Path) -> BackboneConfig:
    return BackboneConfig(path=str(folder), dtype="float32")


def released(folder: Path) -> Path:
    """Write a checkpoint with transposed experts and without names of newer versions, as the released ones are."""
    transpose_experts(tiny.checkpoint(folder, family=NAME))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_experts"] = config["text_config"].pop("num_local_experts")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def transpose_experts(folder: Path) -> None:
    """Put the matrices of experts into the released layout."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if ".experts." in name:
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("load", [load_scalar, load_critic, load_language_model])
def test_transposed_experts_load_as_what_they_were_and_are_saved_in_the_current_layout(
    tmp_path: Path, load: Any
) -> None:
    wanted = tiny.language_model(family=NAME).state_dict()
    model = load(at(released(tmp_path / "released")))
    found = model.state_dict()
    experts = [name for name in found if ".experts." in name]
    assert len(experts) == 4
    for name in found.keys() & wanted.keys():
        assert torch.equal(found[name], wanted[name]), name
    model.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    for name in experts:
        assert torch.equal(saved[name], wanted[name]), name


def test_one_matrix_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = released(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.language_model.layers.1.mlp.experts.down_proj"
    tensors[name] = tensors[name][:, :, :-1].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"1 of another shape: .*layers\.1\.mlp\.experts\.down_proj"
    ):
        load_scalar(at(folder))


@pytest.mark.parametrize("expert_size", [16, 32])
def test_square_experts_are_refused_because_their_layout_cannot_be_seen(
    tmp_path: Path, expert_size: int
) -> None:
    tiny.checkpoint(tmp_path, family=NAME)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["moe_intermediate_size"] = expert_size
    file.write_text(json.dumps(config))
    for load in (load_scalar, load_critic, load_language_model):
        with pytest.raises(CheckpointError, match=f"moe_intermediate_size {expert_size} make a ma"):
            load(at(tmp_path))
    with pytest.raises(CheckpointError, match=f"moe_intermediate_size {expert_size} make a matrix"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize("change", [{"decoder_sparse_step": 2}, {"mlp_only_layers": [0]}])
def test_layers_without_experts_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    tiny.checkpoint(tmp_path, family=NAME)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"] |= change
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="some layers have no experts"):
        load_scalar(at(tmp_path), ScoreHeadConfig(layers=1))


def test_the_number_of_experts_is_read_under_both_names(tmp_path: Path) -> None:
    current = shape_of(str(tiny.checkpoint(tmp_path / "current", family=NAME)))
    as_released = shape_of(str(released(tmp_path / "released")))
    assert isinstance(current, Qwen3VLMoeShape)
    assert current == as_released
    assert current.num_experts == 8


def test_the_language_model_has_the_parameters_that_its_name_states() -> None:
    billions = {}
    for path, shape in PUBLISHED.items():
        counts = shape.count()
        whole = counts.language_model + counts.lm_head
        billions[path] = (round(whole / 1e9, 1), round((whole - counts.idle_experts) / 1e9, 1))
    # The cards of Qwen3-30B-A3B and Qwen3-235B-A22B state 30.5B and 3.3B, 235B and 22B.
    assert billions["Qwen/Qwen3-VL-30B-A3B-Instruct"] == (30.5, 3.4)
    assert billions["Qwen/Qwen3-VL-235B-A22B-Instruct"] == (235.1, 22.2)


def test_the_names_of_experts_and_routers_are_those_of_the_model() -> None:
    assert FAMILY.experts is not None
    with torch.device("meta"):
        backbone = FAMILY.parts().scalar.stock(tiny.config(NAME))
    for layer in backbone.language_model.layers:
        assert isinstance(layer.get_submodule(FAMILY.experts.router), torch.nn.Module)
        for name in FAMILY.experts.weights:
            assert layer.get_parameter(name).ndim == 3


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_adapted_experts_score_as_the_stock_model_with_merged_weights(tmp_path: Path) -> None:
    model: Any = reward_model(tmp_path / "base", NAME)
    model.save_pretrained(tmp_path / "base")
    lora = LoraConfig(rank=2, alpha=8, experts=True)
    adapted: Any = add_adapters(model, lora, has_head=True, has_master_weights=False)
    names = [name for name, one in adapted.named_parameters() if one.requires_grad]
    # A and B of four projections and two tensors of experts in two layers, and three of the head
    assert len(names) == 2 * 6 * 2 + 3
    counts = shape_of(str(tmp_path / "base")).count()  # type: ignore[union-attr]
    per_rank = counts.parameters_per_lora_rank + counts.expert_parameters_per_lora_rank
    adapters = [one for name, one in adapted.named_parameters() if ".lora_" in name]
    assert sum(one.numel() for one in adapters) == 2 * per_rank
    for adapter in adapters:
        tiny._draw(adapter, 0.1)
    adapted.eval()
    adapted.save_pretrained(tmp_path / "adapters")

    loaded: Any = load_scalar(at(tmp_path / "base"), ScoreHeadConfig(width=24)).eval()
    again: Any = with_adapters(loaded, tmp_path / "adapters").eval()
    prompts = arrangement(random.Random(5), NAME)
    with torch.no_grad():
        scores = packed(adapted.base_model.model, prompts, random.Random(1))
        assert_exact(packed(again.base_model.model, prompts, random.Random(1)), scores)
        merged = again.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        model = load_scalar(at(tmp_path / "merged"), fresh_head=False).eval()
        before = load_scalar(at(tmp_path / "base"), fresh_head=False).eval()
        assert float((packed(before, prompts, random.Random(1)) - scores).abs().max()) > 1e-3
        inputs = stock.padded_inputs(stock_cases(prompts, NAME), family=NAME)
        ends = inputs["attention_mask"].sum(1) - 1
        hidden = stock.hidden_states(stock.backbone(model.model), inputs)
        wanted = model.scores(hidden[torch.arange(len(ends)), ends])
    assert_exact(scores, wanted)


def test_adapters_of_experts_are_refused_where_there_are_none(tmp_path: Path) -> None:
    tiny.checkpoint(tmp_path)
    model = load_scalar(at(tmp_path), ScoreHeadConfig(layers=1))
    lora = LoraConfig(rank=2, experts=True)
    with pytest.raises(UserError, match=r"experts=true, but Qwen2\.5-VL has no experts"):
        add_adapters(model, lora, has_head=True, has_master_weights=False)


@pytest.mark.parametrize("change", ["optim.lora.experts=true", "optim.router_aux_loss_coef=0.1"])
def test_a_recipe_with_keys_of_experts_is_refused_for_a_backbone_without(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([str(write(tmp_path)), change, "--dry-run"], "rm", "")
    assert "embedded has no experts" in capsys.readouterr().err


def test_dropout_is_refused_for_adapters_of_experts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no input for a dropout of 0\.1"):
        read_recipe(write(tmp_path), ["optim.lora={rank: 4, experts: true, dropout: 0.1}"])


@pytest.mark.slow
@pytest.mark.parametrize("released_layout", [False, True])
def test_zero3_loads_both_layouts_and_adapts_experts_as_no_zero_does(
    tmp_path: Path, released_layout: bool
) -> None:
    recipe = str(worker.prepare(tmp_path, NAME))
    if released_layout:
        transpose_experts(tmp_path / "base")
    losses = []
    for stage in ("none", "zero3"):
        command = [recipe, "optim.lora={rank: 4, alpha: 8, experts: true}", f"deepspeed={stage}"]
        command += ["optim.activation_checkpointing=true", f"output.folder={tmp_path}/{stage}"]
        run_ranks(tmp_path / "log", worker.recipe_run, command)
        losses.append([line["loss"] for line in worker.lines(worker.ended(tmp_path / stage))])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_a_token_is_sent_where_it_is_sent_alone_however_many_others_go_there() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        block = tiny.language_model(family=NAME).model.language_model.layers[0].mlp
        hidden = torch.randn(1, 1, 32)
        crowd = hidden + 1e-3 * torch.randn(1, 400, 32)  # all go to about the same experts
        alone = block(hidden)
        among = block(torch.cat([crowd, hidden], dim=1))[:, -1:]
    assert float((alone - among).abs().max()) <= 1e-12 * float(alone.abs().max())
