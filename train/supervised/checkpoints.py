"""Which checkpoints are whole, which of them stay, and from which one a run continues."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from data.errors import UserError
from models.distributed import barrier, rank

COMPLETE = "complete"
"""An empty file that is written last: a checkpoint without it was cut off while it was being saved."""
NAME = re.compile(r"checkpoint-(\d+)")


BEST = "best"
"""The link in the run folder to the best checkpoint so far; Trainer finds it and rotation spares it."""


class KeepCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Writes a checkpoint's cards, marks it as complete, points the link at the best one, and removes what newer ones replace.

    At any kill a whole checkpoint is left. Trainer's own rotation comes before the mark, and goes by the folders' times, which a
    resume or an evaluation changes.
    """

    def __init__(self, keep: int, write_cards: Callable[[Path, str], None]) -> None:
        """`write_cards` takes a checkpoint's folder and its step as `5 of 20`."""
        self.keep, self.write_cards = keep, write_cards

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Set the link on resume, in case a kill came between a save and its link."""
        if state.is_world_process_zero and state.best_model_checkpoint:
            point_link(Path(args.output_dir) / BEST, Path(args.output_dir) / Path(state.best_model_checkpoint).name)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Mark, link and remove, on the first rank, once every rank has written its part."""
        barrier()
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        checkpoint = folder / f"checkpoint-{state.global_step}"
        self.write_cards(checkpoint, f"{state.global_step} of {state.max_steps}")
        (checkpoint / COMPLETE).touch()
        self.on_train_begin(args, state, control)
        for path in whole_checkpoints(folder)[: -self.keep]:
            if path.name != (folder / BEST).resolve().name:
                (path / COMPLETE).unlink()  # first, so that a half removed one counts as cut off
                shutil.rmtree(path)


def point_link(link: Path, target: Path) -> None:
    """Let `link` point at `target` by a relative path, in one atomic step; a kill leaves the old link or the new one."""
    beside = link.with_name(link.name + ".new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    beside.replace(link)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest first, whole or not."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*") if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run that were saved to the end, oldest first."""
    return [path for path in checkpoints(folder) if (path / COMPLETE).exists()]


def chosen_checkpoint(folder: Path) -> Path:
    """Return the best checkpoint of a run, the newest where none was chosen."""
    best = folder / BEST
    return (best if best.exists() else whole_checkpoints(folder)[-1]).resolve()


def find_resume(folder: Path, resume: str, console: Console) -> Path | None:
    """Return the checkpoint to continue from: None for `never`, and for `auto` where there is none yet.

    Checkpoints that were cut off are removed, with a line each: the run will write them again.
    Raises: UserError for a path that is not a whole checkpoint.
    """
    if resume == "never":
        return None
    if resume != "auto":
        path = Path(resume)
        if not (path / COMPLETE).exists():
            raise UserError(
                f"output.resume: {resume} is not a whole checkpoint (it has no file `{COMPLETE}`, which is written last). "
                "Give a checkpoint-N folder of a finished save, or `auto`."
            )
        return path
    whole = whole_checkpoints(folder)
    barrier()
    if rank() == 0:
        for path in [path for path in checkpoints(folder) if path not in whole]:
            console.print(f"{path.name} was cut off while it was being saved; it is removed")
            shutil.rmtree(path)
    barrier()
    return whole[-1] if whole else None
