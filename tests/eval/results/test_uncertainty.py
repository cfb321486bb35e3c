"""Stated deviations against what is known: closed forms, simulated judges, and how often intervals hold the true value."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from mmrm.data.arrays import Floats, Ints
from mmrm.data.preference import text_pair, text_responses
from mmrm.eval.candidates import Example, RankedExample, Scores
from mmrm.eval.results.statistics import calibration, reliability
from mmrm.eval.results.uncertainty import (
    Uncertainty,
    coverage,
    expected_coverage,
    pair_uncertainty,
    probability_of_higher_score,
    standardised_differences,
    uncertainty,
)

MEANS = st.floats(-50, 50)
STDS = st.floats(1e-3, 20)


def probability(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the probability that the first (mean, deviation) has the higher score."""
    arrays = [np.array([number]) for number in (*first, *second)]
    return float(probability_of_higher_score(*arrays)[0])


# The probability that one score is higher.


@given(first=st.tuples(MEANS, STDS), second=st.tuples(MEANS, STDS))
def test_the_two_probabilities_of_a_pair_add_up_to_one(
    first: tuple[float, float], second: tuple[float, float]
) -> None:
    found = probability(first, second)
    assert found + probability(second, first) == pytest.approx(1, abs=1e-12)
    assert (found > 0.5) == (first[0] > second[0]) or found == 0.5


@given(st.floats(-3, 3), st.floats(0.2, 3), st.floats(-3, 3), st.floats(0.2, 3))
def test_the_probability_is_the_integral_over_the_second_score(
    first_mean: float, first_std: float, second_mean: float, second_std: float
) -> None:
    """P(a > b) is the integral of P(a > x) times the density of b at x."""

    def integrand(x: float) -> float:
        is_higher = norm.sf(x, first_mean, first_std)
        return float(is_higher * norm.pdf(x, second_mean, second_std))

    reach = 9 * second_std
    expected, _ = quad(integrand, second_mean - reach, second_mean + reach, epsabs=1e-11)
    found = probability((first_mean, first_std), (second_mean, second_std))
    assert found == pytest.approx(expected, abs=1e-8)


@given(MEANS, MEANS, STDS)
def test_more_doubt_brings_the_probability_closer_to_one_half(
    first_mean: float, second_mean: float, std: float
) -> None:
    sure = probability((first_mean, std), (second_mean, 0.1))
    unsure = probability((first_mean, 2 * std), (second_mean, 0.1))
    assert abs(unsure - 0.5) <= abs(sure - 0.5) + 1e-15


def test_scores_without_deviation_are_certain_unless_they_are_equal() -> None:
    assert probability((1.0, 0.0), (0.5, 0.0)) == 1
    assert probability((0.5, 0.0), (1.0, 0.0)) == 0
    assert probability((1.0, 0.0), (1.0, 0.0)) == 0.5
    assert probability((3.0, 1.2), (1.0, 1.6)) == pytest.approx(norm.cdf(1.0), abs=1e-15)
    found = standardised_differences(
        np.array([3.0, 1.0]), np.array([1.2, 0.0]), np.array([1.0, 1.0]), np.array([1.6, 0.0])
    )
    assert found.tolist() == [1.0, 0.0]


# Simulated judges.


def simulated_pairs(
    generator: np.random.Generator, n: int, stated_share: float
) -> tuple[Floats, Floats, Floats]:
    """Return margins of the better response and both stated deviations, of a judge in float64.

    The true scores of a pair are drawn around the means that the judge states. It states
    `stated_share` of the deviations that they really have.
    """
    means = generator.normal(0, 1, (n, 2))
    true_stds = generator.uniform(0.3, 2.0, (n, 2))
    true_scores = generator.normal(means, true_stds)
    better = true_scores.argmax(axis=1)
    rows = np.arange(n)
    stds = stated_share * true_stds
    margins = means[rows, better] - means[rows, 1 - better]
    return margins, stds[rows, better], stds[rows, 1 - better]


