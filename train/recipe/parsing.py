"""From a YAML file and the command line to a `Recipe`, with every error at once."""

import os
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import get_origin

from mmrm.data.config.layers import COMMAND_LINE, Located, Reader, overlay
from mmrm.data.config.validation import problems as locate
from mmrm.data.config.validation import salvage, sections, validate
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.option_numbers import LOCAL_RANK
from mmrm.data.errors import CheckpointError, Problem, RecipeError
from mmrm.data.package import recipe_path
from mmrm.models.config import checkpoint_at
from mmrm.train.recipe.recipe import STAND_IN, Recipe
from mmrm.train.recipe.rules import check
from mmrm.train.recipe.sections import Script

VARIANTS = "variants"
"""The key that makes a list of runs of a recipe; see train/studies/ablation/variants.py."""

FIRST_RANK_SPEAKS = 2.0
"""Seconds that other ranks give the first one to print what is wrong with a recipe."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The parsed command line of a training script."""

    recipe: Recipe
    recipe_path: Path
    overrides: tuple[str, ...]
    dry_run: bool
    gpus: int | None
    """A number of GPUs that the plan of a dry run includes. None if the command line names none."""
    arguments: tuple[str, ...]
    """The command line as it was given, without the script."""


def read_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    entry: Script | None = None,
    world_size: int = 1,
    start: bool = False,
) -> Recipe:
    """Return the recipe in a file, with values of the command line laid over it.

    Paths in a recipe start at the working directory, except for `extends`, which starts at the
    recipe's own folder.

    Args:
        path: The YAML file.
        overrides: Values such as `optim.learning_rate=1e-6`. They are read as YAML.
        entry: The script that is to run the recipe. If it is given, the paths in the recipe are
            looked at, too.
        world_size: The number of ranks.
        start: True if the run starts now, so that every path must exist.

    Raises:
        RecipeError: With all problems of the text, its keys, their values and combinations.
    """
    reader = Reader()
    tree = reader.recipe(path)
    for override in overrides:
        tree = overlay(tree, reader.override(override))
    variants = tree.child(VARIANTS)
    if variants is not None:
        message = "a recipe with variants is a list of runs; start it with train/ablate.py"
        problem = Problem(variants.where, VARIANTS, "", message)
        raise RecipeError(str(path), [*reader.problems, problem])
    return required(path, tree, reader.problems, entry, world_size, start=start)


def required(
    path: Path,
    tree: Located,
    problems: Sequence[Problem],
    entry: Script | None = None,
    world_size: int = 1,
    *,
    start: bool = False,
) -> Recipe:
    """Return the recipe that `tree` holds, which was read from `path` with `problems` in its text.

    Raises:
        RecipeError: If anything is wrong.
    """
    if any(problem.key == "recipe" for problem in problems):
        raise RecipeError(str(path), problems)
    tree = with_best_checkpoint(tree)
    raw = tree.plain()
    recipe, errors = validate(Recipe, raw)
    problem_by_path = locate(Recipe, errors, tree)
    # A recipe without errors comes back unchanged.
    valid_part, broken = salvage(Recipe, raw, STAND_IN)
    all_problems = [*problems, *problem_by_path.values()]
    if valid_part is not None:
        wrong = [*problem_by_path, *broken]
        all_problems += check(valid_part, tree, wrong, entry, world_size, start=start)
    if recipe is None or all_problems:
        raise RecipeError(str(path), sorted(all_problems, key=_position))
    return recipe


def with_best_checkpoint(tree: Located) -> Located:
    """Return `tree` with a run folder as backbone replaced by the run's best checkpoint."""
    backbone = tree.at(("backbone", "path"))
    if backbone is None or not isinstance(backbone.value, str):
        return tree
    # The rules report a path that cannot be used.
    with suppress(CheckpointError, OSError, RuntimeError):
        best = Located(checkpoint_at(backbone.value), backbone.where)
        section = Located({"path": best}, best.where)
        return overlay(tree, Located({"backbone": section}, best.where))
    return tree


def _position(problem: Problem) -> tuple[str, int]:
    """Return the file and line of a problem, for sorting. Those without a line come last."""
    file, _, line = problem.where.rpartition(":")
    if file and line.isdecimal():
        return file, int(line)
    return chr(0x10FFFF), 0


def refuse_finished_folder(recipe: Recipe) -> None:
    """Refuse to start a new run in a folder that holds the checkpoints of an earlier one."""
    folder = Path(recipe.output.folder)
    checkpoints = sorted(folder.glob("checkpoint-*"))
    if recipe.output.resume != "never" or not checkpoints:
        return
    message = (
        f"it already holds {len(checkpoints)} checkpoints, {checkpoints[-1].name} among them; add "
        "--resume to continue that run, or output.folder=... to keep it and start another"
    )
    problem = Problem(COMMAND_LINE, "output.folder", recipe.output.folder, message)
    raise RecipeError(str(folder), [problem])


