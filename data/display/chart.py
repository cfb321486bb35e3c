"""A chart that is built once, and rendered as SVG for pages and as a PNG file.

Pages need no other file and no network: the drawing is part of the page. Its colours are classes
(`s0` to `s5`, `right`, `wrong`, `level`) that style.css defines, so that one drawing serves the
light and the dark scheme. Every text is escaped. Names of lines are in the legend below the
drawing, never in it, where they could overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from mmrm.data.display.axis import Axis, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 300
HEIGHT = 190
"""Size of a drawing in the units of its viewBox, which are pixels if it is not scaled."""
RIGHT = 20
BOTTOM = 43
"""Room to the right of the axes and below them."""
CHARACTER = 7
"""Width in pixels of a digit at the axes: 12 pixels high, in common system fonts."""

NUM_STYLES = 6
"""Numbered styles of a page; the style sheet gives each its own colour and dash pattern."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours of lines in a PNG file: Okabe and Ito's, which colour-blind readers can tell apart."""
SIZES = {"dot": 3.5, "small": 2.5, "star": 6.0}
"""Radii of dots in a drawing, in pixels. A star is drawn as a large dot."""
MARKERS = {"dot": ("o", 6), "small": (".", 6), "star": ("*", 15), "cross": ("x", 10)}
"""Markers of matplotlib and their sizes in points."""

Shape = Literal["dot", "small", "star", "cross"]


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a series, with an interval if `low` and `high` are given."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    fact: str = ""
    """The sentence that is shown at the pointer over the dot, and listed below the drawing."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram from `left` to `right` on the x axis."""

    left: float
    right: float
    height: float
    fact: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Marks of one style. The band is behind the line, and the line is behind the dots."""

    style: str
    """`s0`, `s1` and so on, `level` and `level blind`, and of bars `right` and `wrong`.

    On a page the numbered styles repeat after NUM_STYLES. In a PNG file each has its own colour.
    """
    name: str = ""
    """The name in the legend; a series without a name is not in it."""
    line: tuple[Point, ...] = ()
    band: tuple[Point, ...] = ()
    """The outline of an area."""
    dots: tuple[Dot, ...] = ()
    bars: tuple[Bar, ...] = ()
    shape: Shape = "dot"
    has_horizontal_intervals: bool = False
    """True if the intervals of the dots are along the x axis."""

    @property
    def page_style(self) -> str:
        """The style on a page, which has only some of the numbered styles."""
        if not self.style[1:].isdecimal():
            return self.style
        return f"s{int(self.style[1:]) % NUM_STYLES}"

    @property
    def line_class(self) -> str:
        """The class of the line in a drawing."""
        return self.style if self.style.startswith("level") else f"line {self.page_style}"

    @property
    def legend_class(self) -> str:
        """The class of the sample in the legend, which is a dot if the series has no line."""
        return f"dot {self.page_style}" if self.dots and not self.line else self.line_class

    def whisker(self, dot: Dot) -> tuple[Point, ...]:
        """Return the ends of the interval of a dot; nothing if it has no interval."""
        if dot.low is None or dot.high is None:
            return ()
        if self.has_horizontal_intervals:
            return ((dot.low, dot.y), (dot.high, dot.y))
        return ((dot.x, dot.low), (dot.x, dot.high))


def level(axis: Axis, height: float, name: str = "", style: str = "level") -> Series:
    """Return a horizontal line over the whole of the x axis `axis`."""
    return Series(style, name, line=((axis.low, height), (axis.high, height)))


@dataclass(frozen=True, slots=True)
class Chart:
    """Axes and series, and the texts around them; later series are drawn over earlier ones."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    caption: str = ""
    value: str = ""
    """The most important number, which is shown next to the title."""
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The class of the sample and the name of every series with a name."""
        return [(series.legend_class, series.name) for series in self.series if series.name]

    @property
    def facts(self) -> list[str]:
        """The sentences about all marks, in the order in which the marks are drawn."""
        facts = []
        for series in self.series:
            facts += [bar.fact for bar in series.bars if bar.fact]
            facts += [dot.fact for dot in series.dots if dot.fact]
        return facts

    def svg(self) -> Markup:
        """Return the drawing as an SVG element."""
        return _Drawing(self).svg()

    def png(self, path: Path) -> None:
        """Write the chart to a PNG file."""
        save_png([self], path)


class _Drawing:
    """The SVG elements of one chart."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.left = 12 + CHARACTER * max(len(text) for _, text in chart.y.ticks)
        self.top = 24 if chart.y.label else 10
        self.elements: list[Markup] = []

    def svg(self) -> Markup:
        """Draw the axes and all series."""
        chart = self.chart
        self._draw_axes()
        for series in chart.series:
            self._draw_series(series)
        frame = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
        label = f"{chart.title}. {chart.caption}".strip()
        return frame.format(chart.width, chart.height, label, Markup("").join(self.elements))

    def _draw_axes(self) -> None:
        x = self.chart.x
        y = self.chart.y
        for value, text in y.ticks:
            self._draw_path([(x.low, value), (x.high, value)], "grid")
            self._write((x.low, value), text, "end", right=-6, down=4)
        last_end = 0.0
        for value, text in x.ticks:
            middle = self._pixels((value, y.low))[0]
            half_width = CHARACTER * len(text) / 2
            if middle - half_width >= last_end:  # else it would touch the number before it
                self._write((value, y.low), text, "middle", right=0, down=19)
                last_end = middle + half_width + CHARACTER
        self._draw_path([(x.low, y.low), (x.high, y.low)], "axis")
        self._write(((x.low + x.high) / 2, y.low), x.label, "middle", right=0, down=37)
        if y.label:
            self.elements.append(Markup('<text x="0" y="11">{}</text>').format(y.label))

    def _draw_series(self, series: Series) -> None:
        if series.band:
            self._draw_path(series.band, f"band {series.page_style}")
        if series.line:
            self._draw_path(series.line, series.line_class)
        for bar in series.bars:
            corners = [(bar.left, 0.0), (bar.left, bar.height)]
            corners += [(bar.right, bar.height), (bar.right, 0.0)]
            self._draw_path(corners, f"bar {series.page_style}", bar.fact)
        for dot in series.dots:
            self._draw_dot(series, dot)

    def _draw_dot(self, series: Series, dot: Dot) -> None:
        whisker = series.whisker(dot)
        if whisker:
            self._draw_path(whisker, f"whisker {series.page_style}")
        x, y = self._pixels((dot.x, dot.y))
        if series.shape == "cross":
            shape = Markup('<path class="line {}" d="M{:.1f},{:.1f}l8,8m0,-8l-8,8">{}</path>')
            self.elements.append(shape.format(series.page_style, x - 4, y - 4, _tooltip(dot.fact)))
            return
        shape = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>')
        radius = SIZES[series.shape]
        self.elements.append(shape.format(series.page_style, x, y, radius, _tooltip(dot.fact)))

    def _draw_path(self, points: Iterable[Point], style: str, fact: str = "") -> None:
        places = "L".join("{:.1f},{:.1f}".format(*self._pixels(point)) for point in points)
        path = Markup('<path class="{}" d="M{}">{}</path>')
        self.elements.append(path.format(style, places, _tooltip(fact)))

    def _write(self, point: Point, text: str, style: str, *, right: float, down: float) -> None:
        """Write a text, shifted by pixels from a point."""
        x, y = self._pixels(point)
        element = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>')
        self.elements.append(element.format(style, x + right, y + down, text))

    def _pixels(self, point: Point) -> Point:
        """Return the pixels of a point of the axes, counted from the upper left corner."""
        chart = self.chart
        across = (point[0] - chart.x.low) / (chart.x.high - chart.x.low)
        up = (point[1] - chart.y.low) / (chart.y.high - chart.y.low)
        x = self.left + across * (chart.width - self.left - RIGHT)
        y = chart.height - BOTTOM - up * (chart.height - self.top - BOTTOM)
        return x, y


