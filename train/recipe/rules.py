"""The rules between the keys of a recipe. Every message says what to do.

The rules of one method are in `MethodConfig.rules`. Here are those that hold for every method.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from mmrm.data.config.layers import Located
from mmrm.data.config.validation import KeyPath, dotted, written
from mmrm.data.errors import Problem, UserError
from mmrm.train.recipe.deepspeed_config import deepspeed_names, stage
from mmrm.train.recipe.epoch import epoch_examples
from mmrm.train.recipe.input_paths import input_rules
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.recipe.registry import methods_of_script
from mmrm.train.recipe.sections import Broken, Script


def check(
    recipe: Recipe,
    tree: Located,
    wrong: Iterable[KeyPath],
    script: Script | None,
    world_size: int,
    *,
    start: bool = False,
) -> list[Problem]:
    """Return a problem for each rule between keys that a recipe breaks.

    Args:
        recipe: The recipe. Values that could not be parsed are replaced by defaults or left out.
        tree: The keys and values as they were read, each with its file and line.
        wrong: The paths of the keys whose values could not be parsed. A rule that reads one of
            these keys, or a part of one, is left out.
        script: The script that runs the recipe. If it is given, the length of the run and the
            files and folders that the recipe names are checked, too.
        world_size: The number of ranks.
        start: True if the run starts now, so that every path must exist. False for a dry run.
    """
    broken_rules = chain(
        model_rules(recipe),
        recipe.method.rules(recipe),
        question_rules(recipe),
        response_rules(recipe),
        optim_rules(recipe),
        evaluation_rules(recipe),
        start_rules(recipe, script, world_size, start=start),
    )
    if script is not None:
        broken_rules = chain(broken_rules, length_rules(recipe), input_rules(recipe, start=start))
    unparsed_keys = [dotted(path) for path in wrong]
    problems: list[Problem] = []
    for broken in broken_rules:
        if any(_overlap(key, unparsed) for key in broken.keys for unparsed in unparsed_keys):
            continue
        # The problem is reported at the key that the user should look at first.
        key = broken.keys[0]
        path = key.split(".")
        value = tree.at(path)
        value_text = ""
        if value is not None:
            value_text = written(value.plain())
        # A key that is not in the file has the line of the section that should hold it.
        where = tree.nearest(path).where
        problems.append(Problem(where, key, value_text, broken.message))
    return problems


def _overlap(first: str, second: str) -> bool:
    """Return True if two dotted keys are the same, or one is inside the section of the other."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def model_rules(recipe: Recipe) -> Iterator[Broken]:
    """Check the sections `backbone` and `head` against each other and the method."""
    backbone = recipe.backbone
    if backbone.min_pixels > backbone.max_pixels:
        message = (
            f"min_pixels {backbone.min_pixels} is above max_pixels {backbone.max_pixels}: no image "
            "fits both; lower min_pixels"
        )
        yield Broken(message, ("backbone.min_pixels", "backbone.max_pixels"))
    if backbone.attention == "varlen" and backbone.dtype != "bfloat16":
        message = (
            "the varlen kernel takes bfloat16 only; set backbone.dtype=bfloat16 or "
            "backbone.attention=auto"
        )
        yield Broken(message, ("backbone.attention", "backbone.dtype"))
    control_tokens = re.findall(r"<\|\w+\|>", backbone.system_prompt or "")
    if control_tokens:
        message = (
            f"the prompt holds {', '.join(control_tokens)}, which the backbone would take for its "
            "own control tokens; remove them"
        )
        yield Broken(message, ("backbone.system_prompt",))
    if recipe.has_head:
        return
    method = recipe.method.type
    if set(backbone.freeze) == {"vision_tower", "projector", "language_model"}:
        message = (
            f"everything is frozen and the method {method} has no head: nothing would be trained; "
            "thaw a part"
        )
        yield Broken(message, ("backbone.freeze", "method.type"))
    # The section `head` has default values, so only one that the recipe gives is refused.
    if "head" in recipe.model_fields_set:
        message = f"the method {method} has no reward head; remove this section"
        yield Broken(message, ("head", "method.type"))


def question_rules(recipe: Recipe) -> Iterator[Broken]:
    """Check that a method that judges pairs is given pairs, and no questions to answer."""
    if recipe.method.evaluated_on == "questions":
        return
    if not all(source.has_responses for source in recipe.data.sources):
        message = (
            f"questions hold no responses, which the method {recipe.method.type} learns from; "
            "take a source of preference pairs"
        )
        yield Broken(message, ("data.sources", "method.type"))
    for key in sorted({"questions", "samples"} & recipe.evaluation.model_fields_set):
        message = f"the method {recipe.method.type} answers no questions; remove this key"
        yield Broken(message, (f"evaluation.{key}", "method.type"))


