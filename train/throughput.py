"""Measure speed in one process: stock transformers, packed rows without sharing, and prompt and image shared.

python train/throughput.py                       # the embedded shape on a CPU, 7B on a CUDA device
python train/throughput.py --shape 3b --pairs 8 --json throughput.json
python train/throughput.py --step                # a whole step, optimizer and loader included
python train/throughput.py --loader --shape 7b   # the loader alone: no model, so any shape on any machine

All variants run the same random weights and the same pairs (train/studies/speed/workload.py). MFU
counts every token and patch once, against the rate of large matrix products in this process: what a variant computes
twice lowers it.
"""

import argparse
import platform
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.console import plain_console
from mmrm.data.storage.files import write_json
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import command
from mmrm.models.portable.reward import ScalarRewardModel
from mmrm.train.runs.environment import silence
from mmrm.train.studies.speed.measure import load, own_time, step_speed, steps_of, variants
from mmrm.train.studies.speed.workload import (
    EMBEDDED,
    FULL,
    SHAPES,
    SMALL,
    PairSize,
    build,
    config_of,
    pair_sizes,
)
from mmrm.train.supervised.budget import leave_to_libraries
from mmrm.train.supervised.optimizer import compiled_graphs


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line, and choose `device` and `dtype`."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=[EMBEDDED, *SHAPES], default="7b" if cuda else EMBEDDED)
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
        "--workers", type=int, default=16 if cuda else 0, help="loader processes of --step"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    device, dtype = (
        (torch.device("cuda", 0), torch.bfloat16) if cuda else (torch.device("cpu"), torch.float32)
    )
    return parser.parse_args(argv, argparse.Namespace(device=device, dtype=dtype))


def main(argv: Sequence[str]) -> None:
    """Measure, print and write."""
    options = parse(argv)
    silence()
    leave_to_libraries(options.device)
    context = about(options)
    console = plain_console(width=None if sys.stdout.isatty() else 150)
    console.print(", ".join(f"{name} {value}" for name, value in context.items()))
    if options.loader:
        shown, content = loader(options)
    elif options.step:
        shown, content = whole_step(options)
    else:
        shown, content = variants(options, sizes_of(options, options.pairs), console)
    console.print(shown)
    if options.compile and "results" in content:
        console.print(f"graphs compiled: {compiled_graphs()}")
    if options.json:
        with command(), locked_file(options.json):
            write_json(options.json, {"about": context, **content})


def about(options: argparse.Namespace) -> dict[str, str]:
    """Return what a figure must be read with."""
    cpu = f"CPU with {torch.get_num_threads()} thread(s)"
    return {
        "date": date.today().isoformat(),
        "device": cpu
        if options.device.type == "cpu"
        else torch.cuda.get_device_name(options.device),
        "clock": "processor time" if own_time(options.device) else "wall clock",
        "shape": options.shape,
        "pairs": str(options.pairs),
        "dtype": str(options.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def sizes_of(options: argparse.Namespace, count: int) -> list[PairSize]:
    """Return the sizes of `count` pairs of the workload for the shape."""
    return pair_sizes(count, options.seed, SMALL if options.shape == EMBEDDED else FULL)


def loader(options: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """Measure what one core decodes, processes and packs of the workload's images."""
    sizes = sizes_of(options, options.pairs * options.repeats)
    images = load(steps_of(config_of(options.shape), sizes, options.pairs))[1]
    patches = sum(size.height * size.width for size in sizes) / len(sizes)
    shown = Table(
        title=f"the loader on one core, images of {patches:,.0f} patches on average",
        show_header=False,
    )
    shown.add_row("images/s", f"{images:.1f}")
    return shown, {"loader": {"images_per_second_and_core": images, "patches": patches}}


def whole_step(options: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """Measure a full fine-tune's step end to end, with activation checkpointing on a CUDA device."""
    model: ScalarRewardModel = build(
        ScalarRewardModel, options.shape, options.device, options.dtype
    )
    if options.device.type == "cuda":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found = step_speed(
        model,
        sizes_of(options, options.pairs * (options.repeats + 1)),
        options.pairs,
        options.workers,
    )
    pure, whole = found["pure_pairs_per_second"], found["pairs_per_second"]
    shown = Table(
        title=f"one step with optimizer, {options.workers} loader workers", show_header=False
    )
    shown.add_row("pairs/s, all steps at hand", f"{pure:.2f}")
    shown.add_row("pairs/s, end to end", f"{whole:.2f}")
    shown.add_row("kept of the pure step", f"{whole / pure:.1%}")
    shown.add_row("loader, images/s a core", f"{found['loader_images_per_second_and_core']:.1f}")
    return shown, {"step": found}


if __name__ == "__main__":
    main(sys.argv[1:])
