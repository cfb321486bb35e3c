"""What a training step spends its time on: the operations of PyTorch, in kinds."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from mmrm.data.display.format import percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.train.studies.speed.measure import SHARED, TRAINING, Bench, matrix_rate
from mmrm.train.studies.speed.workload import PairSize, build, pair_tree, vision_tokens

KINDS: dict[str, tuple[str, ...]] = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::_grouped_mm"),
    "attention": ("scaled_dot_product", "_varlen_attn", "_flash_attention"),
    "copies and zeros": (
        *("aten::copy_", "aten::cat", "aten::index", "aten::fill_", "aten::zero_"),
        *("aten::scatter_add_", "aten::gather", "aten::select_backward", "aten::slice_backward"),
        "aten::masked_select",
    ),
}
"""Parts of the names of the operations of each kind. All other operations of PyTorch are
`element-wise and sums`."""
OTHERS = "element-wise and sums"
OUTSIDE = "outside of operations"
"""Python and the bookkeeping of PyTorch, where no operation runs. It is not known on a GPU, which
computes while the host goes on."""
MOST_OPERATIONS = 12
"""Number of the operations that are listed by name."""


def measure_operations(options: argparse.Namespace, sizes: Sequence[PairSize]) -> StudyResult:
    """Measure what training on packed rows that share prompts and images spends its time on.

    Args:
        options: The options of train/throughput.py.
        sizes: The sizes of the pairs.
    """
    model: CriticRewardModel = build(
        CriticRewardModel, options.shape, options.device, options.dtype
    )
    vision = vision_tokens(model.config)
    trees = [pair_tree(size, vision, seed) for seed, size in enumerate(sizes)]
    bench = Bench(model, trees, matrix_rate(options.device, options.dtype), options.repeats)
    speed = bench.measure_variant(TRAINING, SHARED)
    step = bench.measured_call(TRAINING, SHARED)
    step()  # the first one allocates memory
    seconds_by_name, seconds = operation_seconds(step, options.repeats, options.device)
    by_kind = seconds_by_kind(seconds_by_name)
    if options.device.type == "cpu":
        by_kind[OUTSIDE] = max(0.0, seconds - sum(by_kind.values()))
    total = sum(by_kind.values())
    longest = dict(seconds_by_name.most_common(MOST_OPERATIONS))
    figures: dict[str, Any] = {
        "shares": {kind: value / total for kind, value in by_kind.items()},
        "operations": {name: value / total for name, value in longest.items()},
        "seconds_a_step": total / options.repeats,
        "mfu": speed.mfu,
    }
    title = f"time of a training step of {options.pairs} pairs, packed and shared"
    tables = (
        shares_table(title, figures["shares"]),
        shares_table("the same by operation", figures["operations"]),
    )
    mfu = percent(speed.mfu)
    sentence = (
        f"Without the profiler, a step reaches {mfu} % of the rate of large matrix products. The "
        "profiler makes small operations look slower than they are."
    )
    return StudyResult({"operations": figures}, tables, sentences=(sentence,))


def shares_table(title: str, shares: Mapping[str, float]) -> Table:
    """Return a table of shares in percent, with a line for each name."""
    columns = (Column(""), Column("%", is_number=True))
    return Table(title, columns, tuple((name, percent(share)) for name, share in shares.items()))


def operation_seconds(
    step: Callable[[], None], repeats: int, device: torch.device
) -> tuple[Counter[str], float]:
    """Call a step `repeats` times; return the seconds of each operation, and those of all calls.

    The seconds of an operation are without those of the operations that it calls. On a CUDA device
    they are those of the device.
    """
    activities = [ProfilerActivity.CPU]
    is_cuda = device.type == "cuda"
    if is_cuda:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        begin = time.perf_counter()
        for _ in range(repeats):
            step()
        if is_cuda:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begin
    microseconds: Counter[str] = Counter()
    for event in profiler.key_averages():
        # On a GPU, kernels are listed as well. Their time is that of the operations which start them.
        is_of_host = event.device_type.name == "CPU"
        is_operation = is_of_host and "::" in event.key and not event.key.startswith("autograd::")
        if is_operation:
            own = event.self_device_time_total if is_cuda else event.self_cpu_time_total
            microseconds[event.key] += own
    return Counter({name: own / 1e6 for name, own in microseconds.items()}), seconds


def seconds_by_kind(seconds_by_name: Counter[str]) -> dict[str, float]:
    """Return the sums of the seconds of operations, by the kinds of `KINDS`, and of all others."""
    sums = dict.fromkeys([*KINDS, OTHERS], 0.0)
    for name, seconds in seconds_by_name.items():
        sums[kind_of(name)] += seconds
    return sums


def kind_of(name: str) -> str:
    """Return the kind of an operation by its name, such as `aten::mm`."""
    for kind, parts in KINDS.items():
        if any(part in name for part in parts):
            return kind
    return OTHERS