def refuse_missing_device(recipe: Recipe, *, cuda: bool) -> None:
    """Raise RecipeError if the recipe needs a CUDA device and `cuda` is False."""
    if cuda:
        return
    problems: list[Problem] = []
    lora = recipe.optim.lora
    if lora is not None and lora.quantise != "none":
        message = "4-bit weights need a CUDA device and there is none; set optim.lora.quantise=none"
        problems.append(Problem("recipe", "optim.lora.quantise", "", message))
    if recipe.backbone.attention == "varlen":
        message = (
            "the varlen kernel needs a CUDA device and there is none; set backbone.attention=auto"
        )
        problems.append(Problem("recipe", "backbone.attention", "", message))
    if problems:
        raise RecipeError("this machine", problems)


def dotted_keys() -> list[str]:
    """Return every key of a recipe as it is written on the command line.

    Keys of the items of a list are those of its first item, such as `data.sources.0.weight`.
    """
    field_by_path = [
        ((*place, key), field)
        for place, section in sections(Recipe)
        for key, field in section.model_fields.items()
    ]
    lists = [path for path, field in field_by_path if get_origin(field.annotation) is list]
    path_of_item: dict[tuple[str, ...], tuple[str, ...]] = {}
    for list_path in lists:
        for path, _ in field_by_path:
            if path[:-1] == list_path:
                path_of_item[path] = (*list_path, "0", path[-1])
    keys = [".".join(path_of_item.get(path, path)) for path, _ in field_by_path]
    return list(dict.fromkeys(keys))


def positive_number(text: str) -> int:
    """Return a number of GPUs from the command line.

    Raises:
        ArgumentTypeError: If it is not a whole number from 1 to 100,000.
    """
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise ArgumentTypeError(f"{text!r} is not a number of GPUs from 1 to 100,000")
    return int(text)


def parse_options(parser: ArgumentParser, argv: Sequence[str] | None) -> Namespace:
    """Return the options of a command line.

    If an option does not exist but is called like a key of a recipe, the command ends with the way
    to write that key.
    """
    options, unknown = parser.parse_known_intermixed_args(argv)
    if not unknown:
        return options
    hints = []
    for option, following in pairwise([*unknown, "--"]):
        hint = key_hint(option, following)
        if hint is not None:
            hints.append(hint)
    parser.error("\n".join(hints) or f"unrecognized arguments: {' '.join(unknown)}")


def key_hint(option: str, following: str) -> str | None:
    """Return a hint on how to write the key that an unknown option means, None if it means no key.

    Args:
        option: An unknown argument, such as `--learning-rate` or `--learning-rate=1e-6`.
        following: The argument after it, which may be its value.
    """
    if not option.startswith("--"):
        return None
    name, equals, value = option.removeprefix("--").partition("=")
    name = name.replace("-", "_")
    keys = dotted_keys()
    matches = [key for key in keys if f".{key}".endswith(f".{name}")]
    if not matches:
        close = get_close_matches(name, {key.rpartition(".")[2] for key in keys}, n=1)
        matches = [key for key in keys if key.rpartition(".")[2] in close]
    if not matches:
        return None
    if not equals:
        value = "VALUE" if following.startswith("--") else following
    ways = " or ".join(f"{key}={value}" for key in matches[:3])
    return f"{option.partition('=')[0]} is no option; keys of the recipe are given as key=value: {ways}"


def parse_arguments(argv: Sequence[str], entry: Script, description: str) -> Launch:
    """Return the parsed command line of a training script.

    A wrong recipe is printed with all its errors and ends the process with status 2, without a
    traceback.

    Args:
        argv: The arguments, without the script.
        entry: The script.
        description: The docstring of the script, which --help shows.
    """
    parser = CommandParser(f"train/{entry}.py", description, allow_abbrev=False)
    parser.add_argument(
        "recipe", type=recipe_path, help="a YAML file, for example recipes/basereward.yaml"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="lays a value over it: optim.learning_rate=1e-6",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check and print the plan; needs no weights and no network",
    )
    parser.add_argument(
        "--gpus",
        type=positive_number,
        metavar="N",
        help="with --dry-run: also plan for N GPUs",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the last whole checkpoint (output.resume=auto)",
    )
    parser.add_argument(
        "--local_rank",
        type=LOCAL_RANK,
        help="given by the deepspeed launcher and ignored; the environment says it",
    )
    arguments = parse_options(parser, argv)
    if arguments.gpus is not None and not arguments.dry_run:
        parser.error(
            "--gpus plans for a number of GPUs and needs --dry-run. The launcher decides on how many "
            "GPUs a run trains, as in deepspeed --num_gpus 2 train/rm.py RECIPE."
        )
    overrides = list(arguments.overrides)
    if arguments.resume:
        overrides.append("output.resume=auto")
    try:
        recipe = read_recipe(
            arguments.recipe,
            overrides,
            entry=entry,
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            start=not arguments.dry_run,
        )
        if not arguments.dry_run:
            refuse_finished_folder(recipe)
    except RecipeError as error:
        # The first rank of every node prints, because another node may lack other files.
        if os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0":
            print(error, file=sys.stderr)
        else:
            # A launcher ends all ranks with the first one that ends.
            time.sleep(FIRST_RANK_SPEAKS)
        raise SystemExit(2) from None
    return Launch(
        recipe,
        arguments.recipe,
        tuple(overrides),
        arguments.dry_run,
        arguments.gpus,
        tuple(argv),
    )
