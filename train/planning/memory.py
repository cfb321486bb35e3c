"""What a backbone's weights, gradients and optimizer states take on every rank, from its shape alone.

Arithmetic on config.json: no weights, no network, no torch. Activations, buffers and the allocator's slack come on top.
"""

from dataclasses import dataclass
from itertools import pairwise

from mmrm.models.config import HeadConfig
from mmrm.models.families.family import Shape
from mmrm.train.recipe.deepspeed_config import (
    NONE,
    SHARE_OF_FREE,
    copies_within,
    offloads,
    stage,
    sums_in_fp32,
)
from mmrm.train.recipe.recipe import Recipe

GIB = 2**30


def head_parameters(hidden: int, head: HeadConfig) -> int:
    """Return the parameters of the reward head."""
    widths = [hidden, *[head.width or hidden] * (head.layers - 1), 1]
    return sum(rows * columns + columns for rows, columns in pairwise(widths))


@dataclass(frozen=True, slots=True)
class WritingPrice:
    """What writing takes where ZeRO-3 divides the weights, in bytes."""

    whole: float
    """All weights, gathered once for a whole evaluation or rollout."""
    free: float
    """What every rank must have free for that; with less each layer is gathered for every token."""
    step: float
    """What is gathered then for each step, which writes a token: the language model; the vision tower sees the prompt alone."""


def writing_price(recipe: Recipe, shape: Shape) -> WritingPrice:
    """Return the price; that DeepSpeed keeps weights of a few KB on all ranks is left out."""
    parts, width = shape.count(), 2 if recipe.backbone.dtype == "bfloat16" else 4
    whole = trained(recipe, shape)[0] * width
    return WritingPrice(
        whole, whole / SHARE_OF_FREE, (parts.language_model + parts.lm_head) * width
    )


def activations(recipe: Recipe, shape: Shape, tokens: int, patches: int) -> float:
    """Return the bytes that a training row of so many tokens and vision patches holds beside weights and gradients, at its peak.

    Counted on the released shapes, kernel by kernel, on tensors without values (`tests/train/planning/test_memory.py` holds it to
    5 %): `shape.kept` in each layer and vision block. Under activation checkpointing a layer's input alone is kept, and one layer
    at a time is computed again, with 2 more intermediate vectors for its gradients. A frozen vision tower keeps nothing. An LM
    head's logits, the library's workspace and the allocator's rounding come on top.
    """
    hidden, wide, depth = shape.hidden_size, shape.intermediate_size, shape.vision_config.depth
    (layer, block), width = shape.kept, shape.vision_config.width
    if recipe.optim.activation_checkpointing:
        a_token, a_patch = shape.num_hidden_layers * hidden + layer + 2 * wide, depth * width
    else:
        a_token, a_patch = shape.num_hidden_layers * layer, depth * block
    a_patch += 7 * width
    if "vision_tower" in recipe.backbone.freeze or recipe.optim.lora is not None:
        a_patch = 0
    return (tokens * a_token + patches * a_patch) * (
        2 if recipe.backbone.dtype == "bfloat16" else 4
    )


def trained(recipe: Recipe, shape: Shape) -> tuple[int, int]:
    """Return how many parameters the recipe's model has, and how many of them are trained."""
    parts = shape.count()
    head = head_parameters(shape.hidden_size, recipe.head) if recipe.has_head else 0
    lm_head = 0 if recipe.method.model == "scalar" else parts.lm_head
    if recipe.optim.lora is not None:
        adapters = recipe.optim.lora.rank * parts.projections
        return parts.backbone + lm_head + head + adapters, adapters + head
    sizes = {
        "vision_tower": parts.vision_tower,
        "projector": parts.projector,
        "language_model": parts.language_model + lm_head,
    }
    return sum(sizes.values()) + head, head + sum(
        size for part, size in sizes.items() if part not in recipe.backbone.freeze
    )


def checkpoint_bytes(recipe: Recipe, shape: Shape) -> float:
    """Return what a checkpoint takes on the disk: weights, or the adapters alone, and AdamW's states of what is trained.

    DeepSpeed's states hold fp32 weights too, and up to ZeRO-2 it stores the model a second time.
    """
    total, learned = trained(recipe, shape)
    width = 2 if recipe.backbone.dtype == "bfloat16" else 4
    weights = (learned if recipe.optim.lora is not None else total) * width
    if recipe.deepspeed == NONE:
        return weights + 8 * learned
    return weights + 12 * learned + (total * width if stage(recipe.deepspeed) < 3 else 0)


def per_rank(recipe: Recipe, shape: Shape, deepspeed: str, ranks: int) -> tuple[float, float]:
    """Return the bytes that one of `ranks` ranks holds on its device and in host memory under the configuration `deepspeed`.

    AdamW has two fp32 moments; under DeepSpeed bf16 weights have an fp32 copy beside them. ZeRO-1 divides the optimizer
    states over the ranks, ZeRO-2 the gradients too, ZeRO-3 the weights too (Rajbhandari et al., arXiv 1910.02054, section 5).
    The rows of a step are summed in fp32 from ZeRO-2 on. Offloaded optimizer states have a copy of the rank's gradients beside
    them, in fp32; the sum itself stays on the device under ZeRO-2 in bf16. hpZ (ZeRO++, arXiv 2306.10209) holds the weights once
    more in each node, divided over its GPUs. Without DeepSpeed and its fp32 copies what is
    trained is fp32 itself, and with it the whole model unless there are adapters.
    """
    lora = recipe.optim.lora
    bf16 = recipe.backbone.dtype == "bfloat16"
    total, learned = trained(recipe, shape)
    width = 2 if bf16 and deepspeed != NONE else 4
    frozen: float = 2 if bf16 and (deepspeed != NONE or lora is not None) else 4
    if lora is not None and lora.quantise == "nf4":
        frozen = 0.5
    weights = learned * width + (total - learned) * frozen
    weights += recipe.method.frozen_copies(lora=lora is not None) * total * frozen
    level, (host_optimizer, host_weights) = stage(deepspeed), offloads(deepspeed)
    if level >= 3:
        weights = weights / ranks + (
            weights / min(copies, ranks) if (copies := copies_within(deepspeed)) else 0
        )
    gradients = learned * (4 if sums_in_fp32(deepspeed) else width) / (ranks if level >= 2 else 1)
    optimizer = learned * (12 if width == 2 else 8) / (ranks if level >= 1 else 1)
    if not host_optimizer:
        return weights + gradients + optimizer, 0.0
    summed_on_device = level == 2 and width == 2
    device = (0.0 if host_weights else weights) + (gradients if summed_on_device else 0.0)
    host = (
        (weights if host_weights else 0.0) + optimizer + gradients * (1 if summed_on_device else 2)
    )
    return device, host
