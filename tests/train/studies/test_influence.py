"""The influence of sources from inner products: means over both sides, their intervals, and what is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from mmrm.data.arrays import Floats
from mmrm.eval.results.intervals import student_quantile
from mmrm.train.studies.influence import Products, mean_influence


def gradients(seed: int, counts: tuple[int, ...], size: int = 5) -> list[Floats]:
    """Return random gradients of the pairs of each source, (pairs, size) each."""
    generator = np.random.default_rng(seed)
    return [generator.normal(number, 1.0, (count, size)) for number, count in enumerate(counts)]


def products_of(training: Sequence[Floats], held_out: Sequence[Floats]) -> Products:
    """Return the products by their definition."""
    means = np.array([rows.mean(axis=0) for rows in training])
    held_out_means = np.array([rows.mean(axis=0) for rows in held_out])
    return Products(
        ("a", "b"),
        tuple(rows @ held_out_means.T for rows in training),
        tuple(rows @ means.T for rows in held_out),
    )


def test_an_influence_is_the_mean_over_all_combinations_of_pairs() -> None:
    training = gradients(0, (7, 4))
    held_out = gradients(1, (6, 3))
    products = products_of(training, held_out)
    for source, rows in zip("ab", training, strict=True):
        for target, target_rows in zip("ab", held_out, strict=True):
            influence, _, degrees = products.influence(source, [target])
            assert influence == pytest.approx((rows @ target_rows.T).mean(), rel=1e-12)
            assert degrees == min(len(rows), len(target_rows)) - 1
        # Every held-out pair counts alike, and not every source.
        all_targets = np.concatenate(held_out)
        influence, _, degrees = products.influence(source, ["a", "b"])
        assert influence == pytest.approx((rows @ all_targets.T).mean(), rel=1e-12)
        assert degrees == 2


def test_the_standard_error_is_that_of_drawing_both_sides_again() -> None:
    generator = np.random.default_rng(3)
    influences = []
    errors = []
    for _ in range(2000):
        training = [generator.normal(1.0, 1.0, (20, 3)), generator.normal(0.0, 1.0, (5, 3))]
        held_out = [generator.normal(0.5, 1.0, (30, 3)), generator.normal(4.0, 2.0, (20, 3))]
        influence, error, _ = products_of(training, held_out).influence("a", ["a", "b"])
        influences.append(influence)
        errors.append(error)
    spread = float(np.std(influences))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.1)


def test_the_interval_is_students_and_wider_for_more_comparisons() -> None:
    products = products_of(gradients(0, (7, 4)), gradients(1, (6, 3)))
    influence, error, degrees = products.influence("a", ["b"])
    one = mean_influence([products], "a", ["b"])
    assert one.mean == influence
    assert one.high == pytest.approx(influence + student_quantile(degrees) * error)
    assert one.low == pytest.approx(influence - student_quantile(degrees) * error)
    three = mean_influence([products], "a", ["b"], comparisons=3)
    assert three.high == pytest.approx(influence + student_quantile(degrees, 3) * error)


def test_checkpoints_are_averaged_and_their_errors_do_not_cancel() -> None:
    checkpoints = [products_of(gradients(n, (7, 4)), gradients(n + 9, (6, 3))) for n in range(2)]
    influences = [checkpoint.influence("b", ["a"]) for checkpoint in checkpoints]
    estimate = mean_influence(checkpoints, "b", ["a"])
    assert estimate.mean == pytest.approx((influences[0][0] + influences[1][0]) / 2)
    assert estimate.high is not None
    half_width = student_quantile(3) * (influences[0][1] + influences[1][1]) / 2
    assert estimate.high - estimate.mean == pytest.approx(half_width)


def test_products_come_back_from_json_as_they_were() -> None:
    products = products_of(gradients(0, (7, 4)), gradients(1, (6, 3)))
    restored = Products.from_plain(json.loads(json.dumps(products.plain)))
    assert restored.sources == products.sources
    for name in ("of_training", "of_held_out"):
        for before, after in zip(getattr(products, name), getattr(restored, name), strict=True):
            assert np.array_equal(before, after)