def response_rules(recipe: Recipe) -> Iterator[Broken]:
    """Check that the method learns from the lists and ties that the sources give."""
    method = recipe.method
    for index, source in enumerate(recipe.data.sources):
        key = f"data.sources.{index}"
        if source.gives_lists and not method.uses_lists:
            message = (
                "this source gives more than two responses to a prompt, and the method "
                f"{method.type} learns from pairs; set its key `pairs` to a value other than none, "
                "or take method.type=naive"
            )
            yield Broken(message, (key, "method"))
        elif source.gives_ties and not method.uses_ties:
            message = (
                f"this source keeps ties, from which the method {method.type} learns nothing as it "
                "is set; set its key `ties` to leave_out, or take an objective that learns from "
                "ties, such as method={type: naive, objective: {type: ties}}"
            )
            yield Broken(message, (key, "method"))


def optim_rules(recipe: Recipe) -> Iterator[Broken]:
    """Check the sections `optim` and `deepspeed`."""
    optim = recipe.optim
    if (optim.epochs is None) == (optim.max_steps is None):
        given = "neither is" if optim.epochs is None else "both are"
        message = (
            f"give either optim.epochs or optim.max_steps; {given} given "
            "(a value that a recipe extends is taken back by null)"
        )
        yield Broken(message, ("optim.max_steps", "optim.epochs"))
    if not recipe.has_head and optim.head_learning_rate is not None:
        message = (
            f"the method {recipe.method.type} has no reward head, so this rate would be unused; "
            "remove it"
        )
        yield Broken(message, ("optim.head_learning_rate", "method.type"))
    if optim.activation_checkpointing == "linear" and optim.compile == "layers":
        message = (
            "the results of linear layers cannot be kept inside of compiled MLPs; set "
            "optim.compile=none, or optim.activation_checkpointing to attention, full or none"
        )
        yield Broken(message, ("optim.activation_checkpointing", "optim.compile"))
    if optim.sequence_parallel > 1 and not recipe.method.divides_rows:
        message = (
            f"the method {recipe.method.type} trains on texts that each rank writes itself, so that "
            "no row can be divided over ranks; remove it"
        )
        yield Broken(message, ("optim.sequence_parallel", "method.type"))
    yield from _frozen_part_rules(recipe)

    names = deepspeed_names()
    if recipe.deepspeed not in names:
        message = (
            f"there is no recipes/deepspeed/{recipe.deepspeed}.json; take one of "
            f"{', '.join(names)}, or add that file"
        )
        yield Broken(message, ("deepspeed",))
        return
    is_selective = optim.activation_checkpointing in ("linear", "attention")
    if is_selective and stage(recipe.deepspeed) == 3:
        message = (
            "ZeRO-3 gathers weights and changes results in place, so that a part of a layer cannot "
            "be computed again; set optim.activation_checkpointing to full or none, or "
            "deepspeed=zero2"
        )
        yield Broken(message, ("optim.activation_checkpointing", "deepspeed"))
    if optim.lora is not None and optim.lora.quantise != "none" and stage(recipe.deepspeed) == 3:
        message = (
            "ZeRO-3 does not partition 4-bit weights; set deepspeed=zero2 (or none), or "
            "optim.lora.quantise=none"
        )
        yield Broken(message, ("optim.lora.quantise", "deepspeed"))


def _frozen_part_rules(recipe: Recipe) -> Iterator[Broken]:
    """Check that learning rates and adapters belong to parts that are trained."""
    optim = recipe.optim
    frozen = set(recipe.backbone.freeze)
    if optim.vision_learning_rate is not None:
        keys = ("optim.vision_learning_rate", "optim.lora", "backbone.freeze")
        if optim.lora is not None:
            message = (
                "with LoRA the vision tower is not trained, so this rate would be unused; remove "
                "it or optim.lora"
            )
            yield Broken(message, keys)
        elif {"vision_tower", "projector"} <= frozen:
            message = (
                "vision tower and projector are frozen, so this rate would be unused; remove it or "
                "thaw one of them"
            )
            yield Broken(message, keys)
    if optim.lora is not None and optim.lora.experts and optim.lora.dropout:
        message = (
            "the adapters of experts are added to their weights before any input is multiplied, "
            f"so there is no input for a dropout of {optim.lora.dropout:g}; set optim.lora.dropout=0 "
            "or optim.lora.experts=false"
        )
        yield Broken(message, ("optim.lora.experts", "optim.lora.dropout"))
    if optim.lora is not None and "language_model" in frozen:
        message = (
            "the adapters sit in the language model, which backbone.freeze keeps fixed; remove one "
            "of the two"
        )
        yield Broken(message, ("optim.lora", "backbone.freeze"))


