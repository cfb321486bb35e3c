"""The steps of a command that trains and measures several models: each is a process of its own, and is not repeated once done."""

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
    """Return the file next to an output that holds digests of what the output was made from."""
    return output.with_name(f"{output.name}.made_from.json")


def run_step(
    launcher: Sequence[str],
    script: str,
    arguments: Sequence[str],
    output: Path,
    made_from: Mapping[str, str],
) -> None:
    """Run a command of this project unless its output is there and was made from the same.

    Args:
        launcher: What starts the command.
        script: The command, as a path in the clone.
        arguments: The arguments of the command.
        output: The file that the command writes when it ends.
        made_from: Digests of the files and models that the output depends on. They are kept next
            to the output. An output that was made from others is removed and made again, as is one
            of which this is not known: an option can name a file whose content has changed since.

    Raises: UserError if the command fails.
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
            f"{script} {shlex.join(arguments)} ended with status {status}; what it printed says why. What was done is kept."
        )


def model_digest(path: str) -> str:
    """Return a text that changes with a checkpoint of this project, or with the YAML file of a judge.

    A checkpoint is told by the digest of its list of files. Models without such a list (a hub id,
    `embedded`, a folder of another program) are told by their path.
    """
    if Path(path).expanduser().is_file():
        return content_digest(Path(path).expanduser())
    file_list = Path(path).expanduser() / "complete"
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
    """Train a recipe into a folder unless that is done, and return its last checkpoint.

    `made_from` are digests of the files and models that the recipe names and that may have changed
    since the training began.

    Raises: UserError where the training fails, and for a folder that another recipe, or the same
        one on other data or models, began.
    """
    whole = read_recipe(recipe, [*overrides, f"output.folder={folder}", "output.resume=auto"])
    run = Run(f"{folder.parent.name}, {folder.name}", whole.seed, whole)
    refuse_other_recipes([run])
    record = record_of(folder)
    if state(run) == "to do":
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, dict(made_from))
    before = read_json(record) if record.is_file() else {}
    changed = [name for name, content in made_from.items() if before.get(name) != content]
    if changed:
        raise UserError(
            f"{folder} holds a run of the same recipe, but not one that is known to have begun with "
            f"the same content of: {', '.join(changed)}. That has changed since, so that the run's "
            "model does not belong to the other results. Remove that folder to train it again."
        )
    if state(run) != "complete" and not train(run, launcher, lock):
        raise UserError(
            f"{folder}: the training failed; see {folder / LOG}. Its last words:\n{last_words(run)}"
        )
    return str(checkpoint_of(run))


def checkpoint_of(run: Run) -> Path:
    """Return the last checkpoint of a complete run; raise UserError where it was deleted."""
    found: Path = run.folder / read_json(run.folder / DONE)["checkpoint"]
    if not (found / "complete").exists():
        raise UserError(
            f"{found} is gone, which is needed now. Remove {run.folder} to train it again."
        )
    return found


def keep_settings(file: Path, options: Namespace, kept: Sequence[str], **more: str) -> None:
    """Write down with which options a command began; refuse to continue it with others, whose results would be mixed."""
    values = {name: getattr(options, name) for name in kept}
    asked = {name: None if value is None else str(value) for name, value in values.items()} | more
    if file.is_file() and (there := read_json(file)) != asked:
        differing = "; ".join(
            f"{name} {there.get(name)} / {value}"
            for name, value in asked.items()
            if there.get(name) != value
        )
        raise UserError(
            f"{file.parent} was begun with other settings (there / asked for): {differing}. Remove that folder to begin "
            "again, or name another one."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, asked)
