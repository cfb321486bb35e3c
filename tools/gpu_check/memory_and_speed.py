"""How fast the machine is, and whether a row takes the memory that the plan says."""

import argparse
import statistics
from collections.abc import Mapping

import torch
from rich.console import Console

from mmrm.models.activations import set_checkpointing
from mmrm.models.config import CheckpointingMode
from mmrm.models.packing.packed_batch import pack
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.models.portable.reward import ScalarRewardModel
from mmrm.train.planning.memory import GIB, activations
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.speed.measure import (
    COMPILED,
    INFERENCE,
    SHARED,
    STOCK,
    TRAINING,
    Bench,
    matrix_rate,
    measure,
)
from mmrm.train.studies.speed.throughput import with_ratios
from mmrm.train.studies.speed.tree_speed import measure_trees
from mmrm.train.studies.speed.workload import (
    EMBEDDED,
    FULL,
    SHAPES,
    SMALL,
    Workload,
    build,
    pair_sizes,
    pair_tree,
    vision_tokens,
)
from mmrm.train.supervised.budget import leave_to_libraries
from mmrm.train.supervised.objectives import pair_loss
from tests.models.shapes_only import shapes_of
from tests.train.shipped import FOLDER
from tools.gpu_check.lines import Found
from tools.gpu_check.machine import device
from tools.measure_peak_memory import peak

SIZES = {EMBEDDED: SMALL, "3b": FULL, "7b": FULL}
"""Shape of the model to sizes of the pairs."""
PAIRS = 8
CLOSE = 0.1
"""Share by which measured memory may differ from what is counted: allocators round, libraries have a workspace."""
COUNTED = 0.05
"""Share by which the plan's arithmetic may differ from the count."""


def shape_that_fits(gib: Mapping[str, float]) -> str:
    """Return the first shape of `gib` whose GiB the GPU has free, else the embedded one."""
    free = torch.cuda.mem_get_info()[0] / GIB if torch.cuda.is_available() else 0.0
    return next((shape for shape, needed in gib.items() if free >= needed), EMBEDDED)


def throughput() -> Found:
    """Measure as train/throughput.py does, the two settings that matter most: training with checkpointing, and scores."""
    shape, cuda = shape_that_fits({"7b": 60, "3b": 30}), torch.cuda.is_available()
    dtype = torch.bfloat16 if cuda else torch.float32
    leave_to_libraries(device())
    rate = matrix_rate(device(), dtype)
    model: CriticRewardModel = build(CriticRewardModel, shape, device(), dtype)
    bench = Bench(model, pairs(model, SIZES[shape], PAIRS if cuda else 2), rate, repeats=1)
    tasks: tuple[tuple[str, CheckpointingMode], ...] = ((TRAINING, "full"), (INFERENCE, "none"))
    found = with_ratios(
        [
            bench.measure_variant(what, variant, mode)
            for what, mode in tasks
            for variant in (STOCK, SHARED)
        ]
    )
    said, values = [], {"tflops": 2 * rate / 1e12}
    for one in found[1::2]:
        name = one.what if one.checkpointing == "none" else f"{one.what}, checkpointing"
        if one.pairs_per_second is None or one.mfu is None or one.peak_gib is None:
            said.append(f"{name}: does not fit")
            continue
        times = (
            "stock does not fit" if one.times_stock is None else f"{one.times_stock:.2f} x stock"
        )
        said.append(
            f"{name}: {one.pairs_per_second:.2f} pairs/s, {times}, MFU {one.mfu:.0%}, peak {one.peak_gib:.1f} GiB"
        )
        values |= {
            f"{one.what}_pairs_per_second": one.pairs_per_second,
            f"{one.what}_peak_gib": one.peak_gib,
        }
        values |= {} if one.times_stock is None else {f"{one.what}_times_stock": one.times_stock}
    slower = cuda and any(
        one.times_stock is not None and one.times_stock <= 1 for one in found[1::2]
    )
    right = not slower and all(one.pairs_per_second for one in found[1::2])
    return Found(
        right,
        f"{shape}, {'; '.join(said)}; matrix products at {values['tflops']:.3g} TFLOP/s",
        values,
    )


