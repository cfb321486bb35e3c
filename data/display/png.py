"""Figures as image files, for sweeps, ablations and the stress comparison: panels side by side over one legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def colours(count: int) -> Sequence[str]:
    """Return as many different colours: the palette above, and from the eighth on steps through a colour map."""
    if count <= len(COLOURS):
        return COLOURS[:count]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["turbo"](0.05 + 0.9 * place / (count - 1))) for place in range(count)]


@contextmanager
def panels(path: Path, titles: Sequence[str], height: float = 4.8) -> Iterator[Sequence[Axes]]:
    """Give an empty panel for each title; what was drawn in them is then written to `path`, each label once in the legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.4, 5.4 * len(titles)), height), layout="constrained")
    found: list[Axes] = figure.subplots(1, len(titles), squeeze=False)[0].tolist()
    for axes, title in zip(found, titles, strict=True):
        axes.set_title(title)
        axes.grid(alpha=0.25)
    yield found
    labels = {
        label: line
        for axes in found
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        labels.values(), labels, loc="outside lower center", ncols=2 * len(titles), fontsize=8
    )
    figure.savefig(path, dpi=130)
