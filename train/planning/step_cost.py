"""The cost of a step on many GPUs: computation, and bytes over the network.

This is arithmetic on the recipe and the backbone's shape, under stated assumptions, for a plan.
A prompt is computed once for both responses. A parameter of the language model costs 6 FLOP a
token, and one of the vision tower 6 FLOP a patch: 2 each for the forward pass, for the gradients of
inputs and for those of weights. Experts to which a token is not sent cost nothing, but ZeRO-3
gathers them like all other weights. That makes 4 for frozen weights, and 2 for a frozen vision tower.
What is computed again under activation checkpointing counts as idle time. Pairs that share a prompt
cost less than this: the data card counts them. What DeepSpeed hands to its collectives was counted
(`tests/train/planning/test_step_cost.py`).
"""

from dataclasses import dataclass
from math import ceil

from mmrm.models.families.family import Shape
from mmrm.train.planning.memory import bytes_per_weight, trained
from mmrm.train.recipe.deepspeed_config import copies_within, stage
from mmrm.train.recipe.epoch import planned_tokens
from mmrm.train.recipe.recipe import Recipe

PEAK = 989e12
"""Dense bf16 FLOP a second of an H100 and of an H200."""
MFU = 0.25
"""The share of PEAK that is reached. 0.28 was measured once, on one H200 at 7B with activation
checkpointing (3.5 pairs a second); the rest is for the optimizer and for waiting."""
NODE = 8
"""GPUs of a node."""
INSIDE = 450e9
"""Bytes a second that a GPU receives inside a node (NVLink)."""
BETWEEN = 50e9
"""Bytes a second that a GPU receives between nodes (400 Gb/s a GPU)."""
IMAGE_TOKENS = 1050
"""Tokens of a record's image before the data are read, unless the recipe's limit is lower. No
record is assumed to have a video."""
TEXT_TOKENS = 530
"""Tokens of a record's text before the data are read: a question of 70, two responses of 230."""
ROW_TOKENS = 16_384
"""Tokens of a row if the recipe leaves the budget to the device."""
PATCH_COST = 0.4
"""The cost of a vision patch in a row, as `mmrm.models.packing.bins.PATCH_COST`."""

COMPARED = ("zero1", "zero2", "zero3", "zero3_hpz")
"""DeepSpeed configurations whose traffic a plan shows."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """Bytes that one rank hands to each kind of collective in a step, whole tensors."""

    reduced: float = 0.0
    """All-reduce."""
    gathered: float = 0.0
    """All-gather."""
    scattered: float = 0.0
    """Reduce-scatter."""
    gathered_inside: float = 0.0
    """All-gather among the GPUs of a node."""

    def received(self, ranks: int) -> float:
        """Return the bytes that a rank receives by ring algorithms.

        An all-reduce is a reduce-scatter and an all-gather.
        """
        handed_over = 2 * self.reduced + self.gathered + self.scattered
        return handed_over * (ranks - 1) / ranks + self.received_inside

    @property
    def received_inside(self) -> float:
        """The bytes that a rank receives by collectives among the GPUs of its node."""
        return self.gathered_inside * (NODE - 1) / NODE

    def seconds(self, ranks: int) -> float:
        """Return the seconds that the transfers take if nothing is computed meanwhile."""
        rate = INSIDE if ranks <= NODE else BETWEEN
        received_by_all = self.received(ranks) - self.received_inside
        return self.received_inside / INSIDE + received_by_all / rate


def collectives(
    stage: int, rows: int, weights: float, learned: float, *, hpz: bool = False
) -> Collectives:
    """Return the bytes that a ZeRO stage hands to collectives in a step.

    Gradients travel in the dtype of the weights: at the end of a step up to ZeRO-1, and in each
    row's backward pass from ZeRO-2 on (an all-reduce until ZeRO-3). ZeRO-1 and 2 gather what each
    rank has updated. ZeRO-3 gathers every weight for a row's forward pass and again for its
    backward pass. With hpZ only the first of these gathers of a step goes beyond the node.

    Args:
        stage: The ZeRO stage.
        rows: The number of forward and backward passes of a rank, each over one packed row.
        weights: The bytes of all weights.
        learned: The bytes of the weights that are trained.
        hpz: True if each node holds a second copy of the weights.
    """
    if stage == 3:
        gathered = rows * 2 * weights
        beyond_node = weights if hpz else gathered
        return Collectives(
            gathered=beyond_node,
            scattered=rows * learned,
            gathered_inside=gathered - beyond_node,
        )
    num_reductions = rows if stage == 2 else 1
    updated = learned if stage else 0.0
    return Collectives(reduced=num_reductions * learned, gathered=updated)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of an optimizer step on a given number of GPUs."""

    rows: int
    """The number of forward and backward passes of a rank, each over one packed row."""
    compute: float
    """The seconds of computation."""
    received: dict[str, float]
    """The bytes that a rank receives, by the name of a DeepSpeed configuration. With
    `optim.sequence_parallel`, those that the ranks of a row exchange are among them."""
    waiting: dict[str, float]
    """The seconds that the transfers take, by the name of a DeepSpeed configuration."""


