"""Work out the peak memory of the released shapes from shapes alone: no GPU, no weights, a few seconds a line.

    python tools/measure_peak_memory.py                 # 3B and 7B, 8 pairs of the workload of train/throughput.py
    python tools/measure_peak_memory.py --pairs 4

Every kernel runs on tensors without values (tests/models/shapes_only.py). What it counts is bytes of tensors that are alive;
an allocator's rounding and a library's workspace come on top.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

import argparse
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

from mmrm.models.config import CheckpointingMode
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.packing.sequence_group import SequenceGroup
from mmrm.models.portable.reward import ScalarRewardModel
from mmrm.train.runs.environment import silence
from mmrm.train.studies.speed.workload import PairSize, pair_tree, unshared, vision_tokens
from mmrm.train.supervised.objectives import pair_loss
from tests.models.shapes_only import Shapes, shapes_of

GIB = 2**30
LINES: tuple[tuple[str, CheckpointingMode], ...] = (
    ("inference", "none"),
    ("training", "none"),
    ("training", "linear"),
    ("training", "attention"),
    ("training", "full"),
)


def peak(
    shapes: Shapes,
    trees: Sequence[SegmentTree],
    *,
    training: bool,
    later: bool = False,
    group: SequenceGroup | None = None,
) -> float:
    """Return the peak in GiB of a row: of a forward, or of forward and backward.

    A `later` row finds gradients there. With a group, its ranks compute the row together.
    """
    row = shapes.row(trees, group)
    with torch.set_grad_enabled(training), shapes.run() as kernels:
        for parameter in shapes.model.parameters() if later else ():
            parameter.grad = torch.empty_like(parameter)
        chosen, rejected = shapes.model(**row.score_inputs()).view(-1, 2).unbind(1)
        if training:
            torch.autograd.backward(pair_loss(chosen, rejected).mean())
    return kernels.peak / GIB


def patch_cost(shape: str, checkpointing: CheckpointingMode) -> float:
    """Return the memory that a vision patch adds to the peak of training, in tokens of text."""
    small, longer, larger = (
        PairSize(60, width, question, (200, 200))
        for width, question in ((60, 80), (60, 1080), (80, 80))
    )
    found = []
    for size in (small, longer, larger):
        shapes = shapes_of(ScalarRewardModel, shape, checkpointing=checkpointing)
        trees = [pair_tree(size, vision_tokens(shapes.model.config), 0)] * 4
        tokens, patches = (
            sum(tree.tokens for tree in trees),
            sum(tree.patches for tree in trees),
        )
        found.append((peak(shapes, trees, training=True, later=True), tokens, patches))
    (memory, tokens, patches), longest, largest = found
    token = (longest[0] - memory) / (longest[1] - tokens)
    return (largest[0] - memory - token * (largest[1] - tokens)) / (largest[2] - patches) / token


def main() -> None:
    """Print a line for each shape and task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8, help="pairs in the row")
    pairs = parser.parse_args().pairs
    silence()
    table = Table(title=f"GiB at the peak, {pairs} pairs in a row, bf16")
    for name in ("shape", "", "not shared", "shared", "with AdamW", "a patch, in tokens"):
        table.add_column(name, justify="left" if name in ("shape", "") else "right")
    for shape in ("3b", "7b"):
        for what, checkpointing in LINES:
            found = []
            for shared in (False, True):
                shapes = shapes_of(ScalarRewardModel, shape, checkpointing=checkpointing)
                trees = shapes.pairs(pairs)
                found.append(
                    peak(shapes, trees if shared else unshared(trees), training=what == "training")
                )
            moments = 2 * sum(parameter.nbytes for parameter in shapes.model.parameters()) / GIB
            cells = [f"{one:.1f}" for one in found]
            if what == "training":
                cells += [f"{found[-1] + moments:.1f}", f"{patch_cost(shape, checkpointing):.2f}"]
            table.add_row(
                shape,
                what if what == "inference" else f"{what}, checkpointing {checkpointing}",
                *cells,
            )
    Console(width=None if sys.stdout.isatty() else 125).print(table)


if __name__ == "__main__":
    main()
