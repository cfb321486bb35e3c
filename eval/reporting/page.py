"""The page as HTML: what the run is, and for each benchmark its tables, figures and examples."""

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from mmrm.data.display.html import render
from mmrm.data.errors import UserError
from mmrm.eval.reporting.answer_page import shown_questions
from mmrm.eval.reporting.examples import shown_rows
from mmrm.eval.reporting.run_charts import BLIND, best_baseline, curves, diagnosis, steps
from mmrm.eval.reporting.run_content import Content, Outcome
from mmrm.eval.results.predictions import difference
from mmrm.eval.results.result import Accuracy, Baseline, Result
from mmrm.eval.results.summary_table import ABLATIONS, percent

TEMPLATE = Path(__file__).parent / "page.html"
SCRIPTS = ("page.js", "live.js")
"""Of the examples, and of a page whose run goes on."""
PACKAGES = "torch transformers deepspeed accelerate trl peft"
"""What stands at the top of the page; all installed packages stand at its end."""
SECTIONS = (
    ("results", "Results", "results"),
    ("steps", "Checkpoints", "checkpoints"),
    ("diagnosis", "Behind the score", "tables"),
    ("curves", "Training", "curves"),
    ("answers", "Answers", "questions"),
    ("rollouts", "Rollouts", "rollouts"),
    ("mistakes", "Worst mistakes", "examples"),
    ("examples", "Examples", "examples"),
    ("provenance", "Provenance", "provenance"),
)
"""Anchor and name of each section, and what there must be for it."""
PUBLISHED = ("about", "not_computed")
"""What is said in words of a published rule."""


def page(content: Content, *, live: bool = False) -> str:
    """Return the page as HTML; texts from data are escaped, or set as text by the page's script.

    A `live` page loads itself anew from time to time: its run goes on.
    """
    outcomes = content.shown.outcomes
    examples = {
        name: shown_rows(outcome, content.benchmarks, content.held_out)
        for name, outcome in outcomes.items()
    }
    charts, constant = curves(content.log)
    found: dict[str, Any] = {
        "tables": [
            _table(outcome.result, content.shown.ablations.get(name, {}))
            for name, outcome in outcomes.items()
        ],
        "steps": steps(content),
        "standings": _standings(content),
        "curves": charts or constant,
        "questions": [shown_questions(one, content.best) for one in content.questions],
        "rollouts": content.rollouts,
        "examples": examples,
        "provenance": content.provenance,
    }
    found["results"] = found["tables"] or found["questions"]
    found["checkpoints"] = found["steps"] or found["standings"]
    return render(
        TEMPLATE,
        "".join(
            TEMPLATE.with_name(name).read_text(encoding="utf-8")
            for name in compress(SCRIPTS, (examples, live))
        ),
        **found,
        charts=charts,
        constant=constant,
        content=content,
        comparisons=standings_compared(content),
        facts=_facts(content),
        sections=[(anchor, name) for anchor, name, needs in SECTIONS if found[needs]],
        data={
            name: {"rows": shown.rows, "images": shown.images} for name, shown in examples.items()
        },
    )


def _table(result: Result, ablations: Mapping[str, Result]) -> dict[str, Any]:
    """Return what the page says of a result: rows of a name, a score and shares beside it.

    A benchmark of one category has the row of all its pairs only.
    """
    blind, _ = best_baseline(result)
    baselines = {BLIND[name]: baseline for name, baseline in result.baselines.items()}
    images = {words: ablations[name] for name, words in ABLATIONS.items() if name in ablations}
    items = [("whole items (Acc+)", result.clusters)] if result.clusters else []
    charts, sentences = diagnosis(result)
    return {
        "result": result,
        "scores": _beside(result, [result.baselines[blind]] if blind else []),
        "blind": BLIND.get(blind, ""),
        "items": items + [(f"… {name}", score) for name, score in result.cluster_groups.items()],
        "baselines": (list(baselines), _beside(result, list(baselines.values()))),
        "images": (list(images), _beside(result, list(images.values()))),
        "published": [
            (
                name,
                rule.get("micro"),
                rule.get("macro"),
                ". Not computed: ".join(rule[key] for key in PUBLISHED if key in rule),
            )
            for name, rule in result.published.items()
        ],
        "charts": charts,
        "sentences": sentences,
    }


