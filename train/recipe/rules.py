"""What the keys of a recipe must be to one another; every rule says the way out.

A rule names the keys that it reads, so that it is left out while one of them is wrong in itself.

What the keys of a `method` section must be to one another; train/recipe/rules.py lists these among all rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from data.config.layers import Located
from data.config.validation import Path, dotted, written
from data.errors import Problem
from train.recipe.deepspeed_config import deepspeed_names, stage
from train.recipe.methods import CriticConfig, LanguageModelConfig, StableReinforceConfig
from train.recipe.recipe import Recipe

WITH_CRITIQUES = ("mm_rlhf", "project", "shapes")
"""Types of sources whose records may hold critiques."""
WITH_RATIONALES = ("project", "r1_reward", "shapes")
"""Types of sources whose records may hold rationales."""


def critic_share(recipe: Recipe) -> str | None:
    """Refuse a mixture of critiques without its share, and a share without a mixture."""
    method = recipe.method
    if not isinstance(method, CriticConfig) or (method.critique == "mixture") == (method.own_share is not None):
        return None
    if method.critique == "mixture":
        return "a mixture needs method.own_share, the share of records scored on the model's own critique, for example 0.5"
    return f"own_share belongs to critique: mixture; with {method.critique} it would be unused; remove it"


def critiques_to_learn(recipe: Recipe) -> str | None:
    """Refuse a critic on sources whose records never hold a critique."""
    method, sources = recipe.method, recipe.data.sources
    if not isinstance(method, CriticConfig) or method.records_without_critique == "score_only":
        return None
    if any(source.type in WITH_CRITIQUES for source in sources):
        return None
    return (
        f"the critic learns from critiques, and records of {', '.join(sorted({source.type for source in sources}))} hold none; "
        f"add a source of type {', '.join(WITH_CRITIQUES[:-1])} or {WITH_CRITIQUES[-1]}, or set "
        "method.records_without_critique=score_only"
    )


def critic_weights(recipe: Recipe) -> str | None:
    """Refuse a critic whose two losses both count nothing."""
    method = recipe.method
    if not isinstance(method, CriticConfig) or method.score_weight or method.cross_entropy_weight:
        return None
    return "both weights of the critic are 0: nothing would be trained; raise score_weight or cross_entropy_weight"


def critic_reads_the_end(recipe: Recipe) -> str | None:
    """Refuse a critic's head that reads anything but the end of the critique: that is where writing leaves off."""
    if not isinstance(recipe.method, CriticConfig) or recipe.head.read == "end_of_turn":
        return None
    return f"a critic's head reads the end of the critique, not {recipe.head.read}; set head.read=end_of_turn or remove it"


def group_size(recipe: Recipe) -> str | None:
    """Refuse a baseline within a group of one."""
    method = recipe.method
    if not isinstance(method, StableReinforceConfig) or method.advantages.normalisation == "batch" or method.num_generations > 1:
        return None
    return (
        f"{method.advantages.normalisation} compares the judgements of one pair, and there is only 1; "
        "set method.num_generations to 2 or more, or method.advantages.normalisation=batch"
    )


def filter_can_fire(recipe: Recipe) -> str | None:
    """Refuse a filter that never acts: in a group of G the largest standardised value is (G - 1)/sqrt(G)."""
    method = recipe.method
    if not isinstance(method, StableReinforceConfig) or method.advantages.normalisation != "group":
        return None
    size, bound = method.num_generations, method.advantages.filter
    largest = (size - 1) / math.sqrt(size)
    if bound is None or largest > bound:
        return None
    return (
        f"no advantage in a group of {size} exceeds {largest:.2f}, so a filter at {bound:g} never acts; set "
        "method.advantages.normalisation=batch as in the paper, method.advantages.filter=null, or more generations"
    )


def ratio_in_order(recipe: Recipe) -> str | None:
    """Refuse pre-clip bounds that do not enclose 1, the ratio of an unchanged policy."""
    method = recipe.method
    if not isinstance(method, StableReinforceConfig) or method.pre_clip is None:
        return None
    low, high = method.pre_clip.lowest, method.pre_clip.highest
    return None if low < 1 < high else f"the bounds {low:g} and {high:g} must enclose 1, the ratio before any update"


