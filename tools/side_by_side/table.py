"""From the clocks' reports to the table."""

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from tools.side_by_side.frameworks import OURS

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Report:
    """One training as its clock saw it."""

    cpu: float
    """Pairs a second of processor time; of wall time below."""
    wall: float
    peak: int
    """Most memory held while it trained, in bytes, and what was held when it began: the program, its data and the weights."""
    before: int
    losses: tuple[float, ...]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, found: Mapping[str, Any], warm_up: int, batch: int) -> "Report":
        """Return the figures of a clock's file, its first `warm_up` steps left out."""
        if found["threads"] != 1:
            raise ValueError(f"torch used {found['threads']} threads; one was asked for")
        pairs = batch * (len(found["wall"]) - warm_up)
        cpu, wall = (
            pairs / (found[name][-1] - found[name][warm_up - 1]) for name in ("cpu", "wall")
        )
        return cls(
            cpu, wall, found["peak"], found["before"], tuple(found["losses"]), found["versions"]
        )

    def line(self) -> str:
        """Return the figures in a line."""
        memory = f"{self.peak / MIB:,.0f} MiB, {(self.peak - self.before) / MIB:,.0f} of them for training"
        return f"{self.cpu:.1f} pairs/s ({self.wall:.1f} of wall time), {memory}, first loss {self.losses[0]:.7f}"


def middle(values: Sequence[float], form: str) -> str:
    """Return the median and the range."""
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


def table(title: str, found: Mapping[str, Sequence[Report]]) -> Table:
    """Return each framework's rounds as medians with ranges, ratios within a round; most memory, largest difference of a loss."""
    columns = (
        ("pairs per", "second of CPU time"),
        ("pairs per", "second"),
        ("ours / theirs", "(CPU time)"),
        ("peak", "MiB"),
        ("of them for", "training, MiB"),
        ("loss of the", "first batch"),
        ("a loss differs", "from ours by"),
    )
    shown = Table(
        "", *(Column("\n".join(lines), justify="right") for lines in columns), title=title
    )
    for name, its in found.items():
        both = list(zip(found[OURS], its, strict=True))
        apart = max(
            abs(a - b)
            for ours, other in both
            for a, b in zip(ours.losses, other.losses, strict=True)
        )
        shown.add_row(
            name,
            middle([one.cpu for one in its], ".1f"),
            middle([one.wall for one in its], ".1f"),
            "" if name == OURS else middle([ours.cpu / other.cpu for ours, other in both], ".2f"),
            f"{max(one.peak for one in its) / MIB:,.0f}",
            f"{max(one.peak - one.before for one in its) / MIB:,.0f}",
            f"{its[0].losses[0]:.7f}",
            "" if name == OURS else f"{apart:.0e}",
        )
    versions = {
        name: ", ".join(map(" ".join, its[0].versions.items())) for name, its in found.items()
    }
    shown.caption = "\n".join(f"{name}: {text}" for name, text in versions.items())
    return shown


def machine() -> str:
    """Return the date, the processor and its cores."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{date.today().isoformat()}, {len(models)} cores of {models[0]}, Python {platform.python_version()}, one thread each"
