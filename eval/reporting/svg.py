"""A small chart as inline SVG.

Colours are classes (`s0` … `s5`, `right`, `wrong`) that the page's style sheet fills in, so that one drawing serves the light
and the dark scheme. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 12, 44
STYLES = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Distinct lines; the style sheet gives each a colour and a dash pattern of its own."""

Point = tuple[float, float]


def percent(value: float) -> str:
    """Return a fraction of 1 as a whole percentage where it is one, else with a decimal."""
    return f"{100 * value:.0f} %" if abs(100 * value - round(100 * value)) < 1e-6 else f"{100 * value:.1f} %"


def plain(value: float) -> str:
    """Return a number with as few characters as it takes: 12,000; 0.05; 2e-5."""
    if value and abs(value) < 1e-3:
        return f"{value:.3g}".replace("e-0", "e-")
    return f"{value:,.4f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Axis:
    """What a direction of a chart shows: by default a fraction of 1."""

    low: float = 0.0
    high: float = 1.0
    label: str = ""
    form: Callable[[float], str] = percent
    """How a number on it is written."""
    at: Sequence[float] | None = None
    """Where numbers stand; round ones are chosen for None."""

    @classmethod
    def around(
        cls, values: Collection[float], label: str, form: Callable[[float], str], at: Sequence[float] | None = None
    ) -> Axis:
        """Return an axis with a margin around `values`, at least one; one of percentages stays inside 0 and 100 %."""
        low, high = min(values), max(values)
        margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = low - margin, high + margin
        return cls(max(low, 0.0), min(high, 1.0), label, form, at) if form is percent else cls(low, high, label, form, at)

    def ticks(self) -> Sequence[float]:
        """Return where numbers stand on the axis."""
        if self.at is not None:
            return self.at
        found = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)
        return [float(value) for value in found if self.low <= value <= self.high]


@dataclass(slots=True)
class Chart:
    """A plot with what stands around it on the page; what is drawn later lies on top."""

    title: str
    x: Axis
    y: Axis
    caption: str = ""
    height: int = HEIGHT
    legend: list[tuple[str, str]] = field(default_factory=list)
    """Style and name of lines."""
    marks: list[Markup] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    """What the marks say to a pointer that rests on them: also the text alternative."""

    def __post_init__(self) -> None:
        """Draw the axes."""
        for value in self.y.ticks():
            self.path([(self.x.low, value), (self.x.high, value)], "grid")
            self.text(self.x.low, value, self.y.form(value), "end", -5, 4)
        for value in self.x.ticks():
            self.text(value, self.y.low, self.x.form(value), "middle", 0, 17)
        self.path([(self.x.low, self.y.low), (self.x.high, self.y.low)], "axis")
        self.text((self.x.low + self.x.high) / 2, self.y.low, self.x.label, "middle", 0, 36)

    def path(self, points: Iterable[Point], style: str, fact: str = "") -> None:
        """Add a line through `points`, or the area inside of them."""
        places = "L".join("{:.1f},{:.1f}".format(*self._place(x, y)) for x, y in points)
        self.marks.append(Markup('<path class="{}" d="M{}"><title>{}</title></path>').format(style, places, fact))
        self.facts.append(fact)

    def dot(self, x: float, y: float, style: str, fact: str, interval: Iterable[float] = ()) -> None:
        """Add a point, with a whisker over `interval`."""
        if whisker := [(x, bound) for bound in interval]:
            self.path(whisker, f"whisker {style}")
        circle = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3.5"><title>{}</title></circle>')
        self.marks.append(circle.format(style, *self._place(x, y), fact))
        self.facts.append(fact)

    def level(self, y: float, words: str) -> None:
        """Add a dashed horizontal line with words on it."""
        self.path([(self.x.low, y), (self.x.high, y)], "level")
        self.text(self.x.high, y, words, "small end", -2, -3)

    def text(self, x: float, y: float, words: str, style: str, right: float = 0, down: float = 0) -> None:
        """Add words, shifted by pixels from a point."""
        x, y = self._place(x, y)
        self.marks.append(Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(style, x + right, y + down, words))

    def svg(self) -> Markup:
        """Return the drawing."""
        description = f"{self.title}. {self.caption} {'; '.join(filter(None, self.facts))}"
        frame = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
        return frame.format(WIDTH, self.height, description, Markup("").join(self.marks))

    def _place(self, x: float, y: float) -> Point:
        across = (x - self.x.low) / (self.x.high - self.x.low)
        up = (y - self.y.low) / (self.y.high - self.y.low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), self.height - BOTTOM - up * (self.height - TOP - BOTTOM)
