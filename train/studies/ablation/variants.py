"""Lists of runs: a recipe and its variants in one file, and their runs, each in its own process.

    extends: ../shapes/naive.yaml
    optim: {epochs: null, max_steps: 60}
    output: {folder: runs/shapes/ablations/head, save_every_steps: 60}
    variants:
      2-silu: {}
      1-linear: {head.layers: 1}

Keys are dotted as on the command line, and values are YAML. Every variant is run once for each
seed, in FOLDER/VARIANT/SEED. The others are compared with the first variant. A seed sets both
`seed` and `data.seed`: the head, dropout, the records that are drawn, and their order. `{seed}` in
a text of a variant stands for the seed, as in the path of a model that another list trained with
each seed. If a variant has its own `extends: RECIPE`, the list is laid over that recipe, so that a
list can compare several methods under the same settings.

A run folder contains the files of the entry script and its console in `log.txt`. Once the run is
complete, it also contains `run.json` and the results of the last checkpoint: `eval/` with figures
and predictions, or `answers/` of a policy. Tables are made from these files, so that the
checkpoints of complete runs may be deleted.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.data.config.layers import COMMAND_LINE, Located, Reader, overlay
from mmrm.data.errors import Problem, RecipeError, UserError
from mmrm.data.storage.files import write_json, write_whole
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.train.recipe.parsing import VARIANTS, read_recipe, required
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.provenance import leaves, recipe_yaml

NAME = re.compile(r"\w[\w.-]*")
DONE = "run.json"
LOG = "log.txt"
RECIPE = "recipe.yaml"
GRACE_SECONDS = 30
MEASURED = ("eval", "answers")
"""Folders of a checkpoint with the results of a judge and of a policy."""
ONLY_TO_RESUME = ("global_step*", "optimizer.pt")
"""Patterns of the files of checkpoints that only resuming needs, which are most of their size."""


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
        """Return the name of the run in messages: "layers-2, seed 0"."""
        return f"{self.variant}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Ablation:
    """A list of runs.

    The runs of one seed are together, so that a list that is cut short has compared all variants
    once.
    """

    path: Path
    folder: Path
    changes: dict[str, str]
    """The changes of each variant, as they would be written on the command line."""
    runs: tuple[Run, ...]

    @property
    def reference(self) -> str:
        """The variant that the others are compared with: the first."""
        return next(iter(self.changes))


def read_ablation(
    path: Path, overrides: Sequence[str] = (), seeds: Sequence[int] = (0,)
) -> Ablation:
    """Return the list at `path` with `overrides` (`section.key=value`) laid over every variant.

    Raises:
        RecipeError: With all problems of the recipe, or if it has none, with those of the variants.
    """
    reader = Reader()
    tree = reader.recipe(path)
    above = Located({}, COMMAND_LINE)
    for text in overrides:
        above = overlay(above, reader.override(text))
    sections: Any = tree.value
    variants = sections.pop(VARIANTS, Located(None, f"{path}:1"))
    wrong_list = list_problems(variants)
    patches: dict[str, Located] = {} if wrong_list else variants.value
    changes = {name: changes_as_text(patch) for name, patch in patches.items()}
    trees = {name: over_its_own(reader, path, tree, patch) for name, patch in patches.items()}
    first = next(iter(trees), None)
    whole = tree
    if first is not None and trees[first] is not tree:
        # The recipe that the first variant extends may have sections that the list lacks.
        whole = overlay(trees[first], for_seed(undotted(patches[first]), seeds[0]))
    base = required(path, overlay(whole, above), [*reader.problems, *wrong_list])
    runs = []
    problems: list[Problem] = []
    for seed in seeds:
        for name, patch in patches.items():
            own = located_settings(name, seed, base)
            with_changes = overlay(trees[name], for_seed(undotted(patch), seed))
            try:
                recipe = required(path, overlay(overlay(with_changes, above), own), [])
                runs.append(Run(name, seed, recipe))
                wrong = evaluation_problems(recipe, base, patch)
            except RecipeError as error:
                wrong = error.problems
            problems += [Problem(p.where, f"{name}: {p.key}", p.value, p.message) for p in wrong]
    if problems:
        raise RecipeError(str(path), list(dict.fromkeys(problems)))
    return Ablation(path, Path(base.output.folder), changes, tuple(runs))


def changes_as_text(patch: Located) -> str:
    """Return the changes of a variant as they would be written on the command line."""
    settings: Any = patch.plain()
    texts = []
    for key, value in settings.items():
        text = value if isinstance(value, str) else json.dumps(value)
        texts.append(f"{key}={text}")
    return ", ".join(texts)


def located_settings(variant: str, seed: int, base: Recipe) -> Located:
    """Return the settings that are different in every run of a variant: seeds and output folder."""
    data = {"seed": seed}
    if compared_on(base) == (HELD_OUT,):
        # Runs are compared row by row, so that all seeds hold out the same records.
        data["validation_seed"] = base.data.seed
    output = {"folder": f"{Path(base.output.folder)}/{variant}/{seed}", "resume": "auto"}
    return Located.of({"seed": seed, "data": data, "output": output}, "--seeds")


def list_problems(variants: Located) -> list[Problem]:
    """Return the reasons why `variants` is no mapping of names to changes."""
    if not isinstance(variants.value, dict) or not variants.value:
        message = (
            "a list of runs holds a mapping of a name to the keys that it changes; `{}` changes "
            "none. See the head of train/studies/ablation/variants.py"
        )
        return [Problem(variants.where, VARIANTS, "", message)]
    problems = []
    for name, patch in variants.value.items():
        if not NAME.fullmatch(name):
            message = "a variant's name is that of its folder: letters, digits, _ . and - only"
            problems.append(Problem(patch.where, f"{VARIANTS}.{name}", "", message))
        if not isinstance(patch.value, dict):
            message = (
                "a variant is a mapping of dotted keys, such as {head.layers: 1}; `{}` changes none"
            )
            found = json.dumps(patch.plain())
            problems.append(Problem(patch.where, f"{VARIANTS}.{name}", found, message))
    return problems


def compared_on(recipe: Recipe) -> tuple[str, ...]:
    """Return the evaluations by which the variants of a list are compared; none for policies.

    These are the benchmarks, or the held-out records if there are none and the method judges them.
    """
    if recipe.evaluation.benchmarks:
        return tuple(benchmark.name for benchmark in recipe.evaluation.benchmarks)
    if f"{HELD_OUT}/accuracy" in recipe.held_out_figures:
        return (HELD_OUT,)
    return ()


def evaluation_problems(recipe: Recipe, base: Recipe, patch: Located) -> Sequence[Problem]:
    """Return the reasons why the figures of a variant cannot be compared with others."""
    if compared_on(recipe) == (HELD_OUT,) and compared_on(base) == (HELD_OUT,):
        return _held_out_problems(recipe, base, patch)
    key = recipe.method.evaluated_on
    own = getattr(recipe.evaluation, key)
    if not own:
        message = f"there is nothing to compare variants by; name {key}"
        return [Problem(patch.where, f"evaluation.{key}", "[]", message)]
    if own == getattr(base.evaluation, key):
        return []
    message = f"the variants of a list share their {key}, row by row; set them for the whole list"
    return [Problem(patch.where, f"evaluation.{key}", "", message)]


def _held_out_problems(recipe: Recipe, base: Recipe, patch: Located) -> Sequence[Problem]:
    """Return the settings that keep a variant from holding out the records of the first variant."""
    problems = []
    own = recipe.data.model_dump()
    shared = base.data.model_dump()
    for key in ("sources", "filters", "validation"):
        if own[key] != shared[key]:
            message = (
                "the variants of this list are compared on held-out records, which must be the "
                "same for all. Set this key for the whole list, or name benchmarks "
                "(evaluation.benchmarks)"
            )
            problems.append(Problem(patch.where, f"data.{key}", "", message))
    return problems


def over_its_own(reader: Reader, path: Path, tree: Located, patch: Located) -> Located:
    """Return the settings of a list, laid over the recipe that a variant extends, if it extends one.

    The key `extends` is removed from `patch`.
    """
    changes: Any = patch.value
    extended = changes.pop("extends", None)
    if extended is None:
        return tree
    extended_path = path.parent / str(extended.plain())
    return overlay(reader.recipe(extended_path, (path.resolve(),), extended.where), tree)


def for_seed(tree: Located, seed: int) -> Located:
    """Return nested settings in which the seed replaces `{seed}` in all texts."""
    value: Any = tree.value
    if isinstance(value, dict):
        value = {key: for_seed(child, seed) for key, child in value.items()}
    elif isinstance(value, list):
        value = [for_seed(child, seed) for child in value]
    elif isinstance(value, str):
        value = value.replace("{seed}", str(seed))
    return Located(value, tree.where)


def undotted(patch: Located) -> Located:
    """Return a mapping with dotted keys as nested mappings."""
    tree = Located({}, patch.where)
    changes: Any = patch.value
    for key, value in changes.items():
        for name in reversed(key.split(".")):
            value = Located({name: value}, value.where)
        tree = overlay(tree, value)
    return tree


def state(run: Run) -> str:
    """Return how far a run has come: `complete`, `begun` or `to do`."""
    if (run.folder / DONE).exists():
        return "complete"
    return "begun" if (run.folder / RECIPE).exists() else "to do"


def refuse_other_recipes(runs: Sequence[Run]) -> None:
    """Raise UserError if another recipe began a run in one of the folders."""
    for run in runs:
        differing = differences(run) if (run.folder / RECIPE).exists() else []
        if differing:
            raise UserError(
                f"{run.folder} holds a run with another recipe (there / asked for): "
                f"{'; '.join(differing)}. Remove that folder to train it again, or give "
                "output.folder=… to keep it and begin another list"
            )


def differences(run: Run) -> list[str]:
    """Return the keys in which a run's recipe and that in its folder differ, with both values."""
    try:
        stored = leaves(read_recipe(run.folder / RECIPE).resolved())
        requested = leaves(run.recipe.resolved())
    except RecipeError as error:
        return [str(error)]
    return [
        f"{key} {stored.get(key)} / {requested.get(key)}"
        for key in stored | requested
        if stored.get(key) != requested.get(key)
    ]


