"""The memory that weights, gradients and optimizer states of a backbone take on every rank.

This is arithmetic on the shape in config.json: no weights, no network, no torch. Activations,
buffers and what the allocator keeps in reserve come on top.
"""

from dataclasses import dataclass
from itertools import pairwise

from mmrm.models.config import CheckpointingMode, HeadConfig
from mmrm.models.families.family import Shape
from mmrm.models.portable.head_columns import hidden_widths
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
NF4_WIDTH = (4 + 0.127) / 8
"""Bytes of a weight in 4-bit normal floats: 4 bits, and 0.127 bits of quantisation constants, which
are quantised as well (QLoRA, arXiv 2305.14314, section 3)."""


def bytes_per_weight(recipe: Recipe) -> int:
    """Return the bytes of one weight in the backbone's dtype."""
    return 2 if recipe.backbone.dtype == "bfloat16" else 4


def head_parameters(hidden: int, head: HeadConfig) -> int:
    """Return the number of parameters of the reward head."""
    hidden_layers = hidden_widths(head.layers, head.width, hidden)
    widths = [hidden, *hidden_layers, len(head.columns)]
    return sum(rows * columns + columns for rows, columns in pairwise(widths))


@dataclass(frozen=True, slots=True)
class WritingPrice:
    """The cost in bytes of writing texts under ZeRO-3, which divides the weights over the ranks."""

    whole: float
    """All weights. They are gathered once for a whole evaluation or rollout."""
    free: float
    """The free memory that every rank needs for that. With less, each layer is gathered for every
    token."""
    step: float
    """The bytes that are then gathered for each step, which writes one token: those of the language
    model. The vision tower is needed for the prompt alone."""


def writing_price(recipe: Recipe, shape: Shape) -> WritingPrice:
    """Return the cost of writing texts with the recipe's model under ZeRO-3.

    Weights of a few KB are left out, because DeepSpeed keeps them on all ranks.
    """
    counts = shape.count()
    width = bytes_per_weight(recipe)
    num_parameters, _ = trained(recipe, shape)
    whole = num_parameters * width
    step = (counts.language_model + counts.lm_head) * width
    return WritingPrice(whole, whole / SHARE_OF_FREE, step)


def activations(recipe: Recipe, shape: Shape, tokens: int, patches: int) -> float:
    """Return the largest number of bytes that the activations of a training row take.

    A layer or vision block keeps `shape.kept_for_backward` numbers. They were counted kernel by
    kernel on the released models, with tensors without values.
    `tests/train/planning/test_memory.py` checks that the estimate is within 5 %. Under activation
    checkpointing only the input of a layer is kept, with the results that the mode keeps, and one
    layer at a time is computed again, with the gradients of its parts. The MLP of the last layer is
    computed only at positions that are read, which are few if the model has a reward head alone. A
    frozen vision tower keeps nothing. Adapted experts keep the sums of their weights and adapters.
    The logits of an LM head, the workspace of libraries and the rounding of the allocator come on
    top. If several ranks compute the row together, each has its share, and the last hidden states
    of all tokens and the embeddings of all images.

    Args:
        recipe: The recipe.
        shape: The shape of its backbone.
        tokens: The tokens of the row.
        patches: The vision patches of the row.
    """
    mode = recipe.optim.activation_checkpointing
    num_layers = shape.num_hidden_layers
    num_blocks = shape.vision_config.depth
    patch_width = shape.vision_config.width
    if mode == "none":
        per_layer, per_block = shape.kept_for_backward
        per_token = num_layers * per_layer
        per_patch = num_blocks * per_block
    else:
        of_layer, of_block = kept_results(shape, mode)
        computed_again = shape.recomputed_for_backward - of_layer + shape.gradients_of_layer
        # The device has the input of one layer at a time if the others are in host memory.
        num_inputs = 1 if mode == "offloaded" else num_layers
        num_block_inputs = 1 if mode == "offloaded" else num_blocks
        per_token = num_inputs * shape.hidden_size + num_layers * of_layer + computed_again
        per_patch = num_block_inputs * patch_width + num_blocks * of_block
    ranks_of_row = recipe.optim.sequence_parallel
    if recipe.method.model == "scalar" and ranks_of_row == 1:
        kept_by_mlp, of_mlp = shape.mlp_of_layer
        if mode == "none":
            per_token -= kept_by_mlp
        elif mode == "linear":
            per_token -= of_mlp
    per_patch += 7 * patch_width
    if "vision_tower" in recipe.backbone.freeze or recipe.optim.lora is not None:
        per_patch = 0
    adapted_weights = 0
    if recipe.optim.lora is not None and recipe.optim.lora.experts:
        adapted_weights = shape.count().experts
        if mode != "none":
            adapted_weights //= shape.num_hidden_layers
    numbers = (tokens * per_token + patches * per_patch) / ranks_of_row + adapted_weights
    if ranks_of_row > 1:
        num_gathered = tokens + patches // shape.patches_per_token
        numbers += num_gathered * shape.hidden_size
    return numbers * bytes_per_weight(recipe)


