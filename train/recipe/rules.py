"""What the keys of a recipe must be to one another; every message says the way out."""

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from mmrm.data.config.layers import Located
from mmrm.data.config.registry import installed_rows
from mmrm.data.config.validation import Path, dotted, written
from mmrm.data.errors import Problem, UserError
from mmrm.data.sources.registry import SOURCES
from mmrm.train.recipe.deepspeed_config import deepspeed_names, stage
from mmrm.train.recipe.epoch import epoch_records
from mmrm.train.recipe.input_paths import input_rules
from mmrm.train.recipe.methods import (
    ENTRIES,
    CriticConfig,
    LanguageModelConfig,
    LengthTerm,
    PolicyConfig,
    RolloutConfig,
)
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.sections import EvaluationConfig

Broken = Iterator[tuple[str, ...]]
"""For each broken rule a message and the keys that the rule reads, the one to look at first."""


def check(
    recipe: Recipe,
    tree: Located,
    wrong: Iterable[Path],
    entry: str | None,
    world_size: int,
    *,
    start: bool = False,
) -> list[Problem]:
    """Return which rules `recipe`, read from `tree`, breaks; rules that read a key which is `wrong` in itself are left out.

    Where the script `entry` that runs it is known, that includes the length of the run and what the recipe names on this machine;
    `start` says that it is no dry run.
    """
    skipped = [f"{dotted(path)}." for path in wrong]
    found = []
    sections = (
        model_rules,
        critic_rules,
        reinforce_rules,
        policy_rules,
        optim_rules,
        evaluation_rules,
        language_model_rules,
    )
    inputs = chain(length_rules(recipe), input_rules(recipe, start=start)) if entry else ()
    for message, *keys in chain(
        *(rules(recipe) for rules in sections), start_rules(recipe, entry, world_size), inputs
    ):
        read = [f"{key}." for key in keys]
        if any(key.startswith(other) or other.startswith(key) for key in read for other in skipped):
            continue
        path = keys[0].split(".")
        given = tree.at(path)
        found.append(
            Problem(
                tree.nearest(path).where, keys[0], written(given.plain()) if given else "", message
            )
        )
    return found


def model_rules(recipe: Recipe) -> Broken:
    """Check the backbone and the reward head."""
    backbone, method = recipe.backbone, recipe.method.type
    low, high = backbone.min_pixels, backbone.max_pixels
    if low > high:
        message = (
            f"min_pixels {low} is above max_pixels {high}: no image fits both; lower min_pixels"
        )
        yield message, "backbone.min_pixels", "backbone.max_pixels"
    if backbone.attention == "varlen" and backbone.dtype != "bfloat16":
        message = "the varlen kernel takes bfloat16 only; set backbone.dtype=bfloat16 or backbone.attention=auto"
        yield message, "backbone.attention", "backbone.dtype"
    if forged := re.findall(r"<\|\w+\|>", backbone.system_prompt or ""):
        message = f"the prompt holds {', '.join(forged)}, which the backbone would take for its own control tokens; remove them"
        yield message, "backbone.system_prompt"
    if recipe.has_head:
        return
    if set(backbone.freeze) == {"vision_tower", "projector", "language_model"}:
        message = f"everything is frozen and the method {method} has no head: nothing would be trained; thaw a part"
        yield message, "backbone.freeze", "method.type"
    if "head" in recipe.model_fields_set:
        message = f"the method {method} has no reward head; remove this section"
        yield message, "head", "method.type"


