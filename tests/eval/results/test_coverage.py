"""How often the intervals that the project prints hold the true value, by simulation, and how wide they are.

`pytest tests/eval/results/test_coverage.py -s` prints a line for each kind of interval and design. Every interval must cover in
at least 93 % of the draws at a nominal 95 %. Where an older estimator is given, its coverage is printed beside, and where the
older one was wrong the same bar must catch it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from scipy.stats import norm

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.policies.best_of import best_of, best_score
from mmrm.eval.results.correlation import correlation
from mmrm.eval.results.intervals import (
    accuracy_interval,
    accuracy_over_seeds,
    contrast_over_seeds,
    difference_over_seeds,
    mean_interval,
    mean_over_seeds,
    paired_difference,
    ratio_over_seeds,
    share_interval,
    wilson,
)
from mmrm.eval.results.statistics import calibration, ece_interval, length_bias
from tests.eval.results import old_intervals

pytestmark = pytest.mark.slow

DRAWS = 1500
"""The standard error of a coverage of 95 % is 0.6 points. With 4,000 draws, a few minutes more, every
design keeps to the bar as well."""
OLD_DRAWS = 300
"""Draws of the older estimators, which resample 2,000 times each."""
LEAST = 0.93

Interval = tuple[float, float]
Draw = tuple[tuple[object, ...], float]
"""Arguments of an estimator, and the true value."""
MM_RLHF_ITEMS = np.repeat(np.arange(46), [2] * 11 + [3] * 13 + [4] * 6 + [5] * 11 + [6] * 5)
"""The clusters of MM-RLHF-RewardBench: 170 pairs of 46 items, with the sizes of the released file."""
MM_RLHF_CATEGORY = np.repeat(np.arange(9), [2, 3, 3, 4, 4, 5, 5, 5, 6])
"""A category of it."""
RANKINGS = np.repeat(np.arange(40), 6)
"""Forty questions with four answers each, compared in all six pairs."""
ROWS = 540


@dataclass(frozen=True)
class Cell:
    """A design with the estimators that are tried on it."""

    name: str
    draw: Callable[[np.random.Generator], Draw]
    """Returns the arguments of both estimators, and the true value."""
    estimate: Callable[..., Interval]
    old: Callable[..., Interval] | None = None
    old_fails: bool = False
    """True if the older estimator must fail the bar in this design."""


def coverage(
    estimate: Callable[..., Interval], draw: Callable[[np.random.Generator], Draw], draws: int
) -> tuple[float, float]:
    """Return in which share of the draws the interval holds the true value, and its mean width."""
    generator = np.random.default_rng(27)
    num_covered = 0
    widths = []
    for _ in range(draws):
        arguments, truth = draw(generator)
        low, high = estimate(*arguments)
        num_covered += low <= truth <= high
        widths.append(high - low)
    return num_covered / draws, float(np.mean(widths))


def check(cell: Cell) -> None:
    """Print what a cell's estimators cover, and hold them to the bar."""
    covered, width = coverage(cell.estimate, cell.draw, DRAWS)
    line = f"{cell.name}: covers {100 * covered:.1f} %, width {width:.3f}"
    old_covered = 1.0
    if cell.old is not None:
        old_covered, old_width = coverage(cell.old, cell.draw, OLD_DRAWS)
        line += f"; before {100 * old_covered:.1f} %, width {old_width:.3f}"
    print(line)
    assert covered >= LEAST, line
    if cell.old_fails:
        assert old_covered < LEAST, line


def safety_clusters() -> Ints:
    """Return 508 rows on 188 images, some images with many rows."""
    generator = np.random.default_rng(0)
    weights = generator.gamma(1.5, 1, 188)
    sizes = 1 + generator.multinomial(508 - 188, weights / weights.sum())
    return np.repeat(np.arange(188), sizes)


SAFETY = safety_clusters()


# Rows of one training.


