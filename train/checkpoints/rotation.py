"""Which checkpoints are whole, which of them stay, and from which one a run continues."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
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
"""Of a trained parameter in a checkpoint: two moments and a copy of the weight, in fp32."""
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

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """On resume, set the link, in case a kill came between a save and its link, and the intervals to what is asked for now.

        Trainer takes them from the checkpoint.
        """
        state.compute_steps(args, state.max_steps)
        if state.is_world_process_zero and state.best_model_checkpoint:
            point_link(
                Path(args.output_dir) / BEST,
                Path(args.output_dir) / Path(state.best_model_checkpoint).name,
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        """Mark on all ranks, once every rank has written its part; link and remove on the first."""
        barrier()
        folder = Path(args.output_dir)
        checkpoint = folder / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            self.write_cards(checkpoint, f"{state.global_step} of {state.max_steps}")
        barrier()
        mark_complete(checkpoint)
        if not state.is_world_process_zero:
            return
        self.on_train_begin(args, state, control)
        for path in whole_checkpoints(folder)[: -self.keep]:
            if path.name != (folder / BEST).resolve().name:
                (path / COMPLETE).unlink()  # first, so that a half removed one counts as cut off
                shutil.rmtree(path)


@contextmanager
def room_for_checkpoint(model: nn.Module, folder: Path) -> Iterator[None]:
    """Check the free space before a checkpoint is saved in `folder`, and name it if the disk fills up nevertheless.

    A checkpoint takes what the last complete one does; the first one the weights and, of what is trained, OPTIMIZER_BYTES.
    Raises: UserError with the folder, its free space and the last complete checkpoint.
    """
    whole = whole_checkpoints(folder)
    if whole:
        needed = sum(path.stat().st_size for path in whole[-1].rglob("*") if path.is_file())
    else:
        sizes = [
            (getattr(one, "ds_numel", one.numel()), one) for one in model.parameters()
        ]  # ZeRO-3 leaves a part of one
        needed = sum(
            size * (one.element_size() + OPTIMIZER_BYTES * one.requires_grad) for size, one in sizes
        )
    last = (
        f"The last complete checkpoint is {whole[-1]}"
        if whole
        else "There is no complete checkpoint of this run yet"
    )
    advice = f"{last}. Make room (output.keep_checkpoints says how many stay), then start again with --resume."
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise UserError(
            f"{folder}: a checkpoint takes about {needed:,} bytes, {free:,} are free. Nothing was saved. {advice}"
        )
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and free > needed // 100:
            raise
        raise UserError(
            f"{folder}: the disk was full while a checkpoint was saved, {free:,} bytes are free. {advice}"
        ) from error


def point_link(link: Path, target: Path) -> None:
    """Let `link` point at `target` by a relative path, in one atomic step; a kill leaves the old link or the new one."""
    beside = link.with_name(link.name + ".new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    beside.replace(link)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest first, whole or not."""
    found = [
        (int(match[1]), path)
        for path in folder.glob("checkpoint-*")
        if (match := NAME.fullmatch(path.name))
    ]
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

    Checkpoints that were cut off are removed, with a line each: the run will write them again. For `auto` a damaged one is set
    aside and the one before it taken. All ranks call together; the first one looks, and all check the files. DeepSpeed unpickles
    its states, which can run any code: a checkpoint is trusted like a program.
    Raises: UserError for a path that is not a whole checkpoint or is damaged, and where no checkpoint of a run is undamaged.
    """
    if resume == "never":
        return None
    whole = gather(whole_checkpoints(folder))[0]
    if resume != "auto":
        path = Path(resume)
        if not (path / COMPLETE).exists():
            raise UserError(
                f"output.resume: {resume} is not a whole checkpoint (it has no file `{COMPLETE}`, which is written last). "
                "Give a checkpoint-N folder of a finished save, or `auto`."
            )
        if lines := damage(path):
            others = (
                ", ".join(
                    one.name for one in whole_checkpoints(path.parent) if one.name != path.name
                )
                or "none"
            )
            raise UserError(
                f"output.resume: {path} is damaged: {'; '.join(lines)}. Copy these files again, or give another checkpoint "
                f"(of this run: {others})."
            )
        if rank() == 0:
            console.print(
                f"continuing from {path}, which is trusted like code: DeepSpeed unpickles its states",
                soft_wrap=True,
            )
        return path
    if rank() == 0:
        for path in [path for path in checkpoints(folder) if path not in whole]:
            console.print(f"{path.name} was cut off while it was being saved; it is removed")
            shutil.rmtree(path)
    barrier()
    damaged: dict[Path, str] = {}
    for path in reversed(whole):
        if lines := damage(path):
            damaged[path] = "; ".join(lines)
            continue
        if rank() == 0:
            set_aside(damaged, console)
        barrier()
        return path
    if damaged:
        found = "; ".join(f"{path.name}: {lines}" for path, lines in damaged.items())
        raise UserError(
            f"{folder}: no checkpoint of this run is undamaged. {found}. Copy these files again, or begin another run: "
            "output.folder=NEW."
        )
    return None


def set_aside(damaged: dict[Path, str], console: Console) -> None:
    """Rename damaged checkpoints, so that their steps can be saved again, and say what is wrong with each."""
    for path, lines in damaged.items():
        names = (f"damaged-{path.name}{f'-{number}' if number else ''}" for number in count())
        aside = path.rename(
            next(place for name in names if not (place := path.with_name(name)).exists())
        )
        console.print(
            f"{path.name} is damaged and set aside as {aside.name}: {lines}", highlight=False
        )
