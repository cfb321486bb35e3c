"""The study of a list of runs: the plan, the training of the runs, and the tables of results."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from mmrm.data.display.chart import save_png
from mmrm.data.display.format import percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.storage.files import write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.reporting.comparison_page import (
    COST_NOTE,
    cost_table,
    rows_by_benchmark,
    variants_chart,
    variants_table,
)
from mmrm.eval.results.summary_table import write_rows
from mmrm.train.recipe.epoch import known_steps
from mmrm.train.studies.ablation.comparison import comparisons_in, flat_rows, lines_of, statement
from mmrm.train.studies.ablation.run_costs import costs
from mmrm.train.studies.ablation.variants import (
    LOG,
    Ablation,
    Run,
    last_words,
    state,
    train,
)

INTRODUCTION = (
    "Overall accuracy in percent of each run's last checkpoint, as the mean over the seeds. "
    "Spread: the standard deviation over seeds. {statement}"
)


def plan(ablation: Ablation) -> Table:
    """Return a table of all runs of a list, with their lengths and states."""
    columns = (
        Column("variant"),
        Column("changes"),
        *(Column(name, is_number=True) for name in ("seed", "steps", "records")),
        Column(""),
    )
    plan_rows = []
    for run in ablation.runs:
        num_steps = known_steps(run.recipe)
        counts = ["?", "?"]  # the number of records is known only once the data have been read
        if num_steps is not None:
            # A pair that is learned in both orders is two records.
            num_records = num_steps * run.recipe.optim.records_per_step
            counts = [f"{num_steps:,}", f"{num_records:,}"]
        changes = ablation.changes[run.variant]
        plan_rows.append((run.variant, changes, str(run.seed), *counts, state(run)))
    return Table(f"{ablation.path} → {ablation.folder}", columns, tuple(plan_rows))


def run_missing(ablation: Ablation, launcher: Sequence[str], console: Console) -> list[Run]:
    """Train the runs that are not complete, and return those that failed.

    The tables are written after every run.

    Args:
        ablation: The list of runs.
        launcher: The command line that starts each run, such as `python`.
        console: Receives the progress, and the last lines of the log of a failed run.
    """
    failed = []
    with locked_folder(ablation.folder) as lock:
        for number, run in enumerate(ablation.runs, start=1):
            if state(run) == "complete":
                continue
            progress = f"[{number}/{len(ablation.runs)}] {run}: {run.folder / LOG}"
            console.print(progress, soft_wrap=True)
            if train(run, launcher, lock):
                accuracies = []
                for benchmark, lines in lines_of([run], run.variant).items():
                    line = lines[0]  # a single run has one line
                    accuracies.append(f"{benchmark} {percent(line.accuracy)}")
                console.print(f"    {', '.join(accuracies)}")
                write(study_result(ablation), ablation.folder)
            else:
                console.print(f"    FAILED; its last words:\n{last_words(run)}", soft_wrap=True)
                failed.append(run)
    return failed


def study_result(ablation: Ablation) -> StudyResult:
    """Return figures, tables, charts and the report of the complete runs of a list."""
    complete = [run for run in ablation.runs if state(run) == "complete"]
    missing = [run for run in ablation.runs if run not in complete]
    # The runs of a list are in the order of their seeds. Tables are in the order of the variants.
    variants = list(ablation.changes)
    complete.sort(key=lambda run: variants.index(run.variant))
    lines = lines_of(complete, ablation.reference)
    results = flat_rows(ablation, lines)
    interval_note = statement(ablation.reference, comparisons_in(lines))
    stored_costs = {name: asdict(cost) for name, cost in costs(complete).items()}

    sections = [f"# {ablation.path.stem}", INTRODUCTION.format(statement=interval_note)]
    tables = []
    charts = []
    for benchmark, rows in rows_by_benchmark(results).items():
        table = variants_table(benchmark, rows, ablation.reference, note=interval_note)
        num_benchmark_rows = rows[0]["n"]
        sections += [f"## {benchmark} ({num_benchmark_rows} rows)", table.markdown()]
        tables.append(table.without("changes"))
        charts.append(variants_chart(benchmark, rows))
    if stored_costs:
        table = cost_table(stored_costs)
        sections += ["## Cost", COST_NOTE, table.markdown()]
        tables.append(table)
    if missing:
        absent = [f"- {run}: {run.folder}" for run in missing]
        sections += ["## Not in the tables", "\n".join(absent)]
    figures = {
        "list": str(ablation.path),
        "reference": ablation.reference,
        "statement": interval_note,
        "results": results,
        "costs": stored_costs,
        "missing": [_identification(run) for run in missing],
    }
    document = "\n\n".join(sections) + "\n"
    return StudyResult(figures, tuple(tables), tuple(charts), document=document)


def _identification(run: Run) -> dict[str, Any]:
    """Return the variant, the seed and the folder of a run, for ablation.json."""
    return {"variant": run.variant, "seed": run.seed, "folder": str(run.folder)}


def write(result: StudyResult, folder: Path) -> None:
    """Write ablation.md, ablation.csv and ablation.json, and ablation.png if a run is complete."""
    write_whole(folder / "ablation.md", result.document)
    write_rows(result.figures["results"], folder / "ablation.csv")
    write_json(folder / "ablation.json", result.figures)
    if result.charts:
        save_png(result.charts, folder / "ablation.png")
