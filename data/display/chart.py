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
CHARACTER_WIDTH = 7
"""Width in pixels of a digit at the axes: 12 pixels high, in common system fonts."""

NUM_STYLES = 6
"""Numbered styles of a page; the style sheet gives each its own colour and dash pattern."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours of lines in a PNG file: Okabe and Ito's, which colour-blind readers can tell apart."""
RADII = {"dot": 3.5, "small": 2.5, "star": 6.0}
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
    """The lower end of the interval of `y`, or of `x` if the series has horizontal intervals."""
    high: float | None = None
    """The upper end of the interval."""
    fact: str = ""
    """The sentence that is shown at the pointer over the dot, and listed below the drawing."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram from `left` to `right` on the x axis."""

    left: float
    right: float
    height: float
    fact: str = ""
    """The sentence that is shown at the pointer over the bar, and listed below the drawing."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points, lines, bars and areas of one style, which share one entry in the legend.

    The area (`band`) is drawn behind the line, and the line behind the dots.
    """

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
        """The style on a page, whose style sheet has only NUM_STYLES of the numbered styles."""
        if not self.style[1:].isdecimal():
            return self.style
        return f"s{int(self.style[1:]) % NUM_STYLES}"

    @property
    def line_class(self) -> str:
        """The CSS class of the line in a drawing."""
        return self.style if self.style.startswith("level") else f"line {self.page_style}"

    @property
    def legend_class(self) -> str:
        """The CSS class of the series' sample in the legend: a line, or a dot if it has no line."""
        return f"dot {self.page_style}" if self.dots and not self.line else self.line_class

    def whisker(self, dot: Dot) -> tuple[Point, ...]:
        """Return the two ends of the interval of a dot, or no points if it has no interval."""
        if dot.low is None or dot.high is None:
            return ()
        if self.has_horizontal_intervals:
            return ((dot.low, dot.y), (dot.high, dot.y))
        return ((dot.x, dot.low), (dot.x, dot.high))