def critic_rules(recipe: Recipe) -> Broken:
    """Check a critic; its head reads the end of the critique, because that is where writing leaves off."""
    method, types = recipe.method, {source.type for source in recipe.data.sources}
    if not isinstance(method, CriticConfig):
        return
    if (read := recipe.head.read) != "end_of_turn":
        message = f"a critic's head reads the end of the critique, not {read}; set head.read=end_of_turn or remove it"
        yield message, "head.read", "method.type"
    share = ("method.own_share", "method.critique")
    if method.critique == "mixture" and method.own_share is None:
        yield (
            "a mixture needs method.own_share, the share of records scored on the model's own critique, for example 0.5",
            *share,
        )
    if method.critique != "mixture" and method.own_share is not None:
        yield (
            f"own_share belongs to critique: mixture; with {method.critique} it would be unused; remove it",
            *share,
        )
    if not method.score_weight and not method.cross_entropy_weight:
        message = "both weights of the critic are 0: nothing would be trained; raise score_weight or cross_entropy_weight"
        yield message, "method.score_weight", "method.cross_entropy_weight"
    has_critiques = any(source.has_critiques for source in recipe.data.sources)
    if method.records_without_critique == "refuse" and not has_critiques:
        suitable = [name for name, kind in installed_rows(SOURCES).items() if kind.has_critiques]
        message = (
            f"the critic learns from critiques, and records of {', '.join(sorted(types))} hold none; add a source of type "
            f"{', '.join(suitable[:-1])} or {suitable[-1]}, or set method.records_without_critique=score_only"
        )
        yield message, "method.records_without_critique", "method.type", "data.sources"


def reinforce_rules(recipe: Recipe) -> Broken:
    """Check what is trained on sampled texts; in a group of G the largest standardised advantage is (G - 1)/sqrt(G)."""
    method, pairs = recipe.method, recipe.optim.records_per_step
    if not isinstance(method, RolloutConfig):
        return
    size, bound, kind = (
        method.num_generations,
        method.advantages.filter,
        method.advantages.normalisation,
    )
    if kind != "batch" and size == 1:
        message = (
            f"{kind} compares the judgements of one pair, and there is only 1; "
            "set method.num_generations to 2 or more, or method.advantages.normalisation=batch"
        )
        yield message, "method.advantages.normalisation", "method.num_generations"
    largest = (size - 1) / math.sqrt(size)
    if kind == "group" and bound is not None and largest <= bound:
        message = (
            f"no advantage in a group of {size} exceeds {largest:.2f}, so a filter at {bound:g} never acts; set "
            "method.advantages.normalisation=batch as in the paper, method.advantages.filter=null, or more generations"
        )
        yield (
            message,
            "method.advantages.filter",
            "method.advantages.normalisation",
            "method.num_generations",
        )
    clip = method.pre_clip
    if clip is not None and not clip.lowest < 1 < clip.highest:
        message = f"the bounds {clip.lowest:g} and {clip.highest:g} must enclose 1, the ratio before any update"
        yield message, "method.pre_clip"
    if pairs % method.pairs_per_pass:
        message = f"{method.pairs_per_pass} pairs a pass do not divide the {pairs} pairs of a step; take a divisor of {pairs}"
        yield message, "method.pairs_per_pass", "optim.records_per_step"


