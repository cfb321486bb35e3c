"""The dry run: prints what a recipe will do before anything is loaded. Needs no weights, no network and no torch."""

import os
from math import ceil
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mmrm.data.display.console import is_first_rank, plain_console
from mmrm.data.sources.shared.file_source import FilesConfig
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.family import Shape
from mmrm.train.recipe.cost import (
    BETWEEN,
    COMPARED,
    INSIDE,
    MFU,
    NODE,
    PEAK,
    ROW_TOKENS,
    full_row,
    record_tokens,
    step_cost,
)
from mmrm.train.recipe.deepspeed_config import NONE, deepspeed_names, offloads, stage, sums_in_fp32
from mmrm.train.recipe.epoch import UNKNOWN, epoch_records, known_steps, source_rows
from mmrm.train.recipe.input_paths import absent
from mmrm.train.recipe.memory import (
    GIB,
    activations,
    checkpoint_bytes,
    per_rank,
    trained,
    writing_price,
)
from mmrm.train.recipe.methods import CriticConfig, NaiveConfig, PolicyConfig, RolloutConfig
from mmrm.train.recipe.parsing import Launch
from mmrm.train.recipe.recipe import Recipe

GPUS = (8, 64, 512)
"""Numbers of GPUs that the cost of a step is shown for."""
RANKS = (1, 8, 64)
"""Numbers of ranks that the memory table always shows."""

SUMMED_IN_BF16 = "gradients of a step's rows are summed in bf16: zero2 and zero3 sum them in fp32"


def dry_run(launch: Launch) -> None:
    """Print the plan of `launch`, on the first rank only."""
    if is_first_rank():
        show(launch.recipe, int(os.environ.get("WORLD_SIZE", "1")), plain_console(highlight=False))


def show(recipe: Recipe, world_size: int, console: Console) -> None:
    """Print the plan of `recipe`, and the memory of a rank by DeepSpeed configuration and number of ranks."""
    about = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for topic, lines in plan_lines(recipe).items():
        for position, line in enumerate(filter(None, lines)):
            about.add_row(Text("" if position else topic, "bold"), line)
    console.print(about)
    shape, all_ranks = shape_of(recipe.backbone.path), sorted({*RANKS, world_size})
    if shape is None:
        console.print("\nMemory is not estimated: the backbone's config.json is not at hand.")
        return
    console.print("\nGiB a rank for weights, gradients and optimizer states. ← is this recipe.")
    table = Table(
        "deepspeed",
        *(Column(f"{ranks} rank{'s' * (ranks != 1)}", justify="right") for ranks in all_ranks),
    )
    for name in deepspeed_names():
        found = [per_rank(recipe, shape, name, ranks) for ranks in all_ranks]
        cells = [
            f"{device / GIB:.2f}" + (f" + {host / GIB:.2f} host" if host else "")
            for device, host in found
        ]
        mine = name == recipe.deepspeed
        table.add_row(f"{name} ←" if mine else name, *cells, style="bold" if mine else None)
    console.print(table)
    _, tokens, patches = full_row(recipe, shape)
    console.print(
        f"On top: {activations(recipe, shape, tokens, patches) / GIB:.1f} GiB of activations for a row of {tokens:,} tokens and "
        f"{patches:,} vision patches, and what the allocator and the libraries take.",
        soft_wrap=True,
    )
    if line := writing_line(recipe, shape, [ranks for ranks in all_ranks if ranks > 1]):
        console.print(line)
    if recipe.backbone.path != "embedded":
        show_cost(recipe, shape, sorted({*GPUS, world_size} - {1}), console)


def show_cost(recipe: Recipe, shape: Shape, gpus: list[int], console: Console) -> None:
    """Print what a step takes on several GPUs, how long the run is, and where the network holds it up."""
    (image, words), steps, budget = (
        record_tokens(recipe, shape),
        known_steps(recipe),
        recipe.optim.token_budget,
    )
    written = "" if isinstance(recipe.method, NaiveConfig) else "; what is written comes on top"
    console.print(
        f"\nA step on GPUs, without evaluations{written}. Assumed: records of an image of {image:,} tokens, {words:,} of text; "
        "every pair with a prompt of its own, for how many share one is known once the data are read; "
        f"rows of {ROW_TOKENS if budget == 'auto' else budget:,} tokens; {MFU:.0%} of {PEAK / 1e12:.0f} TFLOP/s, the same for "
        f"H100 and H200; a GPU gets {INSIDE / 1e9:.0f} GB/s in a node of {NODE} and {BETWEEN / 1e9:.0f} GB/s between nodes; "
        "transfers overlap with computation, so that a step takes the longer of the two. Received in a step: GB (seconds).",
        soft_wrap=True,
    )
    own = recipe.deepspeed
    names = [name.replace("_", " ") for name in COMPARED]
    table = Table(
        "GPUs",
        *(
            Column(name, justify="right")
            for name in ("rows", "compute s", *names, "hours", "GPU hours")
        ),
    )
    held_up = []
    for ranks in gpus:
        found = step_cost(recipe, shape, ranks)
        waits = [
            f"{found.received[name] / 1e9:.1f} ({found.waiting[name]:.2f})" for name in COMPARED
        ]
        hours = None if steps is None else steps * max(found.compute, found.waiting[own]) / 3600
        spent = ["–", "–"] if hours is None else [f"{hours:,.1f}", f"{hours * ranks:,.0f}"]
        table.add_row(f"{ranks:,}", str(found.rows), f"{found.compute:.2f}", *waits, *spent)
        if found.waiting[own] > found.compute:
            held_up.append((ranks, found))
    console.print(table)
    for ranks, found in held_up[:1]:
        better = [
            f"deepspeed={name}, {found.waiting[name]:.2f} s and {per_rank(recipe, shape, name, ranks)[0] / GIB:.0f} GiB a GPU"
            for name in COMPARED
            if found.waiting[name] < 0.95 * found.waiting[own]
        ]
        console.print(
            f"From {ranks:,} GPUs on the network is the bottleneck: {found.waiting[own]:.2f} s for {found.compute:.2f} s of "
            f"computation. Ways out: {', '.join(['fewer GPUs', 'a larger optim.records_per_step', *better])}.",
            soft_wrap=True,
        )


