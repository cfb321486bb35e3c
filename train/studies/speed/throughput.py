"""The throughput study: variants of a computation, its operations, a whole step, or the loader."""

import argparse
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import torch
import transformers
from rich.console import Console

from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.package import clone
from mmrm.data.storage.files import write_json
from mmrm.models.activations import set_checkpointing
from mmrm.models.config import CheckpointingMode
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.models.portable.reward import ScalarRewardModel
from mmrm.train.runs.provenance import commit
from mmrm.train.studies.speed.measure import (
    APART,
    COMPILED,
    INFERENCE,
    JUDGEMENTS,
    LOG_PROBABILITIES,
    SHARED,
    STOCK,
    TRAINING,
    TWO_PAIRS,
    UNSHARED,
    Bench,
    SpeedResult,
    load_all,
    matrix_rate,
    step_speed,
    steps_of,
    uses_processor_time,
)
from mmrm.train.studies.speed.operation_times import measure_operations
from mmrm.train.studies.speed.tree_speed import measure_trees
from mmrm.train.studies.speed.workload import (
    EMBEDDED,
    FULL,
    SMALL,
    PairSize,
    build,
    config_of,
    judgements_tree,
    pair_sizes,
    pair_tree,
    two_pairs,
    vision_tokens,
)
from mmrm.train.supervised.optimizer import compiled_graphs


def run(options: argparse.Namespace, console: Console) -> StudyResult:
    """Measure the loader, trees, an optimizer step or all variants, and return the figures.

    A line about every variant is printed as soon as it is measured. A measurement takes minutes,
    and the line is not lost if a later measurement fails.

    Args:
        options: The options of train/throughput.py. `loader`, `operations`, `trees` and `step`
            choose what is measured.
        console: The console for these lines.
    """
    context = measurement_context(options)
    console.print(", ".join(f"{name} {value}" for name, value in context.items()))
    if options.loader:
        result = measure_loader(options)
    elif options.operations:
        result = measure_operations(options, sizes_of(options, options.pairs))
    elif options.trees:
        result = measure_trees(options, console)
    elif options.step:
        result = measure_step(options)
    else:
        result = measure_variants(options, sizes_of(options, options.pairs), console)
    return replace(result, figures={"about": context, **result.figures})


def write(result: StudyResult, file: Path) -> None:
    """Write the figures to a JSON file, whose lock the caller holds."""
    write_json(file, result.figures)


