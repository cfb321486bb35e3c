"""Shares, draws and quotas: the arithmetic of a mixture, for all inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from data.preparation.sampling import Pool, apportion, bring_together, draw, quotas, shares
from data.sources.project import ProjectConfig


def pool(
    size: int, weight: float = 1, repeat: float = 1, text_only: bool | None = None, start: int = 0
) -> Pool:
    config = ProjectConfig(type="project", path="s", weight=weight, repeat=repeat)
    return Pool(config, text_only, np.arange(start, start + size, dtype=np.int32))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(0, 10**6))
def test_apportioned_counts_add_up_and_stay_close(sizes: list[int], total: int) -> None:
    share = np.array(sizes) / sum(sizes)
    counts = apportion(total, share)
    assert counts.sum() == total
    assert (np.abs(counts - total * share) <= 1 + 1e-6).all()


@given(st.integers(1, 50), st.integers(0, 200), st.integers(0, 9))
def test_a_draw_takes_every_record_as_often_or_once_more(size: int, count: int, seed: int) -> None:
    drawn = draw(pool(size, start=7), count, np.random.default_rng(seed))
    times = np.bincount(drawn - 7, minlength=size)
    assert len(drawn) == count
    assert drawn.dtype == np.int32
    assert times.max() - times.min() <= 1


@given(st.lists(st.integers(0, 300), min_size=1, max_size=7), st.integers(0, 1000))
def test_quotas_are_equal_up_to_the_limits(limits: list[int], total: int) -> None:
    if total > sum(limits):
        with pytest.raises(UserError, match="validation asks for"):
            quotas(total, limits)
        return
    given_out = quotas(total, limits)
    assert sum(given_out) == total
    largest = max(given_out)
    assert all(
        number >= largest - 1 or number == limit
        for number, limit in zip(given_out, limits, strict=True)
    )


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=60), st.integers(1, 7))
def test_records_of_a_prompt_follow_one_another_and_a_record_is_in_a_set_once(
    drawn: list[tuple[int, int]], most: int
) -> None:
    """A record is (its number, its prompt); a run is the next `most` of a prompt, where the first was drawn."""
    order = np.array([number * 6 + prompt for number, prompt in drawn], np.int32)
    left = [int(index) for index in order]
    expected: list[int] = []
    while left:
        run: list[int] = []
        for place, index in enumerate(left):
            if (
                index % 6 == left[0] % 6
                and index not in [left[one] for one in run]
                and len(run) < most
            ):
                run.append(place)
        expected += [left[place] for place in run]
        left = [index for place, index in enumerate(left) if place not in run]
    found = bring_together(order, order % 6, most)
    assert sorted(found) == sorted(order)
    assert found.dtype == order.dtype
    if len(set(order.tolist())) == len(order):
        assert found.tolist() == expected


def test_a_record_that_is_drawn_again_stands_in_another_set() -> None:
    assert bring_together(np.array([1, 1, 5, 2, 2]), np.array([0, 0, 9, 0, 0]), 4).tolist() == [
        1,
        2,
        1,
        2,
        5,
    ]
    assert bring_together(np.array([3, 4, 3, 3, 4]), np.array([0, 1, 0, 0, 1]), 4).tolist() == [
        3,
        4,
        3,
        3,
        4,
    ]


def test_shares_follow_size_weight_repeat_and_temperature() -> None:
    assert shares([pool(100), pool(300)], 1, None) == pytest.approx([0.25, 0.75])
    assert shares([pool(100, weight=3), pool(300)], 1, None) == pytest.approx([0.5, 0.5])
    assert shares([pool(100, repeat=3), pool(300)], 1, None) == pytest.approx([0.5, 0.5])
    assert shares([pool(100), pool(400)], 2, None) == pytest.approx([1 / 3, 2 / 3])
    assert shares([pool(100), pool(400)], 1e9, None) == pytest.approx([0.5, 0.5])


def test_the_ratio_sets_text_per_multimodal_and_keeps_the_rest() -> None:
    pools = [pool(200, text_only=False), pool(100, text_only=False), pool(900, text_only=True)]
    assert shares(pools, 1, 0.5) == pytest.approx([4 / 9, 2 / 9, 3 / 9])


@pytest.mark.parametrize(("text_only", "missing"), [(True, "multimodal"), (False, "text-only")])
def test_a_ratio_needs_both_kinds(text_only: bool, missing: str) -> None:
    with pytest.raises(UserError, match=f"there is no {missing} record"):
        shares([pool(10, text_only=text_only)], 1, 0.5)


def test_baserewards_mixture_adds_up_to_2_85_million() -> None:
    """The seven sources of arXiv 2509.16127 at their real sizes, drawn by size: nothing repeated, nothing left."""
    sizes = {
        "mmpr": 2_000_000,
        "olmo": 378_341,
        "r1": 200_000,
        "rlaif_v": 83_132,
        "tulu": 65_000,
        "ultra_hard": 63_000,
        "others": 63_000,
    }
    pools = [pool(size) for size in sizes.values()]
    counts = apportion(sum(sizes.values()), shares(pools, 1, None))
    assert counts.tolist() == list(sizes.values())
    assert round(counts.sum() / 1e6, 2) == 2.85
