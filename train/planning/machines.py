"""Which machines a recipe fits on, what takes the most memory there, and what to change.

Like the rest of the plan this is arithmetic on the recipe and on the backbone's config.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrm.models.families.family import Shape
from mmrm.train.planning.memory import (
    GIB,
    activations,
    bytes_per_weight,
    offloaded_inputs,
    per_rank,
)
from mmrm.train.planning.step_cost import record_tokens
from mmrm.train.recipe.deepspeed_config import NONE, stage
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.sections import LoraConfig

RESERVE = 4 * GIB
"""Bytes of a GPU for CUDA, the libraries, DeepSpeed's buffers and the rounding of the allocator."""
FILLED = 0.95
"""The share of a GPU's memory that may be planned for; the rest is lost between allocated blocks."""


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that training takes on every GPU, by what takes them."""

    parts: dict[str, float]
    host: float
    """Host memory of one rank."""

    @property
    def device(self) -> float:
        """All bytes on the GPU."""
        return sum(self.parts.values())

    @property
    def largest_part(self) -> str:
        """The name of the part that takes the most memory of the GPU."""
        return max(self.parts, key=lambda name: self.parts[name])


@dataclass(frozen=True, slots=True)
class Gpu:
    """A size of GPU that is sold."""

    name: str
    usable: float
    """Bytes that a process can use, which are less than the name says."""

    def holds(self, need: Need) -> bool:
        """Return True if training that needs so much memory fits on this GPU."""
        return need.device <= FILLED * self.usable


GPUS = (
    Gpu("24 GB", 22 * GIB),
    Gpu("48 GB", 44 * GIB),
    Gpu("80 GB", 79 * GIB),
    Gpu("141 GB", 139 * GIB),
)
"""torch reported 79.2 GiB on an H100 (docs/log/results.md). The other sizes are assumed: about 139 GiB
for an H200, and 22 and 44 GiB for GPUs of 24 and 48 GB, some of which lose memory to error
correction."""

DIVISORS = (2, 4, 8)
"""Numbers of ranks over which a row may be divided so that a recipe fits, which are in one node."""
MACHINES = (1, 2, 4, 8)
"""Numbers of GPUs of the machines among which the smallest is chosen."""


@dataclass(frozen=True, slots=True)
class MachineFit:
    """The answer to whether a recipe fits on GPUs of one size."""

    need: Need
    """The memory that the recipe takes with the changes."""
    changes: tuple[str, ...]
    """Keys to set so that it fits, as on the command line. Empty if it fits as it is."""
    fits: bool
    """False if no known change makes it fit."""


def need(recipe: Recipe, shape: Shape, num_gpus: int) -> Need:
    """Return the memory that a recipe needs on each of `num_gpus` GPUs.

    The activations are those of the smallest row, which holds one record of the assumed size. With
    `optim.token_budget: auto`, rows grow into the memory that is left. The logits of an LM head, and
    the keys and values of texts that the model writes, come on top.
    """
    if num_gpus < recipe.optim.sequence_parallel:
        # A run cannot start there. The row is planned as that of a GPU that computes it alone.
        recipe = changed(recipe, {"optim.sequence_parallel": 1})
    memory = per_rank(recipe, shape, recipe.deepspeed, num_gpus)
    image_tokens, text_tokens = record_tokens(recipe, shape)
    patches = image_tokens * shape.patches_per_token
    parts = {
        "optimizer states": memory.optimizer,
        "gradients": memory.gradients,
        "weights": memory.weights,
        "activations of one record": activations(
            recipe, shape, image_tokens + text_tokens, patches
        ),
        "reserve": float(RESERVE),
    }
    if recipe.deepspeed != NONE and stage(recipe.deepspeed) == 3:
        parts["gathered weights"] = shape.largest_module * bytes_per_weight(recipe)
    on_host = offloaded_inputs(recipe, shape, image_tokens + text_tokens, patches)
    return Need(parts, memory.host + on_host)


def fit(recipe: Recipe, shape: Shape, gpu: Gpu, num_gpus: int) -> MachineFit:
    """Return a recipe's fit on GPUs of one size, with the least change that makes it fit.

    Changes that train the same weights come first, then LoRA, then LoRA on 4-bit weights, and
    states in host memory last, because they make a step several times as long.
    """
    as_it_is = need(recipe, shape, num_gpus)
    if gpu.holds(as_it_is):
        return MachineFit(as_it_is, (), fits=True)
    for changes in possible_changes(recipe, shape, num_gpus):
        changed_need = need(changed(recipe, changes), shape, num_gpus)
        if gpu.holds(changed_need):
            return MachineFit(changed_need, tuple(as_overrides(changes)), fits=True)
    return MachineFit(as_it_is, (), fits=False)


def possible_changes(recipe: Recipe, shape: Shape, num_gpus: int) -> list[dict[str, Any]]:
    """Return sets of keys and values that save memory, the least change first."""
    checkpointing: dict[str, Any] = {}
    if recipe.optim.activation_checkpointing not in ("full", "offloaded"):
        checkpointing["optim.activation_checkpointing"] = "full"
    quantised = recipe.optim.lora is not None and recipe.optim.lora.quantise == "nf4"
    sharded = ["zero2", "zero3"] if num_gpus > 1 and not quantised else []

    changes: list[dict[str, Any]] = []
    is_linear_possible = recipe.optim.compile == "none" and stage(recipe.deepspeed) < 3
    if recipe.optim.activation_checkpointing == "none" and is_linear_possible:
        changes.append({"optim.activation_checkpointing": "linear"})
    if checkpointing:
        changes.append(checkpointing)
    changes += [checkpointing | {"deepspeed": name} for name in sharded]
    if recipe.optim.activation_checkpointing != "offloaded":
        offloaded = {"optim.activation_checkpointing": "offloaded"}
        changes += [offloaded, *(offloaded | {"deepspeed": name} for name in sharded)]
    if recipe.method.divides_rows:
        for ranks_of_row in DIVISORS:
            is_larger = recipe.optim.sequence_parallel < ranks_of_row <= num_gpus
            if is_larger and num_gpus % ranks_of_row == 0 and shape.divides_over(ranks_of_row):
                divided = checkpointing | {"optim.sequence_parallel": ranks_of_row}
                changes += [divided, *(divided | {"deepspeed": name} for name in sharded)]
    if recipe.optim.lora is None:
        for name in (NONE, *sharded):
            changes.append(checkpointing | {"deepspeed": name, "optim.lora.rank": 64})
    if not quantised:
        nf4 = {"deepspeed": NONE, "optim.lora.rank": 64, "optim.lora.quantise": "nf4"}
        changes.append(checkpointing | nf4)
        changes += [checkpointing | {"deepspeed": f"{name}_offload"} for name in ("zero2", "zero3")]
    return changes


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return a recipe with some keys of `possible_changes` set."""
    optim = recipe.optim
    if "optim.activation_checkpointing" in changes:
        mode = changes["optim.activation_checkpointing"]
        optim = optim.model_copy(update={"activation_checkpointing": mode})
    if "optim.sequence_parallel" in changes:
        ranks_of_row = changes["optim.sequence_parallel"]
        optim = optim.model_copy(update={"sequence_parallel": ranks_of_row})
    if "optim.lora.rank" in changes:
        quantise = changes.get("optim.lora.quantise", "none")
        lora = optim.lora or LoraConfig(rank=changes["optim.lora.rank"])
        optim = optim.model_copy(update={"lora": lora.model_copy(update={"quantise": quantise})})
    deepspeed = changes.get("deepspeed", recipe.deepspeed)
    return recipe.model_copy(update={"optim": optim, "deepspeed": deepspeed})


def as_overrides(changes: dict[str, Any]) -> list[str]:
    """Return changes as they are written on the command line."""
    return [f"{key}={str(value).lower()}" for key, value in changes.items()]


def smallest_machine(
    recipe: Recipe, shape: Shape, nums_of_gpus: Sequence[int] = MACHINES
) -> tuple[int, Gpu] | None:
    """Return the machine with the least GPU memory on which a recipe fits as it is.

    Returns:
        The number of GPUs and their size, the fewest GPUs if several machines have equally much
        memory; None if the recipe fits on none of them.
    """
    machines = [(num_gpus, gpu) for num_gpus in nums_of_gpus for gpu in GPUS]
    machines.sort(key=lambda machine: (machine[0] * machine[1].usable, machine[0]))
    for num_gpus, gpu in machines:
        if gpu.holds(need(recipe, shape, num_gpus)):
            return num_gpus, gpu
    return None
