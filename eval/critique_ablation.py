"""Measure the worth of a critic's critiques: scores without one, after its own, after true ones.

python eval/critique_ablation.py runs/shapes/critic/best --rows 600 --scalar runs/shapes/naive/best
deepspeed eval/critique_ablation.py runs/shapes/critic/best --samples 4 --temperature 0.7

Prints the accuracy of each on the embedded world, how true the written critiques are (read back and
compared with what holds in the scenes), and what a judgement costs beside the scalar judge's.
Writes the same as JSON, by default to CHECKPOINT/eval/critique_ablation.json.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.storage.output_lock import locked_file
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.eval.cli import add_ranks, processes
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.studies.critique_ablation import run, write
from mmrm.models.distributed import locked_by_first_rank, rank


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, judge, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkpoint", type=Path, help="a critic: a checkpoint folder of `method: critic`"
    )
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--seed", type=int, default=0, help="of the embedded world")
    parser.add_argument(
        "--scalar", type=Path, metavar="CHECKPOINT", help="a scalar reward model to stand beside it"
    )
    parser.add_argument(
        "--samples", type=int, default=1, help="critiques of each response, their scores averaged"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--output", type=Path, help="the JSON file")
    add_ranks(parser)
    options = parser.parse_args(arguments)
    target = options.output or options.checkpoint / "eval" / "critique_ablation.json"
    with command(), processes() as device, locked_by_first_rank(locked_file(target)):
        result = run(options, Runtime(device, options.token_budget))
        if rank() == 0:
            write(result, target)
            console = plain_console(width=max(plain_console().width, 110))
            result.show(console)
            console.print(f"saved as {target}")


if __name__ == "__main__":
    main()
