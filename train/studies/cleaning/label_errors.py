"""The probability that a label is wrong, from margins of models that were not trained on it.

The margin of a pair is the score of the response that its label prefers, minus that of the other
one. It is positive if the model agrees with the label. The model of the margins is a mixture: a
wrong label mirrors the margin that the pair would have with the right one,

    p(m | source) = (1 - e) f(m) + e f(-m)

where `e` is the error rate of the source, and `f` is the density of the margins of right labels,
which all sources share. It is a mixture of normal densities whose means are not below 0,

    f(m) = sum over k of share_k · normal(m; mean_k, deviation_k²),    mean_1 = 0, mean_k >= 0

Pairs that a model knows nothing about have small margins around 0, and pairs that it knows something
about have margins around a positive value: no deviation is larger than LEAST_BOUND plus the mean. So
a group of pairs with large negative margins is one of wrong labels. The parameters are those of the
largest posterior density, which expectation maximisation finds (Dempster, Laird and Rubin 1977).

A model that knows nothing may have large margins, too. Then half of the labels seem to be wrong. So
the margins are also compared with a density that is equal for m and -m, under which they say nothing
about the labels. If its posterior density is larger, the error rate is not known.

The uncertainty is that of a Bayesian bootstrap over clusters of pairs (Rubin 1981), and SHAPE_ERROR
for a density of another shape. The prior density of an error rate is proportional to 1 - 2 e. It
decides if the margins say little: half of the labels could then be wrong, or none. The estimate of
an error rate is the mean over the draws, and so is the probability that a label is wrong:

    P(wrong | m, source) = e / (e + (1 - e) exp(g(m))),    g(m) = log f(m) / f(-m)

A larger margin is never less certain: `g` is replaced by the largest value of g for smaller sizes
of the same sign.

Two assumptions decide the result. The simulations in
tests/train/studies/cleaning/test_label_errors.py show the effects.

- A wrong label is as likely for a difficult pair as for an easy one. If only difficult pairs are
  mislabelled, the error rate is too low.
- The model is rarely wrong with a large margin. Pairs about which it is confidently wrong cannot be
  told from wrong labels, so that the error rate is too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.intervals import wilson

DRAWS = 200
"""Number of draws of the bootstrap."""
MOST_ERRORS = 0.5
"""The largest error rate. With more errors, the reversed labels would be the better ones."""
COMPONENTS = 3
"""Number of normal densities. The mean of the first one is 0."""
BINS = 200
"""The largest number of sizes of margins. Those of more pairs are rounded to so many quantiles, so
that the time of a fit does not grow with the number of pairs."""
FIRST_RATES = (0.02, 0.2, 0.35)
"""Error rates from which the fits of all pairs start. The density can have several maxima, such as
a model that is often wrong about right labels, and one that is rarely wrong about labels that often
are. The fits of the draws start from those of all pairs."""
STEPS = 300
"""The most steps of expectation maximisation."""
SMALLEST_GAIN = 1e-6
"""The gain of the log-density in a step, relative to the number of pairs, at which a fit ends."""
LEAST_BOUND = 0.25
"""The largest standard deviation of the component around 0; margins have a root mean square of 1."""
SHAPE_ERROR = 0.04
"""The distance by which both ends of an interval are moved outwards. It is about the largest error of
the mean estimate of a rate in simulations with margins of other shapes
(tests/train/studies/cleaning/test_label_errors.py)."""
LEAST_DEVIATION = 0.03
"""The smallest standard deviation of a component. Without a bound, one that explains equal margins
would become infinitely narrow."""
PRIOR_PAIRS = 2.0
"""Number of pairs by which the shares and deviations of the components are drawn to equal shares and
to PRIOR_DEVIATION."""
PRIOR_DEVIATION = 0.1
"""The standard deviation to which those of the components are drawn."""
LEAST_DENSITY = 1e-300
"""The smallest density, so that its logarithm is finite."""
LEAST_INFORMATION = 1e-12
"""The smallest number of pairs whose right labels are as good as known, so that it is not 0."""
SAME_RATES = 0.01
"""The largest difference of the error rates of fits that are taken for the same maximum."""


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


@dataclass(frozen=True, slots=True)
class MarginModel:
    """The parameters of the margins."""

    shares: Floats
    """The share of each component, shape (components,)."""
    means: Floats
    """The mean of each component, not below 0, shape (components,). The first one is 0."""
    deviations: Floats
    """The standard deviation of each component, shape (components,)."""
    rates: Floats
    """The error rate of each source, shape (sources,)."""

    def densities(self, margins: Floats) -> Floats:
        """Return share_k · normal(margin) of each component, shape (margins, components)."""
        standardised = (margins[:, None] - self.means) / self.deviations
        normal = np.exp(-(standardised**2) / 2) / (self.deviations * np.sqrt(2 * np.pi))
        return np.asarray(self.shares * normal)

    def log_ratios(self, sizes: Floats) -> Floats:
        """Return g for sizes of margins in ascending order, shape (sizes,).

        No value is below one of a smaller size.
        """
        of_right = self.densities(sizes).sum(axis=1)
        of_wrong = self.densities(-sizes).sum(axis=1)
        ratios = np.log(of_right + LEAST_DENSITY) - np.log(of_wrong + LEAST_DENSITY)
        return np.asarray(np.maximum.accumulate(ratios))


@dataclass(frozen=True, slots=True)
class BinnedMargins:
    """Margins whose sizes are rounded to a limited number of values."""

    sizes: Floats
    """The size of each bin, ascending, shape (bins,)."""
    bins: Ints
    """The bin of each pair, shape (pairs,)."""
    is_positive: Ints
    """1 for pairs with a positive margin, 0 for others, shape (pairs,)."""
    sources: Ints
    """The number of each pair's source, shape (pairs,)."""
    num_sources: int

    @classmethod
    def of(cls, margins: Floats, sources: Ints, num_sources: int) -> BinnedMargins:
        """Return the margins of pairs, with bins of about equally many pairs.

        Args:
            margins: The scaled margin of each pair, shape (pairs,).
            sources: The number of each pair's source, shape (pairs,).
            num_sources: The number of sources.
        """
        num_pairs = len(margins)
        sizes_of_pairs = np.abs(margins)
        order = np.argsort(sizes_of_pairs, kind="stable")
        bins = np.empty(num_pairs, np.int64)
        num_bins = min(num_pairs, BINS)
        bins[order] = np.arange(num_pairs) * num_bins // num_pairs
        sums = np.bincount(bins, sizes_of_pairs, num_bins)
        sizes = sums / np.bincount(bins, minlength=num_bins)
        return cls(sizes, bins, (margins > 0).astype(np.int64), sources, num_sources)

    def weights(self, weights: Floats) -> Floats:
        """Return the sum of the weights of equal pairs, shape (sources, 2, bins).

        The second axis has the negative margins, then the positive ones.

        Args:
            weights: The weight of each pair, shape (pairs,).
        """
        num_bins = len(self.sizes)
        cells = (self.sources * 2 + self.is_positive) * num_bins + self.bins
        sums = np.bincount(cells, weights, self.num_sources * 2 * num_bins)
        return np.asarray(sums, np.float64).reshape(self.num_sources, 2, num_bins)

    def of_pairs(self, values: Floats) -> Floats:
        """Return the value of each pair, shape (pairs,), from those of shape (sources, 2, bins)."""
        return np.asarray(values[self.sources, self.is_positive, self.bins])


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
    binned = BinnedMargins.of(margins, codes, len(names))
    weights_of_all = binned.weights(np.ones(len(margins)))
    starts = maxima(binned, weights_of_all)
    generator = np.random.default_rng(0)
    probabilities = np.zeros((len(names), 2, len(binned.sizes)))
    information = np.zeros(len(binned.sizes))
    rates_of_draws = np.empty((draws, len(names)))
    for draw in range(draws):
        weights_of_clusters = generator.exponential(size=len(cluster_numbers))
        weights = binned.weights(weights_of_clusters[cluster_codes])
        fits = [fit(binned.sizes, weights, start) for start in starts]
        best = max(fits, key=lambda found: found.log_density)
        if symmetric_log_density(binned.sizes, weights, best.model) > best.log_density:
            rates_of_draws[draw] = 0.0  # that of the largest prior density
            continue
        model = best.model
        rates_of_draws[draw] = model.rates
        probabilities += probability_of_error(binned.sizes, model) / draws
        # What a pair says about the error rate, relative to one whose right label is known
        model_is_right = 1 / (1 + np.exp(-model.log_ratios(binned.sizes)))
        information += (2 * model_is_right - 1) ** 2 / draws

    source_errors = []
    for number, name in enumerate(names):
        rates = rates_of_draws[:, number]
        rate = float(rates.mean())
        low, high = np.quantile(rates, (0.025, 0.975)).tolist()
        # No interval is narrower than that of as many pairs whose right labels are known. An
        # estimate of 0 is 0 in all draws.
        weights_of_source = weights_of_all[number].sum(axis=0)
        num_informative = max(float((weights_of_source * information).sum()), LEAST_INFORMATION)
        least_low, least_high = wilson(rate * num_informative, num_informative)
        low = max(min(low, least_low) - SHAPE_ERROR, 0.0)
        high = min(max(high, least_high) + SHAPE_ERROR, MOST_ERRORS)
        num_pairs = int(weights_of_source.sum())
        source_errors.append(SourceErrors(name, num_pairs, rate, low, high))
    return LabelErrors(tuple(source_errors), binned.of_pairs(probabilities))