def checkpointing_modes() -> Found:
    """Measure training on shared rows in each mode of activation checkpointing, and compiled where a mode allows it.

    On a GPU, keeping more results must not be slower, and must take more memory.
    """
    shape = shape_that_fits({"7b": 60, "3b": 30})
    is_cuda = torch.cuda.is_available()
    dtype = torch.bfloat16 if is_cuda else torch.float32
    leave_to_libraries(device())
    rate = matrix_rate(device(), dtype)
    model: CriticRewardModel = build(CriticRewardModel, shape, device(), dtype)
    bench = Bench(model, pairs(model, SIZES[shape], PAIRS if is_cuda else 2), rate, repeats=1)
    modes: tuple[CheckpointingMode, ...] = ("offloaded", "full", "attention", "linear", "none")
    results = [bench.measure_variant(TRAINING, SHARED, mode) for mode in modes]
    if is_cuda:
        compiled: tuple[CheckpointingMode, ...] = ("full", "attention", "none")
        results += [bench.measure_variant(TRAINING, COMPILED, mode) for mode in compiled]
    texts: list[str] = []
    values: dict[str, float] = {}
    for result in results:
        name = (
            f"{result.checkpointing}, compiled"
            if result.variant == COMPILED
            else result.checkpointing
        )
        if result.pairs_per_second is None or result.mfu is None or result.peak_gib is None:
            texts.append(f"{name}: does not fit")
            continue
        texts.append(
            f"{name}: {result.pairs_per_second:.2f} pairs/s in {result.rows} row(s), "
            f"MFU {result.mfu:.0%}, peak {result.peak_gib:.1f} GiB"
        )
        values[f"{name}: pairs_per_second"] = result.pairs_per_second
        values[f"{name}: peak_gib"] = result.peak_gib
        values[f"{name}: mfu"] = result.mfu
    full, attention, linear = results[:3]
    is_right = full.pairs_per_second is not None
    if is_cuda and full.pairs_per_second and attention.pairs_per_second and linear.pairs_per_second:
        fastest = max(full.pairs_per_second, attention.pairs_per_second)
        is_right = linear.pairs_per_second > fastest
    return Found(is_right, f"{shape}, training: {'; '.join(texts)}", values)


def trees() -> Found:
    """Measure conversations that begin alike as one tree, as `train/throughput.py --trees` does."""
    is_cuda = torch.cuda.is_available()
    options = argparse.Namespace(
        shape=shape_that_fits({"7b": 60, "3b": 30}),
        device=device(),
        dtype=torch.bfloat16 if is_cuda else torch.float32,
        repeats=1,
        seed=0,
    )
    leave_to_libraries(device())
    figures = measure_trees(options, Console()).figures["trees"]
    texts: list[str] = []
    values: dict[str, float] = {}
    for line in figures:
        name = f"{line['case']}, {line['what']}, images of {line['image_tokens']} tokens"
        times_faster = statistics.median(line["ratios"])
        texts.append(f"{name}: {times_faster:.2f} x")
        values[name] = times_faster
    is_faster = statistics.median(values.values()) > 1
    return Found(
        is_faster, f"{options.shape}, one tree against one a prompt: {'; '.join(texts)}", values
    )


def pairs(model: ScalarRewardModel, size: Workload, count: int) -> list[SegmentTree]:
    """Return pairs of the workload."""
    vision = vision_tokens(model.config)
    return [pair_tree(one, vision, seed) for seed, one in enumerate(pair_sizes(count, 0, size))]


def plan(shape: str = "3b") -> Found:
    """Hold the plan's arithmetic of a training row to the tensors that are alive at the peak, counted without their values."""
    counted, planned = counted_and_planned(shape)
    said = f"{shape}, {PAIRS} pairs, checkpointing: {planned:.1f} GiB planned, {counted:.1f} counted on tensors without values"
    off = planned / counted - 1
    return Found(
        abs(off) <= COUNTED,
        f"{said}, {off:+.1%} (limit {COUNTED:.0%})",
        {"planned_gib": planned, "counted_gib": counted},
    )


def counted_and_planned(shape: str) -> tuple[float, float]:
    """Return the GiB at the peak of a row that finds gradients, as every row of a step but the first does."""
    shapes = shapes_of(ScalarRewardModel, shape, checkpointing="full")
    trees, recipe = shapes.pairs(PAIRS), read_recipe(FOLDER / "basereward.yaml")
    held = 2 * sum(parameter.nbytes for parameter in shapes.model.parameters())
    tokens, patches = sum(tree.tokens for tree in trees), sum(tree.patches for tree in trees)
    planned = (held + activations(recipe, SHAPES[shape], tokens, patches)) / GIB
    return peak(shapes, trees, training=True, later=True), planned


def peak_memory() -> Found:
    """Hold the memory of a training row, measured on the GPU, to the count and to the plan."""
    shape = shape_that_fits({"7b": 50, "3b": 0})
    counted, planned = counted_and_planned(shape)
    leave_to_libraries(device())
    model: ScalarRewardModel = build(ScalarRewardModel, shape, device(), torch.bfloat16)
    set_checkpointing(model, "full")
    batch = pack(pairs(model.train(), SIZES[shape], PAIRS), vision_tokens(model.config)).to(
        device()
    )

    def row() -> None:
        chosen, rejected = model(**batch.score_inputs()).view(-1, 2).unbind(1)
        torch.autograd.backward(pair_loss(chosen, rejected).mean())

    found = measure(row, device(), repeats=1)[
        1
    ]  # the call before the measured one leaves gradients
    off = found / counted - 1
    said = f"{shape}, {PAIRS} pairs, checkpointing, bf16: {found:.1f} GiB measured, {counted:.1f} counted ({off:+.1%}, limit "
    values = {"measured_gib": found, "counted_gib": counted, "planned_gib": planned}
    return Found(abs(off) <= CLOSE, f"{said}{CLOSE:.0%}), {planned:.1f} by the plan", values)