def summary(margins: Floats, better_stds: Floats, other_stds: Floats) -> Uncertainty:
    """Return the figures of simulated pairs without true scores."""
    found, gap = pair_uncertainty(margins, better_stds, other_stds)
    return Uncertainty(
        n=len(margins),
        left_out=0,
        mean_std=float(np.mean([better_stds, other_stds])),
        reliability=found,
        overconfidence=gap.mean,
        overconfidence_low=gap.low,
        overconfidence_high=gap.high,
        coverage=None,
    )


@pytest.mark.parametrize(
    ("stated_share", "words"),
    [
        (1.0, "not distinguishable from calibrated"),
        (0.4, "overconfident"),
        (3.0, "underconfident"),
    ],
)
def test_simulated_judges_are_named_for_what_they_are(stated_share: float, words: str) -> None:
    """A calibrated judge is called something else in at most 7 % of 1,000 benchmarks of 600 pairs."""
    generator = np.random.default_rng(31)
    names: list[str] = []
    errors: list[float] = []
    for _ in range(1000):
        found = summary(*simulated_pairs(generator, 600, stated_share))
        names.append(found.words)
        errors.append(found.reliability.ece)
    share_named = names.count(words) / len(names)
    print(f"{stated_share} of the deviation: {share_named:.3f} {words}, ECE {np.mean(errors):.3f}")
    assert share_named >= 0.93


def test_confidences_that_are_wrong_in_both_directions_are_miscalibrated() -> None:
    """Half of the pairs are stated too surely and half not surely enough, so the mean is right."""
    generator = np.random.default_rng(5)
    confidence = np.repeat([0.95, 0.55], 2000)
    credit = (generator.random(4000) < 0.75).astype(float)
    found = reliability(confidence, credit)
    judged = Uncertainty(4000, 0, 1.0, found, 0.0, -0.01, 0.01, None)
    assert judged.words == "miscalibrated"


def test_the_interval_of_the_calibration_error_holds_the_true_error() -> None:
    """The error of very many pairs is the true one; pairs come in items of three that share a text."""

    def draw(generator: np.random.Generator, num_items: int) -> tuple[Floats, Floats, Floats, Ints]:
        means = generator.normal(0, 1, (num_items, 4))
        stds = generator.uniform(0.3, 2.0, (num_items, 4))
        true_scores = generator.normal(means, stds)
        # Each of three responses is compared with the last one of its item.
        margins = (means[:, :3] - means[:, 3:]) * np.sign(true_scores[:, :3] - true_scores[:, 3:])
        others = np.repeat(0.4 * stds[:, 3], 3)
        clusters = np.repeat(np.arange(num_items), 3)
        return margins.ravel(), (0.4 * stds[:, :3]).ravel(), others, clusters

    generator = np.random.default_rng(27)
    many, _ = pair_uncertainty(*draw(generator, 300_000)[:3])
    num_covered = 0
    for _ in range(600):
        found, _ = pair_uncertainty(*draw(generator, 150))
        assert found.low is not None
        assert found.high is not None
        num_covered += found.low <= many.ece <= found.high
    print(f"true ECE {many.ece:.4f}, covered in {num_covered / 600:.3f}")
    assert num_covered / 600 >= 0.93


def test_logistic_confidences_have_the_figures_of_before() -> None:
    """`calibration` is `reliability` of sigmoid(|margin|)."""
    margins = np.array([2.0, -0.5, 0.0, 1.0, -3.0])
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    assert calibration(margins) == reliability(confidence, (np.sign(margins) + 1) / 2)


# Coverage of true scores.


