"""Gradients of single pairs at a checkpoint, and their inner products (train/studies/influence.py)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from mmrm.data.config.registry import load
from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import Preference
from mmrm.models.backbone import load_encoder
from mmrm.models.lora import WEIGHTS, is_adapter
from mmrm.train.methods.method import SupervisedMethod
from mmrm.train.recipe.deepspeed_config import NONE
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.evaluation_loop import HeldOutRecords
from mmrm.train.runs.model import make_model
from mmrm.train.studies.influence import Products
from mmrm.train.supervised.devices import device
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.steps import PackedRow, make_row

PairT = TypeVar("PairT")
Gradient = Sequence[Tensor]
"""The gradient with respect to each weight, in the shape of the weight."""

PAIRS_SEED = 0
"""Seed that draws the pairs of a source whose gradients are computed."""


def record_gradient(
    model: nn.Module, objective: Objective, row: PackedRow, weights: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradient of the loss of a row, a zero for weights that the loss does not use.

    Args:
        model: The model in eval mode.
        objective: The loss. The sum over the row is not divided by the records of a step.
        row: A packed row on the model's device.
        weights: The weights of the model that require gradients.
    """
    totals = torch.ones(2, device=weights[0].device)
    loss, _ = objective.loss(model, row, totals)
    gradient = torch.autograd.grad(loss, weights, allow_unused=True)
    return [
        torch.zeros_like(weight) if part is None else part
        for weight, part in zip(weights, gradient, strict=True)
    ]


def inner_product(first: Gradient, second: Gradient) -> float:
    """Return the inner product of two gradients. The products of each weight are summed in float64."""
    total = 0.0
    for one, other in zip(first, second, strict=True):
        total += float(torch.dot(one.flatten(), other.flatten()))
    return total


