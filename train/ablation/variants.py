"""A list of runs in one file: a recipe, and by name what each variant changes in it.

    extends: ../shapes/naive.yaml
    optim: {epochs: null, max_steps: 60}
    output: {folder: runs/shapes/ablations/head, save_every_steps: 60}
    variants:
      2-silu: {}
      1-linear: {head.layers: 1}

Keys are dotted as on the command line, values are YAML. Every variant is run once for each seed, into FOLDER/VARIANT/SEED; the
first one is what the others are compared with. A seed is `seed` and `data.seed` together: the head, dropout, what is drawn from
the data and its order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.config.layers import COMMAND_LINE, Located, Reader, lay
from data.errors import Problem, RecipeError
from train.recipe.parsing import VARIANTS, required
from train.recipe.recipe import Recipe

NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class Run:
    """One variant with one seed."""

    variant: str
    seed: int
    recipe: Recipe

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.recipe.output.folder)

    def __str__(self) -> str:
        """Return what a person calls it."""
        return f"{self.variant}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Ablation:
    """A list of runs, those of one seed together, so that a list that is cut short has compared all variants once."""

    path: Path
    folder: Path
    changes: dict[str, str]
    """What each variant changes, as it would be written on the command line."""
    runs: tuple[Run, ...]

    @property
    def reference(self) -> str:
        """The variant that the others are compared with: the first."""
        return next(iter(self.changes))


def read_ablation(path: Path, overrides: Sequence[str] = (), seeds: Sequence[int] = (0,)) -> Ablation:
    """Return the list at `path` with `overrides` (`section.key=value`) laid over every variant.

    Raises RecipeError with everything that is wrong: first with the recipe, then with the variants.
    """
    reader = Reader()
    tree = reader.recipe(path)
    above = Located({}, COMMAND_LINE)
    for text in overrides:
        above = lay(above, reader.override(text))
    sections: Any = tree.value
    variants = sections.pop(VARIANTS, Located(None, f"{path}:1"))
    base = required(path, lay(tree, above), [*reader.problems, *list_problems(variants)])
    folder, runs, problems = Path(base.output.folder), [], []
    for seed in seeds:
        for name, patch in variants.value.items():
            output = {"folder": str(folder / name / str(seed)), "resume": "auto"}
            own = Located.of({"seed": seed, "data": {"seed": seed}, "output": output}, "--seeds")
            try:
                found = required(path, lay(lay(lay(tree, undotted(patch)), above), own), [])
                runs.append(Run(name, seed, found))
                wrong = evaluation_problems(found, base, patch)
            except RecipeError as error:
                wrong = error.problems
            problems += [Problem(p.where, f"{name}: {p.key}", p.found, p.message) for p in wrong]
    if problems:
        raise RecipeError(str(path), list(dict.fromkeys(problems)))
    changes = {name: written_changes(patch) for name, patch in variants.value.items()}
    return Ablation(path, folder, changes, tuple(runs))


def list_problems(variants: Located) -> list[Problem]:
    """Return what keeps `variants` from being a mapping of names to changes."""
    if not isinstance(variants.value, dict) or not variants.value:
        message = "a list of runs holds a mapping of a name to the keys that it changes; `{}` changes none"
        return [Problem(variants.where, VARIANTS, "", f"{message}. See the head of train/ablation/variants.py")]
    found = []
    for name, patch in variants.value.items():
        if not NAME.fullmatch(name):
            message = "a variant's name is that of its folder: letters, digits, _ . and - only"
            found.append(Problem(patch.where, f"{VARIANTS}.{name}", "", message))
        if not isinstance(patch.value, dict):
            message = "a variant is a mapping of dotted keys, such as {head.layers: 1}; `{}` changes none"
            found.append(Problem(patch.where, f"{VARIANTS}.{name}", json.dumps(patch.plain()), message))
    return found


def evaluation_problems(recipe: Recipe, base: Recipe, patch: Located) -> Sequence[Problem]:
    """Return what keeps the figures of a variant from being compared with those of the others."""
    found, message = "", "the variants of a list share their benchmarks, row by row; set them for the whole list"
    if not recipe.evaluation.benchmarks:
        found, message = "[]", "there is nothing to compare variants by; name a benchmark"
    elif recipe.evaluation.benchmarks == base.evaluation.benchmarks:
        return []
    return [Problem(patch.where, "evaluation.benchmarks", found, message)]


def undotted(patch: Located) -> Located:
    """Return a mapping of dotted keys as the recipe of these keys."""
    tree = Located({}, patch.where)
    changes: Any = patch.value
    for key, value in changes.items():
        for name in reversed(key.split(".")):
            value = Located({name: value}, value.where)
        tree = lay(tree, value)
    return tree


def written_changes(patch: Located) -> str:
    """Return what a variant changes, in one line."""
    changes = patch.plain()
    return ", ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changes.items())