def judging_used(recipe: Recipe) -> str | None:
    """Refuse settings of a writing judge for a method that trains none, and greedy votes, which are all alike."""
    evaluation, method = recipe.evaluation, recipe.method
    if not isinstance(method, LanguageModelConfig | StableReinforceConfig):
        if "judging" not in evaluation.model_fields_set:
            return None
        return f"the method {method.type} trains no judge that writes judgements; remove this section"
    if evaluation.protocol.votes == 1 or evaluation.judging.temperature:
        return None
    return f"{evaluation.protocol.votes} greedy votes are all alike; set evaluation.judging.temperature=1.0, or 1 vote"


def learns_judgements(recipe: Recipe) -> bool:
    """Say whether the recipe is a cold start of a judge."""
    return isinstance(recipe.method, LanguageModelConfig) and recipe.method.target == "judgement"


def rationales_to_learn(recipe: Recipe) -> str | None:
    """Refuse a cold start on sources whose records never hold a rationale."""
    sources = recipe.data.sources
    if not learns_judgements(recipe):
        return None
    if any(source.type in WITH_RATIONALES for source in sources):
        return None
    types = ", ".join(sorted({source.type for source in sources}))
    return (
        f"a cold start learns from rationales, and records of {types} hold none; "
        "annotate them (python eval/annotate.py --help) and take the files as a source of type project"
    )


def passes_divide(recipe: Recipe) -> str | None:
    """Refuse passes that do not divide a step."""
    method, pairs = recipe.method, recipe.optim.records_per_step
    if not isinstance(method, StableReinforceConfig) or pairs % method.pairs_per_pass == 0:
        return None
    return f"{method.pairs_per_pass} pairs a pass do not divide the {pairs} pairs of a step; take a divisor of {pairs}"


def lessons_world(recipe: Recipe) -> str | None:
    """Refuse lessons from anything but one embedded world."""
    method, sources = recipe.method, recipe.data.sources
    if not isinstance(method, LanguageModelConfig) or method.target != "lessons":
        return None
    if len(sources) == 1 and sources[0].type == "shapes":
        return None
    return "lessons are drawn from the embedded world: data.sources must hold exactly one source, of type shapes"


@dataclass(frozen=True, slots=True)
class RecipeRule:
    """`broken` returns what is wrong and what to do, or None; the first key of `reads` is the one to look at."""

    reads: tuple[str, ...]
    broken: Callable[[Recipe], str | None]


def check(recipe: Recipe, tree: Located, broken: Iterable[Path], rules: Iterable[RecipeRule]) -> list[Problem]:
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
    RecipeRule(("backbone.min_pixels", "backbone.max_pixels"), pixels_in_order),
    RecipeRule(("backbone.attention", "backbone.dtype"), varlen_dtype),
    RecipeRule(("backbone.freeze", "method.type"), something_to_train),
    RecipeRule(("head", "method.type"), head_used),
    RecipeRule(("head.read", "method.type"), critic_reads_the_end),
    RecipeRule(("method.own_share", "method.critique"), critic_share),
    RecipeRule(("method.score_weight", "method.cross_entropy_weight"), critic_weights),
    RecipeRule(("method.records_without_critique", "method.type", "data.sources"), critiques_to_learn),
    RecipeRule(("method.advantages.normalisation", "method.num_generations"), group_size),
    RecipeRule(("method.advantages.filter", "method.advantages.normalisation", "method.num_generations"), filter_can_fire),
    RecipeRule(("method.pre_clip",), ratio_in_order),
    RecipeRule(("optim.max_steps", "optim.epochs"), one_length),
    RecipeRule(("optim.head_learning_rate", "method.type"), head_rate_used),
    RecipeRule(("optim.vision_learning_rate", "optim.lora", "backbone.freeze"), vision_rate_used),
    RecipeRule(("optim.lora", "backbone.freeze"), lora_and_freeze),
    RecipeRule(("deepspeed",), known_deepspeed),
    RecipeRule(("optim.lora.quantise", "deepspeed"), quantised_stage),
    RecipeRule(("evaluation.benchmarks",), benchmark_names),
    RecipeRule(("evaluation.best_metric", "evaluation.benchmarks", "data.validation"), metric_exists),
    RecipeRule(("data.validation", "method.target"), validation_of_records),
    RecipeRule(("method.target", "data.sources"), lessons_world),
    RecipeRule(("method.target", "data.sources"), rationales_to_learn),
    RecipeRule(("method.pairs_per_pass", "optim.records_per_step"), passes_divide),
    RecipeRule(("evaluation.judging", "evaluation.protocol", "method.type"), judging_used),
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
