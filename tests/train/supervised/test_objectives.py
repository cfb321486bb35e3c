"""What a row teaches: losses over the step's totals, and the figures that come of its sums."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from models.packing.groups import Continuation, Group, pack
from tests.models import tiny
from train.recipe.methods import LanguageModelConfig, NaiveConfig
from train.supervised.objectives import LanguageModelling, PairwiseScores, bradley_terry, score_report, score_sums
from train.supervised.steps import PackedRow, TrainingExample, make_row

VISION = tiny.encoder().vision
SCORES = st.lists(st.tuples(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32)), min_size=1, max_size=8)


class Says(nn.Module):
    """A model that answers every row with the same numbers."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor(numbers, dtype=torch.float32))

    def forward(self, **inputs: Any) -> Tensor:
        """Return as many numbers as the row asks for."""
        count = inputs["continuations"] if "continuations" in inputs else len(inputs["labels"])
        return self.numbers[:count]


def row(*pairs: tuple[float, tuple[int, int]]) -> PackedRow:
    """Return a row of pairs, each given by its margin and the tokens of its responses; two of five tokens are learned."""
    read = tuple(Continuation((5, 6), read=(1,), learned=(0,)) for _ in range(2))
    return make_row(
        [TrainingExample(Group((3, 4), read), margin, lengths) for margin, lengths in pairs], lambda g: pack(g, VISION)
    )


TWO = row((0.5, (3, 1)), (0.0, (7, 7)))


def naive(**changes: Any) -> PairwiseScores:
    return PairwiseScores(NaiveConfig(type="naive", **changes))


def test_the_loss_of_a_row_is_its_share_of_the_step() -> None:
    loss, _ = naive().loss(Says(1, 0, 2, 5), TWO, torch.tensor([8.0]))
    assert loss.item() == pytest.approx((0.3132617 + 3.0485873) / 8)
    assert naive().totals(TWO).tolist() == [2.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"margin": True}, 0.4740770 + 3.0485873),
        ({"zero_coefficient": 0.1}, 0.3132617 + 0.1 + 3.0485873 + 4.9),
        ({"length_normalisation": True}, math.log1p(math.exp(-1 / math.log(4))) + math.log1p(math.exp(3 / math.log(8)))),
    ],
)
def test_the_ablations_change_the_loss_and_not_the_figures(changes: dict[str, Any], expected: float) -> None:
    loss, sums = naive(**changes).loss(Says(1, 0, 2, 5), TWO, torch.tensor([1.0]))
    assert loss.item() == pytest.approx(expected)
    assert {name: value.item() for name, value in sums.items()} == {
        "right": 1,
        "tied": 0,
        "margin": -2.0,
        "reward": 8.0,
        "reward_squared": 30.0,
    }


def test_chosen_comes_first() -> None:
    model = Says(1.0, 2.0)
    loss, _ = naive().loss(model, row((0.0, (1, 1))), torch.tensor([1.0]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert model.numbers.grad is not None
    assert model.numbers.grad[0] < 0 < model.numbers.grad[1]


@pytest.mark.parametrize("objective", [naive(), naive(length_normalisation=True), LanguageModelling()])
def test_a_filler_row_runs_the_model_and_weighs_nothing(objective: Any) -> None:
    model = Says(1.0)
    filler = make_row([], lambda groups: pack(groups, VISION))
    loss, sums = objective.loss(model, filler, torch.tensor([4.0]))
    loss.backward()
    assert loss.item() == 0.0
    assert model.numbers.grad is not None
    assert model.numbers.grad.tolist() == [0.0]
    assert objective.totals(filler).tolist() == [0.0]
    assert not any(float(value) for value in sums.values())


@given(SCORES)
def test_figures_are_those_of_all_pairs(pairs: list[tuple[float, float]]) -> None:
    chosen, rejected = torch.tensor(pairs).unbind(1)
    sums: dict[str, float] = defaultdict(float, records=len(pairs))
    for part in (slice(None, 3), slice(3, None)):  # rows and ranks only ever add up
        for name, value in score_sums(chosen[part], rejected[part]).items():
            sums[name] += float(value)
    found = score_report(sums)
    both = torch.cat([chosen, rejected]).double()
    assert found["accuracy"] == pytest.approx((chosen > rejected).double().mean().item())
    assert found["ties"] == pytest.approx((chosen == rejected).double().mean().item())
    assert found["margin"] == pytest.approx((chosen - rejected).double().mean().item(), abs=1e-4)
    assert found["reward_mean"] == pytest.approx(both.mean().item(), abs=1e-4)
    assert found["reward_spread"] == pytest.approx(both.std(unbiased=False).item(), abs=2e-2)


def test_a_tie_is_no_right_answer() -> None:
    found = naive().report({"records": 2.0, **{name: float(v) for name, v in score_sums(*torch.ones(2, 2)).items()}})
    assert (found["accuracy"], found["ties"]) == (0.0, 1.0)


def test_learned_tokens_are_weighed_over_the_step() -> None:
    objective, said = LanguageModelling(), Says(-1.0, -2.0, -3.0, -4.0)
    loss, sums = objective.loss(said, TWO, objective.totals(TWO) * 5)
    assert objective.totals(TWO).tolist() == [4.0]
    assert loss.item() == pytest.approx(10.0 / 20.0)
    figures = objective.report({name: float(value) for name, value in sums.items()})
    assert figures == {"perplexity": pytest.approx(math.exp(2.5))}


def test_a_hopeless_start_still_has_a_perplexity() -> None:
    assert LanguageModelling().report({"nll": 1e6, "labels": 2.0})["perplexity"] == math.exp(50)


def test_the_default_is_the_plain_loss() -> None:
    assert LanguageModelConfig(type="language_model", target="lessons").answers == "stated"
    loss, _ = naive().loss(Says(0.3, 0.1, 0.0, 0.0), TWO, torch.tensor([1.0]))
    expected = bradley_terry(torch.tensor([0.3, 0.0]), torch.tensor([0.1, 0.0])).sum()
    assert loss.item() == pytest.approx(expected.item())