@dataclass(frozen=True, slots=True)
class FullRow:
    """A packed row that is filled with records of the assumed size."""

    records: int
    tokens: int
    patches: int
    """Vision patches."""


def record_tokens(recipe: Recipe, shape: Shape) -> tuple[int, int]:
    """Return the tokens of a record's images and videos, and those of its text.

    They are the means of the data card, if the data were read. Before, a record is assumed to have
    one image and no video.
    """
    planned = planned_tokens(recipe.data)
    if planned is not None:
        return round(planned.images), round(planned.text)
    _, most_image_tokens = shape.image_tokens(recipe.backbone).bounds
    return min(IMAGE_TOKENS, most_image_tokens), TEXT_TOKENS


def step_cost(recipe: Recipe, shape: Shape, ranks: int) -> StepCost:
    """Return the cost of a step on `ranks` GPUs under each ZeRO stage.

    The cost of writing texts and of evaluations is not included. On fewer GPUs than
    `optim.sequence_parallel`, where a run cannot start, a GPU is assumed to compute rows alone.
    """
    ranks_of_row = min(recipe.optim.sequence_parallel, ranks)
    records = recipe.optim.records_per_step * ranks_of_row / ranks
    exchanged = exchanged_bytes(recipe, shape, ranks_of_row, max(records, 1))
    exchange_rate = INSIDE if ranks_of_row <= NODE else BETWEEN
    rows = ceil(records / full_row(recipe, shape).records)
    num_parameters, num_trained = trained(recipe, shape)
    width = bytes_per_weight(recipe)
    received: dict[str, float] = {}
    waiting: dict[str, float] = {}
    for name in {*COMPARED, recipe.deepspeed}:
        moved = collectives(
            stage(name),
            rows,
            num_parameters * width,
            num_trained * width,
            hpz=copies_within(name) > 0 and ranks > NODE,
        )
        received[name] = moved.received(ranks) + exchanged
        waiting[name] = moved.seconds(ranks) + exchanged / exchange_rate
    flop = max(records, 1) * record_flop(recipe, shape) / ranks_of_row
    compute = flop / (PEAK * MFU)
    return StepCost(rows, compute, received, waiting)


def exchanged_bytes(recipe: Recipe, shape: Shape, ranks_of_row: int, records: float) -> float:
    """Return the bytes that a rank receives in a step from the ranks that compute rows with it.

    In every layer, each of them sends its stretch of all heads and receives all tokens of its heads,
    forward, backward, and once more where the layer is computed again.

    Args:
        recipe: The recipe.
        shape: The shape of its backbone.
        ranks_of_row: The number of ranks that compute a row together.
        records: The records of a step whose rows they compute.
    """
    image_tokens, text_tokens = record_tokens(recipe, shape)
    tokens_of_rank = records * (image_tokens + text_tokens) / ranks_of_row
    num_passes = 2 if recipe.optim.activation_checkpointing == "none" else 3
    numbers = tokens_of_rank * shape.num_hidden_layers * shape.exchanged_by_layer * num_passes
    return numbers * bytes_per_weight(recipe) * (ranks_of_row - 1) / ranks_of_row


def record_flop(recipe: Recipe, shape: Shape) -> float:
    """Return the FLOP of the forward and backward pass over a record of the assumed size."""
    counts = shape.count()
    image_tokens, text_tokens = record_tokens(recipe, shape)
    frozen = recipe.backbone.freeze
    has_lora = recipe.optim.lora is not None
    flop_per_token = 4 if has_lora or "language_model" in frozen else 6
    flop_per_patch = 2 if has_lora or "vision_tower" in frozen else 6
    # Looking up an embedding is no multiplication, and a token is sent to a few experts only.
    layers = counts.language_model - shape.vocab_size * shape.hidden_size - counts.idle_experts
    of_text = flop_per_token * layers * (image_tokens + text_tokens)
    num_patches = image_tokens * shape.patches_per_token
    of_images = flop_per_patch * (counts.vision_tower + counts.projector) * num_patches
    return of_text + of_images


def full_row(recipe: Recipe, shape: Shape) -> FullRow:
    """Return a row of as many records of the assumed size as fit, at least one."""
    image_tokens, text_tokens = record_tokens(recipe, shape)
    patches = image_tokens * shape.patches_per_token
    budget = recipe.optim.token_budget
    if budget == "auto":
        budget = ROW_TOKENS
    records = max(1, budget // (image_tokens + text_tokens + ceil(PATCH_COST * patches)))
    return FullRow(records, records * (image_tokens + text_tokens), records * patches)
