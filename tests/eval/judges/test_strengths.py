"""Strengths fitted to comparisons: the maximum of the posterior, and intervals that hold what they say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from mmrm.data.arrays import Floats
from mmrm.eval.judges.pair_schedule import Swiss
from mmrm.eval.judges.replayed_ranking import replayed
from mmrm.eval.judges.strengths import SPREADS, fit_with_spread, fitted_strengths


def negative_log_posterior(strengths: Floats, wins: Floats, spread: float) -> float:
    """Write the posterior down once more, pair by pair."""
    total = float((strengths**2).sum()) / (2 * spread**2)
    for winner in range(len(wins)):
        for loser in range(len(wins)):
            odds = np.exp(strengths[winner] - strengths[loser])
            total -= wins[winner, loser] * np.log(odds / (1 + odds))
    return total


def drawn_wins(rng: np.random.Generator, strengths: Floats, num_rounds: int) -> Floats:
    """Draw comparisons of each response with the next ones around a circle, twice each."""
    num_responses = len(strengths)
    wins = np.zeros((num_responses, num_responses))
    for distance in range(1, num_rounds + 1):
        for first in range(num_responses):
            second = (first + distance) % num_responses
            probability = 1 / (1 + np.exp(strengths[second] - strengths[first]))
            num_won = rng.binomial(2, probability)
            wins[first, second] += num_won
            wins[second, first] += 2 - num_won
    return wins


def test_strengths_are_the_maximum_of_the_posterior() -> None:
    rng = np.random.default_rng(0)
    for num_responses in (2, 3, 7):
        wins = drawn_wins(rng, rng.normal(0, 2, num_responses), 1)
        wins[0, 1] += 0.5  # a comparison without a winner
        wins[1, 0] += 0.5
        for spread in (0.5, 4.0):
            start = np.zeros(num_responses)
            best = minimize(negative_log_posterior, start, args=(wins, spread), tol=1e-9)
            assert fit_with_spread(wins, spread).values == pytest.approx(best.x, abs=1e-5)


def test_a_response_that_won_everything_is_finite_and_first() -> None:
    wins = np.zeros((4, 4))
    wins[0, 1:] = 1000.0
    strengths = fitted_strengths(wins)
    assert np.isfinite(strengths.values).all()
    assert np.isfinite(strengths.stds).all()
    assert int(strengths.values.argmax()) == 0
    assert strengths.values[1:] == pytest.approx(strengths.values[1])
    assert strengths.values.sum() == pytest.approx(0, abs=1e-8)


def test_responses_with_equal_comparisons_tie() -> None:
    """After one round of pairs, the four winners have one strength to the last bit."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        order = rng.permutation(8)
        points = (order[:, None] > order[None, :]).astype(float)
        ranking = replayed(points, Swiss(8, 1))
        assert int((ranking.scores == ranking.scores.max()).sum()) == 4


def test_without_comparisons_all_are_equal_and_as_uncertain_as_the_prior() -> None:
    no_wins = np.zeros((4, 4))
    for spread in SPREADS:
        fit = fit_with_spread(no_wins, spread)
        assert fit.values == pytest.approx(np.zeros(4))
        # The deviation from the mean of four independent strengths. Nothing speaks for a spread.
        assert fit.variances == pytest.approx(np.full(4, spread**2 * 3 / 4))
        assert fit.log_evidence == pytest.approx(0)
    assert fitted_strengths(no_wins).values == pytest.approx(np.zeros(4))


def test_the_evidence_is_the_integral_over_the_strengths() -> None:
    """For two responses, the integral runs over one difference and can be computed on a grid."""
    wins = np.array([[0.0, 3.0], [1.0, 0.0]])
    differences = np.linspace(-40, 40, 200_001)
    for spread in (0.5, 2.0):
        std = spread * np.sqrt(2)
        density = np.exp(-(differences**2) / (2 * std**2)) / (std * np.sqrt(2 * np.pi))
        probability = 1 / (1 + np.exp(-differences))
        integral = np.trapezoid(density * probability**3 * (1 - probability), differences)
        # Laplace's approximation is near, as the posterior is nearly normal.
        assert fit_with_spread(wins, spread).log_evidence == pytest.approx(
            np.log(integral), abs=0.1
        )


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_intervals_hold_the_true_strengths_in_95_of_100_cases(spread: float) -> None:
    """150 prompts of 8 responses are drawn, and each response has 12 comparisons."""
    rng = np.random.default_rng(1)
    is_inside: list[NDArray[np.bool_]] = []
    for _ in range(150):
        true = rng.normal(0, spread, 8)
        true -= true.mean()
        strengths = fitted_strengths(drawn_wins(rng, true, 3))
        is_inside.append((strengths.lows <= true) & (true <= strengths.highs))
    share = float(np.mean(is_inside))
    assert 0.91 <= share <= 0.99
