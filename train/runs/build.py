"""A run put together from its recipe: data, model, objective, trainer, fit.

`rm.py`, `sft.py` and `rl.py` share all of it.
"""

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console
from transformers import PrinterCallback, Trainer

from mmrm.data.config.registry import load
from mmrm.data.display.console import plain_console
from mmrm.data.errors import NonFiniteError, UserError
from mmrm.data.storage.output_lock import locked_folder
from mmrm.models.backbone import load_encoder
from mmrm.models.distributed import barrier, locked_by_first_rank, rank, world_size
from mmrm.models.portable.reward import IncompleteCheckpointError
from mmrm.train.checkpoints.rotation import find_resume
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

PATIENCE = 10.0
"""Seconds in which the first rank of a node can print why a run cannot begin, before the others do."""


def run(launch: Launch) -> bool:
    """Train the recipe on this rank, and return True if the run reached its last step.

    The last checkpoint is saved and evaluated by then. The run stops earlier after SIGUSR1.
    Meanwhile the first rank holds the lock of the run folder. A folder that another run is writing
    is refused.

    An error before training is printed once on every node, by its first rank or by one that alone
    has found it, and ends the process with status 2, without a traceback. An error in training ends
    it with status 1: a row that does not fit into memory, or too many records that cannot be used.
    The rank that has it prints it, and a launcher then ends the others. A loss or weights that are
    not finite end all ranks with status 1.
    """
    with ExitStack() as stack:
        lock = locked_folder(Path(launch.recipe.output.folder))
        try:
            stack.enter_context(locked_by_first_rank(lock))
            # A run that had the folder when the command line was read may have ended since.
            refuse_finished_folder(launch.recipe)
            trainer, resume, console = assemble(launch)
        except (UserError, IncompleteCheckpointError) as error:
            end_before_training(error)
        return train(launch, trainer, resume, console)


def end_before_training(error: UserError | IncompleteCheckpointError) -> NoReturn:
    """Print why a run cannot begin and end this rank with status 2."""
    if os.environ["LOCAL_RANK"] == "0":
        print(error, file=sys.stderr, flush=True)
    else:
        # A launcher ends the other ranks with the first one that ends, which must print first.
        time.sleep(PATIENCE)
        print(f"rank {rank()}: {error}", file=sys.stderr, flush=True)
    raise SystemExit(2) from None


def train(launch: Launch, trainer: Trainer, resume: Path | None, console: Console) -> bool:
    """Train as `run` describes, and return True if the run reached its last step."""
    try:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    except NonFiniteError as error:
        if rank() == 0:
            print(error, file=sys.stderr, flush=True)
        barrier()  # a launcher ends the other ranks with the first one that ends
        raise SystemExit(1) from None
    except UserError as error:
        # A loader's worker hands its error over with the traceback before it.
        _, _, message = str(error).rpartition(f"{type(error).__name__}: ")
        print(f"rank {rank()}: {message.strip()}", file=sys.stderr)
        raise SystemExit(1) from None

    step = trainer.state.global_step
    num_steps = trainer.state.max_steps
    is_finished: bool = step >= num_steps
    if rank() == 0 and is_finished:
        recipe = launch.recipe
        summarise(Path(recipe.output.folder), console, baselines=recipe.evaluation.baselines)
    elif rank() == 0:
        console.print(
            f"SIGUSR1: checkpoint-{step} of {num_steps:,} steps is complete, the run ends; continue "
            "with --resume"
        )
    return is_finished


def assemble(launch: Launch) -> tuple[Trainer, Path | None, Console]:
    """Return the trainer of a run, the checkpoint to resume from, and where to print."""
    recipe = launch.recipe
    console = plain_console(width=None if sys.stdout.isatty() else 125)
    refuse_missing_device(recipe, cuda=torch.cuda.is_available())
    resume = find_resume(Path(recipe.output.folder), recipe.output.resume, console)
    if resume is not None:
        check_resume_matches(recipe, resume, world_size())
    encoder = load_encoder(recipe.backbone)
    method: Method = load(recipe.method.implementation)(recipe, encoder, console)
    method.setup()
    if resume is not None:
        check_data_matches(data_fingerprints(method.mixture), resume)
        method.mixture.set_placement = set_placement_of_run(resume)
        print_note(order_note(recipe, method.mixture), console)
    arguments = method.arguments()
    if resume is not None:
        arguments.eval_on_start = False
        print_note(continuation(recipe.optim, arguments, resume), console)
    # After the arguments: ZeRO-3 divides weights while they are loaded.
    model = make_model(recipe)
    trainer = method.trainer(
        evaluate=evaluation(method),
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