def measurement_context(options: argparse.Namespace) -> dict[str, str]:
    """Return the machine, the versions and the settings that a speed depends on."""
    device = f"{processor_name()}, {torch.get_num_threads()} thread(s)"
    if options.device.type != "cpu":
        device = torch.cuda.get_device_name(options.device)
    state = commit(clone())
    changes = " with changes" if state["dirty"] else ""
    return {
        "date": date.today().isoformat(),
        "device": device,
        "clock": "processor time" if uses_processor_time(options.device) else "wall clock",
        "shape": options.shape,
        "pairs": str(options.pairs),
        "dtype": str(options.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "commit": f"{state['commit']}{changes}",
    }


def processor_name() -> str:
    """Return the name of the processor, or of its architecture where Linux does not tell the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def sizes_of(options: argparse.Namespace, count: int) -> list[PairSize]:
    """Return the sizes of `count` pairs; those for the embedded model are smaller."""
    workload = SMALL if options.shape == EMBEDDED else FULL
    return pair_sizes(count, options.seed, workload)


def measure_loader(options: argparse.Namespace) -> StudyResult:
    """Measure how many images per second one core decodes, processes and packs for training."""
    sizes = sizes_of(options, options.pairs * options.repeats)
    steps = steps_of(config_of(options.shape), sizes, options.pairs)
    _, images_per_second = load_all(steps)
    mean_patches = sum(size.height * size.width for size in sizes) / len(sizes)
    title = f"the loader on one core, images of {mean_patches:,.0f} patches on average"
    table = figure_table(title, {"images/s": f"{images_per_second:.1f}"})
    figures = {"images_per_second_and_core": images_per_second, "patches": mean_patches}
    return StudyResult({"loader": figures}, (table,))


def measure_step(options: argparse.Namespace) -> StudyResult:
    """Measure the speed of optimizer steps of full fine-tuning, with and without the loader.

    On a CUDA device, activation checkpointing is used.
    """
    model: ScalarRewardModel = build(
        ScalarRewardModel, options.shape, options.device, options.dtype
    )
    if options.device.type == "cuda":
        set_checkpointing(model, "full")
    num_steps = options.repeats + 1  # the first one warms up
    sizes = sizes_of(options, options.pairs * num_steps)
    speed = step_speed(model, sizes, options.pairs, options.workers)
    pure = speed["pure_pairs_per_second"]
    end_to_end = speed["pairs_per_second"]
    title = f"one step with optimizer, {options.workers} loader workers"
    texts = {
        "pairs/s, all steps at hand": f"{pure:.2f}",
        "pairs/s, end to end": f"{end_to_end:.2f}",
        "kept of the pure step": f"{end_to_end / pure:.1%}",
        "loader, images/s a core": f"{speed['loader_images_per_second_and_core']:.1f}",
    }
    return StudyResult({"step": speed}, (figure_table(title, texts),))


def figure_table(title: str, texts: dict[str, str]) -> Table:
    """Return a table with a line for each figure: its name and its text."""
    return Table(title, (Column(""), Column("", is_number=True)), tuple(texts.items()))


def measure_variants(
    options: argparse.Namespace, sizes: Sequence[PairSize], console: Console
) -> StudyResult:
    """Measure all variants of all tasks on pairs of the given sizes.

    Args:
        options: The options of train/throughput.py.
        sizes: The sizes of the pairs.
        console: Receives a line about each variant when it has been measured.
    """
    rate = matrix_rate(options.device, options.dtype)
    model: CriticRewardModel = build(
        CriticRewardModel, options.shape, options.device, options.dtype
    )
    results = []
    for bench, task, variant, checkpointing in measurements(options, sizes, model, rate):
        result = bench.measure_variant(task, variant, checkpointing)
        speed = figure_text(result.pairs_per_second, "{:.2f} pairs/s", "does not fit")
        description = task if checkpointing == "none" else f"{task}, checkpointing {checkpointing}"
        console.print(f"{description}, {variant}: {speed}", style="dim")
        results.append(result)
    results = with_ratios(results)
    # A multiply-add is two floating-point operations.
    title = f"matrix products: {2 * rate / 1e12:.3g} TFLOP/s"
    figures = {
        "multiply_adds_per_second": rate,
        "results": [asdict(result) for result in results],
    }
    table = results_table(results, title, has_cuda=options.device.type == "cuda")
    notes = (f"graphs compiled: {compiled_graphs()}",) if options.compile else ()
    return StudyResult(figures, (table,), sentences=notes)


def measurements(
    options: argparse.Namespace, sizes: Sequence[PairSize], model: CriticRewardModel, rate: float
) -> list[tuple[Bench, str, str, CheckpointingMode]]:
    """Return the measurements of the study, in their order.

    A measurement consists of a bench with the model and the pairs, a task, a variant of it, and the
    mode of activation checkpointing. The modes that keep a part of the results are measured on
    packed rows that share prompts and images.

    Compiled variants are the last ones, because a compiler may be missing.

    Args:
        options: The options of train/throughput.py.
        sizes: The sizes of the pairs.
        model: The model that all benches use.
        rate: The result of `matrix_rate`.
    """
    vision = vision_tokens(model.config)
    pair_trees = [pair_tree(size, vision, seed) for seed, size in enumerate(sizes)]
    judgement_trees = [
        judgements_tree(size, vision, seed, JUDGEMENTS) for seed, size in enumerate(sizes)
    ]
    pairs = Bench(model, pair_trees, rate, options.repeats)
    judgements = replace(pairs, trees=judgement_trees)
    double_pairs = replace(pairs, trees=two_pairs(pair_trees), pairs_per_tree=2)

    tasks: list[tuple[str, CheckpointingMode]] = [
        (TRAINING, "none"),
        (TRAINING, "full"),
        (INFERENCE, "none"),
    ]
    planned: list[tuple[Bench, str, str, CheckpointingMode]] = []
    for task, checkpointing in tasks:
        for variant in (STOCK, UNSHARED, SHARED):
            planned.append((pairs, task, variant, checkpointing))
    planned.append((pairs, TRAINING, SHARED, "linear"))
    planned.append((pairs, TRAINING, SHARED, "attention"))
    for variant in (APART, SHARED):
        planned.append((double_pairs, TWO_PAIRS, variant, "none"))
    for variant in (UNSHARED, SHARED):
        planned.append((judgements, LOG_PROBABILITIES, variant, "none"))
    if options.compile:
        for task, checkpointing in tasks:
            planned.append((pairs, task, COMPILED, checkpointing))
    return planned


def with_ratios(results: Sequence[SpeedResult]) -> list[SpeedResult]:
    """Return the results with the ratios of their speeds to two other variants of the same task.

    These are the stock variant, and the variant that shares less: for TWO_PAIRS the one in which
    each pair has its own copy of the prompt, otherwise the unshared one.
    """
    speeds = {
        (result.what, result.checkpointing, result.variant): result.pairs_per_second
        for result in results
    }
    results_with_ratios = []
    for result in results:
        less_shared = APART if result.what == TWO_PAIRS else UNSHARED
        stock = speeds.get((result.what, result.checkpointing, STOCK))
        unshared = speeds.get((result.what, result.checkpointing, less_shared))
        results_with_ratios.append(
            replace(
                result,
                times_stock=ratio(result.pairs_per_second, stock),
                times_unshared=ratio(result.pairs_per_second, unshared),
            )
        )
    return results_with_ratios


def ratio(speed: float | None, base: float | None) -> float | None:
    """Return a speed divided by another one; None if one of them is missing."""
    if not speed or not base:
        return None
    return speed / base


def results_table(results: Sequence[SpeedResult], title: str, has_cuda: bool) -> Table:
    """Return the table of all measurements.

    Args:
        results: The measurements, in the order of the lines.
        title: The title of the table.
        has_cuda: True if the memory is that of a CUDA device, not of the process so far.
    """
    memory = "peak GiB" if has_cuda else "RSS GiB so far"
    heads = (
        "checkpointing",
        "rows",
        "pairs/s",
        "MFU",
        "MFU with copies",
        memory,
        "x stock",
        "x unshared",
    )
    columns = (Column(""), Column("variant"), *(Column(head, is_number=True) for head in heads))
    rows = []
    for result in results:
        rows.append(
            (
                result.what,
                result.variant,
                result.checkpointing,
                str(result.rows),
                figure_text(result.pairs_per_second, absent="does not fit"),
                figure_text(result.mfu, "{:.1%}"),
                figure_text(result.mfu_with_copies, "{:.1%}"),
                figure_text(result.peak_gib),
                figure_text(result.times_stock),
                figure_text(result.times_unshared),
            )
        )
    return Table(title, columns, tuple(rows))


def figure_text(value: float | None, form: str = "{:.2f}", absent: str = "-") -> str:
    """Return a figure as a text, in the format `form`; `absent` if the figure is None."""
    return absent if value is None else form.format(value)