def policy_rules(recipe: Recipe) -> Broken:
    """Check a policy, and that nothing else is given questions: they hold no pair."""
    method, evaluation, types = (
        recipe.method,
        recipe.evaluation,
        [source.type for source in recipe.data.sources],
    )
    if not isinstance(method, PolicyConfig):
        if not all(source.has_responses for source in recipe.data.sources):
            message = (
                f"questions hold no responses, which the method {method.type} learns from; "
                "take a source of preference pairs"
            )
            yield message, "data.sources", "method.type"
        for key in sorted({"questions", "samples"} & evaluation.model_fields_set):
            yield (
                f"the method {method.type} answers no questions; remove this key",
                f"evaluation.{key}",
                "method.type",
            )
        return
    with_answers = [name for name, kind in installed_rows(SOURCES).items() if kind.has_answers]
    others = sorted({source.type for source in recipe.data.sources if not source.has_answers})
    if method.verified and others:
        message = (
            f"a verifier compares answers with known ones, and records of {', '.join(others)} hold none; take sources of type "
            f"{' or '.join(with_answers)}, or a reward without a verifier"
        )
        yield message, "method.rewards", "data.sources"
    for number, term in enumerate(method.rewards):
        if isinstance(term, LengthTerm) and term.free_tokens >= method.max_new_tokens:
            message = f"{term.free_tokens} tokens are free and no answer is longer than {method.max_new_tokens}: it never costs"
            yield (
                f"{message}; lower it",
                f"method.rewards.{number}.free_tokens",
                "method.rewards",
                "method.max_new_tokens",
            )
    if not any(term.weight for term in method.rewards):
        yield "all weights are 0: every answer would be paid alike; raise one", "method.rewards"
    for key in ("benchmarks", "protocol", "judging"):
        if dict(evaluation)[key] != EvaluationConfig.model_fields[key].get_default():
            message = "a policy answers questions and judges nothing; remove this key, and name evaluation.questions"
            yield message, f"evaluation.{key}", "method.type"
    asked = [
        (f"evaluation.questions.{number}", source.type)
        for number, source in enumerate(evaluation.questions)
    ]
    asked += [("data.sources", kind) for kind in types if recipe.data.validation]
    for key, kind in asked:
        if kind not in with_answers:
            message = f"records of {kind} hold no known answer to compare with; take a source of type {' or '.join(with_answers)}"
            yield message, key, "data.validation", "method.type"
    if double := sorted(
        {name for name in recipe.question_sets if recipe.question_sets.count(name) > 1}
    ):
        message = f"the name {double[0]} occurs more than once and would overwrite its own figures; give each source a `name`"
        yield message, "evaluation.questions"


def optim_rules(recipe: Recipe) -> Broken:
    """Check the optimizer and DeepSpeed."""
    optim, names, frozen = recipe.optim, deepspeed_names(), set(recipe.backbone.freeze)
    if (optim.epochs is None) == (optim.max_steps is None):
        both = "neither is" if optim.epochs is None else "both are"
        message = (
            f"give either optim.epochs or optim.max_steps; {both} given "
            "(a value that a recipe extends is taken back by null)"
        )
        yield message, "optim.max_steps", "optim.epochs"
    if not recipe.has_head and optim.head_learning_rate is not None:
        message = f"the method {recipe.method.type} has no reward head, so this rate would be unused; remove it"
        yield message, "optim.head_learning_rate", "method.type"
    vision = ("optim.vision_learning_rate", "optim.lora", "backbone.freeze")
    if optim.vision_learning_rate is not None and optim.lora is not None:
        yield (
            "with LoRA the vision tower is not trained, so this rate would be unused; remove it or optim.lora",
            *vision,
        )
    elif optim.vision_learning_rate is not None and {"vision_tower", "projector"} <= frozen:
        yield (
            "vision tower and projector are frozen, so this rate would be unused; remove it or thaw one of them",
            *vision,
        )
    if optim.lora is not None and "language_model" in frozen:
        message = "the adapters sit in the language model, which backbone.freeze keeps fixed; remove one of the two"
        yield message, "optim.lora", "backbone.freeze"
    if recipe.deepspeed not in names:
        message = f"there is no recipes/deepspeed/{recipe.deepspeed}.json; take one of {', '.join(names)}, or add that file"
        yield message, "deepspeed"
    elif optim.lora is not None and optim.lora.quantise != "none" and stage(recipe.deepspeed) == 3:
        message = "ZeRO-3 does not partition 4-bit weights; set deepspeed=zero2 (or none), or optim.lora.quantise=none"
        yield message, "optim.lora.quantise", "deepspeed"


