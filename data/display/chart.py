"""A chart as inline SVG, for pages that need no other file and no network.

Colours are classes (`s0` … `s5`, `right`, `wrong`, `level`) that style.css fills in, so that one drawing serves the light and the
dark scheme. Every text is escaped. Names of lines stand in the legend below the drawing, never in it, where they could overlap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

WIDTH, HEIGHT = 300, 190
RIGHT, BOTTOM = 20, 43
CHARACTER = 7
"""Width in pixels of a character of the axes' numbers, which are 12 pixels high: digits in common system fonts."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Point = tuple[float, float]


def percent(value: float) -> str:
    """Return a fraction of 1 as a percentage: whole where it is, else with a decimal."""
    return (
        f"{100 * value:.0f} %"
        if abs(100 * value - round(100 * value)) < 1e-6
        else f"{100 * value:.1f} %"
    )


def plain(value: float) -> str:
    """Return a number with at most four significant decimals: 12,000; 0.05; 2e-5; −3."""
    written = f"{value:.4g}".replace("e-0", "e-") if abs(value) < 1000 else f"{value:,.0f}"
    return f"−{written[1:]}" if value < 0 else written


@dataclass(frozen=True, slots=True)
class Axis:
    """What a direction of a chart shows."""

    low: float
    high: float
    label: str
    ticks: Sequence[tuple[float, str]]
    """Where numbers stand, and how each is written."""

    @classmethod
    def numbers(
        cls, values: Collection[float], label: str = "", at: Collection[float] | None = None
    ) -> Axis:
        """Return an axis with a margin around `values`, at least one; round ticks are chosen unless `at` gives them."""
        low, high = _around(values)
        if at is not None:
            return cls(low, high, label, [(tick, plain(tick)) for tick in at])
        step, ticks = _round_ticks(low, high)
        largest = max(map(abs, ticks))
        exponent = 0 if 1e-2 <= largest < 1e6 else math.floor(math.log10(largest))
        written = _written([tick / 10.0**exponent for tick in ticks], step / 10.0**exponent)
        unit = f"×10{str(exponent).translate(SUPERSCRIPTS)}" if exponent else ""
        return cls(low, high, f"{label} {unit}".strip(), list(zip(ticks, written, strict=True)))

    @classmethod
    def shares(cls, values: Collection[float] = (0.0, 1.0), label: str = "") -> Axis:
        """Return an axis around fractions of 1, at least one, that stays inside 0 and 100 %."""
        low, high = _around(values)
        low, high = max(low, 0.0), min(high, 1.0)
        step, ticks = _round_ticks(low, high)
        written = _written([100 * tick for tick in ticks], 100 * step)
        return cls(
            low,
            high,
            label,
            [(tick, f"{number} %") for tick, number in zip(ticks, written, strict=True)],
        )

    @classmethod
    def counts(cls, highest: int, label: str) -> Axis:
        """Return an axis from zero to `highest`, with whole numbers at it."""
        _, ticks = _round_ticks(0.0, 1.05 * highest, least=1.0)
        return cls(0.0, 1.05 * highest, label, [(tick, f"{tick:,.0f}") for tick in ticks])


def _around(values: Collection[float]) -> Point:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _round_ticks(low: float, high: float, least: float = 0.0) -> tuple[float, list[float]]:
    """Return a step of 1, 2 or 5 times a power of ten, and its 2 to 7 multiples between two numbers."""
    rough = max((high - low) / 6, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return step, [number * step for number in range(first, last + 1)]


def _written(ticks: Sequence[float], step: float) -> list[str]:
    """Return the ticks with as many decimals as the step needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{tick + 0.0:,.{decimals}f}".replace("-", "−") for tick in ticks]


@dataclass(slots=True)
class Chart:
    """A plot with what stands around it on the page; what is drawn later lies on top."""

    title: str
    x: Axis
    y: Axis
    caption: str = ""
    value: str = ""
    """The one number that a reader looks for: it stands beside the title."""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """Style and name of lines."""
    marks: list[Markup] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    """What the marks say to a pointer that rests on them, and in the list of numbers below the drawing."""
    left: int = 0
    top: int = 0

    def __post_init__(self) -> None:
        """Draw the axes."""
        self.left = 12 + CHARACTER * max(len(written) for _, written in self.y.ticks)
        self.top = 24 if self.y.label else 10
        for value, written in self.y.ticks:
            self.path([(self.x.low, value), (self.x.high, value)], "grid")
            self._text(self.x.low, value, written, "end", -6, 4)
        end = 0.0
        for value, written in self.x.ticks:
            middle, half = self._place(value, self.y.low)[0], CHARACTER * len(written) / 2
            if middle - half >= end:  # else it would touch the number before it
                self._text(value, self.y.low, written, "middle", 0, 19)
                end = middle + half + CHARACTER
        self.path([(self.x.low, self.y.low), (self.x.high, self.y.low)], "axis")
        self._text((self.x.low + self.x.high) / 2, self.y.low, self.x.label, "middle", 0, 37)
        if self.y.label:
            self.marks.append(Markup('<text x="0" y="11">{}</text>').format(self.y.label))

    def path(self, points: Iterable[Point], style: str, fact: str = "") -> None:
        """Add a line through `points`, or the area inside of them."""
        places = "L".join("{:.1f},{:.1f}".format(*self._place(x, y)) for x, y in points)
        self._mark(Markup('<path class="{}" d="M{}">{}</path>'), style, places, fact=fact)

    def dot(self, x: float, score: Sequence[float], style: str, fact: str) -> None:
        """Add a point, with a whisker over its interval if `score` has one."""
        y, *interval = score
        if interval:
            self.path([(x, bound) for bound in interval], f"whisker {style}")
        circle = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3.5">{}</circle>')
        self._mark(circle, style, *self._place(x, y), fact=fact)

    def level(self, y: float, words: str, style: str = "level") -> None:
        """Add a horizontal line that the legend names."""
        self.path([(self.x.low, y), (self.x.high, y)], style)
        self.legend.append((style, words))

    def svg(self) -> Markup:
        """Return the drawing."""
        frame = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
        return frame.format(
            WIDTH, HEIGHT, f"{self.title}. {self.caption}".strip(), Markup("").join(self.marks)
        )

    def _mark(self, shape: Markup, *values: object, fact: str) -> None:
        self.marks.append(
            shape.format(*values, Markup("<title>{}</title>").format(fact) if fact else "")
        )
        self.facts += [fact] if fact else []

    def _text(self, x: float, y: float, words: str, style: str, right: float, down: float) -> None:
        """Add words, shifted by pixels from a point."""
        x, y = self._place(x, y)
        self.marks.append(
            Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
                style, x + right, y + down, words
            )
        )

    def _place(self, x: float, y: float) -> Point:
        across = (x - self.x.low) / (self.x.high - self.x.low)
        up = (y - self.y.low) / (self.y.high - self.y.low)
        return self.left + across * (WIDTH - self.left - RIGHT), HEIGHT - BOTTOM - up * (
            HEIGHT - self.top - BOTTOM
        )
