"""What only Qwen3-VL with experts has: two layouts of experts on disk, and refusals of what cannot be told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrm.data.errors import CheckpointError
from mmrm.models.backbone import load_critic, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.qwen3_vl_moe import FAMILY, PUBLISHED, Qwen3VLMoeShape
from mmrm.models.heads.score_head import ScoreHeadConfig
from tests.models import tiny

NAME = "qwen3_vl_moe"


def at(folder: Path) -> BackboneConfig:
    return BackboneConfig(path=str(folder), dtype="float32")


def released(folder: Path) -> Path:
    """Write a checkpoint with transposed experts and without names of newer versions, as the released ones are."""
    tiny.checkpoint(folder, family=NAME)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if ".experts." in name:
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_experts"] = config["text_config"].pop("num_local_experts")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


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
def test_a_token_is_sent_where_it_is_sent_alone_however_many_others_go_there() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        block = tiny.language_model(family=NAME).model.language_model.layers[0].mlp
        hidden = torch.randn(1, 1, 32)
        crowd = hidden + 1e-3 * torch.randn(1, 400, 32)  # all go to about the same experts
        alone = block(hidden)
        among = block(torch.cat([crowd, hidden], dim=1))[:, -1:]
    assert float((alone - among).abs().max()) <= 1e-12 * float(alone.abs().max())