def draw_clustered(
    generator: np.random.Generator, clusters: Ints, accuracy: float, likeness: float
) -> Draw:
    """Return right and wrong rows whose items differ in difficulty (beta-binomial); `likeness` is the correlation inside."""
    strength = 1 / likeness - 1
    chances = generator.beta(accuracy * strength, (1 - accuracy) * strength, clusters.max() + 1)
    credits = (generator.random(len(clusters)) < chances[clusters]).astype(float)
    return (credits, clusters), accuracy


def ends_of_accuracy(credits: Floats, clusters: Ints) -> Interval:
    found = accuracy_interval(credits, clusters)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def ends_of_wilson(credits: Floats, clusters: Ints) -> Interval:
    return wilson(float(credits.sum()), len(credits))


DESIGNS_OF_ROWS = {
    "MM-RLHF Acc, 170 pairs of 46 items": MM_RLHF_ITEMS,
    "MM-RLHF category, 37 pairs of 9 items": MM_RLHF_CATEGORY,
    "safety, 508 rows on 188 images": SAFETY,
    "rankings, 240 pairs of 40 questions": RANKINGS,
}
ACCURACIES = [
    Cell(
        f"accuracy, {name}, {accuracy}, likeness {likeness}",
        partial(draw_clustered, clusters=clusters, accuracy=accuracy, likeness=likeness),
        ends_of_accuracy,
        ends_of_wilson,
        old_fails=likeness > 0.3,
    )
    for name, clusters in DESIGNS_OF_ROWS.items()
    for accuracy in (0.6, 0.85)
    for likeness in (0.1, 0.35)
] + [
    Cell(
        f"accuracy, {n} independent rows, {accuracy}",
        partial(draw_clustered, clusters=np.arange(n), accuracy=accuracy, likeness=0.5),
        ends_of_accuracy,
        ends_of_wilson,
    )
    for n in (46, 170, 1250)
    for accuracy in (0.6, 0.85)
]


@pytest.mark.parametrize("cell", ACCURACIES, ids=lambda cell: cell.name)
def test_accuracies(cell: Cell) -> None:
    check(cell)


def draw_two_judges(
    generator: np.random.Generator, clusters: Ints, accuracies: tuple[float, float]
) -> Draw:
    """Return the credits of two judges on the same rows: items have a difficulty that both see, and one for each judge."""
    count = int(clusters.max()) + 1
    shared = 0.5 * generator.normal(size=count)
    scale = np.sqrt(1 + 0.5**2 + 0.6**2)
    credits = []
    for accuracy in accuracies:
        own = 0.6 * generator.normal(size=count)
        chances = norm.cdf(norm.ppf(accuracy) * scale + shared + own)
        credits.append((generator.random(len(clusters)) < chances[clusters]).astype(float))
    return (credits[0], credits[1], clusters), accuracies[0] - accuracies[1]


def ends_of_difference(first: Floats, second: Floats, clusters: Ints) -> Interval:
    found = paired_difference(first, second, clusters)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def ends_of_old_difference(first: Floats, second: Floats, clusters: Ints) -> Interval:
    return old_intervals.paired_bootstrap(first, second)


DIFFERENCES = [
    Cell(
        f"paired difference, {name}, {accuracies[0]} and {accuracies[1]}",
        partial(draw_two_judges, clusters=clusters, accuracies=accuracies),
        ends_of_difference,
        ends_of_old_difference,
        old_fails=clusters is MM_RLHF_ITEMS and accuracies[0] == 0.6,
    )
    for name, clusters in {**DESIGNS_OF_ROWS, "1,250 independent rows": np.arange(1250)}.items()
    for accuracies in ((0.6, 0.6), (0.9, 0.8))
]


@pytest.mark.parametrize("cell", DIFFERENCES, ids=lambda cell: cell.name)
def test_paired_differences(cell: Cell) -> None:
    check(cell)


def draw_rare_difference(generator: np.random.Generator, n: int, only_first: float) -> Draw:
    """Return the credits of two judges that differ on few rows."""
    drawn = generator.random(n)
    only_second = only_first / 3
    first = (drawn < only_first).astype(float)
    second = ((drawn >= only_first) & (drawn < only_first + only_second)).astype(float)
    return (first, second, np.arange(n)), only_first - only_second