@pytest.mark.parametrize(
    ("stated_share", "expected"),
    [(1.0, (0.6827, 0.9545)), (0.5, (0.3829, 0.6827)), (2.0, (0.9545, 0.9999))],
)
def test_the_coverage_of_simulated_deviations(
    stated_share: float, expected: tuple[float, float]
) -> None:
    generator = np.random.default_rng(3)
    means = generator.normal(0, 2, 40_000)
    true_stds = generator.uniform(0.2, 1.5, len(means))
    true_scores = generator.normal(means, true_stds)
    found = coverage(means, stated_share * true_stds, true_scores)
    assert found is not None
    for shares in (found.as_stated, found.on_line):
        assert [within.deviations for within in shares] == [1.0, 2.0]
        assert [within.share for within in shares] == pytest.approx(expected, abs=0.01)
        assert all(within.contains_expected for within in shares) == (stated_share == 1.0)
    assert found.slope == pytest.approx(1, abs=0.02)
    assert found.offset == pytest.approx(0, abs=0.02)


def test_a_judge_in_a_unit_of_its_own_is_covered_on_the_line() -> None:
    generator = np.random.default_rng(4)
    means = generator.normal(0, 2, 20_000)
    true_stds = generator.uniform(0.2, 1.5, len(means))
    true_scores = generator.normal(means, true_stds)
    found = coverage(10 * means + 30, 10 * true_stds, true_scores)
    assert found is not None
    assert found.as_stated[0].share < 0.4
    assert [within.share for within in found.on_line] == pytest.approx([0.683, 0.954], abs=0.01)
    assert found.slope == pytest.approx(0.1, abs=0.002)
    assert found.offset == pytest.approx(-3, abs=0.06)


def test_a_judge_with_another_zero_for_each_prompt_is_covered_in_differences() -> None:
    """Comparisons teach nothing about the zero of a prompt, so only differences are stated."""
    generator = np.random.default_rng(5)
    num_prompts = 5_000
    zeros = generator.normal(0, 5, (num_prompts, 1))
    means = generator.normal(0, 1, (num_prompts, 4))
    true_stds = generator.uniform(0.2, 1.5, means.shape)
    true_scores = 3 * means + 3 * true_stds * generator.normal(size=means.shape)
    prompts = np.repeat(np.arange(num_prompts), 4)
    found = coverage(
        (means + zeros).ravel(), true_stds.ravel(), true_scores.ravel(), prompts, prompts
    )
    assert found is not None
    assert found.on_line[0].share < 0.4
    assert found.slope_of_differences == pytest.approx(3, abs=0.06)
    shares = [within.share for within in found.of_differences]
    assert shares == pytest.approx([0.683, 0.954], abs=0.01)
    assert all(within.contains_expected for within in found.of_differences)


def test_differences_are_between_responses_to_one_prompt_only() -> None:
    means = np.array([0.0, 1.0, 2.0, 9.0])
    stds = np.array([0.6, 0.8, 1.0, 1.0])
    true_scores = np.array([0.0, 1.9, math.nan, 5.0])
    prompts = np.array([0, 0, 0, 1])
    found = coverage(means, stds, true_scores, None, prompts)
    assert found is not None
    # One pair is left: a difference of 1.9 where the slope 1.9 states exactly 1.9.
    assert found.slope_of_differences == pytest.approx(1.9)
    assert [within.share for within in found.of_differences] == [1.0, 1.0]
    without_pairs = coverage(means, stds, true_scores, None, np.arange(4))
    assert without_pairs is not None
    assert without_pairs.of_differences == ()
    assert without_pairs.slope_of_differences is None


def test_equal_means_have_no_line_and_unknown_scores_are_left_out() -> None:
    constant = coverage(np.zeros(3), np.ones(3), np.array([0.5, math.nan, 1.5]))
    assert constant is not None
    assert (constant.n, constant.slope, constant.offset, constant.on_line) == (2, None, None, ())
    assert [within.share for within in constant.as_stated] == [0.5, 1.0]
    assert coverage(np.zeros(3), np.ones(3), np.full(3, math.nan)) is None
    assert expected_coverage(1) == pytest.approx(0.682689492137, abs=1e-12)