def end_runs_on_signals() -> None:
    """Let SIGTERM and SIGINT end this process and the run that it started, with their clean-up."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))


def train(run: Run, launcher: Sequence[str], lock: int) -> bool:
    """Train or resume a run, and return True if it reached its last step.

    The results of its last checkpoint are then copied into the run folder, and the files of
    ONLY_TO_RESUME are removed.
    """
    begin = time.monotonic()
    if launch(run, launcher, lock):
        return False
    # The results of the last checkpoint count: the best of several would be chosen by luck too.
    done = newest(run.folder, "complete")
    if done is None:
        raise UserError(
            f"{run.folder}: the run came to its end and left no checkpoint; see {run.folder / LOG}"
        )
    for name in MEASURED:
        results = done.parent / name
        if results.exists():
            shutil.copytree(results, run.folder / name, dirs_exist_ok=True)
    for pattern in ONLY_TO_RESUME:
        for path in list(run.folder.glob(f"checkpoint-*/{pattern}")):
            remove(path)
    about = {
        "checkpoint": done.parent.name,
        "seconds_of_last_launch": round(time.monotonic() - begin),
    }
    write_json(run.folder / DONE, about)
    return True


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def newest(folder: Path, name: str) -> Path | None:
    """Return the path of the file `name` in the newest checkpoint that has one."""
    return max(
        folder.glob(f"checkpoint-*/{name}"),
        key=lambda path: int(path.parent.name.split("-")[1]),
        default=None,
    )


def launch(run: Run, launcher: Sequence[str], lock: int) -> int:
    """Run the entry script of a run's method and return its exit status.

    Its console is appended to `log.txt`. If this process is ended, so is the run.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.folder / RECIPE, recipe_yaml(run.recipe))
    script = Path(__file__).parents[2] / f"{run.recipe.method.script}.py"
    with (run.folder / LOG).open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*launcher, str(script), str(run.folder / RECIPE)],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock],
        )
        try:
            status = process.wait()
        finally:
            if process.poll() is None:
                stop(process)
        if status:
            log.write(f"ended with status {status}\n")
    return status


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children: by SIGTERM, and after GRACE_SECONDS by SIGKILL."""
    deadline = time.monotonic() + GRACE_SECONDS
    with suppress(ProcessLookupError):  # the group is gone
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(0.1)
            process.poll()
            os.killpg(process.pid, 0)
        os.killpg(process.pid, signal.SIGKILL)


def last_words(run: Run, count: int = 12) -> str:
    """Return the last lines of a run's log.txt."""
    lines = (run.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-count:])
