"""The page of a run or a sweep as HTML: tables, charts and examples of each benchmark."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrm.data.display.format import with_minus_signs
from mmrm.data.display.html import render
from mmrm.data.errors import UserError
from mmrm.eval.reporting.answer_page import shown_questions
from mmrm.eval.reporting.examples import shown_rows
from mmrm.eval.reporting.run_charts import BLIND, best_baseline, curves, diagnosis, step_charts
from mmrm.eval.reporting.run_content import Content, Outcome
from mmrm.eval.results.predictions import difference
from mmrm.eval.results.result import Accuracy, Baseline, Result
from mmrm.eval.results.summary_table import ABLATIONS, accuracy_text

TEMPLATE = Path(__file__).parent / "page.html"
EXAMPLES_SCRIPT = "page.js"
LIVE_SCRIPT = "live.js"
"""The script of a page of a run that is still in progress."""
PACKAGES = "torch transformers deepspeed accelerate trl peft"
"""Packages whose versions are at the top of the page. All versions are at its end."""
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
"""Anchor and name of each section, and the value of the template that is empty without it."""
PUBLISHED = ("about", "not_computed")
"""Keys of a published rule that are sentences."""


def page(content: Content, *, live: bool = False) -> str:
    """Return the page as HTML; texts from data are escaped, or set as text by the page's script.

    Args:
        content: Everything that the page shows.
        live: True if the run goes on: the page then loads itself again from time to time.
    """
    outcomes = content.shown.outcomes
    examples = {
        name: shown_rows(outcome, content.benchmarks, content.held_out)
        for name, outcome in outcomes.items()
    }
    charts, constant = curves(content.log)
    tables = [
        _table(outcome.result, content.shown.ablations.get(name, {}))
        for name, outcome in outcomes.items()
    ]
    steps = step_charts(content)
    standings = _standings(content)
    questions = [shown_questions(found, content.best) for found in content.questions]
    values: dict[str, Any] = {
        "tables": tables,
        "results": tables or questions,
        "steps": steps,
        "standings": standings,
        "checkpoints": steps or standings,
        "curves": charts or constant,
        "questions": questions,
        "rollouts": content.rollouts,
        "examples": examples,
        "provenance": content.provenance,
    }
    scripts = []
    if examples:
        scripts.append(EXAMPLES_SCRIPT)
    if live:
        scripts.append(LIVE_SCRIPT)
    texts = [TEMPLATE.with_name(name).read_text(encoding="utf-8") for name in scripts]
    return render(
        TEMPLATE,
        "".join(texts),
        **values,
        charts=charts,
        constant=constant,
        content=content,
        comparisons=standings_compared(content),
        facts=_facts(content),
        sections=[(anchor, name) for anchor, name, needed in SECTIONS if values[needed]],
        data={
            name: {"rows": shown.rows, "images": shown.images} for name, shown in examples.items()
        },
    )


def _table(result: Result, ablations: Mapping[str, Result]) -> dict[str, Any]:
    """Return the values of one result for the template.

    A benchmark of one category has a single row, that of all its pairs.
    """
    blind, _ = best_baseline(result)
    baselines = {BLIND[name]: baseline for name, baseline in result.baselines.items()}
    images = {words: ablations[name] for name, words in ABLATIONS.items() if name in ablations}
    items: list[tuple[str, Accuracy]] = []
    if result.clusters:
        items.append(("whole items (Acc+)", result.clusters))
    items += [(f"… {name}", accuracy) for name, accuracy in result.cluster_groups.items()]
    published = []
    for name, rule in result.published.items():
        sentences_of_rule = [rule[key] for key in PUBLISHED if key in rule]
        about = ". Not computed: ".join(sentences_of_rule)
        published.append((name, rule.get("micro"), rule.get("macro"), about))
    charts, sentences = diagnosis(result)
    return {
        "result": result,
        "scores": _next_to(result, [result.baselines[blind]] if blind else []),
        "blind": BLIND.get(blind, ""),
        "items": items,
        "baselines": (list(baselines), _next_to(result, list(baselines.values()))),
        "images": (list(images), _next_to(result, list(images.values()))),
        "published": published,
        "charts": charts,
        "sentences": sentences,
    }


def _next_to(
    result: Result, others: Sequence[Baseline | Result]
) -> list[tuple[str, Accuracy, list[float | None]]]:
    """Return all pairs and each category with its score and the scores of others on it.

    The scores of others count half a point for a tie.
    """
    rows = [("all pairs", result.micro, [other.micro.half for other in others])]
    if len(result.groups) < 2:
        return rows
    for name, accuracy in result.groups.items():
        of_others = [other.groups[name].half if name in other.groups else None for other in others]
        rows.append((name, accuracy, of_others))
    return rows


def _standings(content: Content) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the cells of all checkpoints with results; an empty list for a single checkpoint.

    A checkpoint has a cell for each benchmark: its accuracy with interval, and its paired
    difference from the checkpoint that is shown, in words.
    """
    evaluated = [checkpoint for checkpoint in content.checkpoints if checkpoint.outcomes]
    if len(evaluated) < 2:
        return []
    comparisons = standings_compared(content)
    standings = []
    for checkpoint in evaluated:
        cells = [
            _cell(checkpoint.outcomes.get(name), shown, comparisons)
            for name, shown in content.shown.outcomes.items()
        ]
        standings.append((checkpoint.name, cells))
    return standings


