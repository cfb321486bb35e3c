"""Which checkpoints are complete, which of them are kept, and from which one a run continues."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmrm.data.errors import UserError
from mmrm.data.storage.manifest import COMPLETE
from mmrm.models.distributed import barrier, gather, rank
from mmrm.train.checkpoints.integrity import damage, mark_complete

OPTIMIZER_BYTES = 12
"""Bytes of optimizer state for each trained parameter: two moments and a copy of the weight, in
fp32."""
NAME = re.compile(r"checkpoint-(\d+)")
"""Name of a checkpoint's folder."""
BEST = "best"
"""Link in the run folder to the best checkpoint so far, which is never removed."""


class KeepCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Completes a saved checkpoint and removes old ones.

    It writes the cards of the checkpoint, marks it as complete, points the link `best` at the best
    one, and removes checkpoints that newer ones replace. If the run is killed at any time, a
    complete checkpoint is left. Trainer's own rotation would come before the mark, and uses the
    folders' times, which a resume or an evaluation changes.
    """

    def __init__(self, keep: int, write_cards: Callable[[Path, str], None]) -> None:
        """Set what is kept.

        Args:
            keep: Number of the newest complete checkpoints that are kept, besides the best one.
            write_cards: Takes the folder of a checkpoint, and its step as `5 of 20`.
        """
        self.keep = keep
        self.write_cards = write_cards

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Set intervals and link on resume.

        Trainer takes the intervals of saving and evaluation from the checkpoint; they are set to
        those of the arguments. The run may have been killed between a save and its link.
        """
        state.compute_steps(args, state.max_steps)
        self._link_best(args, state)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Complete the checkpoint after every rank has written its part of it."""
        barrier()
        folder = Path(args.output_dir)
        checkpoint = folder / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            self.write_cards(checkpoint, f"{state.global_step} of {state.max_steps}")
        barrier()
        mark_complete(checkpoint)
        if not state.is_world_process_zero:
            return
        state.compute_steps(args, state.max_steps)
        self._link_best(args, state)
        for path in whole_checkpoints(folder)[: -self.keep]:
            if path.name != (folder / BEST).resolve().name:
                # Removed first, so that a folder that is only half removed counts as incomplete.
                (path / COMPLETE).unlink()
                shutil.rmtree(path)

    def _link_best(self, args: TrainingArguments, state: TrainerState) -> None:
        """Point the link at the best checkpoint so far, on the first rank."""
        if state.is_world_process_zero and state.best_model_checkpoint:
            folder = Path(args.output_dir)
            point_link(folder / BEST, folder / Path(state.best_model_checkpoint).name)


@contextmanager
def room_for_checkpoint(model: nn.Module, folder: Path) -> Iterator[None]:
    """Check the free space before a checkpoint is saved inside the context.

    Raises:
        UserError: The space does not suffice, or the disk fills up nevertheless. The message
            contains the folder, its free space and the last complete checkpoint.
    """
    complete = whole_checkpoints(folder)
    if complete:
        last = f"The last complete checkpoint is {complete[-1]}"
        needed = sum(path.stat().st_size for path in complete[-1].rglob("*") if path.is_file())
    else:
        last = "There is no complete checkpoint of this run yet"
        needed = _first_checkpoint_bytes(model)
    advice = (
        f"{last}. Make room (output.keep_checkpoints is the number of checkpoints that are kept), "
        "then start again with --resume."
    )
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder}: a checkpoint takes about {needed:,} bytes, {free:,} are free. "
            f"Nothing was saved. {advice}"
        )
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free
        is_disk_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        # Libraries report a full disk in errors of their own, which are told by the free space.
        if not is_disk_full and free > needed // 100:
            raise
        raise UserError(
            f"{folder}: the disk was full while a checkpoint was saved, {free:,} bytes are free. "
            f"{advice}"
        ) from error


def _first_checkpoint_bytes(model: nn.Module) -> int:
    """Return the expected size of a run's first checkpoint: weights and optimizer states."""
    num_bytes = 0
    for parameter in model.parameters():
        # ZeRO-3 leaves only a part of a parameter on each rank.
        size = parameter.ds_numel if hasattr(parameter, "ds_numel") else parameter.numel()
        num_bytes += size * parameter.element_size()
        if parameter.requires_grad:
            num_bytes += size * OPTIMIZER_BYTES
    return num_bytes


