"""Strengths of responses from comparisons of two of them, by the model of Bradley and Terry.

The model says that response i is named better than response j with the probability
1 / (1 + exp(strength j - strength i)). Not every two responses have to be compared.

A prior keeps strengths finite: a response that won all of its comparisons would be infinitely
strong without it. The prior of each strength is normal with mean 0. Its standard deviation, the
spread of the strengths, is not known before the comparisons. A fixed one would be wrong for a judge
that is never in doubt, or for one that mostly guesses. The logarithm of the spread is therefore
normal around log(3) with the standard deviation 1, and the results are the mean over all spreads of
`SPREADS`, each weighted by its probability after the comparisons.
"""

import math
from dataclasses import dataclass

import numpy as np

from mmrm.data.arrays import Floats

SPREADS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""The spreads over which the mean is taken."""
TYPICAL_SPREAD = 3.0
"""The median of the prior of the spread."""
SPREAD_OF_LOG_SPREAD = 1.0
"""Standard deviation of the logarithm of the spread."""
QUANTILE = 1.959964
"""A normal number is within this many standard deviations of its mean in 95 of 100 cases."""
MAX_STEPS = 100
"""Newton's method needs far fewer steps; more mean an error in this module."""
TOLERANCE = 1e-8
"""Largest derivative of the log-posterior at the strengths that are returned."""
DECIMALS = 9
"""The number of decimals of a strength."""
ROUNDING = 1e-9
"""A log-posterior that is lower by less than this is not lower than another one."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """The strengths of N responses to one prompt, with their uncertainty."""

    values: Floats
    """(N,): strengths, whose mean is 0. A difference of 1 means odds of e to 1."""
    stds: Floats
    """(N,): the standard deviation of each strength about their mean."""

    @property
    def lows(self) -> Floats:
        """(N,): the lower ends of the 95 % intervals."""
        return self.values - QUANTILE * self.stds

    @property
    def highs(self) -> Floats:
        """(N,): the upper ends of the 95 % intervals."""
        return self.values + QUANTILE * self.stds


def fitted_strengths(wins: Floats) -> Strengths:
    """Return the strengths of N responses after some comparisons.

    Args:
        wins: (N, N): the number of comparisons in which the response of the row was named better
            than that of the column. A comparison without a winner counts one half for each.
    """
    fits = [fit_with_spread(wins, spread) for spread in SPREADS]
    log_weights = np.array([fit.log_evidence for fit in fits])
    log_weights -= ((np.log(SPREADS) - np.log(TYPICAL_SPREAD)) / SPREAD_OF_LOG_SPREAD) ** 2 / 2
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()

    values = np.array([fit.values for fit in fits])  # (spreads, N)
    variances = np.array([fit.variances for fit in fits])
    # Responses with the same comparisons have strengths that differ by rounding alone, about 1e-15.
    # They are made equal, so that they tie.
    mean: Floats = np.round(weights @ values, DECIMALS)
    # The variance over all spreads: within each one, and between them.
    variance = weights @ (variances + (values - mean) ** 2)
    return Strengths(mean, np.sqrt(variance))


@dataclass(frozen=True, slots=True)
class FitWithSpread:
    """The most probable strengths for a prior of one spread."""

    values: Floats
    """(N,): the strengths, whose mean is 0."""
    variances: Floats
    """(N,): the variance of each strength about their mean."""
    log_evidence: float
    """The logarithm of the probability of the comparisons with this prior."""


def fit_with_spread(wins: Floats, spread: float) -> FitWithSpread:
    """Return the most probable strengths if the prior has a given spread, by Newton's method.

    Variances and evidence are those of the normal distribution that has the curvature of the
    posterior at its maximum (Laplace's approximation).

    Args:
        wins: (N, N), as in `fitted_strengths`.
        spread: Standard deviation of the prior of a strength.
    """
    num_responses = len(wins)
    counts = wins + wins.T
    strengths = np.zeros(num_responses)
    for _ in range(MAX_STEPS):
        differences = strengths[:, None] - strengths[None, :]
        probabilities = 0.5 * (1.0 + np.tanh(differences / 2))  # of a win of the row's response
        gradient = (wins - counts * probabilities).sum(1) - strengths / spread**2
        weights = counts * probabilities * (1.0 - probabilities)
        # The negative second derivatives of the log-posterior.
        curvature = np.diag(weights.sum(1) + 1.0 / spread**2) - weights
        if np.abs(gradient).max() <= TOLERANCE:
            _, log_determinant = np.linalg.slogdet(curvature)
            log_height = _log_posterior(wins, strengths, spread)
            log_evidence = log_height - num_responses * math.log(spread) - log_determinant / 2
            return FitWithSpread(strengths, _variances_about_mean(curvature), float(log_evidence))
        step = np.linalg.solve(curvature, gradient)
        strengths = strengths + _rising_share(wins, strengths, step, spread) * step
    raise AssertionError(f"Newton's method did not converge in {MAX_STEPS} steps.")


def _log_posterior(wins: Floats, strengths: Floats, spread: float) -> float:
    """Return the logarithm of the posterior density of strengths, up to a constant."""
    differences = strengths[:, None] - strengths[None, :]
    log_likelihood = -(wins * np.logaddexp(0.0, -differences)).sum()
    log_prior = -0.5 * (strengths**2).sum() / spread**2
    return float(log_likelihood + log_prior)


def _rising_share(wins: Floats, strengths: Floats, step: Floats, spread: float) -> float:
    """Return the share of a Newton step to take: 1, or the half, quarter ... that goes uphill.

    The log-posterior is concave, so that a small enough share of the step never lowers it.
    """
    # Near the maximum the log-posterior changes by less than its rounding.
    lowest = _log_posterior(wins, strengths, spread) - ROUNDING
    share = 1.0
    while _log_posterior(wins, strengths + share * step, spread) < lowest:
        share /= 2
    return share


def _variances_about_mean(curvature: Floats) -> Floats:
    """Return the variance of each strength less the mean of all strengths, (N,).

    Comparisons say nothing about the mean, which the prior alone decides.
    """
    num_responses = len(curvature)
    centre = np.eye(num_responses) - 1.0 / num_responses
    covariance = centre @ np.linalg.inv(curvature) @ centre
    variances: Floats = np.diagonal(covariance).clip(min=0.0)
    return variances
