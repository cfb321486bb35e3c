"""What the keys of a recipe must be to one another; every rule says the way out.

A rule names the keys that it reads, so that it is left out while one of them is wrong in itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from data.overlay import Located
from train.layers import Problem
from train.method_rules import (
    critic_reads_the_end,
    critic_share,
    critic_weights,
    critiques_to_learn,
    filter_can_fire,
    group_size,
    judging_used,
    lessons_world,
    passes_divide,
    ratio_in_order,
    rationales_to_learn,
)
from train.methods import LanguageModelConfig
from train.recipe import Recipe
from train.validation import Path, dotted, written
from train.zero import deepspeed_names, stage


@dataclass(frozen=True, slots=True)
class Rule:
    """`broken` returns what is wrong and what to do, or None; the first key of `reads` is the one to look at."""

    reads: tuple[str, ...]
    broken: Callable[[Recipe], str | None]


def check(recipe: Recipe, tree: Located, broken: Iterable[Path], rules: Iterable[Rule]) -> list[Problem]:
    """Return which of `rules` the `recipe` read from `tree` breaks; `broken` are the keys that are wrong already."""
    bad = [dotted(path) for path in broken]
    found = []
    for rule in rules:
        if any(_related(key, other) for key in rule.reads for other in bad):
            continue
        message = rule.broken(recipe)
        if message is not None:
            found.append(_problem(rule.reads[0], message, tree))
    return found


def _related(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _problem(key: str, message: str, tree: Located) -> Problem:
    path = key.split(".")
    given = tree.at(path)
    return Problem(tree.nearest(path).where, key, written(given.plain()) if given else "", message)


def one_length(recipe: Recipe) -> str | None:
    """Refuse a run without a length, or with two."""
    optim = recipe.optim
    if (optim.epochs is None) != (optim.max_steps is None):
        return None
    both = "both are" if optim.epochs is not None else "neither is"
    return f"give either optim.epochs or optim.max_steps; {both} given (a value that a recipe extends is taken back by null)"


def known_deepspeed(recipe: Recipe) -> str | None:
    """Refuse a DeepSpeed configuration that is no file in recipes/deepspeed."""
    names = deepspeed_names()
    if recipe.deepspeed in names:
        return None
    return f"there is no recipes/deepspeed/{recipe.deepspeed}.json; take one of {', '.join(names)}, or add that file"


def pixels_in_order(recipe: Recipe) -> str | None:
    """Refuse image limits that no image can keep."""
    low, high = recipe.backbone.min_pixels, recipe.backbone.max_pixels
    return None if low <= high else f"min_pixels {low} is above max_pixels {high}: no image fits both; lower min_pixels"


def varlen_dtype(recipe: Recipe) -> str | None:
    """Refuse the varlen kernel in fp32: it computes in half precision only."""
    if recipe.backbone.attention != "varlen" or recipe.backbone.dtype == "bfloat16":
        return None
    return "the varlen kernel takes bfloat16 only; set backbone.dtype=bfloat16 or backbone.attention=auto"


def something_to_train(recipe: Recipe) -> str | None:
    """Refuse a run in which nothing is trained; with everything frozen a head, if there is one, still is."""
    everything = set(recipe.backbone.freeze) == {"vision_tower", "projector", "language_model"}
    if not everything or recipe.has_head:
        return None
    return f"everything is frozen and the method {recipe.method.type} has no head: nothing would be trained; thaw a part"


def lora_and_freeze(recipe: Recipe) -> str | None:
    """Refuse adapters in a frozen language model."""
    if recipe.optim.lora is None or "language_model" not in recipe.backbone.freeze:
        return None
    return "the adapters sit in the language model, which backbone.freeze keeps fixed; remove one of the two"


def vision_rate_used(recipe: Recipe) -> str | None:
    """Refuse a learning rate for a vision tower that does not learn."""
    if recipe.optim.vision_learning_rate is None:
        return None
    if recipe.optim.lora is not None:
        return "with LoRA the vision tower is not trained, so this rate would be unused; remove it or optim.lora"
    if {"vision_tower", "projector"} <= set(recipe.backbone.freeze):
        return "vision tower and projector are frozen, so this rate would be unused; remove it or thaw one of them"
    return None


def head_used(recipe: Recipe) -> str | None:
    """Refuse a head for a method that has none."""
    if recipe.has_head or "head" not in recipe.model_fields_set:
        return None
    return f"the method {recipe.method.type} has no reward head; remove this section"


def head_rate_used(recipe: Recipe) -> str | None:
    """Refuse a learning rate for a head that is not there."""
    if recipe.has_head or recipe.optim.head_learning_rate is None:
        return None
    return f"the method {recipe.method.type} has no reward head, so this rate would be unused; remove it"


def quantised_stage(recipe: Recipe) -> str | None:
    """Refuse 4-bit weights under ZeRO-3: they stay whole on every rank."""
    lora = recipe.optim.lora
    if lora is None or lora.quantise == "none" or recipe.deepspeed not in deepspeed_names() or stage(recipe.deepspeed) < 3:
        return None
    return "ZeRO-3 does not partition 4-bit weights; set deepspeed=zero2 (or none), or optim.lora.quantise=none"


def metric_exists(recipe: Recipe) -> str | None:
    """Refuse to choose the best checkpoint by a figure that is not computed."""
    metric, names = recipe.evaluation.best_metric, [benchmark.name for benchmark in recipe.evaluation.benchmarks]
    if metric is None or metric in recipe.held_out_figures:
        return None
    name, _, figure = metric.partition("/")
    if name in names and (figure in ("accuracy", "macro") or figure.endswith("/accuracy")):
        return None
    possible = [f"{name}/{figure}" for name in names for figure in ("accuracy", "macro", "GROUP/accuracy")]
    return (
        "the best checkpoint is chosen by benchmark/figure, with a benchmark of evaluation.benchmarks, or by a figure on the "
        f"records of data.validation; possible are {', '.join([*possible, *recipe.held_out_figures]) or 'none: both are empty'}"
    )


def validation_of_records(recipe: Recipe) -> str | None:
    """Refuse to hold records out of lessons, which are no records."""
    if not recipe.data.validation or not isinstance(recipe.method, LanguageModelConfig) or recipe.method.target != "lessons":
        return None
    return "lessons are generated anew and none is held out; remove this key"


def benchmark_names(recipe: Recipe) -> str | None:
    """Refuse a benchmark twice: results are filed under its name."""
    names = [benchmark.name for benchmark in recipe.evaluation.benchmarks]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"{', '.join(twice)} is listed twice and would overwrite its own results; keep one" if twice else None


RULES = (
    Rule(("backbone.min_pixels", "backbone.max_pixels"), pixels_in_order),
    Rule(("backbone.attention", "backbone.dtype"), varlen_dtype),
    Rule(("backbone.freeze", "method.type"), something_to_train),
    Rule(("head", "method.type"), head_used),
    Rule(("head.read", "method.type"), critic_reads_the_end),
    Rule(("method.own_share", "method.critique"), critic_share),
    Rule(("method.score_weight", "method.cross_entropy_weight"), critic_weights),
    Rule(("method.records_without_critique", "method.type", "data.sources"), critiques_to_learn),
    Rule(("method.advantages.normalisation", "method.num_generations"), group_size),
    Rule(("method.advantages.filter", "method.advantages.normalisation", "method.num_generations"), filter_can_fire),
    Rule(("method.pre_clip",), ratio_in_order),
    Rule(("optim.max_steps", "optim.epochs"), one_length),
    Rule(("optim.head_learning_rate", "method.type"), head_rate_used),
    Rule(("optim.vision_learning_rate", "optim.lora", "backbone.freeze"), vision_rate_used),
    Rule(("optim.lora", "backbone.freeze"), lora_and_freeze),
    Rule(("deepspeed",), known_deepspeed),
    Rule(("optim.lora.quantise", "deepspeed"), quantised_stage),
    Rule(("evaluation.benchmarks",), benchmark_names),
    Rule(("evaluation.best_metric", "evaluation.benchmarks", "data.validation"), metric_exists),
    Rule(("data.validation", "method.target"), validation_of_records),
    Rule(("method.target", "data.sources"), lessons_world),
    Rule(("method.target", "data.sources"), rationales_to_learn),
    Rule(("method.pairs_per_pass", "optim.records_per_step"), passes_divide),
    Rule(("evaluation.judging", "evaluation.protocol", "method.type"), judging_used),
)


def indivisible(recipe: Recipe, world_size: int) -> str | None:
    """Return what is wrong when the ranks cannot share a step evenly, None otherwise."""
    records = recipe.optim.records_per_step
    if records % world_size == 0:
        return None
    near = max(records // world_size, 1) * world_size
    return (
        f"{records} records a step do not divide over {world_size} ranks, and every rank must take as many as the others; "
        f"set optim.records_per_step={near}, or start a number of ranks that divides {records}"
    )


def needs_cuda(recipe: Recipe) -> dict[str, str]:
    """Return the keys of `recipe` that only a CUDA device can serve, each with what to do without one."""
    lora, found = recipe.optim.lora, {}
    if lora is not None and lora.quantise != "none":
        found["optim.lora.quantise"] = "4-bit weights need a CUDA device and there is none; set optim.lora.quantise=none"
    if recipe.backbone.attention == "varlen":
        found["backbone.attention"] = "the varlen kernel needs a CUDA device and there is none; set backbone.attention=auto"
    return found