def writing_line(recipe: Recipe, shape: Shape, all_ranks: list[int]) -> str:
    """Return what writing costs where the weights are divided over the ranks; empty where nothing is written."""
    method = recipe.method
    written = {
        "rollouts": isinstance(method, RolloutConfig) and method.engine == "transformers",
        "own critiques": isinstance(method, CriticConfig) and method.critique != "ground_truth",
        "evaluations": recipe.evaluates and not isinstance(method, NaiveConfig),
    }
    whats = [what for what, done in written.items() if done]
    if not whats or stage(recipe.deepspeed) < 3:
        return ""
    price = writing_price(recipe, shape)
    moved = ", ".join(
        f"{price.step * (ranks - 1) / ranks / GIB:.2f} on {ranks} ranks" for ranks in all_ranks
    )
    return (
        f"\nWriting ({', '.join(whats)}): all weights, {price.whole / GIB:.2f} GiB, are gathered once each time where every rank "
        f"then has {price.free / GIB:.2f} GiB free; else every layer is gathered for each step, which writes one token of all "
        f"continuations in a row, and each rank receives GiB a step: {moved}."
    )


def plan_lines(recipe: Recipe) -> dict[str, list[str]]:
    """Return each topic with what is said about it; an empty line is not printed."""
    shape, output = shape_of(recipe.backbone.path), recipe.output
    records, origin = epoch_records(recipe.data)
    return {
        "backbone": backbone_lines(recipe, shape),
        "method": [recipe.method.summary, head_line(recipe, shape) if recipe.has_head else ""],
        "data": [
            *map(source_line, recipe.data.sources),
            f"an epoch has {number(records)} records ({origin})",
        ],
        "steps": step_lines(recipe, records),
        "optimisation": optimisation_lines(recipe),
        "deepspeed": [
            deepspeed_line(recipe.deepspeed),
            ""
            if sums_in_fp32(recipe.deepspeed) or recipe.backbone.dtype == "float32"
            else SUMMED_IN_BF16,
        ],
        "evaluation": evaluation_lines(recipe) if recipe.evaluates else ["none"],
        "output": [
            f"{output.folder}{' (exists)' if Path(output.folder).exists() else ''}, resume {output.resume}",
            f"a checkpoint every {output.save_every_steps:,} steps, the newest {output.keep_checkpoints} are kept"
            + (f", about {checkpoint_bytes(recipe, shape) / GIB:,.2f} GiB each" if shape else ""),
            f"the best one goes to {output.push_to_hub}" if output.push_to_hub else "",
        ],
        "missing": [
            f"{path} ({key}); a start needs it, from an earlier run or a download"
            for key, path in absent(recipe)
        ],
    }


def backbone_lines(recipe: Recipe, shape: Shape | None) -> list[str]:
    """Return what is said about the backbone: checkpoint, size, what is trained, image size."""
    backbone, lora = recipe.backbone, recipe.optim.lora
    limits = backbone.min_pixels, backbone.max_pixels
    seen = shape.image_tokens(backbone) if shape else None
    tokens = (
        f"{seen.how}{seen.bounds[0]:,} to {seen.bounds[1]:,} tokens"
        if seen
        else f"{UNKNOWN} tokens"
    )
    sizes = [
        f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.2f} M"
        for n in (trained(recipe, shape) if shape else ())
    ]
    return [
        f"{backbone.path} in {backbone.dtype}, attention {backbone.attention}",
        f"images of {limits[0]:,} to {limits[1]:,} pixels: {tokens} each",
        f"{sizes[0]} parameters, {sizes[1]} of them trained" if sizes else "",
        f"LoRA of rank {lora.rank} on the language model, quantisation {lora.quantise}"
        if lora
        else "",
        f"frozen: {', '.join(backbone.freeze)}" if backbone.freeze else "",
    ]