def probability_of_error(sizes: Floats, model: MarginModel) -> Floats:
    """Return the probability that labels are wrong, shape (sources, 2, sizes).

    The second axis has the negative margins of these sizes, then the positive ones.

    Args:
        sizes: Sizes of margins, ascending, shape (sizes,).
        model: The parameters of the margins.
    """
    ratios = model.log_ratios(sizes)
    signed_ratios = np.stack([-ratios, ratios])
    rates = model.rates[:, None, None]
    # Both likelihoods are divided by their sum, which is a common factor.
    of_wrong = rates / (1 + np.exp(signed_ratios))
    of_right = (1 - rates) / (1 + np.exp(-signed_ratios))
    return np.asarray(of_wrong / (of_wrong + of_right))


def maxima(binned: BinnedMargins, weights: Floats) -> list[MarginModel]:
    """Return the parameters at different maxima of the posterior density, at least one.

    Args:
        binned: The margins.
        weights: The weight of equal pairs, shape (sources, 2, bins).
    """
    models: list[MarginModel] = []
    for rate in FIRST_RATES:
        found = fit(binned.sizes, weights, first_model(binned, rate)).model
        distances = [np.abs(found.rates - model.rates).max() for model in models]
        if not models or min(distances) > SAME_RATES:
            models.append(found)
    return models