def test_the_intervals_of_the_coverage_hold_the_true_share() -> None:
    """A calibrated judge of 40 to 300 rows, two responses each, whose errors share their item's luck."""
    generator = np.random.default_rng(9)
    num_covered = np.zeros(2)
    for _ in range(600):
        num_items = int(generator.integers(40, 300))
        errors = math.sqrt(0.5) * (
            generator.normal(size=(num_items, 1)) + generator.normal(size=(num_items, 2))
        )
        means = generator.normal(0, 3, (num_items, 2))
        clusters = np.repeat(np.arange(num_items), 2)
        found = coverage(means.ravel(), np.ones(2 * num_items), (means + errors).ravel(), clusters)
        assert found is not None
        num_covered += [within.contains_expected for within in found.as_stated]
    print(f"68 and 95 % covered in {num_covered / 600}")
    assert (num_covered / 600 >= 0.93).all()


# Rows of a benchmark.


def example(better: int, true_scores: tuple[float, float] | None) -> Example:
    """Return a row whose texts do not matter."""
    return Example(
        key="key",
        images=(),
        prompt=(),
        responses=text_pair("a", "b"),
        identity="row",
        better=1 if better else 0,
        group="group",
        source="source",
        row={},
        true_scores=true_scores,
    )


def judged(values: Sequence[float], stds: Sequence[float]) -> Scores:
    return Scores(tuple(values), attributes={"std": tuple(stds)})


def test_rows_are_turned_to_their_better_response() -> None:
    examples = [example(0, (1.0, -5.0)), example(1, (math.nan, 2.0)), example(1, None)]
    scores = [judged((1.5, 0.5), (0.6, 0.8)), judged((1, 1), (0, 0)), judged((3, 1), (1, 1))]
    found = uncertainty(examples, scores, np.arange(3))
    assert found is not None
    assert (found.n, found.left_out) == (3, 0)
    assert found.mean_std == pytest.approx((0.6 + 0.8 + 0 + 0 + 1 + 1) / 6)
    confidence = [norm.cdf(1.0), 0.5, norm.cdf(math.sqrt(2))]
    assert found.overconfidence == pytest.approx(np.mean(confidence) - (1 + 0.5 + 0) / 3)
    assert found.coverage is not None
    assert found.coverage.n == 3
    # 1.5 ± 0.6 holds 1, and 0.5 ± 0.8 does not hold -5, nor does 1 ± 0 hold 2.
    assert [within.share for within in found.coverage.as_stated] == pytest.approx([1 / 3, 1 / 3])


def test_rows_without_usable_deviations_are_counted_and_left_out() -> None:
    examples = [example(0, None)] * 5
    scores = [
        judged((1, 0), (1, 1)),
        judged((math.nan, 0), (1, 1)),
        judged((1, 0), (math.inf, 1)),
        judged((1, 0), (-1, 1)),
        Scores((1.0, 0.0)),
    ]
    found = uncertainty(examples, scores, np.arange(5))
    assert found is not None
    assert (found.n, found.left_out, found.coverage) == (1, 4, None)
    assert found.words == "not distinguishable from calibrated"
    assert uncertainty(examples, [Scores((1.0, 0.0))] * 5, np.arange(5)) is None


def test_every_best_response_of_a_ranking_is_compared_with_every_other() -> None:
    """Of four responses the second and the fourth are best. Their item is one, so there is no interval."""
    row = RankedExample(
        key="key",
        images=(),
        prompt=(),
        responses=text_responses("a", "b", "c", "d"),
        identity="row",
        ranks=(1, 0, 2, 0),
        group="group",
        source="source",
        row={},
        true_scores=(1.0, 3.0, math.nan, 3.0),
    )
    found = uncertainty([row], [judged((0, 2, 1, 1), (1, 1, 1, 0))], np.zeros(1, dtype=np.int64))
    assert found is not None
    assert (found.n, found.left_out) == (4, 0)
    root = math.sqrt(2)
    expected = [norm.cdf(2 / root), norm.cdf(1 / root), norm.cdf(1.0), 0.5]
    assert found.overconfidence == pytest.approx(np.mean(expected) - 3.5 / 4)
    assert found.overconfidence_low is None
    assert found.coverage is not None
    assert found.coverage.n == 3
    assert [within.share for within in found.coverage.as_stated] == pytest.approx([2 / 3, 2 / 3])
