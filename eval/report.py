"""Write a report: one HTML page about a run or a sweep that needs no other file and no network.

python eval/report.py runs/shapes/naive                              # writes runs/shapes/naive/report.html
python eval/report.py runs/shapes/naive --output naive.html
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.errors import CheckpointError, PredictionsError, UserError
from data.storage.files import write_whole
from eval.reporting.content import SWEEP, Content, read_run, read_sweep
from eval.reporting.curves import Panel, curves
from eval.reporting.examples import shown_rows
from eval.reporting.figures import best_baseline, measured, score_by_step
from eval.reporting.tables import facts, standings, table

FOLDER = Path(__file__).parent


def page(content: Content) -> str:
    """Return the page as HTML; texts from data are escaped, or set as text by the page's script."""
    outcomes = content.shown.outcomes if content.shown else {}
    ablations = content.shown.ablations if content.shown else {}
    script = (FOLDER / "report_script.js").read_text(encoding="utf-8")
    examples = {name: shown_rows(outcome, content.benchmarks) for name, outcome in outcomes.items()}
    found: dict[str, Any] = {
        "tables": [table(outcome.result, ablations.get(name, {})) for name, outcome in outcomes.items()],
        "steps": steps(content),
        "standings": standings(content),
        "curves": curves(content.log),
        "rollouts": content.rollouts,
        "examples": examples,
    }
    found["checkpoints"] = found["steps"] or found["standings"]
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["share"] = share
    return environment.get_template("report_template.html").render(
        **found,
        content=content,
        facts=facts(content),
        sections=[(anchor, name) for anchor, name, needs in SECTIONS if found[needs]] + PROVENANCE[: bool(content.provenance)],
        data={name: {"rows": shown.rows, "images": shown.images} for name, shown in examples.items()},
        style=Markup((FOLDER / "report_style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


SECTIONS = (
    ("results", "Results", "tables"),
    ("steps", "Checkpoints", "checkpoints"),
    ("diagnosis", "Behind the score", "tables"),
    ("curves", "Training", "curves"),
    ("rollouts", "Rollouts", "rollouts"),
    ("mistakes", "Worst mistakes", "examples"),
    ("examples", "Examples", "examples"),
)
"""Anchor and name of each section, and what there must be for it."""
PROVENANCE = [("provenance", "Provenance")]


def share(value: float | None) -> str:
    """Return a share of 1 in percent, a dash for None."""
    return "–" if value is None else f"{100 * value:.1f}"


def steps(content: Content) -> list[Panel]:
    """Return the figure of each benchmark that was measured at more than one step."""
    results = {name: outcome.result for checkpoint in content.checkpoints for name, outcome in checkpoint.outcomes.items()}
    return [
        score_by_step(name, runs, best_baseline(results[name]) if name in results else None)
        for name, runs in measured(content).items()
        if any(len(points) > 1 for points in runs.values())
    ]


def write_report(folder: Path, output: Path) -> None:
    """Write the page of a run or sweep folder, whole or not at all.

    Raises: UserError, CheckpointError or PredictionsError for a folder that no page can be made of.
    """
    read = read_sweep if (folder / SWEEP).is_file() else read_run
    write_whole(output, page(read(folder)))


def main() -> None:
    """Read the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="RUN_OR_SWEEP")
    parser.add_argument("--output", type=Path, help="write the page here; the default is report.html in the folder")
    options = parser.parse_args()
    output = options.output or options.folder / "report.html"
    if not options.folder.is_dir():
        sys.exit(f"error: {options.folder}: there is no such folder. Give the folder of a run or of a sweep.")
    try:
        write_report(options.folder, output)
    except (UserError, CheckpointError, PredictionsError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
