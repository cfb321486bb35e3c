"""Which parameter gets which learning rate and decay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer

from mmrm.models.backbone import load_language_model, load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.train.recipe.sections import OptimConfig
from mmrm.train.supervised import optimizer
from mmrm.train.supervised.optimizer import (
    FiniteTrainer,
    is_matrix,
    learning_rates,
    make_optimizer,
    parameter_groups,
    part_of,
)
from tests.models import tiny


def optim(**changes: Any) -> OptimConfig:
    return OptimConfig(**{"learning_rate": 1e-4, "records_per_step": 1, "max_steps": 1, **changes})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("model.visual.merger.mlp.0.bias", "vision"),
        ("model.language_model.layers.0.self_attn.q_proj.weight", "language"),
        ("lm_head.weight", "language"),
        ("head.0.weight", "head"),
        ("module.head.3.weight", "head"),
        ("base_model.model.head.modules_to_save.default.0.weight", "head"),
        (
            "base_model.model.model.language_model.layers.1.mlp.up_proj.lora_A.default.weight",
            "language",
        ),
    ],
)
def test_a_name_says_the_part(name: str, part: str) -> None:
    assert part_of(name) == part


def test_every_trainable_parameter_is_in_one_group_with_its_rate_and_decay(tmp_path: Path) -> None:
    model = load_scalar(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32", freeze=["projector"])
    )
    config = optim(head_learning_rate=3e-3, vision_learning_rate=2e-5, weight_decay=0.1)
    rates = {"head": 3e-3, "vision": 2e-5, "language": 1e-4}
    found = {
        id(p): group
        for group in parameter_groups(model.named_parameters(), config)
        for p in group["params"]
    }
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert not any("merger" in name for name in trainable)
    assert found.keys() == {id(p) for p in trainable.values()}
    for name, parameter in trainable.items():
        group = found[id(parameter)]
        assert group["lr"] == rates[part_of(name)]
        assert group["weight_decay"] == (0.1 if parameter.ndim > 1 else 0.0)


def test_without_rates_of_their_own_all_parts_take_the_common_one(tmp_path: Path) -> None:
    optimizer = make_optimizer(
        load_language_model(BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")),
        optim(),
    )
    assert learning_rates(optimizer) == {"vision": 1e-4, "language": 1e-4}
    assert optimizer.defaults["betas"] == (0.9, 0.999)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}


def test_a_partitioned_parameter_keeps_its_shape_elsewhere() -> None:
    parameter = nn.Parameter(torch.empty(0))
    assert not is_matrix(parameter)
    parameter.ds_shape = torch.Size((4, 3))  # type: ignore[attr-defined]
    assert is_matrix(parameter)


def test_decay_shrinks_matrices_only() -> None:
    model = nn.Linear(2, 2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    make_optimizer(model, optim(learning_rate=0.5, weight_decay=0.2)).step()
    assert torch.allclose(model.weight, before["weight"] * 0.9)
    assert torch.equal(model.bias, before["bias"])


def test_the_room_is_looked_at_when_the_checkpoint_before_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the disk holds half of it, and old checkpoints that will be removed."""
    events: list[str] = []

    def note(event: str) -> Any:
        return lambda *arguments: events.append(event)

    @contextmanager
    def room(*arguments: Any) -> Iterator[None]:
        events.append("room")
        yield

    monkeypatch.setattr(Trainer, "_save_checkpoint", note("save"))
    monkeypatch.setattr(optimizer, "room_for_checkpoint", room)
    trainer: Any = object.__new__(FiniteTrainer)
    trainer.args = SimpleNamespace(output_dir=str(tmp_path), world_size=1)
    trainer.state = SimpleNamespace(global_step=3)
    trainer.optim = optim()
    trainer.is_deepspeed_enabled = False
    node = SimpleNamespace(num_ranks=1)
    trainer.staging = SimpleNamespace(
        wait=note("wait"), begin=note("begin"), node=node, place=tmp_path
    )
    trainer._save_checkpoint(nn.Linear(2, 2), None)
    assert events == ["wait", "room", "begin", "save"]
