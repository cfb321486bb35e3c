"""Evaluate many checkpoints on many benchmarks, data-parallel, and never one of them twice.

deepspeed eval/sweep.py runs/a runs/b/checkpoint-* --benchmarks vl_rewardbench=hub multimodal_rewardbench=hub
python eval/sweep.py runs/shapes/naive --output runs/shapes/sweep --wandb reward-models

A run folder stands for all its checkpoints; YAML files (ensembles, endpoints) are judges too. In the folder that --output
names: sweep.csv, sweep.json, sweep.md, sweep.png, and results/<fingerprint>/ with `<benchmark>.json` and
`<benchmark>/predictions.jsonl`. The fingerprint is of the weights, the benchmark's rows, the protocol and the scoring code;
what is there is not computed again, so that a killed sweep is continued by the same command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from eval.cli import add_shared, command, processes, task_of
from eval.judges.card import recorded
from eval.reporting.sweep_tables import best_of, draw, log, markdown, rows, write_json
from eval.results.store import Store, step_of
from eval.results.tables import write_rows

if TYPE_CHECKING:
    import torch


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for; what a user can put right ends with a message and no traceback."""
    parser = argparse.ArgumentParser("eval/sweep.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judges", nargs="+", type=Path, metavar="JUDGE", help="run folders, checkpoint folders, YAML files")
    add_shared(parser)
    parser.add_argument("--wandb", metavar="PROJECT", help="also log there; without a login the wandb run stays in the output")
    parser.set_defaults(output=Path("runs/sweep"))
    options, console = parser.parse_args(arguments), Console(highlight=False, soft_wrap=True)
    with command(), processes() as device:
        run(options, device, console)


def run(options: argparse.Namespace, device: torch.device, console: Console) -> None:
    """Evaluate what is missing and write the summary; all ranks call together, the first one writes and prints.

    All judges get one task: the options', and for what they leave open that of the first recipe there is.
    """
    from eval.judges.checkpoint import Runtime
    from eval.running.suite import Suite
    from eval.running.sweep import Sweep
    from models.distributed import rank

    judges = expand(options.judges)
    task = task_of(options, next((judge for judge in judges if judge.is_dir() and recorded(judge)), judges[0]))
    suite = Suite.load(task.benchmarks, task.protocol)
    sweep = Sweep(suite, Store(options.output / "results"), Runtime(device, options.token_budget), console)
    sweep.fill(judges)
    if rank():
        return
    summary, folder = sweep.summary(), options.output
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows(summary), folder / "sweep.csv")
    write_json(summary, folder / "sweep.json")
    (folder / "sweep.md").write_text(markdown(summary), encoding="utf-8")
    if summary.standings:
        draw(summary, folder / "sweep.png")
    for name, standings in summary.standings.items():
        console.print(f"{name}: {best_of(standings)}")
    console.print(f"written: {folder}/sweep.csv, sweep.json, sweep.md, sweep.png and results/")
    if options.wandb and summary.standings:
        log(summary, options.wandb, folder)


def expand(places: Sequence[Path]) -> list[Path]:
    """Return every judge once: a run folder stands for its checkpoints in the order of their steps."""
    found: dict[Path, Path] = {}
    for place in places:
        inside = [(step, path) for path in place.glob("checkpoint-*") if (step := step_of(path)) is not None]
        for path in [path for _, path in sorted(inside)] or [place]:
            found.setdefault(path.resolve(), path)
    return list(found.values())


if __name__ == "__main__":
    main()
