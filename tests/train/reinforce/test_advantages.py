"""Advantages against numbers worked out by hand, and against a loop over groups as the papers write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from mmrm.train.reinforce.advantage_config import (
    GrpoAdvantages,
    RlooAdvantages,
    StableReinforceAdvantages,
)
from mmrm.train.reinforce.advantages import (
    grpo_advantages,
    rloo_advantages,
    stable_reinforce_advantages,
)

pytestmark = [pytest.mark.numerics, pytest.mark.usefixtures("float64")]
GRPO = GrpoAdvantages(type="grpo")
RLOO = RlooAdvantages(type="rloo")


def test_one_wrong_among_255_right_is_taken_out() -> None:
    rewards = torch.ones(256)
    rewards[7] = 0.0
    raw = stable_reinforce_advantages(rewards, 1, StableReinforceAdvantages(filter=None)).advantages
    # mean 255/256, std sqrt(255)/256: the odd one out stands at -sqrt(255), the others at 1/sqrt(255).
    assert float(raw[7]) == pytest.approx(-15.9687, abs=1e-3)
    assert float(raw[0]) == pytest.approx(0.062622, abs=1e-5)
    found = stable_reinforce_advantages(rewards, 1, StableReinforceAdvantages())
    assert found.filtered.nonzero().flatten().tolist() == [7]
    assert float(found.advantages[7]) == 0.0
    assert torch.equal(found.advantages[8:], raw[8:])


def test_the_released_form_of_the_filter_never_acts_on_rewards_of_at_most_two() -> None:
    rewards = torch.full((256,), 2.0)
    rewards[0] = 0.0
    found = stable_reinforce_advantages(
        rewards, 1, StableReinforceAdvantages(filter_variant="r1_released")
    )
    assert not found.filtered.any()
    assert float(found.advantages[0]) < -15


def test_the_three_normalisations() -> None:
    rewards = torch.tensor([1.0, 0.0, 3.0, 0.0])
    batch = stable_reinforce_advantages(
        rewards, 2, StableReinforceAdvantages(normalisation="batch")
    ).advantages
    std = math.sqrt(1.5)  # of [0, -1, 2, -1] around the mean 1
    assert batch.tolist() == pytest.approx([0.0, -1 / std, 2 / std, -1 / std])
    group = stable_reinforce_advantages(
        rewards, 2, StableReinforceAdvantages(normalisation="group")
    ).advantages
    assert group.tolist() == pytest.approx([0.7071, -0.7071, 0.7071, -0.7071], abs=1e-4)
    others = stable_reinforce_advantages(
        rewards, 2, StableReinforceAdvantages(normalisation="leave_one_out")
    ).advantages
    assert others.tolist() == pytest.approx([1 / std, -1 / std, 3 / std, -3 / std], rel=1e-5)


@pytest.mark.parametrize("normalisation", ["batch", "group", "leave_one_out"])
def test_equal_rewards_teach_nothing(normalisation: Any) -> None:
    assert (
        stable_reinforce_advantages(
            torch.full((8,), 1.5), 4, StableReinforceAdvantages(normalisation=normalisation)
        ).advantages.tolist()
        == [0.0] * 8
    )


@given(
    st.lists(st.floats(-2, 2, width=32), min_size=6, max_size=60).filter(
        lambda found: len(found) % 6 == 0
    )
)
def test_no_advantage_exceeds_the_largest_that_is_stated(rewards: list[float]) -> None:
    for normalisation in ("batch", "group", "leave_one_out"):
        settings = StableReinforceAdvantages(normalisation=normalisation, filter=None)
        found = stable_reinforce_advantages(torch.tensor(rewards), 6, settings).advantages
        assert float(found.abs().max()) <= settings.largest(len(rewards), 6) * 1.01 + 1e-2


@pytest.mark.parametrize("normalisation", ["batch", "group", "leave_one_out"])
def test_the_largest_advantage_is_reached(normalisation: Any) -> None:
    rewards = torch.zeros(6)
    rewards[0] = 1.0
    settings = StableReinforceAdvantages(normalisation=normalisation, filter=None)
    found = stable_reinforce_advantages(rewards, 6, settings).advantages
    assert float(found.max()) == pytest.approx(settings.largest(6, 6), rel=1e-4)


GROUP_SIZE = 4
REWARDS = st.lists(
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, -1.0]) | st.floats(-2, 2), min_size=4, max_size=40
).map(lambda rewards: rewards[: len(rewards) // GROUP_SIZE * GROUP_SIZE])


def by_loop(rewards: list[float], advantage: Callable[[list[float], int], float]) -> list[float]:
    """Return the advantages of all texts, one after another, each from its group and its index."""
    advantages = []
    for index in range(len(rewards)):
        start = index // GROUP_SIZE * GROUP_SIZE
        advantages.append(advantage(rewards[start : start + GROUP_SIZE], index - start))
    return advantages


def largest_difference(found: Tensor, wanted: list[float]) -> float:
    """Return the largest difference between advantages; most of them are near 1, and some are 0."""
    assert found.dtype == torch.float64
    return float((found - torch.tensor(wanted)).abs().max())


@given(REWARDS)
def test_grpo_is_the_distance_from_the_group_s_mean_in_deviations(rewards: list[float]) -> None:
    def advantage(group: list[float], index: int) -> float:
        return (group[index] - fmean(group)) / (stdev(group) + 1e-4)

    found = grpo_advantages(torch.tensor(rewards), GROUP_SIZE, GRPO)
    assert largest_difference(found.advantages, by_loop(rewards, advantage)) < 1e-9
    assert not found.filtered.any()


@given(REWARDS)
def test_rloo_is_the_distance_from_the_mean_of_the_others(rewards: list[float]) -> None:
    def advantage(group: list[float], index: int) -> float:
        others = [reward for other, reward in enumerate(group) if other != index]
        return group[index] - fmean(others)

    found = rloo_advantages(torch.tensor(rewards), GROUP_SIZE, RLOO)
    assert largest_difference(found.advantages, by_loop(rewards, advantage)) < 1e-9
    assert not found.filtered.any()


@given(REWARDS, st.sampled_from([None, 1.0, 2.0]))
def test_stable_reinforce_is_the_distance_from_the_batch_s_mean_with_a_filter(
    rewards: list[float], bound: float | None
) -> None:
    mean = fmean(rewards)
    deviation = math.sqrt(fmean([(reward - mean) ** 2 for reward in rewards]))
    wanted = []
    is_filtered = []
    for reward in rewards:
        advantage = (reward - mean) / (deviation + 1e-8)
        # Rounding decides about a number at the bound, such as 1 of two rewards.
        assume(bound is None or abs(abs(advantage) - bound) > 1e-6)
        is_outlier = bound is not None and abs(advantage) > bound
        is_filtered.append(is_outlier)
        wanted.append(0.0 if is_outlier else advantage)
    settings = StableReinforceAdvantages(filter=bound)
    found = stable_reinforce_advantages(torch.tensor(rewards), GROUP_SIZE, settings)
    # A deviation of 0 is replaced by 1e-8, and rounding of the mean is divided by it.
    assert largest_difference(found.advantages, wanted) < 1e-6
    assert found.filtered.tolist() == is_filtered


@pytest.mark.parametrize(("compute", "config"), [(grpo_advantages, GRPO), (rloo_advantages, RLOO)])
def test_a_group_of_equal_rewards_teaches_nothing(compute: Any, config: Any) -> None:
    rewards = torch.tensor([1.5, 1.5, 1.5, 0.0, 1.0, 2.0])
    found = compute(rewards, 3, config).advantages
    assert found[:3].tolist() == [0.0] * 3
    assert float(found[3]) < 0 < float(found[5])
