"""The probability that a label is wrong, from margins of models that were not trained on it.

The margin of a pair is the score of the response that its label prefers, minus that of the other
one. It is positive if the model agrees with the label. The model of the margins is a mixture: a
wrong label mirrors the margin that the pair would have with the right one,

    p(m | source) = (1 - e) f(m) + e f(-m)

where `e` is the error rate of the source, and `f` is the density of the margins of right labels,
whose shape all sources share. The size of a margin does not depend on the label. So only the sign
is informative, given the size:

    P(m > 0 | |m|, source) = e + (1 - 2 e) sigmoid(g(|m|)),    g(m) = log f(m) / f(-m)

By its definition `g` is odd, and g(0) = 0. It is modelled as (slope · |m|)^power, with a power from
0.5 to 2, because a sum of more easy and more difficult pairs is not linear. It is linear (power 1)
for normally distributed margins. An error rate is what remains of the disagreement if the margins
are large: a lapse rate.

The uncertainty is that of a Bayesian bootstrap over clusters of pairs (Rubin 1981). In each of its
draws, slope, power and error rates have the largest posterior density. The prior density of an
error rate is proportional to 1 - 2 e, and that of the logarithm of the power is normal around 0.
They decide if the margins say little: half of the labels could then be wrong, or none. The estimate
of an error rate is the mean over the draws, and so is the probability that a label is wrong:

    P(wrong | m, source) = e / (e + (1 - e) exp(g(m)))

Two assumptions decide the result. The simulations in
tests/train/studies/cleaning/test_label_errors.py show the effects.

- A wrong label is as likely for a difficult pair as for an easy one. If only difficult pairs are
  mislabelled, the disagreement of large margins is small, and the error rate and the probabilities
  are too low.
- The model is rarely wrong with a large margin. Pairs about which it is confidently wrong cannot be
  told from wrong labels, so that the error rate is too high.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.intervals import wilson

DRAWS = 200
"""Number of draws of the bootstrap."""
MOST_ERRORS = 0.5
"""The largest error rate. With more errors, the reversed labels would be the better ones."""
MOST_FITTED = 0.499
"""The largest error rate of a fit. The prior density of MOST_ERRORS is 0."""
LOG_SLOPES = (-6.0, 6.0)
"""Bounds of the logarithm of the slope; margins have a root mean square of 1."""
LOG_POWERS = (float(np.log(0.5)), float(np.log(2.0)))
"""Bounds of the logarithm of the power."""
SPREAD_OF_LOG_POWER = 0.3
"""Standard deviation of the prior of the logarithm of the power, whose mean is 0."""
STARTS = ((0.0, 0.0, 0.01), (1.5, 0.0, 0.2))
"""The values that a fit starts from: logarithms of slope and power, and every error rate.