class GradientMean:
    """The mean of gradients that are added one after another, and not kept."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._count = 0

    def add(self, gradient: Gradient) -> None:
        """Add a gradient to the mean."""
        if not self._sums:
            self._sums = [torch.zeros_like(part) for part in gradient]
        for part_of_sum, part in zip(self._sums, gradient, strict=True):
            part_of_sum += part
        self._count += 1

    def mean(self) -> list[Tensor]:
        """Return the mean of the gradients that were added, at least one."""
        return [part_of_sum / self._count for part_of_sum in self._sums]


def gradient_products(
    gradient_of: Callable[[PairT], Gradient],
    training: Mapping[str, Sequence[PairT]],
    held_out: Mapping[str, Sequence[PairT]],
) -> Products:
    """Return the inner products of the pairs of each source with the held-out pairs of each source.

    The gradients of single pairs are not kept, so that those of the held-out pairs are computed
    twice. The memory is that of two mean gradients for each source, and of one gradient.

    Args:
        gradient_of: Returns the gradient of a pair.
        training: The training pairs of each source.
        held_out: The held-out pairs of each source, with the same names in the same order.
    """
    held_out_means = []
    for pairs in held_out.values():
        held_out_mean = GradientMean()
        for pair in pairs:
            held_out_mean.add(gradient_of(pair))
        held_out_means.append(held_out_mean.mean())

    of_training = []
    training_means = []
    for pairs in training.values():
        training_mean = GradientMean()
        products = []
        for pair in pairs:
            gradient = gradient_of(pair)
            training_mean.add(gradient)
            products.append([inner_product(gradient, mean) for mean in held_out_means])
        training_means.append(training_mean.mean())
        of_training.append(np.array(products))

    of_held_out = []
    for pairs in held_out.values():
        products = []
        for pair in pairs:
            gradient = gradient_of(pair)
            products.append([inner_product(gradient, mean) for mean in training_means])
        of_held_out.append(np.array(products))
    return Products(tuple(training), tuple(of_training), tuple(of_held_out))


class LearnedPair(NamedTuple):
    """A record, and the position in which a judge sees its better response."""

    record: Preference
    side: int
    """0 for first and 1 for second, as the second argument of `Encode`."""


def products_at(recipe: Recipe, checkpoint: Path, num_pairs: int, console: Console) -> Products:
    """Return the inner products of gradients at the weights of a checkpoint.

    The weights are computed with in fp32, or in bf16 by autocast, as without DeepSpeed.

    Args:
        recipe: The recipe of the run that the checkpoint is of.
        checkpoint: The folder of the checkpoint.
        num_pairs: The number of training pairs of each source. A smaller source gives all.
        console: Receives the number of records that cannot be used.

    Raises:
        UserError: If a source has fewer than two usable pairs on one of the two sides.
    """
    recipe = recipe.model_copy(update={"deepspeed": NONE})
    encoder = load_encoder(recipe.backbone)
    method = load(recipe.method.implementation)(recipe, encoder, console)
    assert isinstance(method, SupervisedMethod), "a method of train/rl.py is refused before"
    method.setup()
    training = training_pairs(method, num_pairs)
    held_out = held_out_pairs(method)
    for name, pairs in training.items():
        num_held_out = len(held_out[name])
        if min(len(pairs), num_held_out) < 2:
            raise UserError(
                f"{name}: {len(pairs)} training pairs and {num_held_out} held-out pairs can be used "
                "for its influence, and an interval needs two of each. Raise data.validation, or "
                "leave the source out."
            )
    model = model_at(recipe, checkpoint)
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def gradient_of(pair: LearnedPair) -> Gradient:
        example = method.encode(pair.record, pair.side)
        row = make_row([example], encoder.pack).to(device())
        return record_gradient(model, method.objective, row, weights)

    return gradient_products(gradient_of, training, held_out)


def training_pairs(method: SupervisedMethod, count: int) -> dict[str, list[LearnedPair]]:
    """Return `count` random training pairs of each source that can be used, fewer if it is smaller.

    They are the same for all checkpoints. The number of records that cannot be used is printed.
    """
    records = method.mixture.records
    pairs_by_source: dict[str, list[LearnedPair]] = {}
    start = 0
    for number, (split, end) in enumerate(zip(method.mixture.splits, records.ends, strict=True)):
        generator = np.random.default_rng([PAIRS_SEED, number])
        pairs: list[LearnedPair] = []
        num_skipped = 0
        for index in generator.permutation(np.arange(start, end)).tolist():
            if len(pairs) == count:
                break
            pair = usable_pair(method, records, index, side=len(pairs) % 2)
            if pair is None:
                num_skipped += 1
            else:
                pairs.append(pair)
        if num_skipped:
            method.console.print(
                f"{split.config.label}: {num_skipped:,} records cannot be used for the influence",
                markup=False,
                highlight=False,
            )
        pairs_by_source[split.config.label] = pairs
        start = end
    return pairs_by_source


def usable_pair(
    method: SupervisedMethod, records: Sequence[Preference], index: int, side: int
) -> LearnedPair | None:
    """Return a record that the method can learn from; None if it cannot be used, or has no loss."""
    try:
        record = records[index]
        method.encode(record, side)
    except RecordError:
        return None
    if method.needs_rationale and record.rationale is None:
        return None
    return LearnedPair(record, side)


def held_out_pairs(method: SupervisedMethod) -> dict[str, list[LearnedPair]]:
    """Return the held-out pairs of each source that can be used, in the order of the sources."""
    held_out = HeldOutRecords.load(method)
    assert held_out is not None, "a recipe without data.validation is refused before"
    pairs_by_source: dict[str, list[LearnedPair]] = {}
    label_by_name: dict[str, str] = {}
    for split in method.mixture.splits:
        label_by_name[split.source.name] = split.config.label
        pairs_by_source[split.config.label] = []
    for index, record in enumerate(held_out.records):
        if not method.needs_rationale or record.rationale is not None:
            pair = LearnedPair(record, index % 2)
            pairs_by_source[label_by_name[record.source]].append(pair)
    return pairs_by_source


def model_at(recipe: Recipe, checkpoint: Path) -> nn.Module:
    """Return the model of a checkpoint in eval mode, whose trained weights require gradients.

    Of a run with adapters these are the adapters and the head.
    """
    if is_adapter(checkpoint):
        model = make_model(recipe)
        tensors = load_file(checkpoint / WEIGHTS)
        expected_names = get_peft_model_state_dict(model).keys()
        assert tensors.keys() == expected_names, "a run of this recipe saved the checkpoint"
        set_peft_model_state_dict(model, tensors)
    else:
        backbone = recipe.backbone.model_copy(update={"path": str(checkpoint)})
        model = make_model(recipe.model_copy(update={"backbone": backbone}))
    return model.to(device()).eval()
