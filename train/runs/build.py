"""A run made from its recipe: data, model, objective and trainer, and the training itself.

train/rm.py, train/sft.py and train/rl.py share this module.
"""

import os
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console
from transformers import PrinterCallback, Trainer

from mmrm.data.config.registry import load
from mmrm.data.display.command import exit_status
from mmrm.data.display.console import plain_console
from mmrm.data.errors import NonFiniteError, UserError
from mmrm.data.storage.output_lock import locked_folder
from mmrm.models.backbone import load_encoder
from mmrm.models.distributed import (
    barrier,
    locked_by_first_rank,
    on_first_rank,
    rank,
    world_size,
)
from mmrm.models.portable.reward import IncompleteCheckpointError
from mmrm.train.checkpoints.rotation import find_resume
from mmrm.train.checkpoints.universal import convert_states, ranks_of_states
from mmrm.train.methods.method import Method
from mmrm.train.recipe.parsing import Launch, refuse_finished_folder, refuse_missing_device
from mmrm.train.runs.callbacks import run_callbacks, summarise
from mmrm.train.runs.evaluation_loop import evaluation
from mmrm.train.runs.extension import continuation
from mmrm.train.runs.model import make_model
from mmrm.train.runs.provenance import (
    check_data_matches,
    check_resume_matches,
    data_fingerprints,
    order_note,
    set_placement_of_run,
    write_provenance,
)

LONGEST_CONVERSION = timedelta(hours=6)
"""Time for which the ranks wait for the first one, which converts the states of other ranks."""
PATIENCE = 10.0
"""Seconds that other ranks of a node wait, so that the first one can print why no run begins."""


def run(launch: Launch) -> bool:
    """Train the recipe on this rank, and return True if the run reached its last step.

    The last checkpoint has then been saved and evaluated. A run that receives SIGUSR1 saves a
    checkpoint and stops before the last step; the result is then False.

    The first rank locks the run folder until the run ends. If another run is writing into the
    folder, the run is refused.

    Errors that the user can correct are printed without a traceback, and end the process with the
    status of `exit_status`. Such errors in training are a record that does not fit into memory, too
    many records that cannot be used, and a loss or weights that are not finite.
    """
    with ExitStack() as stack:
        folder_lock = locked_folder(Path(launch.recipe.output.folder))
        try:
            stack.enter_context(locked_by_first_rank(folder_lock))
            # The folder was also checked when the command line was read. Another run may have
            # written checkpoints into it since.
            refuse_finished_folder(launch.recipe)
            trainer, resume, console = assemble(launch)
        except (UserError, IncompleteCheckpointError) as error:
            end_before_training(error)
        return train(launch, trainer, resume, console)


def end_before_training(error: UserError | IncompleteCheckpointError) -> NoReturn:
    """Print why a run cannot begin, and end this rank.

    If all ranks of a node have the error, only the first one prints it.
    """
    if os.environ["LOCAL_RANK"] == "0":
        print(error, file=sys.stderr, flush=True)
    else:
        # If the first rank has the error too, it prints it and ends, and the launcher ends this
        # rank during the wait. If not, this rank prints.
        time.sleep(PATIENCE)
        print(f"rank {rank()}: {error}", file=sys.stderr, flush=True)
    raise SystemExit(exit_status(error)) from None


def train(launch: Launch, trainer: Trainer, resume: Path | None, console: Console) -> bool:
    """Train the model of a run, and return True if the run reached its last step.

    Errors that the user can correct end the process with a message and exit status 1, not a
    traceback.

    Args:
        launch: The parsed command line.
        trainer: The trainer of the run.
        resume: The checkpoint from which the run continues. None for a new run.
        console: The console for the results of the run.
    """
    try:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    except NonFiniteError as error:
        if rank() == 0:
            print(error, file=sys.stderr, flush=True)
        # All ranks have this error. They wait for the first one to print it, and for each other to
        # copy a checkpoint, because a launcher ends the other ranks as soon as one ends.
        end_staging(trainer)
        barrier()
        raise SystemExit(1) from None
    except UserError as error:
        # An error from a worker that loads data has the worker's traceback before its message.
        _, _, message = str(error).rpartition(f"{type(error).__name__}: ")
        print(f"rank {rank()}: {message.strip()}", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        end_staging(trainer)

    step = trainer.state.global_step
    num_steps = trainer.state.max_steps
    is_finished: bool = step >= num_steps
    if rank() == 0 and is_finished:
        recipe = launch.recipe
        summarise(Path(recipe.output.folder), console, baselines=recipe.evaluation.baselines)
    elif rank() == 0:
        # Only this signal ends the training before its last step.
        console.print(
            f"SIGUSR1: checkpoint-{step} of {num_steps:,} steps is complete, the run ends; "
            "continue with --resume"
        )
    return is_finished


def end_staging(trainer: Trainer) -> None:
    """Wait for the copy of a checkpoint on this rank, if there is one."""
    if trainer.staging is not None:
        trainer.staging.end()


def assemble(launch: Launch) -> tuple[Trainer, Path | None, Console]:
    """Return the trainer of a run, the checkpoint from which it continues, and its console.

    The checkpoint is None for a new run. The first rank also writes recipe.yaml and provenance.json
    into the run folder.

    Raises:
        UserError: If the run cannot begin, for a reason that the user can correct.
        IncompleteCheckpointError: If a checkpoint lacks tensors of the model.
    """
    recipe = launch.recipe
    # A log file gets lines of 125 characters, and a terminal lines of its own width.
    console = plain_console(width=None if sys.stdout.isatty() else 125)
    refuse_missing_device(recipe, cuda=torch.cuda.is_available())
    resume = find_resume(Path(recipe.output.folder), recipe.output.resume, console)
    has_other_ranks = False
    if resume is not None:
        check_resume_matches(recipe, resume, world_size())
        has_other_ranks = ranks_of_states(resume) not in (None, world_size())
    encoder = load_encoder(recipe.backbone)
    method: Method = load(recipe.method.implementation)(recipe, encoder, console)
    method.setup()
    if resume is not None:
        check_data_matches(data_fingerprints(method.mixture), resume)
        method.mixture.set_placement = set_placement_of_run(resume)
        print_note(order_note(recipe, method.mixture), console)
    if resume is not None and has_other_ranks:
        convert = partial(convert_states, resume, world_size(), console)
        on_first_rank(convert, LONGEST_CONVERSION)
    arguments = method.arguments(other_ranks=has_other_ranks)
    if resume is not None:
        arguments.eval_on_start = False
        print_note(continuation(recipe.optim, arguments, resume), console)
    # The model is loaded after the arguments are made, because they switch ZeRO-3 on, which divides
    # weights while they are loaded.
    model = make_model(recipe)
    trainer = method.trainer(
        evaluate=evaluation(method),
        staging=method.staging,
        model=model,
        args=arguments,
        processing_class=encoder,
        callbacks=run_callbacks(method),
    )
    trainer.remove_callback(PrinterCallback)
    if rank() == 0:
        write_provenance(launch, method.folder, method.mixture)
    return trainer, resume, console


def print_note(note: str, console: Console) -> None:
    """Print a note on the first rank, if it is not empty."""
    if note and rank() == 0:
        console.print(note, highlight=False, soft_wrap=True)
