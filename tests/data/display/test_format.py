"""The texts of numbers."""

from __future__ import annotations

import pytest

from mmrm.data.display.format import (
    interval,
    percent,
    short_number,
    signed,
    signed_points,
    whole_percent,
    with_minus_signs,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12000.0, "12,000"),
        (0.05, "0.05"),
        (2e-5, "2e-5"),
        (-0.5, "−0.5"),
        (1.0, "1"),
        (83.11412, "83.11"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


def test_shares_are_percentages() -> None:
    assert [whole_percent(share) for share in (0.0, 0.5, 0.125, 1.0)] == [
        *("0 %", "50 %", "12.5 %", "100 %"),
    ]
    assert [percent(share) for share in (0.0, 0.8312, None)] == ["0.0", "83.1", "–"]


def test_an_interval_is_written_like_its_mean() -> None:
    assert interval(0.5, 0.4, 0.61) == "50.0 [40.0, 61.0]"
    assert interval(-0.5, -1.0, 0.0, signed) == "-0.50 [-1.00, +0.00]"
    assert interval(0.05, None, None, signed_points) == "+5.0"


def test_minus_signs_are_for_pages() -> None:
    assert with_minus_signs("-0.50 [-1.00, +0.00]") == "−0.50 [−1.00, +0.00]"