@pytest.mark.parametrize("only_first", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("n", [170, 540])
def test_judges_that_differ_on_few_rows(n: int, only_first: float) -> None:
    check(
        Cell(
            f"paired difference, {n} rows, {100 * only_first:g} % right for the first judge only",
            partial(draw_rare_difference, n=n, only_first=only_first),
            ends_of_difference,
            ends_of_old_difference,
        )
    )


def draw_unpaired(generator: np.random.Generator, n: int) -> Draw:
    return (generator.binomial(n, 0.8, 2), n), 0.0


def ends_by_the_rule_for_published_figures(right: Ints, n: int) -> Interval:
    """Return the difference of two accuracies ± the half width of one interval times √2, as docs/evaluation.md advises."""
    low, high = wilson(float(right.mean()), n)
    half_width = np.sqrt(2) * (high - low) / 2
    difference = (right[0] - right[1]) / n
    return difference - half_width, difference + half_width


def ends_by_the_old_rule(right: Ints, n: int) -> Interval:
    low, high = wilson(float(right.mean()), n)
    difference = (right[0] - right[1]) / n
    return difference - (high - low) / 2, difference + (high - low) / 2


def test_unpaired_differences_need_the_root_of_two() -> None:
    check(
        Cell(
            "unpaired difference of two published accuracies, 1,250 rows",
            partial(draw_unpaired, n=1250),
            ends_by_the_rule_for_published_figures,
            ends_by_the_old_rule,
            old_fails=True,
        )
    )


# Several trainings.


def draw_trainings(
    generator: np.random.Generator, difficulties: Floats, seeds: int, spread: float
) -> Floats:
    """Return credits of shape (seeds, rows) with the mean 0.75; `spread` is the standard deviation of a training's accuracy."""
    shifts = generator.normal(0, spread, (seeds, 1))
    up = difficulties + (1 - difficulties) * shifts / 0.25
    down = difficulties * (1 + shifts / 0.75)
    chances = np.clip(np.where(shifts > 0, up, down), 0, 1)
    return (generator.random((seeds, len(difficulties))) < chances).astype(float)


def draw_recipe(generator: np.random.Generator, seeds: int, rows: int, spread: float) -> Draw:
    difficulties = generator.beta(1.2, 0.4, rows)
    return (draw_trainings(generator, difficulties, seeds, spread),), 0.75


def draw_two_recipes(
    generator: np.random.Generator, seeds: int, rows: int, spreads: tuple[float, float]
) -> Draw:
    difficulties = generator.beta(1.2, 0.4, rows)
    first, second = (draw_trainings(generator, difficulties, seeds, spread) for spread in spreads)
    return (first, second), 0.0


def ends_over_seeds(credits: Floats) -> Interval:
    found = accuracy_over_seeds(credits)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def ends_of_difference_over_seeds(first: Floats, second: Floats) -> Interval:
    found = difference_over_seeds(first, second)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


SEEDS = [
    Cell(
        f"accuracy over {seeds} seeds, {rows} rows, spread {spread}",
        partial(draw_recipe, seeds=seeds, rows=rows, spread=spread),
        ends_over_seeds,
        old_intervals.crossed_bootstrap if seeds == 3 else None,
        old_fails=seeds == 3 and spread == 0.05,
    )
    for seeds in (3, 5)
    for rows in (170, ROWS)
    for spread in (0.002, 0.02, 0.05)
] + [
    Cell(
        f"difference over {seeds} seeds, {rows} rows, spreads {spreads[0]} and {spreads[1]}",
        partial(draw_two_recipes, seeds=seeds, rows=rows, spreads=spreads),
        ends_of_difference_over_seeds,
        old_intervals.paired_bootstrap if seeds == 3 else None,
        old_fails=seeds == 3 and rows == ROWS and spreads == (0.05, 0.05),
    )
    for seeds in (3, 5)
    for rows in (170, ROWS)
    for spreads in ((0.002, 0.002), (0.05, 0.05), (0.005, 0.05))
]


def draw_selections(
    generator: np.random.Generator, rows: int, precision: float, spread: float
) -> Draw:
    """Return the selections of three models, those of them that are right, and the true precision.

    A row is right for all models or for none, and wrong rows are selected less often. Models select
    more or less of the wrong ones.
    """
    is_right = np.broadcast_to(generator.random(rows) < 0.3, (3, rows))
    chance_of_right = 0.8
    # precision = 0.3 * 0.8 / (0.3 * 0.8 + 0.7 * chance)
    chance_of_wrong = 0.3 * 0.8 * (1 / precision - 1) / 0.7
    of_model = np.clip(generator.normal(chance_of_wrong, spread, (3, 1)), 0.0, 1.0)
    chances = np.where(is_right, chance_of_right, of_model)
    is_selected = generator.random((3, rows)) < chances
    is_selected[:, 0] |= ~is_selected.any()  # a precision needs one selected row
    return ((is_selected & is_right).astype(float), is_selected.astype(float)), precision


def ends_of_ratio(numerators: Floats, denominators: Floats) -> Interval:
    found = ratio_over_seeds(numerators, denominators)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def draw_three_recipes(
    generator: np.random.Generator, rows: int, spreads: tuple[float, float, float]
) -> Draw:
    """Return three trainings of each of three recipes, whose contrast is 0."""
    difficulties = generator.beta(1.2, 0.4, rows)
    return tuple(draw_trainings(generator, difficulties, 3, spread) for spread in spreads), 0.0


def ends_of_contrast(first: Floats, second: Floats, third: Floats) -> Interval:
    found = contrast_over_seeds([(1.0, first), (-0.5, second), (-0.5, third)])
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


SEEDS += [
    Cell(
        f"ratio over 3 seeds, {rows} rows, precision {precision}, spread {spread}",
        partial(draw_selections, rows=rows, precision=precision, spread=spread),
        ends_of_ratio,
    )
    for rows in (170, 960)
    for precision in (0.6, 0.9)
    for spread in (0.0, 0.01)
] + [
    Cell(
        f"contrast of three recipes, {rows} rows, spreads {spreads}",
        partial(draw_three_recipes, rows=rows, spreads=spreads),
        ends_of_contrast,
    )
    for rows in (170, ROWS)
    for spreads in ((0.002, 0.002, 0.002), (0.05, 0.05, 0.05), (0.05, 0.002, 0.02))
]


@pytest.mark.parametrize("cell", SEEDS, ids=lambda cell: cell.name)
def test_over_seeds(cell: Cell) -> None:
    check(cell)


def draw_policies(generator: np.random.Generator, spread: float) -> Draw:
    """Return what three trained policies have more than their one start, (seeds, questions)."""
    difficulties = generator.beta(1.2, 0.4, ROWS)
    start = (generator.random(ROWS) < difficulties).astype(float)
    return (draw_trainings(generator, difficulties, 3, spread) - start,), 0.0


def ends_of_change(values: Floats) -> Interval:
    found = mean_over_seeds(values)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@pytest.mark.parametrize("spread", [0.002, 0.02, 0.05])
def test_policies_against_their_start(spread: float) -> None:
    check(
        Cell(
            f"policy minus its start, 3 seeds, 540 questions, spread {spread}",
            partial(draw_policies, spread=spread),
            ends_of_change,
            old_intervals.crossed_bootstrap,
        )
    )


def test_two_trainings_have_no_interval() -> None:
    """Two seeds: the older interval covers too little, and Student's would be as wide as the scale."""
    draw = partial(draw_recipe, seeds=2, rows=ROWS, spread=0.05)
    (credits,), _ = draw(np.random.default_rng(0))
    assert accuracy_over_seeds(np.asarray(credits)).low is None
    old_covered, _ = coverage(old_intervals.crossed_bootstrap, draw, OLD_DRAWS)
    print(f"accuracy over 2 seeds, spread 0.05: no interval; before {100 * old_covered:.1f} %")
    assert old_covered < LEAST


VARIANTS, BENCHMARKS = 8, 2


def false_words(
    generator: np.random.Generator,
    spreads: list[float],
    ends: Callable[[Floats, Floats], Interval],
) -> set[str]:
    """Draw a table of equal variants with three seeds, and return what its words say of any but the first: nothing is true."""
    words = set()
    for _ in range(BENCHMARKS):
        difficulties = generator.beta(1.2, 0.4, ROWS)
        first, *others = (draw_trainings(generator, difficulties, 3, spread) for spread in spreads)
        for credits in others:
            low, high = ends(credits, first)
            if low > 0:
                words.add("better")
            if high < 0:
                words.add("worse")
    return words


def ends_of_one_of_many(first: Floats, second: Floats) -> Interval:
    comparisons = (VARIANTS - 1) * BENCHMARKS
    found = difference_over_seeds(first, second, comparisons=comparisons)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


TABLES = {
    "hardly any spread": [0.002] * VARIANTS,
    "spread of 6 points": [0.06] * VARIANTS,
    "half of them spread": [0.005, 0.05] * (VARIANTS // 2),
}


@pytest.mark.parametrize("design", TABLES)
def test_tables_of_equal_variants_name_none_better(design: str) -> None:
    line = f"8 equal variants on 2 benchmarks, 3 seeds, {design}: a false word in"
    for ends, num_tables in (
        (ends_of_one_of_many, DRAWS),
        (old_intervals.paired_bootstrap, OLD_DRAWS // 5),
    ):
        generator = np.random.default_rng(5)
        words = [false_words(generator, TABLES[design], ends) for _ in range(num_tables)]
        better = np.mean(["better" in found for found in words])
        either = np.mean([len(found) > 0 for found in words])
        is_old = ends is old_intervals.paired_bootstrap
        line += f"{'; before' if is_old else ''} {100 * either:.1f} % of tables, `better` in {100 * better:.1f} %"
        if not is_old:
            assert better <= 0.05, line
    print(line)
    if design == "spread of 6 points":
        assert better > 0.05, line  # of the older intervals


# Correlation over recipes.


def draw_recipes(
    generator: np.random.Generator, recipes: int, seeds: int, coefficient: float
) -> Draw:
    """Return two figures of every seed of some recipes; recipes correlate by `coefficient`, seeds add nothing but a shift."""
    x = generator.normal(size=recipes)
    y = coefficient * x + np.sqrt(1 - coefficient**2) * generator.normal(size=recipes)
    shifts = generator.normal(0, 0.3, (2, recipes, seeds))
    shifts -= shifts.mean(axis=2, keepdims=True)
    names = [str(index) for index in range(recipes) for _ in range(seeds)]
    figures = (np.array([x, y])[:, :, None] + shifts).reshape(2, -1)
    return (figures[0], figures[1], names), coefficient


def ends_of_pearson(x: Floats, y: Floats, names: list[str]) -> Interval:
    found = correlation(x, y, names)
    assert found is not None
    return found.pearson[1], found.pearson[2]


def ends_of_spearman(x: Floats, y: Floats, names: list[str]) -> Interval:
    found = correlation(x, y, names)
    assert found is not None
    return found.spearman[1], found.spearman[2]


def draw_ranks(
    generator: np.random.Generator, recipes: int, seeds: int, coefficient: float
) -> Draw:
    """Return `draw_recipes` with Spearman's coefficient of the normal distribution as the truth."""
    arguments, _ = draw_recipes(generator, recipes, seeds, coefficient)
    return arguments, 6 / np.pi * np.arcsin(coefficient / 2)


CORRELATIONS = [
    Cell(
        f"{name}, {recipes} recipes of 2 seeds, {coefficient}",
        partial(draw, recipes=recipes, seeds=2, coefficient=coefficient),
        ends,
        old if coefficient == 0.8 else None,
        old_fails=old is not None and coefficient == 0.8 and recipes < 12,
    )
    for name, draw, ends, old in (
        ("Pearson", draw_recipes, ends_of_pearson, old_intervals.pearson_over_clusters),
        ("Spearman", draw_ranks, ends_of_spearman, None),
    )
    for recipes in (6, 8, 12)
    for coefficient in (0.0, 0.8)
]


@pytest.mark.parametrize("cell", CORRELATIONS, ids=lambda cell: cell.name)
def test_correlations(cell: Cell) -> None:
    check(cell)


def test_three_recipes_have_no_coefficient() -> None:
    draw = partial(draw_recipes, recipes=3, seeds=1, coefficient=0.8)
    arguments, _ = draw(np.random.default_rng(0))
    assert correlation(*arguments) is None  # type: ignore[arg-type]
    old_covered, _ = coverage(old_intervals.pearson_over_clusters, draw, OLD_DRAWS)
    print(f"Pearson, 3 recipes, 0.8: no interval; before {100 * old_covered:.1f} %")
    assert old_covered < LEAST


# What is behind a score.


def draw_margins(
    generator: np.random.Generator, clusters: Ints, slope: float, truth: float
) -> Draw:
    """Return margins of a judge whose log odds of being right are `slope` times the margin's size."""
    sizes = np.abs(generator.normal(0, 1.5, len(clusters)))
    difficulty = generator.logistic(0, 1, int(clusters.max()) + 1)[clusters]
    if len(np.unique(clusters)) == len(clusters):
        right = generator.logistic(0, 1, len(clusters)) < slope * sizes
    else:
        right = difficulty < slope * sizes
    return (np.where(right, sizes, -sizes), clusters), truth


def true_ece(slope: float) -> float:
    """Return the calibration error of very many rows in ten bins."""
    sizes = np.abs(np.random.default_rng(1).normal(0, 1.5, 2_000_000))
    confidence = 1 / (1 + np.exp(-sizes))
    gap = 1 / (1 + np.exp(-slope * sizes)) - confidence
    bins = np.minimum(((confidence - 0.5) * 20).astype(int), 9)
    return float(np.abs(np.bincount(bins, weights=gap, minlength=10)).sum() / len(sizes))


def ends_of_ece(margins: Floats, clusters: Ints) -> Interval:
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    gap = (np.sign(margins) + 1) / 2 - confidence
    bins = np.minimum(((confidence - 0.5) * 20).astype(int), 9)
    ece = float(np.abs(np.bincount(bins, weights=gap, minlength=10)).sum() / len(gap))
    low, high = ece_interval(ece, gap, bins, 10, clusters)
    assert low is not None
    assert high is not None
    return low, high


def ends_of_resampled_ece(margins: Floats, clusters: Ints) -> Interval:
    """Return the percentile interval of resampled rows, the textbook bootstrap; earlier versions printed none."""
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    gap = (np.sign(margins) + 1) / 2 - confidence
    bins = np.minimum(((confidence - 0.5) * 20).astype(int), 9)
    gaps_by_row = np.zeros((len(gap), 10))
    gaps_by_row[np.arange(len(gap)), bins] = gap
    counts = np.random.default_rng(0).multinomial(len(gap), np.full(len(gap), 1 / len(gap)), 500)
    low, high = np.percentile(np.abs(counts @ gaps_by_row).sum(axis=1) / len(gap), [2.5, 97.5])
    return float(low), float(high)


@pytest.mark.parametrize("slope", [1.0, 0.3])
@pytest.mark.parametrize("design", ["170 rows", "540 rows", "170 pairs of 46 items"])
def test_calibration_errors(design: str, slope: float) -> None:
    clusters = MM_RLHF_ITEMS if "items" in design else np.arange(int(design.split()[0]))
    check(
        Cell(
            f"ECE, {design}, {'calibrated' if slope == 1 else f'slope {slope}'}",
            partial(draw_margins, clusters=clusters, slope=slope, truth=true_ece(slope)),
            ends_of_ece,
            ends_of_resampled_ece,
            old_fails=slope == 1,
        )
    )


@pytest.mark.parametrize("n", [170, 540, 1250])
def test_the_floor_is_the_error_of_calibrated_judges(n: int) -> None:
    generator = np.random.default_rng(2)
    errors, floors = [], []
    for _ in range(DRAWS // 10):
        (margins, _), _ = draw_margins(generator, np.arange(n), 1.0, 0.0)
        found = calibration(np.asarray(margins))
        assert found is not None
        assert found.floor is not None
        errors.append(found.ece)
        floors.append(found.floor)
    print(f"ECE of calibrated judges, {n} rows: {np.mean(errors):.4f}, floor {np.mean(floors):.4f}")
    assert np.mean(floors) == pytest.approx(np.mean(errors), rel=0.05)


def draw_lengths(generator: np.random.Generator, clusters: Ints) -> Draw:
    """Return lengths and credits with an accuracy that rises by 5 points for each doubling; items share length and luck."""
    count = int(clusters.max()) + 1
    doublings = 0.7 * generator.normal(size=count)[clusters] + 0.7 * generator.normal(
        size=len(clusters)
    )
    better = (200 * 2 ** np.clip(doublings, -3, 3)).round().astype(np.int64)
    other = np.full(len(clusters), 200)
    ratio = np.log2((better + 1) / (other + 1))
    luck = 0.15 * np.sign(generator.normal(size=count))[clusters]
    credit = (generator.random(len(clusters)) < 0.65 + 0.05 * ratio + luck).astype(float)
    return (better, other, credit, clusters), 0.05


def ends_of_slope(better: Ints, other: Ints, credit: Floats, clusters: Ints) -> Interval:
    found = length_bias(better, other, credit, clusters)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def ends_of_hc1_slope(better: Ints, other: Ints, credit: Floats, clusters: Ints) -> Interval:
    return ends_of_slope(better, other, credit, np.arange(len(credit)))


@pytest.mark.parametrize(
    ("name", "clusters"),
    {**DESIGNS_OF_ROWS, "540 independent rows": np.arange(540)}.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_slopes_on_length(name: str, clusters: Ints) -> None:
    check(
        Cell(
            f"slope on length, {name}",
            partial(draw_lengths, clusters=clusters),
            ends_of_slope,
            ends_of_hc1_slope,
        )
    )


# A policy's answers.


def draw_answers(generator: np.random.Generator, questions: int, n: int, figure: str) -> Draw:
    """Return for each question the mean over subsets of n of 8 answers, and the true mean of all such questions.

    Each question is of one of three kinds, whose answers are right with different chances; right answers score higher.
    """
    chances = np.array([0.2, 0.6, 0.95])
    kinds = generator.integers(3, size=questions)
    right = generator.random((questions, 8)) < chances[kinds][:, None]
    scores = (generator.normal(size=(questions, 8)) + right).round(6)
    if figure == "score":
        values = [best_score(list(row), n) for row in scores]
    else:
        values = [
            best_of(list(row), list(is_right), n)
            for row, is_right in zip(scores, right, strict=True)
        ]
    return (np.array(values),), TRUE_VALUES[figure, n]


def true_value(figure: str, n: int) -> float:
    """Return the mean of one group of n answers to each of very many questions."""
    generator = np.random.default_rng(3)
    count = 3_000_000
    kinds = generator.integers(3, size=count)
    right = generator.random((count, n)) < np.array([0.2, 0.6, 0.95])[kinds][:, None]
    scores = generator.normal(size=(count, n)) + right
    if figure == "score":
        return float(scores.max(axis=1).mean())
    return float(right[np.arange(count), scores.argmax(axis=1)].mean())


TRUE_VALUES: dict[tuple[str, int], float] = {}


def ends_of_share(values: Floats) -> Interval:
    found = share_interval(values)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def ends_of_mean(values: Floats) -> Interval:
    found = mean_interval(values)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@pytest.mark.parametrize("figure", ["best", "score"])
@pytest.mark.parametrize("n", [1, 4])
def test_curves_of_best_of_n(n: int, figure: str) -> None:
    TRUE_VALUES[figure, n] = true_value(figure, n)
    check(
        Cell(
            f"{figure} of {n}, 40 questions",
            partial(draw_answers, questions=40, n=n, figure=figure),
            ends_of_mean if figure == "score" else ends_of_share,
        )
    )
