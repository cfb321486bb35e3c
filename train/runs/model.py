"""The model that a run trains, in its number format, with adapters and activation checkpointing."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from mmrm.data.errors import UserError
from mmrm.models.activations import set_checkpointing
from mmrm.models.backbone import (
    compute_in_half,
    load_critic,
    load_language_model,
    load_scalar,
    set_joint_responses,
)
from mmrm.models.config import BackboneConfig
from mmrm.models.families.registry import family_of
from mmrm.models.packing.sequence_parallel import divide_sequences
from mmrm.train.recipe.deepspeed_config import NONE
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.sections import LoraConfig as LoraSection
from mmrm.train.supervised.devices import device
from mmrm.train.supervised.optimizer import compile_layers


def make_model(recipe: Recipe) -> nn.Module:
    """Return the model that a recipe trains: its backbone, with a head if the method has one.

    The updates of an optimizer step are too small to be added to a bf16 weight. DeepSpeed keeps
    fp32 copies of the weights that it trains in bf16. Without DeepSpeed the trained weights
    themselves are fp32, and the model computes in bf16 by autocast.
    """
    lora = recipe.optim.lora
    # "Master weights" are the fp32 copies of trained weights.
    has_master_weights = recipe.deepspeed != NONE
    backbone = recipe.backbone
    if not has_master_weights and lora is None:
        backbone = backbone.model_copy(update={"dtype": "float32"})
    is_4_bit = lora is not None and lora.quantise == "nf4"
    model = load_model(recipe, backbone, nf4=is_4_bit)
    if not has_master_weights and recipe.backbone.dtype == "bfloat16":
        compute_in_half(model, device())
    set_checkpointing(model, recipe.optim.activation_checkpointing)
    if recipe.optim.compile == "layers":
        compile_layers(model.model)
    if recipe.optim.sequence_parallel > 1:
        divide_sequences(model, recipe.optim.sequence_parallel)
    if lora is None:
        return model  # type: ignore[no-any-return]
    return add_adapters(
        model, lora, has_head=recipe.has_head, has_master_weights=has_master_weights
    )


def load_model(recipe: Recipe, backbone: BackboneConfig, *, nf4: bool) -> Any:
    """Return a model of the class that the recipe's method trains, loaded from `backbone`.

    With `nf4` the weights of the backbone are in 4 bits.
    """
    method = recipe.method
    if method.model == "scalar":
        model = load_scalar(backbone, recipe.head, nf4=nf4)
        set_joint_responses(model, method.joint_responses(recipe))
        return model
    if method.model == "critic":
        return load_critic(backbone, recipe.head, critique=method.written_critiques, nf4=nf4)
    return load_language_model(backbone, nf4=nf4)


def add_adapters(
    model: Any, lora: LoraSection, *, has_head: bool, has_master_weights: bool
) -> nn.Module:
    """Return the model with trainable adapters and otherwise frozen weights.

    The trained weights become fp32, unless the optimizer keeps fp32 copies of them.

    Args:
        model: The model.
        lora: The section of the recipe on adapters.
        has_head: The model has a reward head, which is trained in full.
        has_master_weights: The optimizer keeps fp32 copies of trained weights.

    Raises:
        UserError: The recipe adapts experts, and the model has none.
    """
    # peft finds modules by the ends of their names, and `lm_head` also ends with `head`. Therefore
    # the layers of the head are named one by one.
    trained_in_full: list[str] = []
    if has_head:
        for name, layer in model.get_submodule("head").named_children():
            if list(layer.parameters()):
                trained_in_full.append(f"head.{name}")
    family = family_of(model.config.model_type)
    adapted_weights: list[str] = []
    if lora.experts:
        if family.experts is None:
            raise UserError(
                f"optim.lora.experts=true, but {family.title} has no experts. Remove the key, or "
                "take a backbone with experts."
            )
        # These weights are no modules of their own, so peft adapts them as parameters.
        adapted_weights += family.experts.weights
    adapters = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=family.lora_targets,
        target_parameters=adapted_weights or None,
        modules_to_save=trained_in_full or None,
    )
    adapted: nn.Module = get_peft_model(model, adapters, autocast_adapter_dtype=False)
    for parameter in adapted.parameters():
        if parameter.requires_grad and not has_master_weights:
            parameter.data = parameter.data.to(torch.float32)
    return adapted
