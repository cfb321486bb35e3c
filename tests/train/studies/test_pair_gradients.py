"""Gradients of single pairs: equal to plain autograd, and to what a small step changes, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mmrm.data.config.registry import load
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.models.backbone import load_encoder
from mmrm.models.lora import is_adapter
from mmrm.train.methods.method import SupervisedMethod
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.model import make_model
from mmrm.train.studies.pair_gradients import (
    GradientMean,
    LearnedPair,
    gradient_products,
    held_out_pairs,
    inner_product,
    model_at,
    products_at,
    record_gradient,
    training_pairs,
)
from mmrm.train.supervised.steps import make_row
from tests.models import tiny
from tests.models.exactness import assert_exact
from tests.train.minimal import write

pytestmark = [pytest.mark.numerics, pytest.mark.usefixtures("float64")]

TWO = """\
backbone: {path: embedded, dtype: float32}
data:
  sources:
    - {type: shapes, name: good, level: demo, rows: 60}
    - {type: shapes, name: flipped, level: demo, rows: 60, seed: 1, flipped: 1.0}
  validation: 8
method: {type: naive}
optim: {learning_rate: 1.0e-4, records_per_step: 6, epochs: 1, activation_checkpointing: false}
deepspeed: none
output: {folder: out, save_every_steps: 5}
"""


def method_of(folder: Path, *overrides: str) -> tuple[Recipe, SupervisedMethod]:
    """Return a recipe of a tiny backbone, which is written in float64, and its method."""
    tiny.checkpoint(folder / "backbone")
    path = f"backbone.path={folder / 'backbone'}"
    recipe = read_recipe(write(folder, TWO), [path, *overrides])
    encoder = load_encoder(recipe.backbone)
    method = load(recipe.method.implementation)(recipe, encoder, plain_console())
    method.setup()
    return recipe, method


def with_random_head(model: nn.Module) -> nn.Module:
    """Fill the last layer of the head, which begins at 0, so that gradients reach all weights."""
    generator = torch.Generator().manual_seed(5)
    for weight in model.get_submodule("head").parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data = weight.data + 0.1 * noise
    return model


def test_products_are_those_of_plain_autograd() -> None:
    """Every product is computed again by autograd on the losses of single pairs."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    weights = list(model.parameters())
    counts = {"a": (5, 4), "b": (3, 2)}
    training = {name: list(random_pairs(generator, count)) for name, (count, _) in counts.items()}
    held_out = {name: list(random_pairs(generator, count)) for name, (_, count) in counts.items()}

    def loss(pair: Tensor) -> Tensor:
        better, worse = model(pair)
        return -nn.functional.logsigmoid(better - worse).sum()

    products = gradient_products(
        lambda pair: torch.autograd.grad(loss(pair), weights), training, held_out
    )
    means = [flat_mean_gradient(model, loss, pairs) for pairs in training.values()]
    held_out_means = [flat_mean_gradient(model, loss, pairs) for pairs in held_out.values()]
    for number, name in enumerate(counts):
        for index, pair in enumerate(training[name]):
            gradient = flat_mean_gradient(model, loss, [pair])
            expected = [float(gradient @ mean) for mean in held_out_means]
            assert products.of_training[number][index] == pytest.approx(expected, rel=1e-12)
        for index, pair in enumerate(held_out[name]):
            gradient = flat_mean_gradient(model, loss, [pair])
            expected = [float(gradient @ mean) for mean in means]
            assert products.of_held_out[number][index] == pytest.approx(expected, rel=1e-12)
    assert products.sources == ("a", "b")


def random_pairs(generator: torch.Generator, count: int) -> Tensor:
    return torch.randn((count, 2, 3), generator=generator, dtype=torch.float64)


def flat_mean_gradient(model: nn.Module, loss: object, pairs: list[Tensor]) -> Tensor:
    """Return the gradient of the mean loss of pairs, by one backward pass over all of them."""
    assert callable(loss)
    model.zero_grad()
    total = torch.stack([loss(pair) for pair in pairs]).mean()
    total.backward()  # type: ignore[no-untyped-call]
    parts = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat(parts)


def test_the_mean_and_the_product_of_gradients() -> None:
    mean = GradientMean()
    mean.add([torch.tensor([1.0, 2.0]), torch.tensor([[4.0]])])
    mean.add([torch.tensor([3.0, 0.0]), torch.tensor([[0.0]])])
    first, second = mean.mean()
    assert first.tolist() == [2.0, 1.0]
    assert second.tolist() == [[2.0]]
    assert inner_product([first, second], [first, second]) == 9.0


