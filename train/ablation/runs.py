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
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from data.errors import RecipeError, UserError
from data.storage.files import write_whole
from train.ablation.variants import Run
from train.recipe.parsing import read_recipe
from train.runs.provenance import leaves, recipe_yaml

DONE = "run.json"
LOG = "log.txt"
RECIPE = "recipe.yaml"
GRACE_SECONDS = 30
ONLY_TO_RESUME = ("global_step*", "optimizer.pt")
"""What of a checkpoint is needed only to resume: DeepSpeed's part and the optimizer state, most of its size."""


def state(run: Run) -> Literal["complete", "begun", "to do"]:
    """Say how far a run has come."""
    if (run.folder / DONE).exists():
        return "complete"
    return "begun" if (run.folder / RECIPE).exists() else "to do"


def refuse_other_recipes(runs: Sequence[Run]) -> None:
    """Refuse to count, or to continue, a run in one of the folders that another recipe began."""
    for run in runs:
        file = run.folder / RECIPE
        if file.exists() and (differing := differences(file, run)):
            raise UserError(
                f"{run.folder} holds a run with another recipe (there / asked for): {'; '.join(differing)}. Remove that folder "
                "to train it again, or give output.folder=… to keep it and begin another list"
            )


def differences(file: Path, run: Run) -> list[str]:
    """Return the keys in which the recipe in `file` is not that of `run`, with both values."""
    try:
        there, asked = (leaves(recipe.resolved()) for recipe in (read_recipe(file), run.recipe))
    except RecipeError as error:
        return [str(error)]
    return [f"{key} {there.get(key)} / {asked.get(key)}" for key in there | asked if there.get(key) != asked.get(key)]


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Hold the lock of a list, and give its file descriptor, which runs inherit: they keep it should this process be killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is in use: this list, or a run that it began, still goes on; wait for it") from None
        yield file.fileno()


def end_runs_on_signals() -> None:
    """On SIGTERM and SIGINT end this process in order, and with it the run that goes on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))


def train(run: Run, launcher: Sequence[str], lock: int) -> bool:
    """Train a run, or resume it, and say whether it came to its end; then keep its figures and remove ONLY_TO_RESUME."""
    begin = time.monotonic()
    if launch(run, launcher, lock):
        return False
    # The last checkpoint's figures are the run's: the best of several would be chosen by luck too.
    done = newest(run.folder, "complete")
    if done is None:
        raise UserError(f"{run.folder}: the run came to its end and left no checkpoint; see {run.folder / LOG}")
    shutil.copytree(done.parent / "eval", run.folder / "eval", dirs_exist_ok=True)
    for path in [path for pattern in ONLY_TO_RESUME for path in done.parent.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    about = {"checkpoint": done.parent.name, "seconds_of_last_launch": round(time.monotonic() - begin)}
    write_whole(run.folder / DONE, json.dumps(about, indent=1) + "\n")
    return True


def newest(folder: Path, name: str) -> Path | None:
    """Return the file `name` of the checkpoint with the most steps that has one."""
    return max(folder.glob(f"checkpoint-*/{name}"), key=lambda path: int(path.parent.name.split("-")[1]), default=None)


def launch(run: Run, launcher: Sequence[str], lock: int) -> int:
    """Run the entry script of a run's method and return its status; its console is appended to `log.txt`.

    Where this process is ended, so is the run.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.folder / RECIPE, recipe_yaml(run.recipe))
    script = Path(__file__).parents[1] / f"{run.recipe.entry}.py"
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
    """End a process and those that it began, which are its group: in order, and after GRACE_SECONDS by force."""
    deadline = time.monotonic() + GRACE_SECONDS
    with suppress(ProcessLookupError):  # the group is gone
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(0.1)
            process.poll()
            os.killpg(process.pid, 0)
        os.killpg(process.pid, signal.SIGKILL)


def last_words(run: Run, count: int = 12) -> str:
    """Return the last lines of a run's console."""
    return "\n".join((run.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