def length_rules(recipe: Recipe) -> Iterator[Broken]:
    """Check that an epoch has enough records, if their number is known before they are read."""
    data = recipe.data
    known_limits: list[int] = []
    for source in data.sources:
        limit = source.max_validation()
        if limit is not None:
            known_limits.append(limit)
    are_all_known = len(known_limits) == len(data.sources)
    most_withheld = sum(known_limits)
    if are_all_known and data.validation > most_withheld:
        message = (
            f"{data.validation:,} records cannot be withheld: at most half of each source, here "
            f"{most_withheld:,}; lower it"
        )
        yield Broken(message, ("data.validation", "data.sources"))
        return
    num_examples = epoch_examples(recipe)
    if num_examples is None:
        return
    records_per_step = recipe.optim.records_per_step
    if num_examples < records_per_step:
        message = (
            f"a step takes {records_per_step:,} records and an epoch has {num_examples:,}, so that "
            "none is whole; lower it, or add records"
        )
        yield Broken(message, ("optim.records_per_step", "data"))
        return
    # This raises an error if the run would have no step.
    try:
        recipe.steps(num_examples)
    except UserError as error:
        yield Broken(str(error), ("optim.epochs", "optim", "data"))


def evaluation_rules(recipe: Recipe) -> Iterator[Broken]:
    """Check the section `evaluation`: benchmarks, `best_metric`, and the sampling of judgements."""
    evaluation = recipe.evaluation
    names = [benchmark.name for benchmark in evaluation.benchmarks]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        message = (
            f"{', '.join(repeated)} is listed twice and would overwrite its own results; keep one"
        )
        yield Broken(message, ("evaluation.benchmarks",))
    yield from _best_metric_rules(recipe, names)
    if recipe.method.evaluated_on == "questions":
        return

    keys = ("evaluation.judging", "evaluation.protocol", "method.type")
    if recipe.has_head and "judging" in evaluation.model_fields_set:
        message = (
            f"the method {recipe.method.type} trains no judge that writes judgements; remove this "
            "section"
        )
        yield Broken(message, keys)
    votes = evaluation.protocol.votes
    if not recipe.has_head and votes > 1 and not evaluation.judging.temperature:
        message = (
            f"{votes} greedy votes are all alike; set evaluation.judging.temperature=1.0, or 1 vote"
        )
        yield Broken(message, keys)


def _best_metric_rules(recipe: Recipe, benchmarks: list[str]) -> Iterator[Broken]:
    """Check that `best_metric`, which chooses the best checkpoint, names a figure that is computed.

    `benchmarks` are the names of the benchmarks that are evaluated.
    """
    metric = recipe.evaluation.best_metric
    if metric is None or metric in recipe.held_out_figures:
        return
    name, _, figure = metric.partition("/")
    is_accuracy = figure in ("accuracy", "macro") or figure.endswith("/accuracy")
    if name in benchmarks and is_accuracy:
        return
    possible: list[str] = []
    for benchmark in benchmarks:
        possible += [f"{benchmark}/accuracy", f"{benchmark}/macro", f"{benchmark}/GROUP/accuracy"]
    possible += recipe.held_out_figures
    message = (
        "the best checkpoint is chosen by benchmark/figure, with a benchmark of "
        "evaluation.benchmarks, or by a figure on the records of data.validation; possible are "
        f"{', '.join(possible) or 'none: both are empty'}"
    )
    yield Broken(message, ("evaluation.best_metric", "evaluation.benchmarks", "data.validation"))


def start_rules(
    recipe: Recipe, script: Script | None, world_size: int, *, start: bool
) -> Iterator[Broken]:
    """Check the recipe against the number of ranks, and against the script that runs it.

    The script is None if the recipe is only read. `start` is True if the run starts now. A recipe
    that is only read may be that of a run on more ranks.
    """
    own_script = recipe.method.script
    if script is not None and script != own_script:
        message = (
            f"train/{script}.py trains {' and '.join(methods_of_script(script))}; start this "
            f"recipe with train/{own_script}.py"
        )
        yield Broken(message, ("method.type",))
    ranks_of_row = recipe.optim.sequence_parallel
    if start and world_size % ranks_of_row:
        message = (
            f"{ranks_of_row} ranks are to compute a row together, which does not divide the number "
            f"of ranks, {world_size}; start a multiple of {ranks_of_row}, or set "
            "optim.sequence_parallel to a divisor of the number of ranks"
        )
        yield Broken(message, ("optim.sequence_parallel",))
        return
    records_per_step = recipe.optim.records_per_step
    num_groups = max(1, world_size // ranks_of_row)
    if records_per_step % num_groups:
        divisible = max(records_per_step // num_groups, 1) * num_groups
        takers = "ranks" if ranks_of_row == 1 else f"groups of {ranks_of_row} ranks"
        message = (
            f"{records_per_step} records a step do not divide over {num_groups} {takers}, and each "
            f"must take as many as the others; set optim.records_per_step={divisible}, or "
            f"start a number of ranks that divides {records_per_step}"
        )
        yield Broken(message, ("optim.records_per_step",))