The density can have two maxima: a model that is often wrong about right labels, and one that is
rarely wrong about labels that often are."""
LEAST_PROBABILITY = 1e-12
"""The smallest probability of a sign, so that its logarithm is finite."""


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """The estimated error rate of one source."""

    source: str
    pairs: int
    rate: float
    """The estimated share of wrong labels."""
    low: float
    high: float
    """The ends of the 95 % interval of `rate`."""


@dataclass(frozen=True, slots=True)
class LabelErrors:
    """The result of `label_errors`."""

    sources: tuple[SourceErrors, ...]
    """The sources in the order of their first pairs."""
    probabilities: Floats
    """For each pair the probability that its label is wrong, shape (pairs,)."""
    slope: float
    power: float
    """The medians of slope and power over the draws."""


def scaled(margins: Floats, models: Ints) -> Floats:
    """Return margins that can be compared between models, shape (pairs,).

    The margins of each model are divided by their root mean square. No mean is subtracted: a margin
    of 0 prefers neither response, and has to stay 0. The margins of a model whose scores are all
    equal stay 0.

    Args:
        margins: The margins, shape (pairs,).
        models: The number of the model that each margin comes from, shape (pairs,).
    """
    numbers, codes = np.unique(models, return_inverse=True)
    mean_squares = np.bincount(codes, margins**2, len(numbers)) / np.bincount(codes)
    scales = np.sqrt(mean_squares)[codes]
    return np.divide(margins, scales, out=np.zeros(len(margins)), where=scales > 0)


def label_errors(
    margins: Floats, sources: Sequence[str], clusters: Ints, draws: int = DRAWS
) -> LabelErrors:
    """Return the error rate of each source, and the probability that each label is wrong.

    Args:
        margins: The scaled margin of each pair, shape (pairs,). Required is at least one.
        sources: The source of each pair.
        clusters: The cluster of each pair, shape (pairs,). Pairs of one cluster, such as pairs
            about one image, are not independent.
        draws: Number of draws of the bootstrap.
    """
    names = list(dict.fromkeys(sources))
    number_by_name = {name: number for number, name in enumerate(names)}
    codes = np.array([number_by_name[source] for source in sources], dtype=np.int64)
    cluster_numbers, cluster_codes = np.unique(clusters, return_inverse=True)
    generator = np.random.default_rng(0)
    probabilities = np.zeros(len(margins))
    information = np.zeros(len(margins))
    draws_of_parameters = np.empty((draws, 2 + len(names)))
    for draw in range(draws):
        weights = generator.exponential(size=len(cluster_numbers))[cluster_codes]
        parameters = fit(margins, codes, weights, len(names))
        draws_of_parameters[draw] = parameters
        probabilities += probability_of_error(margins, codes, parameters) / draws
        # That of a pair about the error rate, relative to a pair whose right label is known
        model_is_right = expit(log_ratio(np.abs(margins), parameters))
        information += (2 * model_is_right - 1) ** 2 / draws

    source_errors = []
    for number, name in enumerate(names):
        is_of_source = codes == number
        rates = draws_of_parameters[:, 2 + number]
        rate = float(rates.mean())
        low, high = np.quantile(rates, (0.025, 0.975)).tolist()
        # No interval is narrower than that of as many pairs whose right labels are known. An
        # estimate of 0 is 0 in all draws.
        num_informative = max(float(information[is_of_source].sum()), LEAST_PROBABILITY)
        least_low, least_high = wilson(rate * num_informative, num_informative)
        low = min(low, least_low)
        high = max(high, least_high)
        num_pairs = int(is_of_source.sum())
        source_errors.append(SourceErrors(name, num_pairs, rate, low, min(high, MOST_ERRORS)))
    slope, power = np.exp(np.median(draws_of_parameters[:, :2], axis=0)).tolist()
    return LabelErrors(tuple(source_errors), probabilities, slope, power)


def log_ratio(margins: Floats, parameters: Floats) -> Floats:
    """Return g, the logarithm of f(m) / f(-m), for each margin, shape (pairs,).

    Args:
        margins: The margins, shape (pairs,).
        parameters: Logarithms of slope and power, then the error rates, shape (2 + sources,).
    """
    slope, power = np.exp(parameters[:2])
    return np.asarray(np.sign(margins) * (slope * np.abs(margins)) ** power)


def probability_of_error(margins: Floats, sources: Ints, parameters: Floats) -> Floats:
    """Return the probability that each label is wrong, shape (pairs,).

    Args:
        margins: The margins, shape (pairs,).
        sources: The number of each pair's source, shape (pairs,).
        parameters: Logarithms of slope and power, then the error rates, shape (2 + sources,).
    """
    rates = parameters[2:][sources]
    # The likelihoods of the margin under a wrong and a right label, up to a common factor.
    of_wrong = rates * expit(-log_ratio(margins, parameters))
    of_right = (1 - rates) * expit(log_ratio(margins, parameters))
    return np.asarray(of_wrong / (of_wrong + of_right))


def fit(margins: Floats, sources: Ints, weights: Floats, num_sources: int) -> Floats:
    """Return the parameters of the largest posterior density, shape (2 + sources,).

    They are the logarithms of slope and power, then the error rate of each source. Pairs with a
    margin of 0 say nothing about them.

    Args:
        margins: The margins, shape (pairs,).
        sources: The number of each pair's source, shape (pairs,).
        weights: The weight of each pair, shape (pairs,).
        num_sources: The number of sources.
    """
    is_informative = margins != 0
    arguments = (
        np.abs(margins[is_informative]),
        margins[is_informative] > 0,
        sources[is_informative],
        weights[is_informative],
    )
    bounds = [LOG_SLOPES, LOG_POWERS, *[(0.0, MOST_FITTED)] * num_sources]
    results = []
    for log_slope, log_power, rate in STARTS:
        start = np.array([log_slope, log_power, *[rate] * num_sources])
        result = minimize(
            _loss_and_gradient, start, args=arguments, jac=True, method="L-BFGS-B", bounds=bounds
        )
        results.append(result)
    best: Floats = min(results, key=lambda result: float(result.fun)).x
    return best


def _loss_and_gradient(
    parameters: Floats,
    sizes: Floats,
    agrees: npt.NDArray[np.bool_],
    sources: Ints,
    weights: Floats,
) -> tuple[float, Floats]:
    """Return the negative log-density of the parameters, and its gradient (2 + sources,).

    It is the weighted log-likelihood of the signs plus that of the prior, divided by the number of
    pairs.

    Args:
        parameters: Logarithms of slope and power, then the error rates, shape (2 + sources,).
        sizes: The absolute value of each margin, above 0, shape (pairs,).
        agrees: Whether each margin is positive, shape (pairs,).
        sources: The number of each pair's source, shape (pairs,).
        weights: The weight of each pair, shape (pairs,).
    """
    rates = parameters[2:][sources]
    ratios = log_ratio(sizes, parameters)
    model_is_right = expit(ratios)  # the probability if the pair's right label were known
    agreement = rates + (1 - 2 * rates) * model_is_right
    agreement = np.clip(agreement, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    likelihoods = np.where(agrees, agreement, 1 - agreement)
    log_density = float((weights * np.log(likelihoods)).sum())
    log_density += float(np.log(1 - 2 * parameters[2:]).sum())
    log_density -= (float(parameters[1]) / SPREAD_OF_LOG_POWER) ** 2 / 2

    by_agreement = -weights * np.where(agrees, 1 / agreement, -1 / (1 - agreement))
    by_ratio = by_agreement * (1 - 2 * rates) * model_is_right * (1 - model_is_right)
    log_slope, log_power = parameters[:2]
    power = np.exp(log_power)
    gradient = np.zeros(len(parameters))
    gradient[0] = float((by_ratio * ratios * power).sum())
    gradient[1] = float((by_ratio * ratios * power * (log_slope + np.log(sizes))).sum())
    gradient[2:] = np.bincount(
        sources, by_agreement * (1 - 2 * model_is_right), len(parameters) - 2
    )
    gradient[2:] += 2 / (1 - 2 * parameters[2:])
    gradient[1] += log_power / SPREAD_OF_LOG_POWER**2
    num_pairs = max(len(sizes), 1)
    return -log_density / num_pairs, gradient / num_pairs