def offloaded_inputs(recipe: Recipe, shape: Shape, tokens: int, patches: int) -> float:
    """Return the bytes of the inputs of all layers, which `offloaded` keeps in host memory.

    It is 0 in other modes. The arguments are those of `activations`. PyTorch rounds pinned memory up
    to powers of two, so that up to twice as much may be reserved.
    """
    if recipe.optim.activation_checkpointing != "offloaded":
        return 0.0
    numbers = tokens * shape.num_hidden_layers * shape.hidden_size
    is_tower_trained = "vision_tower" not in recipe.backbone.freeze and recipe.optim.lora is None
    if is_tower_trained:
        numbers += patches * shape.vision_config.depth * shape.vision_config.width
    return numbers / recipe.optim.sequence_parallel * bytes_per_weight(recipe)


def kept_results(shape: Shape, mode: CheckpointingMode) -> tuple[int, int]:
    """Return the counts of numbers that activation checkpointing keeps besides inputs of layers.

    The first is for a token in a layer of the language model, the second for a patch in a block of
    the vision tower. Two numbers for each head of attention are left out.
    """
    if mode in ("full", "offloaded"):
        return 0, 0
    of_attention = shape.attention_outputs
    if mode == "attention":
        return of_attention
    of_linear_layers = shape.linear_outputs
    return of_attention[0] + of_linear_layers[0], of_attention[1] + of_linear_layers[1]


def trained(recipe: Recipe, shape: Shape) -> tuple[int, int]:
    """Return the number of parameters of the recipe's model, and how many of them are trained.

    Args:
        recipe: The recipe, which decides on head, adapters and frozen parts.
        shape: The sizes of the layers of its backbone, from the backbone's config.json.
    """
    counts = shape.count()
    head = 0
    if recipe.has_head:
        head = head_parameters(shape.hidden_size, recipe.head)
    lm_head = 0
    if recipe.method.model != "scalar":
        lm_head = counts.lm_head
    if recipe.optim.lora is not None:
        per_rank_of_lora = counts.parameters_per_lora_rank
        if recipe.optim.lora.experts:
            per_rank_of_lora += counts.expert_parameters_per_lora_rank
        adapters = recipe.optim.lora.rank * per_rank_of_lora
        return counts.backbone + lm_head + head + adapters, adapters + head
    sizes = {
        "vision_tower": counts.vision_tower,
        "projector": counts.projector,
        "language_model": counts.language_model + lm_head,
    }
    num_trained = head
    for part, size in sizes.items():
        if part not in recipe.backbone.freeze:
            num_trained += size
    return sum(sizes.values()) + head, num_trained


