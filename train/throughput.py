"""Measure the speed of training in one process, and compare ways to lay out the same pairs.

python train/throughput.py                       # the embedded shape on a CPU, 7B on a CUDA device
python train/throughput.py --shape 3b --pairs 8 --json throughput.json
python train/throughput.py --step                # an optimizer step with the loader
python train/throughput.py --trees               # conversations that begin alike, as one tree
python train/throughput.py --operations          # what a training step spends its time on
python train/throughput.py --loader --shape 7b   # the loader alone, on any machine

The variants are padded batches with stock transformers, packed rows, and packed rows that share
prompts and images. All variants run the same random weights and the same pairs of responses
(train/studies/speed/workload.py). MFU is the share of the rate of large matrix products that a
variant reaches. It counts every token and image patch once, so that computing one of them twice
lowers it. "MFU with copies" counts the prompt and the images of a pair for each of its responses,
as frameworks that copy them count.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import wide_console
from mmrm.data.display.option_numbers import COUNT, SEED, WORKERS
from mmrm.data.storage.output_lock import locked_file
from mmrm.train.runs.environment import silence
from mmrm.train.studies.speed.throughput import run, write
from mmrm.train.studies.speed.workload import EMBEDDED, SHAPES
from mmrm.train.supervised.budget import leave_to_libraries


def main(argv: Sequence[str]) -> None:
    """Measure the speed of training or of the loader, and print the figures.

    With --json they are also written to a file. Errors that the user can correct end the command
    with a message and exit status 1, not a traceback.
    """
    options = parse(argv)
    silence()
    leave_to_libraries(options.device)
    console = wide_console(150)
    with exit_on_user_error(), ExitStack() as stack:
        if options.json:
            # Locked first: a file that cannot be written is refused before the measurement.
            stack.enter_context(locked_file(options.json))
        result = run(options, console)
        result.show(console)
        if options.json:
            write(result, options.json)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line.

    The result also has the `device` and the `dtype` of the measurement. They are the first CUDA
    device and bfloat16, or without CUDA the CPU and float32.
    """
    has_cuda = torch.cuda.is_available()
    parser = CommandParser("train/throughput.py", __doc__)
    parser.add_argument(
        "--shape",
        choices=[EMBEDDED, *SHAPES],
        default="7b" if has_cuda else EMBEDDED,
        help="The size of the model.",
    )
    parser.add_argument(
        "--pairs",
        type=COUNT,
        default=8,
        help="The number of pairs of a step. They are packed into as few rows as fit into memory.",
    )
    parser.add_argument(
        "--repeats",
        type=COUNT,
        default=5,
        help="Repeat each measurement N times and report the median.",
        metavar="N",
    )
    parser.add_argument("--seed", type=SEED, default=0, help="The seed of weights and pairs.")
    parser.add_argument(
        "--compile", action="store_true", help="Also measure with compiled MLPs and norms."
    )
    parser.add_argument(
        "--step",
        action="store_true",
        help="Measure an optimizer step with the loader, and no variants.",
    )
    parser.add_argument(
        "--trees",
        action="store_true",
        help="Measure only conversations that begin alike, as one tree and as a tree a prompt.",
    )
    parser.add_argument(
        "--operations",
        action="store_true",
        help="Measure only which operations of PyTorch a training step spends its time on.",
    )
    parser.add_argument("--loader", action="store_true", help="Measure only the loader.")
    parser.add_argument(
        "--workers",
        type=WORKERS,
        default=16 if has_cuda else 0,
        help="The number of loader processes with --step.",
    )
    parser.add_argument("--json", type=Path, help="Also write the figures to this file.")
    options = argparse.Namespace(device=torch.device("cpu"), dtype=torch.float32)
    if has_cuda:
        options = argparse.Namespace(device=torch.device("cuda", 0), dtype=torch.bfloat16)
    # The parser adds the options of the command line to this namespace.
    return parser.parse_args(argv, options)


if __name__ == "__main__":
    main(sys.argv[1:])
