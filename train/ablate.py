"""Train every variant of a list with several seeds, and put what they reach into one table with intervals.

python train/ablate.py recipes/ablations/shapes_head.yaml --dry-run                  # what would be run; needs nothing
python train/ablate.py recipes/ablations/shapes_head.yaml --seeds 0 1 2              # the embedded edition, on a CPU
python train/ablate.py recipes/ablations/head.yaml --launcher "deepspeed --num_gpus 8"

A list is a recipe with `variants` (train/studies/ablation/variants.py). Each run is a process of its own, in FOLDER/VARIANT/SEED,
with its console in log.txt. Complete runs are not repeated, a killed one continues from its last checkpoint, a failed one is
reported and the others go on; the exit status is then 1 (2 for a list that cannot be run). FOLDER gets ablation.md, .csv,
.json and .png.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.storage.files import write_json, write_whole
from mmrm.eval.results.summary_table import write_rows
from mmrm.train.recipe.epoch import known_steps
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.comparison import (
    VariantLine,
    comparisons_in,
    console_table,
    draw,
    lines_of,
    markdown,
    rows,
    statement,
)
from mmrm.train.studies.ablation.run_costs import Cost, cost_table, costs
from mmrm.train.studies.ablation.variants import (
    LOG,
    Ablation,
    Run,
    alone,
    end_runs_on_signals,
    last_words,
    read_ablation,
    refuse_other_recipes,
    state,
    train,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and write the tables; an error that a user can put right ends with its message and status 2."""
    options = parse(arguments)
    console = plain_console(width=None if sys.stdout.isatty() else 120, highlight=False)
    try:
        ablation = read_ablation(
            options.list, options.overrides, list(dict.fromkeys(options.seeds))
        )
        refuse_other_recipes(ablation.runs)
        if options.dry_run:
            console.print(plan(ablation))
            return
        failed = run_missing(ablation, shlex.split(options.launcher), console)
        lines, spent = write(ablation)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    for name, found in lines.items():
        console.print(console_table(ablation.reference, name, found, comparisons_in(lines)))
    if spent:
        console.print(cost_table(spent))
    console.print(
        f"written: {ablation.folder}/ablation.md, ablation.csv, ablation.json and ablation.png",
        soft_wrap=True,
    )
    if failed:
        sys.exit("\n".join(f"failed: {run}; see {run.folder / LOG}" for run in failed))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "train/ablate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "list", type=Path, help="a YAML file, for example recipes/ablations/shapes_head.yaml"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="lays a value over every variant: optim.max_steps=20",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED")
    parser.add_argument(
        "--launcher",
        default=shlex.quote(sys.executable),
        metavar="COMMAND",
        help="starts each run; else python",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check every variant and print the runs"
    )
    return parse_options(parser, arguments)


def plan(ablation: Ablation) -> Table:
    """Return every run, its length and how far it has come."""
    numbers = (Column(name, justify="right") for name in ("seed", "steps", "pairs"))
    table = Table("variant", "changes", *numbers, "", title=f"{ablation.path} → {ablation.folder}")
    for run in ablation.runs:
        steps = known_steps(run.recipe)
        counts = (
            ("?", "?")
            if steps is None
            else (f"{steps:,}", f"{steps * run.recipe.optim.records_per_step:,}")
        )
        table.add_row(
            run.variant, ablation.changes[run.variant], str(run.seed), *counts, state(run)
        )
    return table


def run_missing(ablation: Ablation, launcher: Sequence[str], console: Console) -> list[Run]:
    """Train what is not complete, write the tables after every run, and return the runs that failed."""
    failed = []
    with alone(ablation.folder) as lock:
        for position, run in enumerate(ablation.runs, start=1):
            if state(run) == "complete":
                continue
            console.print(
                f"[{position}/{len(ablation.runs)}] {run}: {run.folder / LOG}", soft_wrap=True
            )
            if train(run, launcher, lock):
                figures = [
                    f"{name} {100 * line.accuracy:.1f}"
                    for name, (line,) in lines_of([run], run.variant).items()
                ]
                console.print(f"    {', '.join(figures)}")
                write(ablation)
            else:
                console.print(f"    FAILED; its last words:\n{last_words(run)}", soft_wrap=True)
                failed.append(run)
    return failed


def write(ablation: Ablation) -> tuple[dict[str, list[VariantLine]], dict[str, Cost]]:
    """Write the tables and the figure of the runs that are complete; return their lines by benchmark, and what they cost."""
    missing = [run for run in ablation.runs if state(run) != "complete"]
    complete = [
        run
        for name in ablation.changes
        for run in ablation.runs
        if run.variant == name and run not in missing
    ]
    lines = lines_of(complete, ablation.reference)
    results, spent = rows(ablation, lines), costs(complete)
    write_whole(ablation.folder / "ablation.md", markdown(ablation, lines, spent, missing))
    write_rows(results, ablation.folder / "ablation.csv")
    content = {
        "list": str(ablation.path),
        "reference": ablation.reference,
        "statement": statement(ablation.reference, comparisons_in(lines)),
        "results": results,
        "costs": {name: asdict(one) for name, one in spent.items()},
        "missing": [
            {"variant": run.variant, "seed": run.seed, "folder": str(run.folder)} for run in missing
        ],
    }
    write_json(ablation.folder / "ablation.json", content)
    if lines:
        draw(lines, ablation.folder / "ablation.png")
    return lines, spent


if __name__ == "__main__":
    end_runs_on_signals()
    main()
