"""Which checkpoints are complete, which of them are kept, and from which one a run continues."""

import copy
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmrm.data.errors import UserError
from mmrm.data.storage.manifest import COMPLETE
from mmrm.models.distributed import barrier, gather, rank
from mmrm.train.checkpoints.integrity import damage, mark_complete
from mmrm.train.checkpoints.sizes import folder_bytes
from mmrm.train.checkpoints.staging import COPYING, Staging

NAME = re.compile(r"checkpoint-(\d+)")
"""Name of a checkpoint's folder."""
BEST = "best"
"""Link in the run folder to the best checkpoint so far, which is never removed."""


class KeepCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Completes each checkpoint that Trainer saved, and removes old ones.

    It writes the model cards of the checkpoint, then its file `complete`. It points the link `best`
    at the best checkpoint, and removes checkpoints that newer ones replace. If the run is killed at
    any time, a complete checkpoint is left. Trainer's own rotation would come before the file
    `complete` is written, and uses the folders' times, which a resume or an evaluation changes.
    """

    def __init__(
        self,
        keep: int,
        write_cards: Callable[[Path, str], None],
        staging: Staging | None = None,
    ) -> None:
        """Set how many checkpoints are kept, and how their model cards are written.

        Args:
            keep: Number of the newest complete checkpoints that are kept, besides the best one.
            write_cards: Writes the model cards into a checkpoint. It is called on the first rank
                with the checkpoint's folder, and its step as a text such as `5 of 20`.
            staging: The staging folder of the run, from which checkpoints are copied while training
                goes on. None if checkpoints are written into the run folder at once.
        """
        self.num_kept = keep
        self.write_cards = write_cards
        self.staging = staging

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Correct the intervals of saving and evaluation, and the link `best`, of a resumed run."""
        # Trainer takes the intervals of saving and evaluation from the checkpoint. The arguments of
        # this start may have others.
        state.compute_steps(args, state.max_steps)
        if self.staging is not None:
            self.staging.open()
        # The run may have been killed after it saved a checkpoint and before it set the link.
        self._link_best(Path(args.output_dir), state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise UserError if the last checkpoint could not be copied from the staging folder."""
        if self.staging is not None:
            self.staging.check()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the model cards of a new checkpoint, mark it as complete, and remove older ones.

        If the checkpoint is in the staging folder, the last two happen when it has been copied.
        """
        barrier()  # every rank has written its part of the checkpoint
        folder = Path(args.output_dir)
        checkpoint = folder / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            self.write_cards(checkpoint, f"{state.global_step} of {state.max_steps}")
        barrier()
        if self.staging is not None and checkpoint.is_symlink():
            # The best checkpoint of now: the state may change while files are copied.
            self.staging.copy(checkpoint, partial(self._rotate, folder, copy.copy(state)))
            return
        mark_complete(checkpoint)
        if state.is_world_process_zero:
            self._rotate(folder, state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait until the last checkpoint has been copied from the staging folder."""
        if self.staging is not None:
            self.staging.wait()

    def _rotate(self, folder: Path, state: TrainerState) -> None:
        """Set the link `best` and remove old checkpoints, when a new one is complete.

        The new one stays, also if checkpoints of later steps exist: a run that continues from an
        earlier checkpoint finds them in its folder.
        """
        self._link_best(folder, state)
        kept_names = {(folder / BEST).resolve().name, f"checkpoint-{state.global_step}"}
        for path in whole_checkpoints(folder)[: -self.num_kept]:
            if path.name not in kept_names:
                # The file `complete` goes first, so that a kill leaves no half-removed folder that
                # counts as complete.
                (path / COMPLETE).unlink()
                shutil.rmtree(path)

    def _link_best(self, folder: Path, state: TrainerState) -> None:
        """Point the link `best` at the best checkpoint so far, on the first rank.

        Trainer knows a best checkpoint only if the run is evaluated.
        """
        if state.is_world_process_zero and state.best_model_checkpoint:
            point_link(folder / BEST, folder / Path(state.best_model_checkpoint).name)


@contextmanager
def room_for_checkpoint(
    expected_bytes: int, folder: Path, staging: Path | None = None
) -> Iterator[None]:
    """Check that the disk has room for a checkpoint, which is then saved inside the context.

    Args:
        expected_bytes: The expected size of the run's first checkpoint. A later one is expected to
            take as much space as the last one.
        folder: The run folder.
        staging: The folder of this node into which it is written first; None for none.

    Raises:
        UserError: The space does not suffice, or the disk fills up nevertheless. The message
            contains the folder, its free space and the last complete checkpoint.
    """
    complete = whole_checkpoints(folder)
    if complete:
        last = f"The last complete checkpoint is {complete[-1]}"
        num_bytes = folder_bytes(complete[-1])
    else:
        last = "There is no complete checkpoint of this run yet"
        num_bytes = expected_bytes
    advice = (
        f"{last}. Make room (output.keep_checkpoints is the number of checkpoints that are kept), "
        "then start again with --resume."
    )
    folder.mkdir(parents=True, exist_ok=True)
    num_free = shutil.disk_usage(folder).free
    if num_free < num_bytes:
        raise UserError(
            f"{folder}: a checkpoint takes about {num_bytes:,} bytes, {num_free:,} are free. "
            f"Nothing was saved. {advice}"
        )
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        full_folder = folder
        num_free = shutil.disk_usage(folder).free
        if staging is not None and shutil.disk_usage(staging).free < num_free:
            full_folder = staging
            num_free = shutil.disk_usage(staging).free
            advice = (
                f"{last}. Start again with --resume and another output.staging, or with "
                "output.staging=null."
            )
        is_full_by_code = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        # Libraries report a full disk in errors of their own. The space that is left tells these
        # from other errors.
        is_full_by_space = num_free <= num_bytes // 100
        if not (is_full_by_code or is_full_by_space):
            raise
        raise UserError(
            f"{full_folder}: the disk was full while a checkpoint was saved, {num_free:,} bytes are "
            f"free. {advice}"
        ) from error


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
    """Return the best checkpoint of a run, or its newest complete one if no best one was chosen."""
    best = folder / BEST
    return (best if best.exists() else whole_checkpoints(folder)[-1]).resolve()


def find_resume(folder: Path, resume: str, console: Console) -> Path | None:
    """Return the checkpoint from which a run continues.

    All ranks must call together: the first one lists the checkpoints, and each checks a part of the
    files. Resuming trusts a checkpoint like a program, because DeepSpeed unpickles its states,
    which can run any code.

    Args:
        folder: The run folder.
        resume: `never`, `auto` for the newest checkpoint of the run, or the path of a checkpoint.
            With `auto`, incomplete checkpoints are removed, and damaged ones are renamed.
        console: Receives a line for each checkpoint that is removed or renamed, and a warning if
            `resume` is a path.

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
    if rank() == 0:
        _remove_interrupted_copies(folder)
    if not (path / COMPLETE).exists():
        raise UserError(
            f"output.resume: {resume} is not a whole checkpoint: it has no file `{COMPLETE}`, "
            "which is written last. Give a checkpoint-N folder of a finished save, or `auto`."
        )
    faults = damage(path)
    if faults:
        other_names = [
            checkpoint.name
            for checkpoint in whole_checkpoints(path.parent)
            if checkpoint.name != path.name
        ]
        raise UserError(
            f"output.resume: {path} is damaged: {'; '.join(faults)}. Copy these files again, or "
            f"give another checkpoint (of this run: {', '.join(other_names) or 'none'})."
        )
    if rank() == 0:
        console.print(
            f"continuing from {path}, which is trusted like code: DeepSpeed unpickles its states",
            soft_wrap=True,
        )
    return path


def _newest_checkpoint(folder: Path, console: Console) -> Path | None:
    """Return the newest undamaged checkpoint of a run; None if the run has no complete checkpoint.

    Incomplete checkpoints are removed, because the run will write them again. Damaged checkpoints
    that are newer than the returned one are renamed.

    Raises:
        UserError: All complete checkpoints are damaged. None of them is renamed then.
    """
    # The list of the first rank, so that all ranks check the same checkpoints.
    complete = gather(whole_checkpoints(folder))[0]
    if rank() == 0:
        for path in checkpoints(folder):
            if path not in complete:
                console.print(f"{path.name} was cut off while it was being saved; it is removed")
                if not path.is_symlink():
                    shutil.rmtree(path)
        _remove_interrupted_copies(folder)
    barrier()
    description_by_damaged: dict[Path, str] = {}
    for path in reversed(complete):
        faults = damage(path)
        if faults:
            description_by_damaged[path] = "; ".join(faults)
            continue
        if rank() == 0:
            _rename_damaged(description_by_damaged, console)
        barrier()
        return path
    if description_by_damaged:
        descriptions = [
            f"{path.name}: {description}" for path, description in description_by_damaged.items()
        ]
        raise UserError(
            f"{folder}: no checkpoint of this run is undamaged. {'; '.join(descriptions)}. Copy "
            "these files again, or start another run: output.folder=NEW."
        )
    return None


def _remove_interrupted_copies(folder: Path) -> None:
    """Remove what is left of checkpoints that were being copied from a staging folder."""
    for path in checkpoints(folder):
        # A user may have moved a complete checkpoint and left a link to it.
        if path.is_symlink() and not (path / COMPLETE).exists():
            path.unlink()
    for interrupted in folder.glob(f"{COPYING}*"):
        shutil.rmtree(interrupted)


def _rename_damaged(description_by_damaged: dict[Path, str], console: Console) -> None:
    """Rename damaged checkpoints to `damaged-checkpoint-N`, so that step N can be saved again.

    Args:
        description_by_damaged: The folder of every damaged checkpoint, and a description of its
            damage.
        console: Receives a line for each.
    """
    for path, description in description_by_damaged.items():
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
