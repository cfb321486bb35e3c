"""A sweep as CSV, JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.measures import Difference
from eval.sweep_summary import Standing, Summary
from eval.tables import percent, shown, write_rows

_INTRODUCTION = """Protocol: {protocol}. Accuracies in percent with 95 % intervals (Wilson); distances from the best by a paired \
bootstrap over rows. Each interval stands for itself: among many checkpoints one is the best by luck alone."""
_HEAD = (
    "| judge | step | accuracy [95 %] | macro | n | ties | ties half | unparsable | behind the best [95 %] |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)


def rows(summary: Summary) -> list[dict[str, Any]]:
    """Return one flat row for each result and each broken judge; accuracies are fractions of 1."""
    found = [_row(standing) for standings in summary.standings.values() for standing in standings]
    return found + [{"judge": judge, "standing": "broken", "problem": problem} for judge, problem in summary.broken.items()]


def _row(standing: Standing) -> dict[str, Any]:
    entry, figure = standing.entry, standing.entry.result.micro
    behind = standing.behind or Difference(0.0, 0.0, 0.0)
    return {
        "judge": str(entry.judge),
        "run": entry.run,
        "step": entry.step,
        "benchmark": entry.benchmark,
        **figure.model_dump(),
        "macro": entry.result.macro,
        "behind": behind.mean,
        "behind_low": behind.low,
        "behind_high": behind.high,
        "standing": standing.words,
        "fingerprint": entry.fingerprint,
        "problem": "",
    }


def write_csv(summary: Summary, path: Path) -> None:
    """Write one line for each result and each broken judge."""
    write_rows(rows(summary), path)


def write_json(summary: Summary, path: Path) -> None:
    """Write the rows, with the figures of the groups and the folder of each result (from the file's own folder)."""
    groups = {
        (standing.entry.judge, name): {group: figure.model_dump() for group, figure in standing.entry.result.groups.items()}
        for name, standings in summary.standings.items()
        for standing in standings
    }
    found = [
        {**row, "groups": groups[Path(row["judge"]), row["benchmark"]], "folder": f"results/{row['fingerprint']}"}
        for row in rows(summary)
        if row["standing"] != "broken"
    ]
    best = {row["benchmark"]: row["judge"] for row in found if row["standing"] == "best"}
    whole = {"protocol": summary.label, "best": best, "results": found, "broken": summary.broken}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def markdown(summary: Summary) -> str:
    """Return a table for each benchmark, and what could not be evaluated."""
    parts = [_INTRODUCTION.format(protocol=summary.label)]
    for name, standings in summary.standings.items():
        notes = dict.fromkeys(f"- {note}" for standing in standings for note in standing.entry.result.notes)
        parts += [f"## {name}", best_of(standings), "\n".join([*_HEAD, *map(_line, standings)]), "\n".join(notes)]
    if summary.broken:
        problems = [f"- {judge}: {problem}" for judge, problem in summary.broken.items()]
        parts += ["## Not evaluated", "\n".join(problems)]
    return "\n\n".join(filter(None, parts)) + "\n"


def best_of(standings: Sequence[Standing]) -> str:
    """Name the best of a benchmark and what the rows cannot tell from it."""
    best = next(standing.entry for standing in standings if standing.behind is None)
    alike = [str(standing.entry.judge) for standing in standings if standing.words == "not distinguishable"]
    return f"Best: {best.judge}, {percent(best.result.micro)}. Not distinguishable from it: {', '.join(alike) or 'none'}."


def _line(standing: Standing) -> str:
    entry, figure = standing.entry, standing.entry.result.micro
    macro = "–" if entry.result.macro is None else f"{100 * entry.result.macro:.1f}"
    step = "" if entry.step is None else str(entry.step)
    cells = [
        str(entry.judge),
        step,
        percent(figure),
        macro,
        str(figure.n),
        str(figure.ties),
        shown(figure),
        str(figure.unparsable),
        behind(standing),
    ]
    return f"| {' | '.join(cells)} |"


def behind(standing: Standing) -> str:
    """Return how far the entry is behind the best, in points."""
    if standing.behind is None:
        return "**best**"
    mean, low, high = (100 * value for value in (standing.behind.mean, standing.behind.low, standing.behind.high))
    words = "" if standing.behind.distinguishable else ", not distinguishable"
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]{words}"
