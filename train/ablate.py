"""Train every variant of a list with several seeds, and compare them in tables with intervals.

python train/ablate.py recipes/ablations/shapes_head.yaml --dry-run      # prints the plan
python train/ablate.py recipes/ablations/shapes_head.yaml --seeds 0 1 2  # on a CPU
python train/ablate.py recipes/ablations/head.yaml --launcher "deepspeed --num_gpus 8"

A list is a recipe with `variants` (train/studies/ablation/variants.py). Each run is a process of
its own, in FOLDER/VARIANT/SEED, with its console in log.txt. Complete runs are not repeated, a
killed one continues from its last checkpoint, a failed one is reported and the others go on. The
exit status is then 1 (2 for a list that cannot be run). FOLDER gets ablation.md, .csv, .json and
.png.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import wide_console
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.study import plan, run_missing, study_result, write
from mmrm.train.studies.ablation.variants import (
    LOG,
    end_runs_on_signals,
    read_ablation,
    refuse_other_recipes,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and write the tables; a refusal ends with status 2."""
    options = parse(arguments)
    console = wide_console(120, highlight=False)
    with command(refusal=2):
        seeds = list(dict.fromkeys(options.seeds))
        ablation = read_ablation(options.list, options.overrides, seeds)
        refuse_other_recipes(ablation.runs)
        if options.dry_run:
            console.print(plan(ablation).rich())
            return
        failed = run_missing(ablation, shlex.split(options.launcher), console)
        result = study_result(ablation)
        write(result, ablation.folder)
        result.show(console)
        written = "ablation.md, ablation.csv, ablation.json and ablation.png"
        console.print(f"written: {ablation.folder}/{written}", soft_wrap=True)
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


if __name__ == "__main__":
    end_runs_on_signals()
    main()