def length_rules(recipe: Recipe) -> Broken:
    """Check that there are records for every step, where their number is known before they are read."""
    data, size = recipe.data, recipe.optim.records_per_step
    half = [source.max_validation() or 0 for source in data.sources]
    is_known = all(source.max_validation() is not None for source in data.sources)
    if is_known and data.validation > sum(half):
        message = f"{data.validation:,} records cannot be withheld: at most half of each source, here {sum(half):,}; lower it"
        yield message, "data.validation", "data.sources"
        return
    records, _ = epoch_records(data)
    if records is not None and records < size:
        message = f"a step takes {size:,} records and an epoch has {records:,}, so that none is whole; lower it, or add records"
        yield message, "optim.records_per_step", "data"
    elif records is not None:
        try:
            recipe.steps(records)
        except UserError as error:
            yield str(error), "optim.epochs", "optim", "data"


def evaluation_rules(recipe: Recipe) -> Broken:
    """Check the benchmarks, whose results are filed under their names, the best metric, and how judgements are written."""
    evaluation, known = recipe.evaluation, recipe.held_out_figures
    names = [benchmark.name for benchmark in evaluation.benchmarks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = (
            f"{', '.join(twice)} is listed twice and would overwrite its own results; keep one"
        )
        yield message, "evaluation.benchmarks"
    metric = evaluation.best_metric
    name, _, figure = (metric or "").partition("/")
    computed = name in names and (figure in ("accuracy", "macro") or figure.endswith("/accuracy"))
    if metric is not None and metric not in known and not computed:
        possible = [
            f"{name}/{figure}"
            for name in names
            for figure in ("accuracy", "macro", "GROUP/accuracy")
        ]
        message = (
            "the best checkpoint is chosen by benchmark/figure, with a benchmark of evaluation.benchmarks, or by a figure on the "
            f"records of data.validation; possible are {', '.join([*possible, *known]) or 'none: both are empty'}"
        )
        yield message, "evaluation.best_metric", "evaluation.benchmarks", "data.validation"
    judging, votes = (
        ("evaluation.judging", "evaluation.protocol", "method.type"),
        evaluation.protocol.votes,
    )
    if isinstance(recipe.method, PolicyConfig):
        return
    if recipe.has_head and "judging" in evaluation.model_fields_set:
        yield (
            f"the method {recipe.method.type} trains no judge that writes judgements; remove this section",
            *judging,
        )
    if not recipe.has_head and votes > 1 and not evaluation.judging.temperature:
        yield (
            f"{votes} greedy votes are all alike; set evaluation.judging.temperature=1.0, or 1 vote",
            *judging,
        )


def language_model_rules(recipe: Recipe) -> Broken:
    """Check lessons of the embedded world and the cold start of a judge."""
    method, types = recipe.method, {source.type for source in recipe.data.sources}
    if not isinstance(method, LanguageModelConfig):
        return
    if method.target == "judgement":
        if not any(source.has_rationales for source in recipe.data.sources):
            message = (
                f"a cold start learns from rationales, and records of {', '.join(sorted(types))} hold none; "
                "annotate them (python eval/annotate.py --help) and take the files as a source of type project"
            )
            yield message, "method.target", "data.sources"
        return
    if recipe.data.validation:
        message = "lessons are generated on the fly and none is held out; remove this key"
        yield message, "data.validation", "method.target"
    if len(recipe.data.sources) > 1 or types != {"shapes"}:
        message = "lessons are drawn from the embedded world: data.sources must hold exactly one source, of type shapes"
        yield message, "method.target", "data.sources"


def start_rules(recipe: Recipe, entry: str | None, world_size: int) -> Broken:
    """Check the recipe against the script that runs it, if it is known, and the number of ranks."""
    if entry not in (None, recipe.entry):
        message = f"train/{entry}.py trains {' and '.join(ENTRIES[entry])}; start this recipe with train/{recipe.entry}.py"
        yield message, "method.type"
    records = recipe.optim.records_per_step
    if records % world_size:
        near = max(records // world_size, 1) * world_size
        message = (
            f"{records} records a step do not divide over {world_size} ranks, and every rank must take as many as the others; "
            f"set optim.records_per_step={near}, or start a number of ranks that divides {records}"
        )
        yield message, "optim.records_per_step"
