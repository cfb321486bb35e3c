"""The steps of a command that trains and measures several models: each is a process of its own, and is not repeated once done."""

import shlex
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from data.errors import UserError
from data.storage.files import read_json, write_json
from train.ablation.variants import DONE, LOG, Run, last_words, refuse_other_recipes, state, train
from train.recipe.parsing import read_recipe

CLONE = Path(__file__).resolve().parents[2]


def run_step(launcher: Sequence[str], script: str, arguments: Sequence[str], output: Path) -> None:
    """Run a command of this project unless what it writes in the end, `output`, is there; its messages are shown.

    Raises: UserError where it fails.
    """
    if output.exists():
        return
    status = subprocess.run([*launcher, str(CLONE / script), *arguments], check=False).returncode
    if status:
        raise UserError(
            f"{script} {shlex.join(arguments)} ended with status {status}; what it printed says why. What was done is kept."
        )


def trained(
    recipe: Path, overrides: Sequence[str], folder: Path, launcher: Sequence[str], lock: int
) -> str:
    """Train a recipe into a folder unless that is done, and return its last checkpoint.

    Raises: UserError where the training fails, and for a folder that another recipe began.
    """
    whole = read_recipe(recipe, [*overrides, f"output.folder={folder}", "output.resume=auto"])
    run = Run(f"{folder.parent.name}, {folder.name}", whole.seed, whole)
    refuse_other_recipes([run])
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