def level(axis: Axis, height: float, name: str = "", style: str = "level") -> Series:
    """Return a horizontal line from one end of the x axis to the other.

    Args:
        axis: The x axis.
        height: The value of the line on the y axis.
        name: The name in the legend; a line without a name is not in it.
        style: The style, as in `Series`.
    """
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
        """The entries of the legend: the CSS class of the sample, and the name of the series."""
        return [(series.legend_class, series.name) for series in self.series if series.name]

    @property
    def facts(self) -> list[str]:
        """The sentences about all bars and dots, in the order in which these are drawn."""
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
    """Draws one chart as an SVG element."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.left = 12 + CHARACTER_WIDTH * max(len(text) for _, text in chart.y.ticks)
        """Room to the left of the axes, for the numbers of the y axis."""
        self.top = 24 if chart.y.label else 10
        """Room above the axes, for the label of the y axis."""
        self.elements: list[Markup] = []
        """The elements that have been drawn so far."""

    def svg(self) -> Markup:
        """Draw the axes and all series, and return the drawing as one SVG element."""
        chart = self.chart
        self._draw_axes()
        for series in chart.series:
            self._draw_series(series)
        frame = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
        label = f"{chart.title}. {chart.caption}".strip()
        return frame.format(chart.width, chart.height, label, Markup("").join(self.elements))

    def _draw_axes(self) -> None:
        """Draw the x axis, a grid line at each tick of the y axis, and the numbers and labels."""
        x = self.chart.x
        y = self.chart.y
        for value, text in y.ticks:
            self._draw_path([(x.low, value), (x.high, value)], "grid")
            self._write((x.low, value), text, "end", right=-6, down=4)
        next_free_pixel = 0.0
        for value, text in x.ticks:
            middle = self._pixels((value, y.low))[0]
            half_width = CHARACTER_WIDTH * len(text) / 2
            # A number that would touch the number before it is left out.
            if middle - half_width >= next_free_pixel:
                self._write((value, y.low), text, "middle", right=0, down=19)
                next_free_pixel = middle + half_width + CHARACTER_WIDTH
        self._draw_path([(x.low, y.low), (x.high, y.low)], "axis")
        self._write(((x.low + x.high) / 2, y.low), x.label, "middle", right=0, down=37)
        if y.label:
            self.elements.append(Markup('<text x="0" y="11">{}</text>').format(y.label))

    def _draw_series(self, series: Series) -> None:
        """Draw the band, the line, the bars and the dots of a series."""
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
        """Draw a dot in the shape of its series, with its interval if it has one."""
        whisker = series.whisker(dot)
        if whisker:
            self._draw_path(whisker, f"whisker {series.page_style}")
        x, y = self._pixels((dot.x, dot.y))
        tooltip = _tooltip(dot.fact)
        if series.shape == "cross":
            # Two lines of 8 x 8 pixels that cross at the point.
            cross = Markup('<path class="line {}" d="M{:.1f},{:.1f}l8,8m0,-8l-8,8">{}</path>')
            self.elements.append(cross.format(series.page_style, x - 4, y - 4, tooltip))
            return
        circle = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>')
        radius = RADII[series.shape]
        self.elements.append(circle.format(series.page_style, x, y, radius, tooltip))

    def _draw_path(self, points: Iterable[Point], css_class: str, fact: str = "") -> None:
        """Draw a line from point to point; `fact` is the sentence at the pointer over it."""
        pixels = "L".join("{:.1f},{:.1f}".format(*self._pixels(point)) for point in points)
        path = Markup('<path class="{}" d="M{}">{}</path>')
        self.elements.append(path.format(css_class, pixels, _tooltip(fact)))

    def _write(self, point: Point, text: str, css_class: str, *, right: float, down: float) -> None:
        """Write a text at a point of the chart, moved by `right` and `down` pixels.

        The CSS class "end" or "middle" is the part of the text that is at this point.
        """
        x, y = self._pixels(point)
        element = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>')
        self.elements.append(element.format(css_class, x + right, y + down, text))

    def _pixels(self, point: Point) -> tuple[float, float]:
        """Return the position of a point in pixels, to the right and down from the upper left."""
        chart = self.chart
        x_share = (point[0] - chart.x.low) / (chart.x.high - chart.x.low)
        y_share = (point[1] - chart.y.low) / (chart.y.high - chart.y.low)
        pixels_right = self.left + x_share * (chart.width - self.left - RIGHT)
        pixels_down = chart.height - BOTTOM - y_share * (chart.height - self.top - BOTTOM)
        return pixels_right, pixels_down


def _tooltip(fact: str) -> Markup:
    """Return the SVG element whose text a browser shows if the pointer rests on a bar or dot.

    The result is empty if there is no text.
    """
    return Markup("<title>{}</title>").format(fact) if fact else Markup("")


def swatch(style: str) -> Markup:
    """Return a small drawing that shows a style in a legend.

    `style` has the CSS classes of the style. The first one decides what is drawn: a dot for `dot`,
    an area for `band`, a vertical line for `upright`, and a horizontal line for any other.
    """
    first_class = style.partition(" ")[0]
    if first_class == "dot":
        sample = Markup('<circle class="{}" cx="13" cy="5" r="3.5"/>').format(style)
    elif first_class == "band":
        sample = Markup('<path class="{}" d="M0,1H26V9H0"/>').format(style)
    elif first_class == "upright":
        sample = Markup('<path class="{}" d="M20,0V10"/>').format(style.removeprefix("upright "))
    else:
        sample = Markup('<path class="{}" d="M0,5H26"/>').format(style)
    return Markup('<svg viewBox="0 0 26 10" aria-hidden="true">{}</svg>').format(sample)


def share_bar(
    share: float, low: float, high: float, *, chance: float | None, blind: float | None
) -> Markup:
    """Return a drawing for the cell of a table: a bar for a share of 0 to 100 %, and its interval.

    Args:
        share: The length of the bar, as a share of 1.
        low: The lower end of the interval of `share`.
        high: The upper end of the interval of `share`.
        chance: The accuracy of guessing, drawn as a vertical line; None draws no line.
        blind: The accuracy of the best judge that sees no content, drawn as a vertical line; None
            draws no line.
    """
    bar = Markup('<rect class="band s0" y="3" height="14" width="{:.1f}%"/>')
    line = Markup('<line class="{}" x1="{:.1f}%" x2="{:.1f}%" y1="{}" y2="{}"/>')
    elements = [bar.format(100 * share)]
    # The last two numbers of a line are its upper and lower end, in pixels. The cell has 20.
    if chance is not None:
        elements.append(line.format("level", 100 * chance, 100 * chance, 0, 20))
    if blind is not None:
        elements.append(line.format("blind", 100 * blind, 100 * blind, 3, 17))
    elements.append(line.format("whisker s0", 100 * low, 100 * high, 10, 10))
    return Markup('<svg aria-hidden="true">{}</svg>').format(Markup("").join(elements))


def save_png(charts: Sequence[Chart], path: Path) -> None:
    """Write charts side by side to one PNG file, with one legend for all of them."""
    from matplotlib.figure import Figure

    height_inches = 4.8 * max(chart.height for chart in charts) / HEIGHT
    width_inches = max(6.4, 5.4 * len(charts))
    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    panels: list[Axes] = figure.subplots(1, len(charts), squeeze=False)[0].tolist()
    # A name that occurs in several charts is in the legend once.
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
    """Draw a chart into a panel of a matplotlib figure."""
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
    """Return the values of the ticks of an axis, and their texts."""
    return [value for value, _ in axis.ticks], [text for _, text in axis.ticks]


def _draw_with_matplotlib(panel: Axes, series: Series, colour: str) -> None:
    """Draw a series into a panel of a matplotlib figure."""
    # The name is in the legend once: as that of the line, or of the dots if there is no line.
    name = series.name or None
    marker, size = MARKERS[series.shape]
    # `zip` turns the points into the values on the x axis and those on the y axis.
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
    # A series of bars has no dots, and is in the legend by an empty plot.
    if series.dots or name:
        x_of_dots = [dot.x for dot in series.dots]
        y_of_dots = [dot.y for dot in series.dots]
        panel.plot(x_of_dots, y_of_dots, marker, color=colour, markersize=size, label=name)


def colours(styles: Iterable[str]) -> dict[str, str]:
    """Return the colour of each style in a PNG file.

    The numbered styles `s0` to `s6` have the colours of PALETTE. If a style has a higher number,
    all numbered styles get colours that are spread over a colour map.
    """
    distinct_styles = list(dict.fromkeys(styles))
    colour_by_style = {"right": PALETTE[0], "wrong": PALETTE[1]}
    colour_by_style |= dict.fromkeys(("level", "level blind"), "grey")
    number_by_style = {}
    for style in distinct_styles:
        if style not in colour_by_style:
            number_by_style[style] = int(style.removeprefix("s"))
    num_colours = max(number_by_style.values(), default=0) + 1
    for style, number in number_by_style.items():
        if num_colours <= len(PALETTE):
            colour_by_style[style] = PALETTE[number]
        else:
            colour_by_style[style] = _spread_colour(number, num_colours)
    return colour_by_style


def _spread_colour(index: int, num_colours: int) -> str:
    """Return one of `num_colours` colours that are spread evenly over a colour map."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    # The ends of the map are left out: they are too dark.
    position = 0.05 + 0.9 * index / (num_colours - 1)
    return str(to_hex(colormaps["turbo"](position)))