def test_a_step_against_the_gradient_changes_the_loss_by_the_product(tmp_path: Path) -> None:
    """A step of the size η on one pair changes the loss of another by -η times the product."""
    recipe, method = method_of(tmp_path)
    model = with_random_head(model_at(recipe, tmp_path / "backbone"))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    rows = []
    for pair in training_pairs(method, 1).values():
        example = method.encode(pair[0].record, pair[0].side)
        rows.append(make_row([example], method.encoder.pack))
    first, second = (record_gradient(model, method.objective, row, weights) for row in rows)
    product = inner_product(first, second)
    assert all(float(part.abs().sum()) > 0 for part in (first[0], first[-1]))
    losses = []
    rate = 1e-6
    for direction in (-1.0, 2.0):  # the second step leads to the other side of the start
        for weight, part in zip(weights, first, strict=True):
            weight.data += direction * rate * part
        with torch.no_grad():
            loss, _ = method.objective.loss(model, rows[1], torch.ones(2))
        losses.append(float(loss))
    # The difference of both sides is exact up to the square of the rate.
    assert (losses[0] - losses[1]) / (2 * rate) == pytest.approx(-product, rel=1e-5)


def test_the_gradients_of_pairs_add_up_to_that_of_a_packed_row(tmp_path: Path) -> None:
    recipe, method = method_of(tmp_path)
    model = with_random_head(model_at(recipe, tmp_path / "backbone"))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    examples = [method.encode(pair.record, 0) for pair in training_pairs(method, 3)["good"]]
    together = record_gradient(
        model, method.objective, make_row(examples, method.encoder.pack), weights
    )
    mean = GradientMean()
    for example in examples:
        row = make_row([example], method.encoder.pack)
        mean.add(record_gradient(model, method.objective, row, weights))
    for part, single in zip(together, mean.mean(), strict=True):
        assert_exact(part, 3 * single)


def test_pairs_are_drawn_from_each_source_and_are_the_same_again(tmp_path: Path) -> None:
    _, method = method_of(tmp_path)
    pairs = training_pairs(method, 5)
    assert {name: len(drawn) for name, drawn in pairs.items()} == {"good": 5, "flipped": 5}
    assert all(pair.record.source == name for name, drawn in pairs.items() for pair in drawn)
    assert training_pairs(method, 5) == pairs
    assert [pair.side for pair in pairs["good"]] == [0, 1, 0, 1, 0]
    held_out = held_out_pairs(method)
    assert {name: len(found) for name, found in held_out.items()} == {"good": 4, "flipped": 4}
    identities = {pair.record.identity for pair in held_out["good"]}
    everything = training_pairs(method, 1000)
    assert len(everything["good"]) == 56
    assert identities.isdisjoint(pair.record.identity for pair in everything["good"])


def test_both_passes_over_the_pairs_agree(tmp_path: Path) -> None:
    """The products of training pairs with means, and of held-out pairs with means, have one mean."""
    recipe, _ = method_of(tmp_path)
    products = products_at(recipe, tmp_path / "backbone", 6, plain_console())
    assert [rows.shape for rows in products.of_training] == [(6, 2), (6, 2)]
    assert [rows.shape for rows in products.of_held_out] == [(4, 2), (4, 2)]
    for source in ("good", "flipped"):
        for target in ("good", "flipped"):
            of_training, _, _ = products.influence(source, [target])
            index = products.sources.index(source)
            target_index = products.sources.index(target)
            of_held_out = products.of_held_out[target_index][:, index].mean()
            assert of_training == pytest.approx(float(of_held_out), rel=1e-9)
    assert np.abs(products.of_training[0]).min() > 0


def test_too_few_held_out_pairs_are_refused(tmp_path: Path) -> None:
    recipe, _ = method_of(tmp_path, "data.validation=2")
    with pytest.raises(UserError, match="good: 3 training pairs and 1 held-out pairs"):
        products_at(recipe, tmp_path / "backbone", 3, plain_console())


def test_a_pair_keeps_the_side_of_its_better_response(tmp_path: Path) -> None:
    """A judge of two responses learns another text for each side, and so another gradient."""
    judge = "method={type: language_model, target: verdict, template: short}"
    _, method = method_of(tmp_path, judge, "data.sources.0.rows=40")
    pair = training_pairs(method, 1)["good"][0]
    first = method.encode(pair.record, 0)
    second = method.encode(LearnedPair(pair.record, 1).record, 1)
    assert str(first.tree) != str(second.tree)


def test_a_run_with_adapters_has_the_gradients_of_its_adapters(tmp_path: Path) -> None:
    recipe, method = method_of(tmp_path, "optim.lora={rank: 2, alpha: 4}")
    model = make_model(recipe)
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        if weight.requires_grad:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.data = weight.data + 0.1 * noise
    folder = tmp_path / "checkpoint"
    model.save_pretrained(folder)  # type: ignore[operator]
    assert is_adapter(folder)
    restored = model_at(recipe, folder)
    names = [name for name, weight in restored.named_parameters() if weight.requires_grad]
    assert all("lora_" in name or "head" in name for name in names)
    assert any("lora_" in name for name in names)
    pair = training_pairs(method, 1)["good"][0]
    row = make_row([method.encode(pair.record, 0)], method.encoder.pack)
    gradients = []
    for module in (model.eval(), restored):
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        gradients.append(record_gradient(module, method.objective, row, weights))
    for part, expected in zip(gradients[1], gradients[0], strict=True):
        assert_exact(part, expected)
