"""Order and votes against their definitions."""

import numpy as np
import pytest

from mmrm.eval.benchmarks.benchmark import macro
from mmrm.eval.results.statistics import agreement, order_consistency


def test_order_consistency_counts_what_is_named_in_both_orders() -> None:
    shown_first_0 = np.array([0, 1, 0, 0, 1, -1, 1])
    shown_first_1 = np.array([0, 1, 1, 1, 0, 0, -1])
    found = order_consistency(shown_first_0, shown_first_1)
    assert (found.pairs, found.consistent, found.first, found.second, found.rate) == (
        5,
        2,
        2,
        1,
        0.4,
    )
    assert order_consistency(np.array([-1]), np.array([0])).rate is None


def test_agreement_is_the_share_of_the_majority() -> None:
    assert agreement(np.array([3, 1, 2, 0]), np.array([0, 3, 2, 0])) == pytest.approx(
        (1 + 0.75 + 0.5) / 3
    )
    assert agreement(np.array([0]), np.array([0])) is None


def test_macro_is_none_where_a_group_is_empty() -> None:
    assert macro([0.5, 1.0]) == 0.75
    assert macro([0.5, None]) is None
    assert macro([]) is None
