"""The words and tables of a report: what the run is, and the results by category with everything beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import UserError
from eval.reporting.content import Content, ReportedCheckpoint, records
from eval.reporting.curves import Panel
from eval.reporting.figures import best_baseline, diagnosis
from eval.results.predictions import difference
from eval.results.result import Accuracy as Score
from eval.results.result import Result
from eval.results.tables import percent

PACKAGES = ("torch", "transformers", "deepspeed", "accelerate", "trl", "peft")
"""What stands at the top of the page; all installed packages stand at its end."""


@dataclass(frozen=True, slots=True)
class TableLine:
    """A row of a table: a score, and the same rows' scores by judges that see no content, and without the images."""

    name: str
    score: Score
    beside: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A benchmark on the page."""

    benchmark: str
    result: Result
    columns: tuple[str, ...]
    """What `TableLine.beside` holds: baselines, then ablations."""
    ablations: bool
    whole: TableLine
    lines: tuple[TableLine, ...]
    items: tuple[TableLine, ...]
    """Shares of items with every pair right, where the benchmark has such items."""
    sources: tuple[TableLine, ...]
    published: tuple[tuple[str, float | None, float | None, str], ...]
    """Name of published rules, micro and macro accuracy under them, and whose rules they are."""
    blind: tuple[str, float]
    """Name and accuracy of the best judge that sees no content."""
    figures: tuple[Panel, ...]


def table(result: Result, ablations: Mapping[str, Result]) -> ResultTable:
    """Return everything that the page says of a result."""
    others: list[tuple[str, Score, Mapping[str, Score]]] = []
    others += [(name, found.micro, found.groups) for name, found in result.baselines.items()]
    others += [(f"images {name}", found.micro, found.groups) for name, found in ablations.items()]
    nothing = (None,) * len(others)
    groups = {
        name: TableLine(name, score, tuple(by_group[name].half if name in by_group else None for _, _, by_group in others))
        for name, score in result.groups.items()
    }
    items = {"every pair of an item right": result.clusters}
    items |= {f"… {name}": found for name, found in result.cluster_groups.items()}
    return ResultTable(
        benchmark=result.benchmark,
        result=result,
        columns=tuple(name for name, _, _ in others),
        ablations=bool(ablations),
        whole=TableLine("all rows", result.micro, tuple(micro.half for _, micro, _ in others)),
        lines=tuple(groups.values()),
        items=tuple(TableLine(name, score, nothing) for name, score in items.items() if score is not None),
        sources=tuple(TableLine(name, score, ()) for name, score in result.sources.items()),
        published=tuple(_published(name, rule) for name, rule in result.published.items()),
        blind=best_baseline(result),
        figures=tuple(diagnosis(result)),
    )


def _published(name: str, rule: Mapping[str, Any]) -> tuple[str, float | None, float | None, str]:
    if "not_computed" in rule:
        return name, None, None, f"{rule['about']}. Not computed: {rule['not_computed']}"
    return name, rule["micro"], rule["macro"], rule["about"]


@dataclass(frozen=True, slots=True)
class CheckpointStanding:
    """A checkpoint beside the one that is shown in full."""

    name: str
    cells: tuple[tuple[str, str], ...]
    """For each benchmark: accuracy with interval, and the difference from the checkpoint that is shown, in words."""


def standings(content: Content) -> list[CheckpointStanding]:
    """Return the checkpoints with results, if there are several, with their paired differences from the one shown."""
    if content.shown is None:
        return []
    evaluated = [checkpoint for checkpoint in content.checkpoints if checkpoint.outcomes]
    benchmarks, best = list(content.shown.outcomes), content.shown
    several = len(evaluated) > 1
    return [CheckpointStanding(one.name, tuple(_cell(one, best, name) for name in benchmarks)) for one in evaluated if several]


def _cell(one: ReportedCheckpoint, best: ReportedCheckpoint, benchmark: str) -> tuple[str, str]:
    if benchmark not in one.outcomes:
        return "–", ""
    outcome = one.outcomes[benchmark]
    if one is best:
        return percent(outcome.result.micro), "the one shown"
    if outcome.result.label != best.outcomes[benchmark].result.label:
        return percent(outcome.result.micro), f"another protocol: {outcome.result.label}"
    try:
        found = difference(records(outcome), records(best.outcomes[benchmark]))
    except (UserError, OSError) as error:
        return percent(outcome.result.micro), f"no comparison: {error}"
    mean, low, high = (f"{100 * value:+.1f}" for value in (found.mean, found.low, found.high))
    said = "not distinguishable" if not found.distinguishable else "better" if found.mean > 0 else "worse"
    return percent(outcome.result.micro), f"{mean} [{low}, {high}], {said}"


def facts(content: Content) -> list[tuple[str, str]]:
    """Return name and value of what identifies the run, from its last launch; nothing without provenance."""
    if not content.provenance:
        return []
    launch = content.provenance[-1]
    hardware, packages, changed = launch["hardware"], launch["packages"], len(launch["overrides"])
    devices = ", ".join(sorted({device["name"] for device in hardware["devices"]})) or f"CPU, {hardware['cores']} cores"
    found = {
        "Recipe": "/".join(Path(launch["recipe_path"]).parts[-2:])
        + (f", {changed} setting{'s' * (changed > 1)} changed at the start" if changed else ""),
        "Commit": _commit(launch["commit"]),
        "Launched": launch["time"] + (f" (launch {len(content.provenance)})" if len(content.provenance) > 1 else ""),
        "Machine": f"{hardware['world_size']} × {devices}",
        "Data": ", ".join(f"{name} ({source['rows']:,} rows)" for name, source in launch["data"].items()),
        "Seeds": ", ".join(f"{name} {seed}" for name, seed in launch["seeds"].items()),
        "Versions": f"Python {launch['python']}, "
        + ", ".join(f"{name} {packages[name]}" for name in PACKAGES if name in packages),
    }
    return [(name, value) for name, value in found.items() if value]


def _commit(commit: Mapping[str, Any]) -> str:
    if commit["commit"] is None:
        return "unknown: not run from a clone"
    return f"{commit['commit'][:12]}" + (", with changed files" if commit["dirty"] else "")