def _beside(
    result: Result, others: Sequence[Baseline | Result]
) -> list[tuple[str, Accuracy, list[float | None]]]:
    """Return all pairs and each category with its score, and what others have of it with half a point for a tie."""
    rows = [("all pairs", result.micro, [other.micro.half for other in others])]
    for name, score in result.groups.items() if len(result.groups) > 1 else ():
        rows.append(
            (
                name,
                score,
                [other.groups[name].half if name in other.groups else None for other in others],
            )
        )
    return rows


def _standings(content: Content) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the checkpoints with results, if there are several, beside the one that is shown.

    For each benchmark: accuracy with interval, and the paired difference from the checkpoint that is shown, in words.
    """
    evaluated = [checkpoint for checkpoint in content.checkpoints if checkpoint.outcomes]
    if len(evaluated) < 2:
        return []
    shown = content.shown.outcomes
    comparisons = standings_compared(content)
    return [
        (
            one.name,
            [_cell(one.outcomes.get(name), best, comparisons) for name, best in shown.items()],
        )
        for one in evaluated
    ]


def standings_compared(content: Content) -> int:
    """Return the number of pairs of checkpoints, over the benchmarks of the one that is shown.

    The one that is shown is mostly the best one, and any of them could have been.
    """
    counts = [
        sum(name in checkpoint.outcomes for checkpoint in content.checkpoints)
        for name in content.shown.outcomes
    ]
    return max(1, sum(math.comb(count, 2) for count in counts))


def _cell(outcome: Outcome | None, best: Outcome, comparisons: int) -> tuple[str, str]:
    if outcome is None:
        return "–", ""
    if outcome is best:
        words = "the one shown"
    elif outcome.result.label != best.result.label:
        words = f"another protocol: {outcome.result.label}"
    else:
        try:
            found = difference(outcome.records(), best.records(), comparisons)
            words = f"{found.points.replace('-', '−')}, {found.words}"
        except (UserError, OSError) as error:
            words = f"no comparison: {error}"
    return percent(outcome.result.micro), words


def _facts(content: Content) -> dict[str, str]:
    """Return what identifies the run, from its last launch; nothing without provenance."""
    if not content.provenance:
        return {}
    launch = content.provenance[-1]
    hardware, packages, changed, commit = (
        launch["hardware"],
        launch["packages"],
        len(launch["overrides"]),
        launch["commit"],
    )
    known = commit["commit"][:12] if commit["commit"] else "unknown: not run from a clone"
    devices = (
        ", ".join(sorted({device["name"] for device in hardware["devices"]}))
        or f"CPU, {hardware['cores']} cores"
    )
    versions = [f"{name} {packages[name]}" for name in PACKAGES.split() if name in packages]
    time, launches = (
        launch["time"].replace("T", " ").replace("+00:00", " UTC"),
        len(content.provenance),
    )
    return {
        "Recipe": "/".join(Path(launch["recipe_path"]).parts[-2:])
        + (f", {changed} setting{'s' * (changed > 1)} changed at the start" if changed else ""),
        "Commit": known + (", with changed files" if commit["dirty"] else ""),
        "Launched": time + (f" (launch {launches})" if launches > 1 else ""),
        "Machine": f"{hardware['world_size']} × {devices}",
        "Data": ", ".join(
            f"{name} ({source['rows']:,} rows)" for name, source in launch["data"].items()
        ),
        "Seeds": ", ".join(f"{name} {seed}" for name, seed in launch["seeds"].items()),
        "Versions": ", ".join([f"Python {launch['python']}", *versions]),
    }
