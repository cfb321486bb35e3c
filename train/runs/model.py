"""The model of a run, with number formats, adapters and activation checkpointing."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from mmrm.models.backbone import compute_in_half, load_critic, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.families.registry import family_of
from mmrm.train.recipe.deepspeed_config import NONE
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.sections import LoraConfig as LoraSection
from mmrm.train.supervised.devices import device
from mmrm.train.supervised.optimizer import compile_layers


def make_model(recipe: Recipe) -> nn.Module:
    """Load the recipe's backbone, with the heads that its method needs.

    Optimizer steps are smaller than what bf16 can add to a weight. DeepSpeed keeps fp32 copies of
    what it trains in bf16. Without DeepSpeed the trained weights themselves are fp32, and autocast
    computes in bf16.
    """
    lora = recipe.optim.lora
    keeps_masters = recipe.deepspeed != NONE
    backbone = recipe.backbone
    if not keeps_masters and lora is None:
        backbone = backbone.model_copy(update={"dtype": "float32"})
    nf4 = lora is not None and lora.quantise == "nf4"
    model = load_model(recipe, backbone, nf4=nf4)
    if not keeps_masters and recipe.backbone.dtype == "bfloat16":
        compute_in_half(model, device())
    if recipe.optim.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if recipe.optim.compile == "layers":
        compile_layers(model.model)
    if lora is None:
        return model  # type: ignore[no-any-return]
    return add_adapters(model, lora, head=recipe.has_head, masters=keeps_masters)


def load_model(recipe: Recipe, backbone: BackboneConfig, *, nf4: bool) -> Any:
    """Load the class of model that the recipe's method trains, from `backbone`."""
    method = recipe.method
    if method.model == "scalar":
        return load_scalar(backbone, recipe.head, nf4=nf4)
    if method.model == "critic":
        return load_critic(backbone, recipe.head, critique=method.written_critiques, nf4=nf4)
    return load_language_model(backbone, nf4=nf4)


def add_adapters(model: Any, lora: LoraSection, *, head: bool, masters: bool) -> nn.Module:
    """Return `model` frozen, with trainable adapters and, with `head`, a trainable head.

    The trained weights are fp32, unless the optimizer keeps fp32 copies of them (`masters`).
    """
    # peft goes by the ends of names, and `head` is also the end of `lm_head`. Therefore the layers
    # of the head are named one by one.
    trained_in_full: list[str] = []
    if head:
        for name, layer in model.get_submodule("head").named_children():
            if list(layer.parameters()):
                trained_in_full.append(f"head.{name}")
    adapters = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=family_of(model.config.model_type).lora_targets,
        modules_to_save=trained_in_full or None,
    )
    adapted: nn.Module = get_peft_model(model, adapters, autocast_adapter_dtype=False)
    for parameter in adapted.parameters():
        if parameter.requires_grad and not masters:
            parameter.data = parameter.data.to(torch.float32)
    return adapted
