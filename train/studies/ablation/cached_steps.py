"""Steps of a study that trains and measures several models, such as train/predictors.py.

Each step is a command of this project in its own process. It is not repeated if its output exists
and was made from the same files.
"""

import shlex
import subprocess
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrm.data.errors import UserError
from mmrm.data.package import PACKAGE
from mmrm.data.storage.files import content_digest, read_json, write_json
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.variants import (
    DONE,
    LOG,
    Run,
    last_words,
    refuse_other_recipes,
    state,
    train,
)


def script_path(script: str) -> str:
    """Return the path of a command of this project, such as `eval/sample.py`, in a clone or wheel."""
    return str((PACKAGE / script).resolve())


def digests_file(output: Path) -> Path:
    """Return the path of the file with the digests of the inputs that an output was made from."""
    return output.with_name(f"{output.name}.made_from.json")


def run_step(
    launcher: Sequence[str],
    script: str,
    arguments: Sequence[str],
    output: Path,
    made_from: Mapping[str, str],
) -> None:
    """Run a command of this project, unless its output exists and was made from the same inputs.

    Args:
        launcher: The command line that starts the command, such as `python`.
        script: The path of the command, relative to the root of this repository.
        arguments: The arguments of the command.
        output: The file that the command writes when it ends.
        made_from: The digests of the files and models that the output depends on. The keys are any
            names for them. They are stored next to the output. An output that was made from inputs
            with other digests, or whose digests are unknown, is removed and made again.

    Raises:
        UserError: If the command fails.
    """
    digests = digests_file(output)
    is_same_input = digests.is_file() and read_json(digests) == dict(made_from)
    if output.exists() and is_same_input:
        return
    if not is_same_input:
        output.unlink(missing_ok=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(digests, dict(made_from))
    status = subprocess.run([*launcher, script_path(script), *arguments], check=False).returncode
    if status:
        raise UserError(
            f"{script} {shlex.join(arguments)} ended with status {status}; what it printed says "
            "why. What was done is kept."
        )


def model_digest(path: str) -> str:
    """Return a text that changes if the content of a model changes.

    For the file of a judge it is the digest of the file. For a checkpoint it is the digest of its
    file `complete`, which lists the digests of all other files. A model without such a list (a hub
    id, `embedded`, a checkpoint of another program) is identified by its path.
    """
    model = Path(path).expanduser()
    if model.is_file():
        return content_digest(model)
    file_list = model / "complete"
    if not file_list.is_file() or not file_list.stat().st_size:  # it is empty in older checkpoints
        return path
    return content_digest(file_list)


def trained_checkpoint(
    recipe: Path,
    overrides: Sequence[str],
    folder: Path,
    launcher: Sequence[str],
    lock: int,
    made_from: Mapping[str, str],
) -> str:
    """Train a recipe in a folder, unless its run there is complete, and return the last checkpoint.

    Args:
        recipe: The file of the recipe.
        overrides: Values that replace those of the recipe (`section.key=value`).
        folder: The run folder.
        launcher: The command line that starts the training.
        lock: The file descriptor of the study's lock, which the training inherits.
        made_from: The digests of files and models that the recipe names, and that may have changed
            since the training began. The keys are names for the message.

    Raises:
        UserError: If the training fails, or if the folder was begun by another recipe, or by the
            same recipe on other data or models.
    """
    all_overrides = [*overrides, f"output.folder={folder}", "output.resume=auto"]
    run_recipe = read_recipe(recipe, all_overrides)
    run = Run(f"{folder.parent.name}, {folder.name}", run_recipe.seed, run_recipe)
    refuse_other_recipes([run])
    digests = digests_file(folder)
    if state(run) == "to do":
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_json(digests, dict(made_from))
    made_from_before = read_json(digests) if digests.is_file() else {}
    changed = [name for name, value in made_from.items() if made_from_before.get(name) != value]
    if changed:
        raise UserError(
            f"{folder} holds a run of the same recipe, but not one that is known to have begun "
            f"with the same content of: {', '.join(changed)}. That has changed since, so that the "
            "run's model does not belong to the other results. Remove that folder to train it "
            "again."
        )
    if state(run) != "complete" and not train(run, launcher, lock):
        raise UserError(
            f"{folder}: the training failed; see {folder / LOG}. Its last words:\n{last_words(run)}"
        )
    return str(checkpoint_of(run))


def checkpoint_of(run: Run) -> Path:
    """Return the last checkpoint of a complete run.

    Raises:
        UserError: If the checkpoint was deleted.
    """
    checkpoint: Path = run.folder / read_json(run.folder / DONE)["checkpoint"]
    if not (checkpoint / "complete").exists():
        raise UserError(
            f"{checkpoint} is gone, which is needed now. Remove {run.folder} to train it again."
        )
    return checkpoint


def keep_settings(
    file: Path, options: Namespace, names: Sequence[str], **further_settings: str
) -> None:
    """Write the settings of a command to a file, or refuse other settings than those in the file.

    If an interrupted command were continued with other settings, results of both would be mixed.

    Args:
        file: The file of the settings.
        options: The options of the command.
        names: The names of those options that must stay the same.
        further_settings: Further values that must stay the same.

    Raises:
        UserError: If the file has other values.
    """
    requested: dict[str, str | None] = {}
    for name in names:
        value = getattr(options, name)
        requested[name] = None if value is None else str(value)
    requested |= further_settings
    stored = read_json(file) if file.is_file() else requested
    # A setting that only one version of the command has is None for the other one.
    differing = [
        f"{name} {stored.get(name)} / {requested.get(name)}"
        for name in stored | requested
        if stored.get(name) != requested.get(name)
    ]
    if differing:
        raise UserError(
            f"{file.parent} was begun with other settings (there / asked for): "
            f"{'; '.join(differing)}. Remove that folder to begin again, or name another one."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, requested)
