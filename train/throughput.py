"""Measure speed in one process: stock transformers, packed rows, shared prompts and images.

python train/throughput.py                       # the embedded shape on a CPU, 7B on a CUDA device
python train/throughput.py --shape 3b --pairs 8 --json throughput.json
python train/throughput.py --step                # a whole step, optimizer and loader included
python train/throughput.py --loader --shape 7b   # the loader alone, on any machine

All variants run the same random weights and the same pairs (train/studies/speed/workload.py). MFU
counts every token and patch once, against the rate of large matrix products in this process: what a
variant computes twice lowers it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import wide_console
from mmrm.train.runs.environment import silence
from mmrm.train.studies.speed.throughput import run, write
from mmrm.train.studies.speed.workload import EMBEDDED, SHAPES
from mmrm.train.supervised.budget import leave_to_libraries


def main(argv: Sequence[str]) -> None:
    """Measure, print and write."""
    options = parse(argv)
    silence()
    leave_to_libraries(options.device)
    console = wide_console(150)
    with command():
        result = run(options, console)
        result.show(console)
        if options.json:
            write(result, options.json)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line, and choose `device` and `dtype`."""
    has_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", choices=[EMBEDDED, *SHAPES], default="7b" if has_cuda else EMBEDDED
    )
    parser.add_argument(
        "--pairs", type=int, default=8, help="pairs of one step, in as few rows as fit"
    )
    parser.add_argument("--repeats", type=int, default=5, help="the median of so many counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compile", action="store_true", help="also measure compiled MLPs and norms"
    )
    parser.add_argument(
        "--step",
        action="store_true",
        help="measure the whole step with optimizer and loader instead",
    )
    parser.add_argument("--loader", action="store_true", help="measure the loader alone instead")
    parser.add_argument(
        "--workers", type=int, default=16 if has_cuda else 0, help="loader processes of --step"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = argparse.Namespace(device=torch.device("cpu"), dtype=torch.float32)
    if has_cuda:
        chosen = argparse.Namespace(device=torch.device("cuda", 0), dtype=torch.bfloat16)
    return parser.parse_args(argv, chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
