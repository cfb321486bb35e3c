"""The axes of a chart: their range, and the numbers that are written along them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mmrm.data.display.format import short_number, with_minus_signs

Point = tuple[float, float]
"""A point in a chart: the values on its x axis and its y axis."""
Range = tuple[float, float]
"""The lower and the upper end of an axis."""
Tick = tuple[float, str]
"""A value on an axis, and its text."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart, from `low` on the left or at the bottom to `high`."""

    low: float
    high: float
    label: str
    ticks: Sequence[Tick]
    """The values that are marked along the axis, each with its text."""

    @classmethod
    def numbers(
        cls, values: Collection[float], label: str = "", at: Collection[float] | None = None
    ) -> Axis:
        """Return an axis around some values, with a margin on both sides.

        Args:
            values: At least one value.
            label: The name of the axis.
            at: The numbers along the axis; None for round numbers.
        """
        low, high = _with_margin(values)
        if at is not None:
            return cls(low, high, label, [(tick, short_number(tick)) for tick in at])
        step, ticks = _round_ticks(low, high)
        # Very small or large numbers are divided by a power of ten, which is added to the label.
        largest = max(map(abs, ticks))
        exponent = 0 if 1e-2 <= largest < 1e6 else math.floor(math.log10(largest))
        texts = _tick_texts([tick / 10.0**exponent for tick in ticks], step / 10.0**exponent)
        power = f"×10{str(exponent).translate(SUPERSCRIPTS)}" if exponent else ""
        return cls(low, high, f"{label} {power}".strip(), list(zip(ticks, texts, strict=True)))

    @classmethod
    def shares(cls, values: Collection[float] = (0.0, 1.0), label: str = "") -> Axis:
        """Return an axis in percent around some shares, such as 0.5 for 50 %, with a margin.

        The axis does not go below 0 % or above 100 %.
        """
        low, high = _with_margin(values)
        low = max(low, 0.0)
        high = min(high, 1.0)
        step, ticks = _round_ticks(low, high)
        numbers = _tick_texts([100 * tick for tick in ticks], 100 * step)
        texts = [f"{number} %" for number in numbers]
        return cls(low, high, label, list(zip(ticks, texts, strict=True)))

    @classmethod
    def counts(cls, highest: int, label: str) -> Axis:
        """Return an axis from zero to a little above `highest` with whole numbers along it."""
        high = 1.05 * highest
        _, ticks = _round_ticks(0.0, high, least_step=1.0)
        return cls(0.0, high, label, [(tick, f"{tick:,.0f}") for tick in ticks])

    @classmethod
    def names(cls, names: Sequence[str]) -> Axis:
        """Return a vertical axis with the names at 0, 1, 2 and so on, from top to bottom."""
        lower_end = len(names) - 0.5
        upper_end = -0.5  # above the first name, which is at 0
        return cls(lower_end, upper_end, "", list(enumerate(names)))


def _with_margin(values: Collection[float]) -> Range:
    """Return the ends of an axis: the smallest and the largest value, with a margin outside."""
    low = min(values)
    high = max(values)
    # If all values are equal, the margin depends on the value instead of the distance.
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _round_ticks(low: float, high: float, least_step: float = 0.0) -> tuple[float, list[float]]:
    """Return the distance between the ticks of an axis, and its multiples from `low` to `high`.

    The distance is 1, 2 or 5 times a power of ten, not below `least_step`. There are at most about
    six ticks.
    """
    smallest_step = max((high - low) / 6, least_step)
    power = 10.0 ** math.floor(math.log10(smallest_step))
    # The small terms here and below allow for rounding: 0.3 / 0.1 is not exactly 3.
    threshold = smallest_step * (1 - 1e-9)
    steps = (factor * power for factor in (1, 2, 5, 10))
    step = next(step for step in steps if step >= threshold)
    first = math.ceil(low / step - 1e-6)
    last = math.floor(high / step + 1e-6)
    return step, [number * step for number in range(first, last + 1)]


def _tick_texts(ticks: Sequence[float], step: float) -> list[str]:
    """Return the texts of ticks with as many decimals as the step between them needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    # Adding zero turns -0.0 into 0.0.
    return [with_minus_signs(f"{tick + 0.0:,.{decimals}f}") for tick in ticks]
