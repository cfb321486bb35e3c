"""Steps of a command that trains and measures several models.

Each step is a process of its own, and is not repeated once it is done.
"""

import shlex
import subprocess
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrm.data.errors import UserError
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

CLONE = Path(__file__).resolve().parents[3]


def record_of(output: Path) -> Path:
    """Return the path of the file with the digests of all files that an output was made from."""
    return output.with_name(f"{output.name}.made_from.json")


def run_step(
    launcher: Sequence[str],
    script: str,
    arguments: Sequence[str],
    output: Path,
    made_from: Mapping[str, str],
) -> None:
    """Run a command of this project unless its output exists and was made from the same files.

    Args:
        launcher: The command line that starts the command, such as `python`.
        script: The path of the command, relative to the root of this repository.
        arguments: The arguments of the command.
        output: The file that the command writes when it ends.
        made_from: Digests of the files and models that the output depends on. They are kept next
            to the output. An output that was made from others is removed and made again, and so is
            an output without digests: an option can name a file whose content has changed since.

    Raises:
        UserError: If the command fails.
    """
    record = record_of(output)
    is_current = record.is_file() and read_json(record) == dict(made_from)
    if output.exists() and is_current:
        return
    if not is_current:
        output.unlink(missing_ok=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, dict(made_from))
    status = subprocess.run([*launcher, str(CLONE / script), *arguments], check=False).returncode
    if status:
        raise UserError(
            f"{script} {shlex.join(arguments)} ended with status {status}; what it printed says "
            "why. What was done is kept."
        )


def model_digest(path: str) -> str:
    """Return a text that changes with the content of a checkpoint or of a judge's file.

    The text is the digest of the file, or of the checkpoint's list of files. A model without such a
    list (a hub id, `embedded`, a folder of another program) is identified by its path.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return content_digest(place)
    file_list = place / "complete"
    if not file_list.is_file() or not file_list.stat().st_size:  # it is empty in older checkpoints
        return path
    return content_digest(file_list)


def trained(
    recipe: Path,
    overrides: Sequence[str],
    folder: Path,
    launcher: Sequence[str],
    lock: int,
    made_from: Mapping[str, str],
) -> str:
    """Return the last checkpoint of a recipe's run in a folder, and train it first if necessary.

    Args:
        recipe: The recipe.
        overrides: Values that replace those of the recipe (`section.key=value`).
        folder: The run folder.
        launcher: The command line that starts the training.
        lock: The file descriptor of the study's lock, which the training inherits.
        made_from: Digests of the files and models that the recipe names and that may have changed
            since the training began.

    Raises:
        UserError: If the training fails, or if the folder was begun by another recipe, or by the
            same recipe on other data or models.
    """
    resumed = [*overrides, f"output.folder={folder}", "output.resume=auto"]
    whole_recipe = read_recipe(recipe, resumed)
    run = Run(f"{folder.parent.name}, {folder.name}", whole_recipe.seed, whole_recipe)
    refuse_other_recipes([run])
    record = record_of(folder)
    if state(run) == "to do":
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, dict(made_from))
    before = read_json(record) if record.is_file() else {}
    changed = [name for name, content in made_from.items() if before.get(name) != content]
    if changed:
        raise UserError(
            f"{folder} holds a run of the same recipe, but not one that is known to have begun "
            f"with the same content of: {', '.join(changed)}. That has changed since, so that the "
            "run's model does not belong to the other results. Remove that folder to train it again."
        )
    if state(run) != "complete" and not train(run, launcher, lock):
        raise UserError(
            f"{folder}: the training failed; see {folder / LOG}. Its last words:\n{last_words(run)}"
        )
    return str(checkpoint_of(run))


def checkpoint_of(run: Run) -> Path:
    """Return the last checkpoint of a complete run; raise UserError if it was deleted."""
    checkpoint: Path = run.folder / read_json(run.folder / DONE)["checkpoint"]
    if not (checkpoint / "complete").exists():
        raise UserError(
            f"{checkpoint} is gone, which is needed now. Remove {run.folder} to train it again."
        )
    return checkpoint


def keep_settings(file: Path, options: Namespace, names: Sequence[str], **more: str) -> None:
    """Write the options of a command to a file, or refuse other options than those in the file.

    If an interrupted command were continued with other options, results of both would be mixed.

    Args:
        file: The file of the options.
        options: The options of the command.
        names: The options that must stay the same.
        more: Further values that must stay the same.

    Raises:
        UserError: If the file has other values.
    """
    requested: dict[str, str | None] = {}
    for name in names:
        value = getattr(options, name)
        requested[name] = None if value is None else str(value)
    requested |= more
    stored = read_json(file) if file.is_file() else requested
    if stored != requested:
        differing = [
            f"{name} {stored.get(name)} / {value}"
            for name, value in requested.items()
            if stored.get(name) != value
        ]
        raise UserError(
            f"{file.parent} was begun with other settings (there / asked for): "
            f"{'; '.join(differing)}. Remove that folder to begin again, or name another one."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, requested)