def _tooltip(fact: str) -> Markup:
    """Return the element whose text a browser shows if a pointer rests on a mark."""
    return Markup("<title>{}</title>").format(fact) if fact else Markup("")


def swatch(style: str) -> Markup:
    """Return the sample of a style for a legend.

    The first word of the style is the form of the sample: `dot`, `band`, `whisker`, `upright` (the
    level of a bar, which is vertical), or that of a line.
    """
    kind = style.partition(" ")[0]
    if kind == "dot":
        sample = Markup('<circle class="{}" cx="13" cy="5" r="3.5"/>').format(style)
    elif kind == "band":
        sample = Markup('<path class="{}" d="M0,1H26V9H0"/>').format(style)
    elif kind == "upright":
        sample = Markup('<path class="{}" d="M20,0V10"/>').format(style.removeprefix("upright "))
    else:
        sample = Markup('<path class="{}" d="M0,5H26"/>').format(style)
    return Markup('<svg viewBox="0 0 26 10" aria-hidden="true">{}</svg>').format(sample)


def share_bar(
    share: float, low: float, high: float, *, chance: float | None, blind: float | None
) -> Markup:
    """Return a bar from 0 to 100 % for a cell of a table: a share with its interval.

    Args:
        share: The length of the bar, as a share of 1.
        low: The lower end of the interval of `share`.
        high: The upper end of the interval of `share`.
        chance: The share that chance reaches; None draws no mark.
        blind: The share of the best judge that sees no content; None draws no mark.
    """
    band = Markup('<rect class="band s0" y="3" height="14" width="{:.1f}%"/>')
    mark = Markup('<line class="{}" x1="{:.1f}%" x2="{:.1f}%" y1="{}" y2="{}"/>')
    elements = [band.format(100 * share)]
    if chance is not None:
        elements.append(mark.format("level", 100 * chance, 100 * chance, 0, 20))
    if blind is not None:
        elements.append(mark.format("blind", 100 * blind, 100 * blind, 3, 17))
    elements.append(mark.format("whisker s0", 100 * low, 100 * high, 10, 10))
    return Markup('<svg aria-hidden="true">{}</svg>').format(Markup("").join(elements))