def head_line(recipe: Recipe, shape: Shape | None) -> str:
    """Return the reward head in words."""
    head = recipe.head
    layers = (
        f"{head.layers} linear layers with {head.activation} between"
        if head.layers > 1
        else "1 linear layer"
    )
    width = head.width or (shape.hidden_size if shape else "of the backbone")
    return f"reward head: {layers}, width {width}, dropout {head.dropout:g}, read at {head.read}"


def step_lines(recipe: Recipe, records: int | None) -> list[str]:
    """Return how many optimizer steps the run has, over how many records, and how large they are."""
    optim, per_step = recipe.optim, recipe.optim.records_per_step
    budget = (
        "the largest that fits"
        if optim.token_budget == "auto"
        else f"{optim.token_budget:,} tokens"
    )
    steps = known_steps(recipe)
    if steps is None:
        length = f"{optim.epochs:g} epochs; steps {UNKNOWN}"
    elif not records:
        length = f"{steps:,} steps: {steps * per_step:,} records"
    else:  # the last step of an epoch takes what is left
        epochs, more = divmod(steps, ceil(records / per_step))
        seen = epochs * records + min(more * per_step, records)
        length = f"{steps:,} steps: {seen:,} records, {seen / records:.2f} epochs"
    return [
        f"{per_step:,} records a step, packed into rows of {budget}",
        length,
        f"tokens {UNKNOWN}",
    ]


def optimisation_lines(recipe: Recipe) -> list[str]:
    """Return learning rates, schedule and the other numbers of the optimizer."""
    optim = recipe.optim
    rates = {"head": optim.head_learning_rate, "vision": optim.vision_learning_rate}
    own = "".join(f", {part} {rate:g}" for part, rate in rates.items() if rate is not None)
    return [
        f"{optim.optimizer}: learning rate {optim.learning_rate:g}{own}",
        f"schedule {optim.schedule}, warm-up over {optim.warmup_ratio:.0%} of the steps",
        f"betas {optim.betas[0]:g} and {optim.betas[1]:g}, weight decay {optim.weight_decay:g}",
        f"gradient norm clipped to {optim.max_grad_norm:g}",
        f"activation checkpointing {'on' if optim.activation_checkpointing else 'off'}",
    ]


def deepspeed_line(name: str) -> str:
    """Return the DeepSpeed configuration and what it divides over the ranks."""
    if name == NONE:
        return "none: every rank holds everything"
    divided = (
        "nothing",
        "optimizer states",
        "optimizer states and gradients",
        "optimizer states, gradients and weights",
    )
    kept = [
        what
        for what, moved in zip(("optimizer states", "weights"), offloads(name), strict=True)
        if moved
    ]
    host = f"; {' and '.join(kept)} in host memory" if kept else ""
    return f"{name}: ZeRO-{stage(name)} divides {divided[stage(name)]}{host}"


def evaluation_lines(recipe: Recipe) -> list[str]:
    """Return which benchmarks are evaluated, when, and what chooses the best checkpoint."""
    evaluation, lines = (
        recipe.evaluation,
        [f"questions: {source_line(source)}" for source in recipe.evaluation.questions],
    )
    for benchmark in evaluation.benchmarks:
        known = BENCHMARKS[benchmark.name].known
        rows = f", {known[-1].rows:,} rows stated" if benchmark.location == "hub" and known else ""
        limit = "" if benchmark.limit is None else f", limited to {benchmark.limit:,}"
        lines.append(f"{benchmark.name} ({benchmark.location}{rows}{limit})")
    if recipe.data.validation:
        figures = [name for name in recipe.held_out_figures if name.startswith(f"{HELD_OUT}/")]
        lines.append(
            f"{recipe.data.validation:,} records withheld from training: {' and '.join(figures)}"
        )
    if isinstance(recipe.method, PolicyConfig):
        how = f"a greedy answer and {evaluation.samples} sampled ones to each question"
    else:
        how = f"protocol: {evaluation.protocol.done('all rows', pairwise=not recipe.has_head)}"
    start = ", and before the first step" if evaluation.at_start else ""
    best = (
        "no best checkpoint is kept"
        if evaluation.best_metric is None
        else f"best checkpoint by {evaluation.best_metric}"
    )
    return [
        *lines,
        f"at every save{start}; {how}",
        best
        + (
            "; content-blind baselines beside"
            if evaluation.baselines and not isinstance(recipe.method, PolicyConfig)
            else ""
        ),
    ]


def number(value: int | None) -> str:
    """Return a count with separators."""
    return "an unknown number of" if value is None else f"{value:,}"


def source_line(source: SourceConfig) -> str:
    """Return a source, where it lies and its size."""
    kind = "" if source.label == source.type else f" ({source.type})"
    place = f" from {source.path or source.hub}" if isinstance(source, FilesConfig) else ""
    rows, origin = source_rows(source)
    return f"{source.label}{kind}{place}: {number(rows)} rows ({origin})"
