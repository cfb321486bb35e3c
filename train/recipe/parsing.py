"""From a YAML file and the command line to a `Recipe`, with every error at once."""

import os
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import get_origin

from mmrm.data.config.layers import COMMAND_LINE, Located, Reader, lay
from mmrm.data.config.validation import problems as locate
from mmrm.data.config.validation import salvage, sections, validate
from mmrm.data.errors import CheckpointError, Problem, RecipeError
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
    """What the command line asks for."""

    recipe: Recipe
    recipe_path: Path
    overrides: tuple[str, ...]
    dry_run: bool
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
    """Return the recipe at `path` with `overrides` (`section.key=value`, YAML values) laid over it.

    `entry` is the script that is to run it, `world_size` its number of ranks; where it is known, what the recipe names on this
    machine is looked at too, and what is to `start` must be there. Paths in a recipe start at the working
    directory, but for `extends`, which starts at the recipe's own folder.
    Raises RecipeError with everything that is wrong: text, keys, values, combinations.
    """
    reader = Reader()
    tree = reader.recipe(path)
    for text in overrides:
        tree = lay(tree, reader.override(text))
    if (variants := tree.child(VARIANTS)) is not None:
        message = "a recipe with variants is a list of runs; start it with train/ablate.py"
        raise RecipeError(
            str(path), [*reader.problems, Problem(variants.where, VARIANTS, "", message)]
        )
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
    """Return the recipe that `tree` holds, read from `path` with `problems` in its text; raise RecipeError if any is wrong."""
    if any(problem.key == "recipe" for problem in problems):
        raise RecipeError(str(path), problems)
    path_of_backbone = tree.at(("backbone", "path"))
    if path_of_backbone is not None and isinstance(path_of_backbone.value, str):
        with suppress(CheckpointError, OSError, RuntimeError):  # which the rules report
            best = Located(checkpoint_at(path_of_backbone.value), path_of_backbone.where)
            tree = lay(tree, Located({"backbone": Located({"path": best}, best.where)}, best.where))
    raw = tree.plain()
    recipe, errors = validate(Recipe, raw)
    by_path = locate(Recipe, errors, tree)
    rest, broken = salvage(Recipe, raw, STAND_IN)  # a whole recipe is left as it is
    found = [*problems, *by_path.values()]
    if rest is not None:
        found += check(rest, tree, [*by_path, *broken], entry, world_size, start=start)
    if recipe is None or found:
        raise RecipeError(str(path), sorted(found, key=_place))
    return recipe


def _place(problem: Problem) -> tuple[str, int]:
    file, _, line = problem.where.rpartition(":")
    return (file, int(line)) if file and line.isdecimal() else (chr(0x10FFFF), 0)


def refuse_finished_folder(recipe: Recipe) -> None:
    """Refuse to start a new run in a folder that holds the checkpoints of an earlier one."""
    folder = Path(recipe.output.folder)
    checkpoints = sorted(folder.glob("checkpoint-*"))
    if recipe.output.resume == "never" and checkpoints:
        message = (
            f"it already holds {len(checkpoints)} checkpoints, {checkpoints[-1].name} among them; add --resume to continue "
            "that run, or output.folder=... to keep it and start another"
        )
        raise RecipeError(
            str(folder), [Problem(COMMAND_LINE, "output.folder", recipe.output.folder, message)]
        )


def refuse_missing_device(recipe: Recipe, *, cuda: bool) -> None:
    """Refuse what needs a CUDA device where there is none; call it once torch is imported."""
    lora, needed = recipe.optim.lora, {}
    if lora is not None and lora.quantise != "none":
        needed["optim.lora.quantise"] = (
            "4-bit weights need a CUDA device and there is none; set optim.lora.quantise=none"
        )
    if recipe.backbone.attention == "varlen":
        needed["backbone.attention"] = (
            "the varlen kernel needs a CUDA device and there is none; set backbone.attention=auto"
        )
    if needed and not cuda:
        raise RecipeError(
            "this machine", [Problem("recipe", key, "", message) for key, message in needed.items()]
        )


def dotted_keys() -> list[str]:
    """Return every key of a recipe as it is written on the command line; of lists those of the first item."""
    found = [
        ((*place, key), field)
        for place, section in sections(Recipe)
        for key, field in section.model_fields.items()
    ]
    lists = [place for place, field in found if get_origin(field.annotation) is list]
    items = {
        place: (*one, "0", *place[len(one) :])
        for one in lists
        for place, _ in found
        if place[:-1] == one
    }
    return list(dict.fromkeys(".".join(items.get(place, place)) for place, _ in found))


def parse_options(parser: ArgumentParser, argv: Sequence[str] | None) -> Namespace:
    """Return the options; one that does not exist but is called like a key of a recipe ends with the way to write that key."""
    options, unknown = parser.parse_known_intermixed_args(argv)
    keys = dotted_keys()
    hints = []
    for option, following in pairwise([*unknown, "--"]):
        name, equals, value = option.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        close = get_close_matches(name, {key.rpartition(".")[2] for key in keys}, n=1)
        found = [key for key in keys if f".{key}".endswith(f".{name}")] or [
            key for key in keys if key.rpartition(".")[2] in close
        ]
        if option.startswith("--") and found:
            given = value if equals else "VALUE" if following.startswith("--") else following
            ways = " or ".join(f"{key}={given}" for key in found[:3])
            hints.append(
                f"{option.partition('=')[0]} is no option; keys of the recipe are given as key=value: {ways}"
            )
    if unknown:
        parser.error("\n".join(hints) or f"unrecognized arguments: {' '.join(unknown)}")
    return options


def parse_arguments(argv: Sequence[str], entry: Script, description: str) -> Launch:
    """Return what `argv` (without the script) asks for; `description` is the entry script's docstring, shown by --help.

    A wrong recipe is printed with all its errors and ends the process with status 2, without a traceback.
    """
    parser = ArgumentParser(
        f"train/{entry}.py",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe", type=Path, help="a YAML file, for example recipes/basereward.yaml"
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
        "--resume",
        action="store_true",
        help="continue from the last whole checkpoint (output.resume=auto)",
    )
    parser.add_argument(
        "--local_rank",
        type=int,
        help="given by the deepspeed launcher and ignored; the environment says it",
    )
    arguments = parse_options(parser, argv)
    overrides = [*arguments.overrides, *(["output.resume=auto"] if arguments.resume else [])]
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    try:
        recipe = read_recipe(
            arguments.recipe,
            overrides,
            entry=entry,
            world_size=world_size,
            start=not arguments.dry_run,
        )
        if not arguments.dry_run:
            refuse_finished_folder(recipe)
    except RecipeError as error:
        if (
            os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"
        ):  # another node may lack other files
            print(error, file=sys.stderr)
        else:
            time.sleep(FIRST_RANK_SPEAKS)  # a launcher ends all ranks with the first that ends
        raise SystemExit(2) from None
    return Launch(recipe, arguments.recipe, tuple(overrides), arguments.dry_run, tuple(argv))
