"""StableReinforce's arithmetic against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrm.train.reinforce.config import PreClipConfig
from mmrm.train.reinforce.policy_loss import (
    kl_divergence,
    policy_loss,
    pre_clipped,
    sequence_mean,
)
from mmrm.train.reinforce.stable_reinforce.config import StableReinforceConfig

pytestmark = [pytest.mark.numerics, pytest.mark.usefixtures("float64")]


def config(**changes: Any) -> StableReinforceConfig:
    return StableReinforceConfig(type="stable_reinforce", **changes)


def one(log_ratio: float, advantage: float, **changes: Any) -> tuple[float, float]:
    """Return the loss of one token and its gradient by the log-ratio."""
    x = torch.tensor([[log_ratio]], requires_grad=True)
    loss = policy_loss(x, torch.tensor([advantage]), config(**changes)).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    return float(loss.detach()), float(gradient)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss", "gradient"),
    [
        (0.0, 2.0, -2.0, -2.0),
        (0.0, -2.0, 2.0, 2.0),
        (math.log(1.1), 1.0, -1.1, -1.1),
        (math.log(2.0), 1.0, -1.2, 0.0),  # min(2, 1.2): clipped
        (math.log(2.0), -1.0, 2.0, 2.0),  # min(-2, -1.2): not clipped
        (math.log(0.5), 1.0, -0.5, -0.5),
        (math.log(0.5), -1.0, 0.8, 0.0),
    ],
)
def test_the_clipped_objective(
    log_ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    assert one(log_ratio, advantage) == pytest.approx((loss, gradient), abs=1e-6)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss"),
    [(1000.0, 1.0, -1.2), (1000.0, -1.0, 1e3), (-1000.0, 1.0, -1e-3), (-1000.0, -1.0, 0.8)],
)
def test_huge_log_ratios_are_finite_with_the_pre_clip_and_not_without(
    log_ratio: float, advantage: float, loss: float
) -> None:
    found = one(log_ratio, advantage)
    assert found == pytest.approx((loss, 0.0), rel=1e-5)
    if log_ratio > 0:
        unprotected = one(log_ratio, advantage, pre_clip=None)
        assert not all(map(math.isfinite, unprotected))


def test_the_pre_clip_bounds_ratios_at_their_stated_values() -> None:
    found = pre_clipped(torch.tensor([-9.0, -6.9, 0.3, 6.9, 9.0]), PreClipConfig()).exp()
    assert found.tolist() == pytest.approx(
        [1e-3, math.exp(-6.9), math.exp(0.3), math.exp(6.9), 1e3], rel=1e-5
    )


def test_dual_clip_and_clip_higher() -> None:
    assert one(math.log(5.0), -1.0, dual_clip=3.0) == pytest.approx((3.0, 0.0))
    assert one(math.log(2.0), -1.0, dual_clip=3.0) == pytest.approx((2.0, 2.0))
    assert one(math.log(5.0), 1.0, dual_clip=3.0) == pytest.approx((-1.2, 0.0))
    assert one(math.log(2.0), 1.0, epsilon_high=0.28) == pytest.approx((-1.28, 0.0))
    assert one(math.log(0.5), -1.0, epsilon_high=0.28) == pytest.approx((0.8, 0.0))


def test_estimates_of_the_divergence() -> None:
    log_p, reference = torch.tensor([[-1.0]]), torch.tensor([[-1.5]])
    assert float(kl_divergence(log_p, reference, "k1")) == 0.5
    assert float(kl_divergence(log_p, reference, "k2")) == 0.125
    assert float(kl_divergence(log_p, reference, "k3")) == pytest.approx(math.exp(-0.5) + 0.5 - 1)


def test_all_three_estimate_the_same_divergence() -> None:
    torch.manual_seed(0)
    policy, reference = torch.randn(5).log_softmax(0), torch.randn(5).log_softmax(0)
    exact = float((policy.exp() * (policy - reference)).sum())
    for form in ("k1", "k3"):
        assert float(
            (policy.exp() * kl_divergence(policy, reference, form)).sum()
        ) == pytest.approx(exact, rel=1e-4)


def test_every_judgement_counts_alike_whatever_its_length() -> None:
    values: Tensor = torch.tensor([[2.0, 4.0, 9.0], [1.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert sequence_mean(values, mask).tolist() == [3.0, 1.0]
