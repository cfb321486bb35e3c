"""The axes of a chart: their range, and the numbers that are written along them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mmrm.data.display.format import short_number, with_minus_signs

Point = tuple[float, float]
"""A place in a chart: the values on its two axes."""
Tick = tuple[float, str]
"""A value on an axis, and its text."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a chart, from `low` on the left or at the bottom to `high`."""

    low: float
    high: float
    label: str
    ticks: Sequence[Tick]

    @classmethod
    def numbers(
        cls, values: Collection[float], label: str = "", at: Collection[float] | None = None
    ) -> Axis:
        """Return an axis with a margin around `values`, of which there is at least one.

        Its ticks are `at`, or round numbers if that is None.
        """
        low, high = _around(values)
        if at is not None:
            return cls(low, high, label, [(tick, short_number(tick)) for tick in at])
        step, ticks = _round_ticks(low, high)
        largest = max(map(abs, ticks))
        exponent = 0 if 1e-2 <= largest < 1e6 else math.floor(math.log10(largest))
        texts = _tick_texts([tick / 10.0**exponent for tick in ticks], step / 10.0**exponent)
        unit = f"×10{str(exponent).translate(SUPERSCRIPTS)}" if exponent else ""
        return cls(low, high, f"{label} {unit}".strip(), list(zip(ticks, texts, strict=True)))

    @classmethod
    def shares(cls, values: Collection[float] = (0.0, 1.0), label: str = "") -> Axis:
        """Return an axis in percent around shares of 1 that stays inside 0 and 100 %."""
        low, high = _around(values)
        low = max(low, 0.0)
        high = min(high, 1.0)
        step, ticks = _round_ticks(low, high)
        texts = _tick_texts([100 * tick for tick in ticks], 100 * step)
        return cls(
            low, high, label, [(tick, f"{text} %") for tick, text in zip(ticks, texts, strict=True)]
        )

    @classmethod
    def counts(cls, highest: int, label: str) -> Axis:
        """Return an axis from zero to `highest` with whole numbers along it."""
        high = 1.05 * highest
        _, ticks = _round_ticks(0.0, high, least_step=1.0)
        return cls(0.0, high, label, [(tick, f"{tick:,.0f}") for tick in ticks])

    @classmethod
    def names(cls, names: Sequence[str]) -> Axis:
        """Return a vertical axis with a name at 0, 1, 2 and so on, the first one at the top."""
        return cls(len(names) - 0.5, -0.5, "", list(enumerate(names)))


def _around(values: Collection[float]) -> Point:
    """Return the smallest and the largest value, with a margin outside of them."""
    low = min(values)
    high = max(values)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _round_ticks(low: float, high: float, least_step: float = 0.0) -> tuple[float, list[float]]:
    """Return a step of 1, 2 or 5 times a power of ten, and its multiples from low to high."""
    wanted_step = max((high - low) / 6, least_step)
    power = 10.0 ** math.floor(math.log10(wanted_step))
    # The factor allows for rounding: 0.3 / 0.1 is not exactly 3.
    step = next(
        factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted_step * (1 - 1e-9)
    )
    first = math.ceil(low / step - 1e-6)
    last = math.floor(high / step + 1e-6)
    return step, [number * step for number in range(first, last + 1)]


def _tick_texts(ticks: Sequence[float], step: float) -> list[str]:
    """Return the texts of ticks with as many decimals as the step between them needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    # Adding zero turns -0.0 into 0.0.
    return [with_minus_signs(f"{tick + 0.0:,.{decimals}f}") for tick in ticks]
