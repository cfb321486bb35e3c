"""The runs of an ablation: which are complete, and one of them trained in a process of its own.

A run folder holds what train/rm.py writes, its console in `log.txt`, and, once complete, `run.json` and `eval/` with the last
checkpoint's figures and predictions. The table is made of these: the checkpoints of complete runs may be deleted.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from data.errors import RecipeError, UserError
from data.storage.files import write_whole
from train.ablation.variants import Run
from train.recipe.methods import ENTRIES
from train.recipe.parsing import read_recipe
from train.runs.provenance import recipe_yaml

DONE = "run.json"
LOG = "log.txt"
RECIPE = "recipe.yaml"
GRACE_SECONDS = 30
ONLY_TO_RESUME = ("global_step*", "optimizer.pt")
"""What of a checkpoint serves no other end than to train on: DeepSpeed's part and the optimizer state, most of its size."""


def state(run: Run) -> Literal["complete", "begun", "to do"]:
    """Say how far a run has come."""
    if (run.folder / DONE).exists():
        return "complete"
    return "begun" if (run.folder / RECIPE).exists() else "to do"


def refuse_other_recipes(runs: Sequence[Run]) -> None:
    """Refuse to count, or to continue, a run in one of the folders that another recipe began.

    Raises: UserError.
    """
    for run in runs:
        file = run.folder / RECIPE
        if file.exists() and (differing := differences(file, run)):
            raise UserError(
                f"{run.folder} holds a run with another recipe (there / asked for): {'; '.join(differing)}. Remove that folder "
                "to train it anew, or give output.folder=… to keep it and begin another list"
            )


def differences(file: Path, run: Run) -> list[str]:
    """Return the keys in which the recipe in `file` is not that of `run`, with both values."""
    try:
        there, asked = (flat(recipe.resolved()) for recipe in (read_recipe(file), run.recipe))
    except RecipeError as error:
        return [str(error)]
    keys = dict.fromkeys([*there, *asked])
    return [f"{key} {there.get(key)} / {asked.get(key)}" for key in keys if there.get(key) != asked.get(key)]


def flat(tree: Any, key: str = "") -> dict[str, Any]:
    """Return the values of nested mappings and lists by their dotted keys."""
    if not isinstance(tree, dict | list) or not tree:
        return {key: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {name: value for k, child in items for name, value in flat(child, f"{key}.{k}" if key else str(k)).items()}


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Hold the list's lock, and give its file descriptor, which runs inherit: they keep it should this process be killed.

    Raises: UserError while another process, or a run that outlived one, holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is in use: this list, or a run that it began, still goes on; wait for it") from None
        yield file.fileno()


def train(run: Run, launcher: Sequence[str], lock: int) -> bool:
    """Train a run, or continue it, and say whether it came to its end; its console goes to `log.txt`."""
    run.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.folder / RECIPE, lambda file: file.write_text(recipe_yaml(run.recipe), encoding="utf-8"))
    entry = next(name for name, methods in ENTRIES.items() if run.recipe.method.type in methods)
    command = [*launcher, str(Path(__file__).parents[1] / f"{entry}.py"), str(run.folder / RECIPE)]
    begin = time.monotonic()
    if status := call(command, run.folder / LOG, lock):
        with (run.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(f"ended with status {status}\n")
        return False
    checkpoint = last_checkpoint(run.folder)
    shutil.copytree(checkpoint / "eval", evaluated(run), dirs_exist_ok=True)
    for pattern in ONLY_TO_RESUME:
        for path in checkpoint.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    about = {"checkpoint": checkpoint.name, "seconds_of_last_launch": round(time.monotonic() - begin)}
    write_whole(run.folder / DONE, lambda file: file.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8"))
    return True


def call(command: Sequence[str], log: Path, lock: int) -> int:
    """Run a command with its output appended to `log`, and return its status; where this process is ended, so is the command."""
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[lock]
        )
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it began, which are its group: in order, and after GRACE_SECONDS by force."""
    deadline = time.monotonic() + GRACE_SECONDS
    with suppress(ProcessLookupError):  # the group is gone
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(0.1)
            process.poll()
            os.killpg(process.pid, 0)
        os.killpg(process.pid, signal.SIGKILL)


def last_checkpoint(folder: Path) -> Path:
    """Return the checkpoint with the most steps: its figures are the run's. The best of several would be chosen by luck too.

    Raises: UserError if there is none.
    """
    found = sorted(folder.glob("checkpoint-*/complete"), key=lambda path: int(path.parent.name.split("-")[1]))
    if not found:
        raise UserError(f"{folder}: the run came to its end and left no checkpoint; see {folder / LOG}")
    return found[-1].parent


def evaluated(run: Run) -> Path:
    """Return the folder with the figures and predictions of a complete run."""
    return run.folder / "eval"