def checkpoint_bytes(recipe: Recipe, shape: Shape) -> float:
    """Return the bytes of a checkpoint: weights or adapters, and AdamW's states of what is trained.

    DeepSpeed's states hold fp32 weights too, and up to ZeRO-2 it stores the model a second time.
    """
    num_parameters, num_trained = trained(recipe, shape)
    width = bytes_per_weight(recipe)
    saved = num_parameters if recipe.optim.lora is None else num_trained
    weights = saved * width
    if recipe.deepspeed == NONE:
        return weights + 8 * num_trained
    second_copy = 0
    if stage(recipe.deepspeed) < 3:
        second_copy = num_parameters * width
    return weights + 12 * num_trained + second_copy


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The bytes that one rank holds all the time during training."""

    weights: float
    """Weights on the device."""
    gradients: float
    """Gradients on the device."""
    optimizer: float
    """Optimizer states on the device."""
    host: float
    """Everything that is kept in host memory."""

    @property
    def device(self) -> float:
        """Everything that is kept on the device."""
        return self.weights + self.gradients + self.optimizer


def per_rank(recipe: Recipe, shape: Shape, deepspeed: str, ranks: int) -> RankMemory:
    """Return the bytes that one of `ranks` ranks holds on its device and in host memory.

    AdamW has two fp32 moments. Under DeepSpeed bf16 weights have an fp32 copy as well; without it
    what is trained is fp32 itself, and with it the whole model unless there are adapters. ZeRO-1
    divides the optimizer states over the ranks, ZeRO-2 the gradients too, ZeRO-3 the weights too
    (Rajbhandari et al., arXiv 1910.02054, section 5). From ZeRO-2 on the rows of a step are summed
    in fp32. hpZ (ZeRO++, arXiv 2306.10209) holds the weights once more in each node, divided over
    its GPUs. Offloaded optimizer states come with a copy of the rank's gradients in fp32; the sum
    itself stays on the device under ZeRO-2 in bf16.

    Args:
        recipe: The recipe.
        shape: The shape of its backbone.
        deepspeed: The name of a DeepSpeed configuration, which need not be the recipe's.
        ranks: The number of ranks, which all nodes together have.
    """
    level = stage(deepspeed)
    num_parameters, num_trained = trained(recipe, shape)
    width = 4
    if recipe.backbone.dtype == "bfloat16" and deepspeed != NONE:
        width = 2

    weights = num_trained * width + frozen_bytes(recipe, shape, deepspeed)
    has_lora = recipe.optim.lora is not None
    num_copies = recipe.method.frozen_copies(lora=has_lora)
    weights += num_copies * num_parameters * frozen_width(recipe, deepspeed)
    if level >= 3:
        whole = weights
        weights = whole / ranks
        ranks_of_copy = copies_within(deepspeed)
        if ranks_of_copy:
            weights += whole / min(ranks_of_copy, ranks)

    gradient_width = 4 if sums_in_fp32(deepspeed) else width
    gradients: float = num_trained * gradient_width
    if level >= 2:
        gradients /= ranks
    state_width = 12 if width == 2 else 8
    optimizer: float = num_trained * state_width
    if level >= 1:
        optimizer /= ranks

    is_optimizer_on_host, are_weights_on_host = offloads(deepspeed)
    if not is_optimizer_on_host:
        return RankMemory(weights, gradients, optimizer, host=0.0)
    host = optimizer + gradients
    weights_on_device = weights
    if are_weights_on_host:
        host += weights
        weights_on_device = 0.0
    gradients_on_device = 0.0
    if level == 2 and width == 2:
        gradients_on_device = gradients
    else:
        host += gradients
    return RankMemory(weights_on_device, gradients_on_device, 0.0, host)


def frozen_bytes(recipe: Recipe, shape: Shape, deepspeed: str) -> float:
    """Return the bytes of all weights that are not trained.

    nf4 quantises the linear layers of the language model. The vision tower, the projector, the
    embedding and experts keep 16 bits.
    """
    num_parameters, num_trained = trained(recipe, shape)
    num_frozen = num_parameters - num_trained
    width = frozen_width(recipe, deepspeed)
    if recipe.optim.lora is None or recipe.optim.lora.quantise != "nf4":
        return num_frozen * width
    counts = shape.count()
    num_quantised = counts.language_model - counts.experts - shape.vocab_size * shape.hidden_size
    return num_quantised * NF4_WIDTH + (num_frozen - num_quantised) * width


def frozen_width(recipe: Recipe, deepspeed: str) -> float:
    """Return the bytes of one weight that is neither trained nor quantised."""
    is_half = recipe.backbone.dtype == "bfloat16"
    if is_half and (deepspeed != NONE or recipe.optim.lora is not None):
        return 2
    return 4