def first_model(binned: BinnedMargins, rate: float) -> MarginModel:
    """Return the parameters from which a fit starts.

    Args:
        binned: The margins.
        rate: The error rate of all sources.
    """
    levels = np.linspace(0.0, 0.9, COMPONENTS)
    means = np.quantile(binned.sizes, levels)
    means[0] = 0.0
    deviation = max(float(binned.sizes.std()), LEAST_DEVIATION)
    return MarginModel(
        shares=np.full(COMPONENTS, 1 / COMPONENTS),
        means=means,
        deviations=np.full(COMPONENTS, deviation),
        rates=np.full(binned.num_sources, rate),
    )


@dataclass(frozen=True, slots=True)
class MarginFit:
    """Parameters of a large posterior density."""

    model: MarginModel
    log_density: float
    """The logarithm of the posterior density, up to a constant."""


def fit(sizes: Floats, weights: Floats, start: MarginModel) -> MarginFit:
    """Return the parameters at which expectation maximisation ends.

    Args:
        sizes: Sizes of margins, shape (bins,).
        weights: The weight of the pairs of each source with negative and with positive margins of
            each size, shape (sources, 2, bins).
        start: The parameters from which it starts.
    """
    model = start
    before = -np.inf
    total_weight = float(weights.sum())
    for _ in range(STEPS):
        following, log_density = _improved(sizes, weights, model)
        if log_density - before < SMALLEST_GAIN * total_weight:
            break
        before = log_density
        model = following
    return MarginFit(model, log_density)


@dataclass(frozen=True, slots=True)
class ExpectedCounts:
    """The expected numbers of pairs of each component with a right and with a wrong label.

    Both are of shape (sources, 2, bins, components). The second axis has the negative margins, then
    the positive ones.
    """

    right: Floats
    wrong: Floats
    log_density: float
    """The logarithm of the posterior density of the parameters, up to a constant."""


def _improved(sizes: Floats, weights: Floats, model: MarginModel) -> tuple[MarginModel, float]:
    """Return parameters of a larger posterior density, and the log-density of the given ones."""
    counts = expected_counts(sizes, weights, model)
    return most_probable(sizes, counts), counts.log_density


