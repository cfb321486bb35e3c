"""AdamW with a learning rate of its own for the head and for the vision tower.

torch.compile where it pays: the MLPs and norms of both towers, in place, so that names and checkpoints stay as they are.

Attention stays as it is: its plan changes with every row. Shapes are dynamic, and layers of one kind share a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from train.recipe.recipe import OptimConfig

VECTORS = "_vectors"
"""Ends the names of the groups of norms and biases."""


def part_of(name: str) -> str:
    """Return `head`, `vision` or `language` for a parameter's name, with or without the wrappers of PEFT and DDP."""
    parts = name.split(".")
    return "head" if "head" in parts else "vision" if "visual" in parts else "language"


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]], config: OptimConfig) -> list[dict[str, Any]]:
    """Sort the trainable parameters into groups by learning rate and decay; a group is named after what is in it.

    Vectors (norms, biases) are never decayed, as in Hugging Face's Trainer.
    """
    rates = {
        "head": config.head_learning_rate or config.learning_rate,
        "vision": config.vision_learning_rate or config.learning_rate,
        "language": config.learning_rate,
    }
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        decayed = is_matrix(parameter)
        key = part_of(name) + ("" if decayed else VECTORS)
        group = groups.setdefault(
            key,
            {"name": key, "params": [], "lr": rates[part_of(name)], "weight_decay": config.weight_decay if decayed else 0.0},
        )
        group["params"].append(parameter)
    return list(groups.values())


def learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the present learning rate of every part that is trained: `head`, `vision`, `language`."""
    return {group["name"].removesuffix(VECTORS): group["lr"] for group in optimizer.param_groups}


def is_matrix(parameter: nn.Parameter) -> bool:
    """Say whether `parameter` has two or more dimensions; ZeRO-3 keeps a partitioned parameter's shape in `ds_shape`."""
    shape = parameter.ds_shape if hasattr(parameter, "ds_shape") else parameter.shape
    return len(shape) > 1


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return fused AdamW over the trainable parameters of `model`."""
    groups = parameter_groups(model.named_parameters(), config)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def element_wise(backbone: Any) -> Iterator[nn.Module]:
    """Yield the MLPs and norms of a Qwen2_5_VLModel: what works on every token by itself."""
    for layer in backbone.language_model.layers:
        yield from (layer.mlp, layer.input_layernorm, layer.post_attention_layernorm)
    yield backbone.language_model.norm
    for block in backbone.visual.blocks:
        yield from (block.mlp, block.norm1, block.norm2)


def compile_layers(backbone: Any) -> None:
    """Have the MLPs and norms of a Qwen2_5_VLModel compiled at their first use."""
    for module in element_wise(backbone):
        module.compile(dynamic=True)


def restore_layers(backbone: Any) -> None:
    """Undo `compile_layers`."""
    for module in element_wise(backbone):
        module._compiled_call_impl = None


def compiled_graphs() -> int:
    """Return the graphs that were compiled so far: if it goes on rising after the first steps, shapes recompile."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