def standings_compared(content: Content) -> int:
    """Return the number of pairs of checkpoints, over the benchmarks of the one that is shown.

    The checkpoint that is shown is mostly the best one, and any of them could have been the best.
    """
    num_pairs = 0
    for name in content.shown.outcomes:
        count = sum(name in checkpoint.outcomes for checkpoint in content.checkpoints)
        num_pairs += math.comb(count, 2)
    return max(1, num_pairs)


def _cell(outcome: Outcome | None, shown: Outcome, comparisons: int) -> tuple[str, str]:
    """Return the accuracy of a checkpoint, and its difference from the page's checkpoint in words."""
    if outcome is None:
        return "–", ""
    accuracy = accuracy_text(outcome.result.micro)
    if outcome is shown:
        return accuracy, "the one shown"
    if outcome.result.label != shown.result.label:
        return accuracy, f"another protocol: {outcome.result.label}"
    try:
        change = difference(outcome.records(), shown.records(), comparisons)
    except (UserError, OSError) as error:
        return accuracy, f"no comparison: {error}"
    return accuracy, f"{with_minus_signs(change.points)}, {change.words}"


def _facts(content: Content) -> dict[str, str]:
    """Return the facts that identify the run, from its last launch; empty without provenance."""
    if not content.provenance:
        return {}
    launch = content.provenance[-1]
    return {
        "Recipe": _recipe_words(launch),
        "Commit": _commit_words(launch["commit"]),
        "Launched": _launch_words(launch, len(content.provenance)),
        "Machine": _machine_words(launch["hardware"]),
        "Data": ", ".join(
            f"{name} ({source['rows']:,} rows)" for name, source in launch["data"].items()
        ),
        "Seeds": ", ".join(f"{name} {seed}" for name, seed in launch["seeds"].items()),
        "Versions": _version_words(launch),
    }


def _recipe_words(launch: Mapping[str, Any]) -> str:
    """Return the recipe of a launch, and how many of its settings the command line changed."""
    path = "/".join(Path(launch["recipe_path"]).parts[-2:])
    num_changed = len(launch["overrides"])
    if not num_changed:
        return path
    settings = "setting" if num_changed == 1 else "settings"
    return f"{path}, {num_changed} {settings} changed at the start"


def _commit_words(commit: Mapping[str, Any]) -> str:
    """Return the commit of the code, and whether files were changed since."""
    words = commit["commit"][:12] if commit["commit"] else "unknown: not run from a clone"
    return f"{words}, with changed files" if commit["dirty"] else words


def _launch_words(launch: Mapping[str, Any], num_launches: int) -> str:
    """Return the time of the last launch, and the number of launches if there are several."""
    time = str(launch["time"]).replace("T", " ").replace("+00:00", " UTC")
    return f"{time} (launch {num_launches})" if num_launches > 1 else time


def _machine_words(hardware: Mapping[str, Any]) -> str:
    """Return the number of ranks and their devices."""
    names = sorted({device["name"] for device in hardware["devices"]})
    devices = ", ".join(names) or f"CPU, {hardware['cores']} cores"
    return f"{hardware['world_size']} × {devices}"


def _version_words(launch: Mapping[str, Any]) -> str:
    """Return the versions of Python and of PACKAGES."""
    packages = launch["packages"]
    versions = [f"{name} {packages[name]}" for name in PACKAGES.split() if name in packages]
    return ", ".join([f"Python {launch['python']}", *versions])