def expected_counts(sizes: Floats, weights: Floats, model: MarginModel) -> ExpectedCounts:
    """Return how many pairs belong to each component and label, by the given parameters.

    Args:
        sizes: Sizes of margins, shape (bins,).
        weights: The weight of equal pairs, shape (sources, 2, bins).
        model: The parameters of the margins.
    """
    of_right = np.stack([model.densities(-sizes), model.densities(sizes)])
    of_wrong = of_right[::-1]  # a wrong label mirrors the margin
    rates = model.rates[:, None, None, None]
    joint_right = (1 - rates) * of_right
    joint_wrong = rates * of_wrong
    densities = (joint_right + joint_wrong).sum(axis=-1) + LEAST_DENSITY
    log_density = float((weights * np.log(densities)).sum()) + _log_prior(model)
    # Each pair counts for the components and for both labels by their probabilities.
    scale = (weights / densities)[..., None]
    return ExpectedCounts(joint_right * scale, joint_wrong * scale, log_density)


def most_probable(sizes: Floats, counts: ExpectedCounts) -> MarginModel:
    """Return the parameters of the largest posterior density if the counts were observed.

    Args:
        sizes: Sizes of margins, shape (bins,).
        counts: The numbers of pairs of each component and label.
    """
    # A pair counts with the margin that it would have with the right label.
    right_of_sign = counts.right.sum(axis=0)
    wrong_of_sign = counts.wrong.sum(axis=0)
    num_negative = right_of_sign[0] + wrong_of_sign[1]
    num_positive = right_of_sign[1] + wrong_of_sign[0]
    num_of_component = (num_negative + num_positive).sum(axis=0)
    sizes_of_bins = sizes[:, None]
    sums = ((num_positive - num_negative) * sizes_of_bins).sum(axis=0)
    means = np.maximum(sums / (num_of_component + LEAST_DENSITY), 0.0)
    means[0] = 0.0
    squares_of_negative = num_negative * (sizes_of_bins + means) ** 2
    squares_of_positive = num_positive * (sizes_of_bins - means) ** 2
    squares = (squares_of_negative + squares_of_positive).sum(axis=0)
    variances = (squares + PRIOR_PAIRS * PRIOR_DEVIATION**2) / (num_of_component + PRIOR_PAIRS)
    num_with_prior = num_of_component + PRIOR_PAIRS
    return MarginModel(
        shares=num_with_prior / num_with_prior.sum(),
        means=means,
        deviations=np.clip(np.sqrt(variances), LEAST_DEVIATION, LEAST_BOUND + means),
        rates=best_rates(
            wrong=counts.wrong.sum(axis=(1, 2, 3)), right=counts.right.sum(axis=(1, 2, 3))
        ),
    )


def symmetric_log_density(sizes: Floats, weights: Floats, model: MarginModel) -> float:
    """Return the log-density of margins if they say nothing about labels.

    The density of a margin is then that of its size by the model, half for each sign, and the error
    rates are 0.

    Args:
        sizes: Sizes of margins, shape (bins,).
        weights: The weight of equal pairs, shape (sources, 2, bins).
        model: The parameters of the margins.
    """
    densities = (model.densities(sizes) + model.densities(-sizes)).sum(axis=1) / 2
    weights_of_sizes = weights.sum(axis=(0, 1))
    log_density = float((weights_of_sizes * np.log(densities + LEAST_DENSITY)).sum())
    without_errors = replace(model, rates=np.zeros(len(model.rates)))
    return log_density + _log_prior(without_errors)


def _log_prior(model: MarginModel) -> float:
    """Return the logarithm of the prior density of the parameters, up to a constant.

    The density of a rate is 1 - 2 e. Those of shares and variances are conjugate: they add
    PRIOR_PAIRS to the pairs of each component.
    """
    variances = model.deviations**2
    of_rates = np.log(1 - 2 * model.rates).sum()
    of_shares = PRIOR_PAIRS * np.log(model.shares).sum()
    of_variances = -PRIOR_PAIRS / 2 * (np.log(variances) + PRIOR_DEVIATION**2 / variances).sum()
    return float(of_rates + of_shares + of_variances)


def best_rates(wrong: Floats, right: Floats) -> Floats:
    """Return the error rate of the largest posterior density for each source, shape (sources,).

    It maximises wrong · log(e) + right · log(1 - e) + log(1 - 2 e), and is a root of a quadratic
    equation.

    Args:
        wrong: The expected number of wrong labels of each source, shape (sources,).
        right: The expected number of right labels of each source, shape (sources,).
    """
    # The derivative, multiplied by e (1 - e) (1 - 2 e), is a e² - b e + wrong.
    a = 2 * (wrong + right + 1)
    b = 3 * wrong + right + 2
    root = np.sqrt(b**2 - 4 * a * wrong)
    return np.asarray(2 * wrong / (b + root))
