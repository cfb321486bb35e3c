"""The losses, against numbers computed by hand and against plain formulas in double precision."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from train.supervised.objectives import bradley_terry, length_normalised, pair_loss, zero_coefficient

SCORES = st.floats(-50, 50, width=32)
MARGINS = st.floats(0, 5, width=32)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_bradley_terry_by_hand() -> None:
    found = bradley_terry(tensor(1, 0, 2), tensor(0, 0, 5))
    assert found.tolist() == pytest.approx([0.3132617, 0.6931472, 3.0485873])


def test_a_margin_is_asked_of_the_difference() -> None:
    found = bradley_terry(tensor(1, 1), tensor(0, 0), tensor(0.5, 1))
    assert found.tolist() == pytest.approx([0.4740770, 0.6931472])


def test_extreme_differences_stay_finite() -> None:
    chosen, rejected = tensor(1e4, -1e4), tensor(0, 0)
    chosen.requires_grad_()
    loss = bradley_terry(chosen, rejected)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == [0.0, 1e4]
    assert chosen.grad is not None
    assert chosen.grad.tolist() == [0.0, -1.0]


@given(chosen=SCORES, rejected=SCORES, margin=MARGINS)
def test_bradley_terry_is_the_formula(chosen: float, rejected: float, margin: float) -> None:
    difference = float(torch.tensor(chosen) - torch.tensor(rejected) - torch.tensor(margin))
    expected = math.log1p(math.exp(-difference)) if difference > -30 else -difference
    found = bradley_terry(tensor(chosen), tensor(rejected), tensor(margin))
    assert found.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@given(chosen=SCORES, rejected=SCORES)
def test_swapping_a_pair_costs_its_difference(chosen: float, rejected: float) -> None:
    a, b = tensor(chosen), tensor(rejected)
    assert (bradley_terry(b, a) - bradley_terry(a, b)).item() == pytest.approx((a - b).item(), abs=1e-4)


@given(chosen=SCORES, rejected=SCORES, margin=MARGINS)
def test_the_gradient_is_what_the_model_did_not_believe(chosen: float, rejected: float, margin: float) -> None:
    scores = tensor(chosen, rejected).requires_grad_()
    bradley_terry(scores[:1], scores[1:], tensor(margin)).sum().backward()  # type: ignore[no-untyped-call]
    doubt = torch.sigmoid(-(scores[0] - scores[1] - margin)).item()
    assert scores.grad is not None
    assert scores.grad.tolist() == pytest.approx([-doubt, doubt], abs=1e-6)


def test_zero_coefficient_by_hand() -> None:
    assert zero_coefficient(tensor(1, -2), tensor(2, 2)).tolist() == [9.0, 0.0]


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 0.3132617), (0.1, 0.3132617 + 0.1), (0.01, 0.3132617 + 0.01)])
def test_pair_loss_adds_the_weighted_term(weight: float, expected: float) -> None:
    assert pair_loss(tensor(1), tensor(0), None, weight).tolist() == pytest.approx([expected])


def test_pair_loss_takes_margin_and_term_together() -> None:
    assert pair_loss(tensor(1), tensor(0), tensor(0.5), 2.0).tolist() == pytest.approx([0.4740770 + 2.0])


def test_scores_are_divided_by_the_log_of_the_length() -> None:
    found = length_normalised(tensor(3, -2, 0), torch.tensor([3, 1, 9]))
    assert found.tolist() == pytest.approx([3 / math.log(4), -2 / math.log(2), 0])
    assert found.dtype == torch.float32


@given(score=SCORES, short=st.integers(1, 4000), more=st.integers(1, 4000))
def test_a_longer_response_never_gains_by_its_length(score: float, short: int, more: int) -> None:
    found = length_normalised(tensor(score, score), torch.tensor([short, short + more]))
    assert abs(found[1].item()) <= abs(found[0].item())
