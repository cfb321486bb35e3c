"""A small chart: axes, lines, bands, bars and points as inline SVG.

Colours are classes (`s0` … `s5`, `right`, `wrong`, `muted`) that the page's style sheet fills in, so that one picture serves
the light and the dark scheme. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 44
SERIES = 6
"""Distinct line styles; the style sheet gives each a colour and a dash of its own."""

Point = tuple[float, float]
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """What a direction of a chart shows: its range, its label, and how a number on it is written."""

    low: float
    high: float
    label: str
    form: Format

    @classmethod
    def around(cls, values: Iterable[float], label: str, form: Format, inside: tuple[float, float] | None = None) -> Axis:
        """Return an axis with a little air around `values` (at least one), which stays `inside`."""
        found = list(values)
        low, high = min(found), max(found)
        air = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = low - air, high + air
        return cls(low, high, label, form) if inside is None else cls(max(low, inside[0]), min(high, inside[1]), label, form)

    def ticks(self, about: int = 4) -> list[float]:
        """Return round numbers inside the range, `about` of them."""
        rough = (self.high - self.low) / about
        power = 10 ** math.floor(math.log10(rough))
        step = min((1, 2, 5, 10), key=lambda factor: abs(math.log(rough / (factor * power)))) * power
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def percent(value: float) -> str:
    """Return a share as a whole percentage where it is one, else with a decimal."""
    return f"{100 * value:.0f} %" if abs(100 * value - round(100 * value)) < 1e-6 else f"{100 * value:.1f} %"


def plain(value: float) -> str:
    """Return a number with as few characters as it takes: 12,000; 0.05; 2e-5."""
    if value and abs(value) < 1e-3:
        mantissa, _, power = f"{value:.3g}".partition("e")
        return f"{mantissa}e{int(power)}" if power else mantissa
    return f"{value:,.4f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"


@dataclass(slots=True)
class Chart:
    """A plot with two axes; marks are drawn in the order in which they are added, words on top of them."""

    x: Axis
    y: Axis
    x_ticks: Sequence[float] | None = None
    marks: list[Markup] = field(default_factory=list)
    words: list[Markup] = field(default_factory=list)

    def line(self, points: Sequence[Point], style: str) -> None:
        """Add a line through `points`."""
        self.marks.append(Markup('<path class="line {}" d="M{}"/>').format(style, self._path(points)))

    def band(self, lower: Sequence[Point], upper: Sequence[Point], style: str) -> None:
        """Fill what lies between two lines."""
        outline = self._path([*lower, *reversed(upper)])
        self.marks.append(Markup('<path class="band {}" d="M{}Z"/>').format(style, outline))

    def bar(self, low: float, high: float, value: float, style: str, title: str) -> None:
        """Add a bar from zero to `value` between two places of the x axis."""
        left, right, top, bottom = self._x(low), self._x(high), self._y(value), self._y(0.0)
        shape = Markup('<rect class="bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>')
        self.marks.append(shape.format(style, left + 0.5, top, max(right - left - 1, 0.5), bottom - top, title))

    def point(self, x: float, y: float, style: str, title: str, interval: tuple[float, float] | None = None) -> None:
        """Add a point, with a whisker over `interval`; `title` is what a pointer that rests on it shows."""
        if interval is not None:
            whisker = Markup('<path class="whisker {}" d="M{:.1f},{:.1f}V{:.1f}"/>')
            self.marks.append(whisker.format(style, self._x(x), self._y(interval[0]), self._y(interval[1])))
        dot = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3.5"><title>{}</title></circle>')
        self.marks.append(dot.format(style, self._x(x), self._y(y), title))

    def level(self, y: float, text: str) -> None:
        """Add a dashed horizontal line with a word on it."""
        path = Markup('<path class="level" d="M{:.1f},{:.1f}H{:.1f}"/>').format(LEFT, self._y(y), WIDTH - RIGHT)
        words = Markup('<text class="small end" x="{:.1f}" y="{:.1f}">{}</text>').format(WIDTH - RIGHT - 2, self._y(y) - 3, text)
        self.marks.append(path)
        self.words.append(words)

    def upright(self, x: float) -> None:
        """Add a dashed vertical line."""
        self.marks.append(Markup('<path class="level" d="M{:.1f},{:.1f}V{:.1f}"/>').format(self._x(x), TOP, HEIGHT - BOTTOM))

    def svg(self, description: str) -> Markup:
        """Return the chart; `description` is its text alternative."""
        return drawing(self._axes() + Markup("").join([*self.marks, *self.words]), description)

    def _axes(self) -> Markup:
        floor = HEIGHT - BOTTOM
        parts = []
        for value in self.y.ticks():
            grid = Markup('<path class="grid" d="M{:.1f},{:.1f}H{:.1f}"/><text class="end" x="{:.1f}" y="{:.1f}">{}</text>')
            parts.append(grid.format(LEFT, self._y(value), WIDTH - RIGHT, LEFT - 5, self._y(value) + 4, self.y.form(value)))
        for value in self.x.ticks() if self.x_ticks is None else self.x_ticks:
            tick = Markup('<text class="middle" x="{:.1f}" y="{:.1f}">{}</text>')
            parts.append(tick.format(self._x(value), floor + 17, self.x.form(value)))
        parts.append(Markup('<path class="axis" d="M{:.1f},{:.1f}H{:.1f}"/>').format(LEFT, floor, WIDTH - RIGHT))
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(Markup('<text class="middle label" x="{}" y="{}">{}</text>').format(middle, HEIGHT - 8, self.x.label))
        return Markup("").join(parts)

    def _x(self, value: float) -> float:
        return LEFT + (value - self.x.low) / (self.x.high - self.x.low) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y.low) / (self.y.high - self.y.low) * (HEIGHT - TOP - BOTTOM)

    def _path(self, points: Sequence[Point]) -> str:
        return "L".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)


def drawing(content: Markup, description: str) -> Markup:
    """Return an image of this module's size with a text alternative."""
    frame = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return frame.format(WIDTH, HEIGHT, description, content)
