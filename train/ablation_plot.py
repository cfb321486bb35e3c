"""The figure of an ablation: accuracy with its interval by variant, one panel a benchmark, and a dot for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from train.ablation_table import Line


def draw(lines: Mapping[str, Sequence[Line]], path: Path) -> None:
    """Write the picture; the vertical line is the first variant's mean."""
    from matplotlib.figure import Figure

    most = max(map(len, lines.values()))
    figure = Figure(figsize=(5.4 * len(lines), 1.4 + 0.38 * most), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(1, len(lines), squeeze=False)[0], lines.items(), strict=True):
        places = range(len(found))
        means = [100 * line.mean for line in found]
        whiskers = [[100 * (line.mean - line.low) for line in found], [100 * (line.high - line.mean) for line in found]]
        axes.axvline(means[0], color="lightgrey", zorder=0)
        axes.errorbar(means, places, xerr=whiskers, fmt="o", color="#0072b2", capsize=3, label="mean over seeds [95 %]")
        seeds = [(100 * accuracy, place) for place, line in zip(places, found, strict=True) for accuracy in line.seeds.values()]
        axes.plot(*zip(*seeds, strict=True), ".", color="#d55e00", markersize=5, label="each seed", zorder=3)
        axes.set_yticks(places, [line.variant for line in found])
        axes.invert_yaxis()
        axes.set(title=f"{name} ({found[0].rows} rows)", xlabel="accuracy, %")
        axes.grid(axis="x", alpha=0.25)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(path, dpi=150)
