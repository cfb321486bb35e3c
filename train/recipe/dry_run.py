"""The dry run: what a recipe will do, said before anything is loaded. Needs no weights, no network and no torch.

How many records a run will draw, as far as that can be said before anything is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from data.mixture import MixtureConfig
from data.sources.shapes import ShapesConfig
from data.sources.shared.base import SourceConfig
from data.sources.shared.files import FilesConfig
from data.sources.ultrafeedback import UltraFeedbackConfig
from eval.benchmarks.table import BENCHMARKS, BenchmarkConfig
from train.recipe.deepspeed_config import deepspeed_names, offloads, stage
from train.recipe.memory import GIB, Shape, image_tokens, per_rank, shape_of, trained
from train.recipe.methods import CriticConfig, LanguageModelConfig, Method, NaiveConfig
from train.recipe.parsing import Launch
from train.recipe.recipe import Recipe

RANKS = (1, 8, 64)
"""Numbers of ranks that the memory table always shows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen, as lines for a person, and the memory of a rank by configuration and number of ranks."""

    lines: dict[str, list[str]]
    """Topic to what is said about it."""
    memory: dict[str, list[str]]
    """Name of a DeepSpeed configuration to one cell for each of `ranks`."""
    ranks: tuple[int, ...]
    chosen: str
    """The DeepSpeed configuration of the recipe."""


def dry_run(launch: Launch) -> None:
    """Print the plan of `launch`, on the first rank only."""
    if os.environ.get("RANK", "0") == "0":
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        show(make_plan(launch.recipe, world_size), Console(highlight=False))


def make_plan(recipe: Recipe, world_size: int = 1) -> Plan:
    """Return the plan of `recipe` on `world_size` ranks."""
    shape = shape_of(recipe.backbone.path)
    records, origin = epoch_records(recipe.data)
    lines = {
        "backbone": backbone_lines(recipe, shape),
        "method": [method_line(recipe.method), *([head_line(recipe, shape)] if recipe.has_head else [])],
        "data": [*map(source_line, recipe.data.sources), f"an epoch has {number(records)} records ({origin})"],
        "steps": step_lines(recipe, records),
        "optimisation": optimisation_lines(recipe),
        "deepspeed": [deepspeed_line(recipe.deepspeed)],
        "evaluation": evaluation_lines(recipe),
        "output": output_lines(recipe),
    }
    ranks = tuple(sorted({*RANKS, world_size}))
    memory = {} if shape is None else {name: memory_cells(recipe, shape, name, ranks) for name in deepspeed_names()}
    return Plan(lines, memory, ranks, recipe.deepspeed)


def billions(value: float) -> str:
    """Return a parameter count in billions or millions."""
    return f"{value / 1e9:.2f} B" if value >= 1e9 else f"{value / 1e6:.2f} M"


def backbone_lines(recipe: Recipe, shape: Shape | None) -> list[str]:
    """Return what is said about the backbone: checkpoint, size, what is trained, image size."""
    backbone = recipe.backbone
    low, high = image_tokens(backbone.min_pixels), image_tokens(backbone.max_pixels)
    lines = [
        f"{backbone.path} in {backbone.dtype}, attention {backbone.attention}",
        f"images of {backbone.min_pixels:,} to {backbone.max_pixels:,} pixels: {low:,} to {high:,} tokens each",
    ]
    if shape is not None:
        total, learned = trained(recipe, shape)
        lines.append(f"{billions(total)} parameters, {billions(learned)} of them trained")
    if recipe.optim.lora is not None:
        lines.append(f"LoRA of rank {recipe.optim.lora.rank} on the language model, quantisation {recipe.optim.lora.quantise}")
    if backbone.freeze:
        lines.append(f"frozen: {', '.join(backbone.freeze)}")
    return lines


def method_line(method: Method) -> str:
    """Return the loss in words."""
    if isinstance(method, NaiveConfig):
        extra = {
            "margin": method.margin,
            f"{method.zero_coefficient:g} x (chosen + rejected)^2": method.zero_coefficient > 0,
            "length normalisation": method.length_normalisation,
        }
        return "naive: Bradley-Terry" + "".join(f" + {name}" for name, used in extra.items() if used)
    if isinstance(method, CriticConfig):
        weights = f"{method.cross_entropy_weight:g} x cross-entropy + {method.score_weight:g} x Bradley-Terry"
        return f"critic: {weights}, critiques: {method.critique}"
    if isinstance(method, LanguageModelConfig):
        lessons = f"lessons of {method.questions} questions about a picture"
        return f"language_model: cross-entropy on {lessons if method.target == 'lessons' else 'judgements'}"
    advantages = method.advantages
    kept = "no filter" if advantages.filter is None else f"filter at {advantages.filter:g}"
    weights = "" if method.engine == "transformers" else f" with importance weights {method.importance_correction}"
    return (
        f"stable_reinforce: {method.num_generations} judgements a pair by {method.engine}{weights}, epsilon {method.epsilon:g}, "
        f"advantages by {advantages.normalisation} with {kept}, KL {method.kl_coefficient:g}"
    )


def head_line(recipe: Recipe, shape: Shape | None) -> str:
    """Return the reward head in words."""
    head = recipe.head
    layers = f"{head.layers} linear layers with {head.activation} between" if head.layers > 1 else "1 linear layer"
    width = head.width or (shape.hidden if shape else "of the backbone")
    return f"reward head: {layers}, width {width}, dropout {head.dropout:g}, read at {head.read}"


def step_lines(recipe: Recipe, records: int | None) -> list[str]:
    """Return how many optimizer steps the run has, over how many records, and how large they are."""
    optim = recipe.optim
    budget = "the largest that fits" if optim.token_budget == "auto" else f"{optim.token_budget:,} tokens"
    lines = [f"{optim.records_per_step:,} records a step, packed into rows of {budget}"]
    if optim.max_steps is None and records is None:
        return [*lines, f"{optim.epochs:g} epochs; steps {UNKNOWN}", f"tokens {UNKNOWN}"]
    steps = recipe.steps(records or 0)
    seen = steps * optim.records_per_step if not records else seen_records(steps, records, optim.records_per_step)
    epochs = f", {seen / records:.2f} epochs" if records else ""
    return [*lines, f"{steps:,} steps: {seen:,} records{epochs}", f"tokens {UNKNOWN}"]


def seen_records(steps: int, records: int, per_step: int) -> int:
    """Return how many records so many steps take; the last step of an epoch takes what is left."""
    epochs, more = divmod(steps, ceil(records / per_step))
    return epochs * records + min(more * per_step, records)


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
    if name == "none":
        return "none: every rank holds everything"
    divided = ("nothing", "optimizer states", "optimizer states and gradients", "optimizer states, gradients and weights")
    kept = [what for what, moved in zip(("optimizer states", "weights"), offloads(name), strict=True) if moved]
    host = f"; {' and '.join(kept)} in host memory" if kept else ""
    return f"{name}: ZeRO-{stage(name)} divides {divided[stage(name)]}{host}"


def benchmark_line(benchmark: BenchmarkConfig) -> str:
    """Return a benchmark, where it lies and its size."""
    known = BENCHMARKS[benchmark.name].known
    rows = f", {known[-1].rows:,} rows stated" if benchmark.location == "hub" and known else ""
    limit = "" if benchmark.limit is None else f", limited to {benchmark.limit:,}"
    return f"{benchmark.name} ({benchmark.location}{rows}{limit})"


def evaluation_lines(recipe: Recipe) -> list[str]:
    """Return which benchmarks are evaluated, when, and what chooses the best checkpoint."""
    evaluation = recipe.evaluation
    if not recipe.evaluates:
        return ["none"]
    start = ", and before the first step" if evaluation.at_start else ""
    best = "no best checkpoint is kept" if evaluation.best_metric is None else f"best checkpoint by {evaluation.best_metric}"
    return [
        *map(benchmark_line, evaluation.benchmarks),
        *[f"{recipe.data.validation:,} records withheld from training: {' and '.join(recipe.held_out_figures)}"]
        * bool(recipe.data.validation),
        f"at every save{start}; protocol: {evaluation.protocol.label}",
        best + ("; content-blind baselines beside" if evaluation.baselines else ""),
    ]


def output_lines(recipe: Recipe) -> list[str]:
    """Return where the run writes and how often."""
    output = recipe.output
    there = " (exists)" if Path(output.folder).exists() else ""
    lines = [
        f"{output.folder}{there}, resume {output.resume}",
        f"a checkpoint every {output.save_every_steps:,} steps, the newest {output.keep_checkpoints} are kept",
    ]
    return lines + [f"the best one goes to {output.push_to_hub}" for _ in [output.push_to_hub] if output.push_to_hub]


def memory_cells(recipe: Recipe, shape: Shape, deepspeed: str, ranks: tuple[int, ...]) -> list[str]:
    """Return GiB on the device, and in host memory where some is used, for each number of ranks."""
    found = [per_rank(recipe, shape, deepspeed, n) for n in ranks]
    return [f"{m.device / GIB:.2f}" + (f" + {m.host / GIB:.2f} host" if m.host else "") for m in found]


def show(plan: Plan, console: Console) -> None:
    """Print `plan`."""
    about = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for topic, lines in plan.lines.items():
        for position, line in enumerate(lines):
            about.add_row("" if position else f"[bold]{topic}[/bold]", line)
    console.print(about)
    if not plan.memory:
        console.print("\nMemory is not estimated: the backbone's config.json is not at hand.")
        return
    console.print("\nGiB a rank for weights, gradients and optimizer states; activations come on top. ← is this recipe.")
    table = Table()
    table.add_column("deepspeed")
    for ranks in plan.ranks:
        table.add_column(f"{ranks} rank{'s' * (ranks != 1)}", justify="right")
    for name, cells in plan.memory.items():
        mine = name == plan.chosen
        table.add_row(f"{name} ←" if mine else name, *cells, style="bold" if mine else None)
    console.print(table)


STATED_ROWS = {
    "OpenGVLab/MMPR-v1.2": 3_000_000,
    "allenai/llama-3.1-tulu-3-8b-preference-mixture": 271_409,
    "allenai/olmo-2-1124-7b-preference-mix": 378_341,
    "nvidia/HelpSteer3": 38_459,
    "openbmb/RLAIF-V-Dataset": 83_132,
    "openbmb/UltraFeedback": 63_967,
    "trl-lib/rlaif-v": 83_132,
    "yifanzhang114/R1-Reward-RL": 17_261,
}
"""Rows of public data sets as their cards state them; what a run really reads is in its data card."""

UNKNOWN = "known once the data are read (python data/mixture.py RECIPE --plan)"


def number(value: int | None) -> str:
    """Return a count with separators."""
    return "an unknown number of" if value is None else f"{value:,}"


def source_rows(source: SourceConfig) -> tuple[int | None, str]:
    """Return the rows that an epoch draws from `source` before anything is left out, and how that is known."""
    rows, origin = None, "counted at the first reading"
    if isinstance(source, ShapesConfig):
        rows, origin = source.rows, "generated"
    elif isinstance(source, FilesConfig) and _is_public(source) and source.hub in STATED_ROWS:
        rows, origin = STATED_ROWS[source.hub], "stated by its card"
    if rows is None:
        return None, origin
    if source.cap is not None and source.cap < rows:
        rows, origin = source.cap, f"{origin}, capped"
    return round(rows * source.repeat), origin


def _is_public(source: FilesConfig) -> bool:
    """Say whether `source` is the data set on the hub, row by row; all pairs of scored responses are many to a row."""
    return source.path is None and not (isinstance(source, UltraFeedbackConfig) and source.pairs == "all")


def source_line(source: SourceConfig) -> str:
    """Return a source, where it lies and its size."""
    kind = "" if source.label == source.type else f" ({source.type})"
    place = f" from {source.path or source.hub}" if isinstance(source, FilesConfig) else ""
    rows, origin = source_rows(source)
    return f"{source.label}{kind}{place}: {number(rows)} rows ({origin})"


def epoch_records(data: MixtureConfig) -> tuple[int | None, str]:
    """Return the length of an epoch, None if it depends on data that nobody has read, and how it is known."""
    if data.records is not None:
        return data.records, "data.records"
    rows = [source_rows(source)[0] for source in data.sources]
    sizes = {source.label: count for source, count in zip(data.sources, rows, strict=True) if count is not None}
    if len(sizes) < len(rows) or any(part.modality != "all" for part in data.stages):
        return None, UNKNOWN
    if data.stages:
        drawn = [part.repeat * sum(sizes[name] for name in part.sources or sizes) for part in data.stages]
        return round(sum(drawn)), "the sum of its stages, before filters"
    return sum(sizes.values()) - data.validation, "the sum of its sources less validation, before filters"