def save_png(charts: Sequence[Chart], path: Path) -> None:
    """Write charts side by side to one PNG file, with one legend for all of them."""
    from matplotlib.figure import Figure

    height = 4.8 * max(chart.height for chart in charts) / HEIGHT
    width = max(6.4, 5.4 * len(charts))
    figure = Figure(figsize=(width, height), layout="constrained")
    panels: list[Axes] = figure.subplots(1, len(charts), squeeze=False)[0].tolist()
    handles_by_name = {}
    for panel, chart in zip(panels, charts, strict=True):
        _draw_panel(panel, chart)
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            handles_by_name[name] = handle
    if handles_by_name:
        figure.legend(
            handles_by_name.values(),
            handles_by_name,
            loc="outside lower center",
            ncols=2 * len(charts),
            fontsize=8,
        )
    figure.savefig(path, dpi=130)


def _draw_panel(panel: Axes, chart: Chart) -> None:
    """Draw one chart with matplotlib."""
    panel.set_title(chart.title)
    panel.grid(alpha=0.25)
    panel.set_xlim(chart.x.low, chart.x.high)
    panel.set_ylim(chart.y.low, chart.y.high)
    panel.set_xticks(*_values_and_texts(chart.x))
    panel.set_yticks(*_values_and_texts(chart.y))
    panel.set_xlabel(chart.x.label)
    panel.set_ylabel(chart.y.label)
    colour_by_style = colours([series.style for series in chart.series])
    for series in chart.series:
        _draw_with_matplotlib(panel, series, colour_by_style[series.style])


def _values_and_texts(axis: Axis) -> tuple[list[float], list[str]]:
    """Return the values and the texts of the ticks of an axis."""
    return [value for value, _ in axis.ticks], [text for _, text in axis.ticks]


def _draw_with_matplotlib(panel: Axes, series: Series, colour: str) -> None:
    """Draw the marks of a series. Only the first kind of mark gets the name for the legend."""
    name = series.name or None
    marker, size = MARKERS[series.shape]
    if series.band:
        panel.fill(*zip(*series.band, strict=True), color=colour, alpha=0.15, linewidth=0)
    if series.line:
        is_level = series.style.startswith("level")
        dashes = {"level": ":", "level blind": "-."}.get(series.style, "-")
        width = 1.2 if is_level else 1.5
        x, y = zip(*series.line, strict=True)
        panel.plot(x, y, dashes, color=colour, linewidth=width, label=name)
        name = None
    for bar in series.bars:
        panel.bar(bar.left, bar.height, bar.right - bar.left, align="edge", color=colour)
    for dot in series.dots:
        whisker = series.whisker(dot)
        if whisker:
            panel.plot(*zip(*whisker, strict=True), color=colour, linewidth=1.5)
    if series.dots or name:
        x_of_dots = [dot.x for dot in series.dots]
        y_of_dots = [dot.y for dot in series.dots]
        panel.plot(x_of_dots, y_of_dots, marker, color=colour, markersize=size, label=name)


def colours(styles: Iterable[str]) -> dict[str, str]:
    """Return a colour for each style.

    The styles `s0` to `s6` have the colours of PALETTE. If there are styles with higher numbers,
    all numbered styles get colours that are spread over a colour map.
    """
    names = list(dict.fromkeys(styles))
    colour_by_style = {"right": PALETTE[0], "wrong": PALETTE[1]}
    colour_by_style |= dict.fromkeys(("level", "level blind"), "grey")
    numbers = {style: int(style[1:]) for style in names if style not in colour_by_style}
    count = max(numbers.values(), default=0) + 1
    for style, number in numbers.items():
        colour_by_style[style] = PALETTE[number] if count <= len(PALETTE) else _step(number, count)
    return colour_by_style


def _step(number: int, count: int) -> str:
    """Return one of `count` colours that are spread over a colour map."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return str(to_hex(colormaps["turbo"](0.05 + 0.9 * number / (count - 1))))