def point_link(link: Path, target: Path) -> None:
    """Let `link` point at `target` by a relative path.

    The step is atomic: a kill leaves the old link or the new one.
    """
    new_link = link.with_name(link.name + ".new")
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    new_link.replace(link)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest first, complete or not."""
    steps_and_paths = []
    for path in folder.glob("checkpoint-*"):
        match = NAME.fullmatch(path.name)
        if match:
            steps_and_paths.append((int(match[1]), path))
    return [path for _, path in sorted(steps_and_paths)]


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    return [path for path in checkpoints(folder) if (path / COMPLETE).exists()]


def chosen_checkpoint(folder: Path) -> Path:
    """Return the best checkpoint of a run, or the newest if no best one was chosen."""
    best = folder / BEST
    return (best if best.exists() else whole_checkpoints(folder)[-1]).resolve()


def find_resume(folder: Path, resume: str, console: Console) -> Path | None:
    """Return the checkpoint to continue from; all ranks must call together.

    The first rank looks, and all ranks check the files. DeepSpeed unpickles its states, which can
    run any code: a checkpoint is trusted like a program.

    Args:
        folder: The run folder.
        resume: `never`, `auto` for the newest checkpoint of the run, or the path of a checkpoint.
            With `auto`, incomplete checkpoints are removed and damaged ones are set aside, with a
            line each.
        console: Receives these lines.

    Returns:
        None for `never`, and for `auto` if there is no checkpoint yet.

    Raises:
        UserError: The path is not a complete checkpoint or is damaged, or all checkpoints of the
            run are damaged.
    """
    if resume == "never":
        return None
    if resume == "auto":
        return _newest_checkpoint(folder, console)
    path = Path(resume)
    if not (path / COMPLETE).exists():
        raise UserError(
            f"output.resume: {resume} is not a whole checkpoint: it has no file `{COMPLETE}`, "
            "which is written last. Give a checkpoint-N folder of a finished save, or `auto`."
        )
    lines = damage(path)
    if lines:
        names = [other.name for other in whole_checkpoints(path.parent) if other.name != path.name]
        raise UserError(
            f"output.resume: {path} is damaged: {'; '.join(lines)}. Copy these files again, or "
            f"give another checkpoint (of this run: {', '.join(names) or 'none'})."
        )
    if rank() == 0:
        console.print(
            f"continuing from {path}, which is trusted like code: DeepSpeed unpickles its states",
            soft_wrap=True,
        )
    return path


def _newest_checkpoint(folder: Path, console: Console) -> Path | None:
    """Return the newest undamaged checkpoint of a run; None if the run has no complete checkpoint.

    Incomplete checkpoints are removed, because the run will write them again. Damaged ones are set
    aside.
    """
    complete = gather(whole_checkpoints(folder))[0]
    if rank() == 0:
        for path in checkpoints(folder):
            if path not in complete:
                console.print(f"{path.name} was cut off while it was being saved; it is removed")
                shutil.rmtree(path)
    barrier()
    damaged: dict[Path, str] = {}
    for path in reversed(complete):
        lines = damage(path)
        if lines:
            damaged[path] = "; ".join(lines)
            continue
        if rank() == 0:
            set_aside(damaged, console)
        barrier()
        return path
    if damaged:
        descriptions = [f"{path.name}: {lines}" for path, lines in damaged.items()]
        raise UserError(
            f"{folder}: no checkpoint of this run is undamaged. {'; '.join(descriptions)}. Copy "
            "these files again, or start another run: output.folder=NEW."
        )
    return None


def set_aside(damaged: dict[Path, str], console: Console) -> None:
    """Rename damaged checkpoints, so that their steps can be saved again, and print their damage.

    Args:
        damaged: Checkpoint to a description of its damage.
        console: Receives a line for each.
    """
    for path, description in damaged.items():
        new_path = path.with_name(f"damaged-{path.name}")
        number = 0
        while new_path.exists():
            number += 1
            new_path = path.with_name(f"damaged-{path.name}-{number}")
        path.rename(new_path)
        console.print(
            f"{path.name} is damaged and set aside as {new_path.name}: {description}",
            highlight=False,
        )
