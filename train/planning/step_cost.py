"""What a step costs on many GPUs, from the recipe and the backbone's shape alone: computation, and bytes over the network.

Arithmetic on stated assumptions, for a plan. Computation is 6 FLOP for each parameter of the language model and token, and of the
vision tower and patch, of a prompt that is computed once for both responses: 2 each for the forward pass, for the gradients of
inputs and for those of weights, so 4 where the weights are frozen and 2 in a frozen vision tower. What is computed again under
activation checkpointing counts as idle time. Pairs that share a prompt cost less than this says: the data card counts them. What
DeepSpeed hands to its collectives was counted (`tests/train/planning/test_step_cost.py`).
"""

from dataclasses import dataclass
from math import ceil

from mmrm.models.families.family import Shape
from mmrm.train.planning.memory import trained
from mmrm.train.recipe.deepspeed_config import copies_within, stage
from mmrm.train.recipe.recipe import Recipe

PEAK, MFU = 989e12, 0.25
"""Dense bf16 FLOP a second of an H100 and of an H200, and the share of it that is reached: 0.28 was measured once, on one H200 at
7B with activation checkpointing (3.5 pairs a second); the rest is for the optimizer and for waiting."""
NODE, INSIDE, BETWEEN = 8, 450e9, 50e9
"""GPUs of a node, and bytes a second that a GPU receives inside it (NVLink) and between nodes (400 Gb/s a GPU)."""
IMAGE_TOKENS, TEXT_TOKENS = 1050, 530
"""A record where nothing is known yet: an image, unless the recipe's limit is lower; a question of 70, two responses of 230."""
ROW_TOKENS = 16_384
"""Of a row where the recipe leaves the budget to the device."""
PATCH_COST = 0.4
"""As rows are packed: `mmrm.models.packing.bins.PATCH_COST`."""


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
        """Return the bytes that a rank receives by ring algorithms: an all-reduce is a reduce-scatter and an all-gather."""
        return (2 * self.reduced + self.gathered + self.scattered) * (
            ranks - 1
        ) / ranks + self.received_inside

    @property
    def received_inside(self) -> float:
        """How many of them come from the rank's own node by a collective of its own."""
        return self.gathered_inside * (NODE - 1) / NODE

    def seconds(self, ranks: int) -> float:
        """Return how long that takes by itself."""
        wide = INSIDE if ranks <= NODE else BETWEEN
        return self.received_inside / INSIDE + (self.received(ranks) - self.received_inside) / wide


def collectives(
    stage: int, rows: int, weights: float, learned: float, *, hpz: bool = False
) -> Collectives:
    """Return what a ZeRO stage moves in a step of `rows` row passes, for bytes of all weights and of those that are trained.

    Gradients travel in the weights' dtype: at the end of a step up to ZeRO-1, in each row's backward pass from ZeRO-2 on (an
    all-reduce until ZeRO-3). ZeRO-1 and 2 gather what each rank has updated; ZeRO-3 gathers every weight for a row's forward and
    again for its backward pass. With hpZ only the first of these gathers of a step goes beyond the node.
    """
    if stage == 3:
        beyond = weights if hpz else rows * 2 * weights
        return Collectives(
            gathered=beyond, scattered=rows * learned, gathered_inside=rows * 2 * weights - beyond
        )
    return Collectives(
        reduced=(rows if stage == 2 else 1) * learned, gathered=learned if stage else 0.0
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step on some number of GPUs."""

    rows: int
    """Row passes of a rank."""
    compute: float
    """Seconds."""
    received: dict[str, float]
    """What a rank receives, in bytes, by the name of a DeepSpeed configuration."""
    waiting: dict[str, float]
    """Seconds that this takes by itself."""


def record_tokens(recipe: Recipe, shape: Shape) -> tuple[int, int]:
    """Return the assumed tokens of a record's image and of its text."""
    return min(IMAGE_TOKENS, shape.image_tokens(recipe.backbone).bounds[1]), TEXT_TOKENS


def step_cost(recipe: Recipe, shape: Shape, ranks: int) -> StepCost:
    """Return what a step of the recipe costs on `ranks` GPUs at each ZeRO stage; writing and evaluation come on top."""
    parts, (total, learned) = shape.count(), trained(recipe, shape)
    image, words = record_tokens(recipe, shape)
    patches = image * shape.patches_per_token
    layers = parts.language_model - shape.vocab_size * shape.hidden_size
    adapters, frozen = recipe.optim.lora is not None, recipe.backbone.freeze
    a_token = 4 if adapters or "language_model" in frozen else 6
    a_patch = 2 if adapters or "vision_tower" in frozen else 6
    work = (
        a_token * layers * (image + words)
        + a_patch * (parts.vision_tower + parts.projector) * patches
    )
    records = recipe.optim.records_per_step / ranks
    rows = ceil(records / full_row(recipe, shape)[0])
    width = 2 if recipe.backbone.dtype == "bfloat16" else 4
    moved = {
        name: collectives(
            stage(name),
            rows,
            total * width,
            learned * width,
            hpz=copies_within(name) > 0 and ranks > NODE,
        )
        for name in {*COMPARED, recipe.deepspeed}
    }
    return StepCost(
        rows,
        max(records, 1) * work / (PEAK * MFU),
        {name: one.received(ranks) for name, one in moved.items()},
        {name: one.seconds(ranks) for name, one in moved.items()},
    )


def full_row(recipe: Recipe, shape: Shape) -> tuple[int, int, int]:
    """Return how many assumed records fill a row, at least one, and the row's tokens and vision patches."""
    image, words = record_tokens(recipe, shape)
    patches = image * shape.patches_per_token
    budget = ROW_TOKENS if recipe.optim.token_budget == "auto" else recipe.optim.token_budget
    records = max(1, budget // (image + words + ceil(PATCH_COST * patches)))
    return records, records * (image + words), records * patches
