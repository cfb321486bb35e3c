"""The mixtures that train/which_source.py compares: a recipe's mixture, less and more of one source.

For every source there are two variants of the mixture. `without-SOURCE` draws no pair from it, and
`twice-SOURCE` draws it twice as often relative to the other sources. All variants take the same
number of steps and of pairs: what a source leaves is drawn from the others.
"""

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.preparation.sampling import StageConfig
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.ablation.variants import Ablation, Run, compared_on

WHOLE = "whole"
"""The variant that trains on the mixture of the recipe."""
WITHOUT = "without-"
"""The beginning of the name of a variant that draws nothing from a source."""
TWICE = "twice-"
"""The beginning of the name of a variant that draws a source twice as often."""
FOLDER = "which_source"
"""The folder of the study, in the output folder of the recipe."""


def source_ablation(
    path: Path, overrides: Sequence[str], num_steps: int, seeds: Sequence[int]
) -> Ablation:
    """Return the runs of a recipe's mixture, of each mixture without a source, and with more of it.

    An epoch of every run has exactly the pairs of its steps, so that the shares of the sources and
    the lengths of stages are those of the recipe, however short the run is. All runs hold out the
    same records.

    Args:
        path: The file of the recipe.
        overrides: Settings that replace those of the recipe (`section.key=value`).
        num_steps: The number of optimizer steps of each run.
        seeds: The seeds with which every variant is trained.

    Raises:
        RecipeError: If the recipe has errors.
        UserError: If it has a single source, or nothing to compare its runs by.
    """
    recipe = read_recipe(path, overrides)
    refuse_unsuited(recipe)
    num_examples = num_steps * recipe.optim.records_per_step
    validation_seed = recipe.data.validation_seed
    if validation_seed is None:
        validation_seed = recipe.data.seed
    # The user may set these keys on the command line.
    defaults = (
        "evaluation.at_start=false",
        "evaluation.best_metric=null",
        "output.keep_checkpoints=1",
        f"output.save_every_steps={num_steps}",
    )
    fixed = (
        "optim.epochs=null",
        f"optim.max_steps={num_steps}",
        f"data.records={ceil(num_examples / recipe.method.examples_per_record)}",
        f"data.validation_seed={validation_seed}",
        "output.resume=auto",
    )
    folder = Path(recipe.output.folder) / FOLDER
    changes_by_variant = variants(recipe.data)
    runs = []
    for seed in seeds:
        for variant, changes in changes_by_variant.items():
            of_run = (
                f"seed={seed}",
                f"data.seed={seed}",
                f"output.folder={json.dumps(str(folder / variant / str(seed)))}",
            )
            all_overrides = [*defaults, *overrides, *fixed, *changes, *of_run]
            runs.append(Run(variant, seed, read_recipe(path, all_overrides)))
    changes_as_text = {name: ", ".join(changes) for name, changes in changes_by_variant.items()}
    return Ablation(path, folder, changes_as_text, tuple(runs))


def refuse_unsuited(recipe: Recipe) -> None:
    """Raise UserError if the sources of a recipe cannot be compared."""
    names = drawn_sources(recipe.data)
    if len(names) < 2:
        raise UserError(
            f"The recipe draws from one source, {names[0]}. This command compares the sources of a "
            "mixture, so it needs two or more. Give the parts of the source as sources of their "
            "own, each with a `name`. To find single wrong pairs, see `python data/browse.py "
            "RECIPE --find`."
        )
    if recipe.method.script == "rl":
        raise UserError(
            f"method.type is {recipe.method.type}, which train/rl.py trains. This command compares "
            "what train/rm.py and train/sft.py learn from preference pairs. Give such a recipe, "
            "for example a Naive-RM on the same sources."
        )
    if not compared_on(recipe):
        raise UserError(
            "The recipe has nothing to compare its sources by. Name benchmarks "
            "(evaluation.benchmarks), or hold out pairs (data.validation=500) of a method that is "
            "measured on them."
        )


def drawn_sources(data: MixtureConfig) -> list[str]:
    """Return the names of the sources that some stage draws from, in the order of the recipe."""
    names_in_stages: set[str] = set()
    for stage in stages_of(data):
        names_in_stages.update(sources_of(stage, data))
    return [source.label for source in data.sources if source.label in names_in_stages]


def stages_of(data: MixtureConfig) -> list[StageConfig]:
    """Return the stages of a mixture: without stages, one over all sources."""
    return data.stages or [StageConfig(name="all")]


def sources_of(stage: StageConfig, data: MixtureConfig) -> list[str]:
    """Return the names of the sources that a stage draws from."""
    return stage.sources or [source.label for source in data.sources]


def variants(data: MixtureConfig) -> dict[str, list[str]]:
    """Return the changes of each variant as overrides, by its name. The first changes nothing."""
    changes_by_variant: dict[str, list[str]] = {WHOLE: []}
    for source in drawn_sources(data):
        changes_by_variant[f"{WITHOUT}{source}"] = [stages_override(stages_without(data, source))]
        changes_by_variant[f"{TWICE}{source}"] = changes_of_twice(data, source)
    return changes_by_variant


def stages_without(data: MixtureConfig, source: str) -> list[StageConfig]:
    """Return the stages of a mixture in which no stage draws from a source.

    A stage that draws from this source alone is left out. The source stays in `data.sources`, so
    that the held-out records of all sources stay the same.
    """
    stages = []
    for stage in stages_of(data):
        others = [name for name in sources_of(stage, data) if name != source]
        if others:
            stages.append(stage.model_copy(update={"sources": others}))
    return stages


def changes_of_twice(data: MixtureConfig, source: str) -> list[str]:
    """Return the overrides that draw a source twice as often relative to the other sources.

    They double its weight, and the length of the stages that draw from this source alone, in which
    a weight changes nothing.
    """
    labels = [config.label for config in data.sources]
    number = labels.index(source)
    changes = [f"data.sources.{number}.weight={json.dumps(2 * data.sources[number].weight)}"]
    stages = []
    for stage in data.stages:
        is_alone = sources_of(stage, data) == [source]
        repeat = 2 * stage.repeat if is_alone else stage.repeat
        stages.append(stage.model_copy(update={"repeat": repeat}))
    if stages != data.stages:
        changes.append(stages_override(stages))
    return changes


def stages_override(stages: Sequence[StageConfig]) -> str:
    """Return the override that sets the stages of a mixture."""
    settings = [stage.model_dump(exclude_defaults=True) for stage in stages]
    return f"data.stages={json.dumps(settings)}"
