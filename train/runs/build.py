"""A run put together from its recipe: processor, model, data, evaluation, trainer. `rm.py` and `sft.py` share all of it.

What differs from method to method is in train/runs/parts.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PrinterCallback, Trainer, TrainerCallback

from data.errors import NonFiniteError, UserError
from data.mixture import Mixture
from models.backbone import load_processor, window_size
from models.distributed import barrier, rank, world_size
from models.encoder import Encoder
from models.portable.reward import IncompleteCheckpointError
from train.recipe.methods import StableReinforceConfig
from train.recipe.parsing import Launch, refuse_missing_device
from train.recipe.recipe import Recipe
from train.runs.arguments import training_arguments
from train.runs.callbacks import BestLink, ConsoleProgress, summarise
from train.runs.model import make_model
from train.runs.model_card import About, WriteCard
from train.runs.parts import TrainingData, critique_writer, evaluation, objective, record_costs, token_budget, training_data
from train.runs.provenance import data_fingerprints, write_provenance
from train.runs.resume import check_resume_matches
from train.supervised.budget import LOWERED, lowered
from train.supervised.checkpoints import MarkComplete, Rotate, find_resume
from train.supervised.critic import OwnCritiqueSteps, WriteCritiques
from train.supervised.non_finite import FiniteWeights
from train.supervised.steps import StepDataset
from train.supervised.trainer import PackedTrainer

SETUP_ERRORS = (UserError, IncompleteCheckpointError)
"""What a user can put right; their messages say how, and no traceback makes them clearer."""


def run(launch: Launch) -> None:
    """Train as the recipe says, on this rank; returns when the last checkpoint is saved and evaluated.

    What cannot even begin is told once on every node and ends the process with status 2, without a traceback. A row that does
    not fit into memory, an unusable record too many, or any where the recipe is strict, is told by the rank that has it, and
    ends with status 1: a launcher then ends the other ranks. A loss or weights that are not finite end all ranks so.
    """
    try:
        trainer, resume, console = assemble(launch)
    except SETUP_ERRORS as error:
        if os.environ["LOCAL_RANK"] == "0":
            print(error, file=sys.stderr)
        raise SystemExit(2) from None
    try:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    except NonFiniteError as error:
        if rank() == 0:
            print(error, file=sys.stderr, flush=True)
        barrier()  # a launcher ends the other ranks with the first one that ends
        raise SystemExit(1) from None
    except UserError as error:
        # A loader's worker hands its error over with the traceback before it.
        print(f"rank {rank()}: {str(error).rpartition(f'{type(error).__name__}: ')[2].strip()}", file=sys.stderr)
        raise SystemExit(1) from None
    if rank() == 0:
        summarise(Path(launch.recipe.output.folder), console, baselines=launch.recipe.evaluation.baselines)


def assemble(launch: Launch) -> tuple[Trainer, Path | None, Console]:
    """Return the trainer of a run, the checkpoint to resume from, and where to print; raises one of SETUP_ERRORS."""
    recipe, console = launch.recipe, Console(width=None if sys.stdout.isatty() else 125)
    refuse_missing_device(recipe, cuda=torch.cuda.is_available())
    folder = Path(recipe.output.folder)
    resume = find_resume(folder, recipe.output.resume, console)
    if resume is not None:
        check_resume_matches(recipe, resume, world_size())
    processor = load_processor(recipe.backbone)
    encoder = Encoder(processor.tokenizer, processor.image_processor, recipe.backbone, window_size(recipe.backbone))
    if isinstance(recipe.method, StableReinforceConfig):
        from train.runs.reinforce import reinforce_trainer  # trl takes seconds that other methods need not spend

        trainer, mixture = reinforce_trainer(recipe, encoder, console, resumes=resume is not None)
        trainer.remove_callback(PrinterCallback)
        if rank() == 0:
            tell_left_out(mixture, console)
            write_provenance(launch, folder, mixture)
        return trainer, resume, console
    data = training_data(recipe, encoder)
    if rank() == 0 and data.mixture is not None:
        tell_left_out(data.mixture, console)
    if rank() == 0 and (left := lowered(folder)):
        console.print(
            f"token budget at most {left:,}: memory ended in an earlier start ({folder / LOWERED}; remove it to forget)"
        )
    steps = make_steps(recipe, encoder, data)
    arguments = training_arguments(recipe, len(steps), resumes=resume is not None)
    # DeepSpeed's ZeRO-3 shards weights while they are loaded, which needs the arguments above to exist.
    model = make_model(recipe)
    trainer = PackedTrainer(
        objective=objective(recipe),
        steps=steps,
        optim=recipe.optim,
        evaluate=evaluation(recipe, encoder, folder, console, data.mixture),
        model=model,
        args=arguments,
        processing_class=processor,
        callbacks=callbacks(recipe, encoder, data, steps, console),
    )
    trainer.remove_callback(PrinterCallback)
    if rank() == 0:
        write_provenance(launch, folder, data.mixture)
    return trainer, resume, console


def tell_left_out(mixture: Mixture, console: Console) -> None:
    """Print a line for each source that lost records before the first step, with the reasons."""
    for part in mixture.parts:
        if part.left_out:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in part.left_out.items())
            lost, rows = sum(part.left_out.values()), len(part.source)
            console.print(f"{part.config.label}: {lost:,} of {rows:,} records left out: {reasons}", markup=False, highlight=False)


def make_steps(recipe: Recipe, encoder: Encoder, data: TrainingData) -> StepDataset:
    """Return the run's optimizer steps for this rank."""
    shape: dict[str, Any] = {
        "records_per_step": recipe.optim.records_per_step,
        "steps": recipe.steps(len(data.records)),
        "token_budget": token_budget(recipe),
        "rank": rank(),
        "world_size": world_size(),
        "costs": record_costs(data),
    }
    if data.store is None:
        return StepDataset(data.records, encoder.pack, **shape)
    steps = OwnCritiqueSteps(data.records, encoder.pack, **shape)
    steps.store = data.store
    return steps


def callbacks(
    recipe: Recipe, encoder: Encoder, data: TrainingData, steps: StepDataset, console: Console
) -> list[TrainerCallback]:
    """Return what happens beside the loop."""
    about = About(recipe, data_fingerprints(recipe, data.mixture), len(steps))
    found = [
        FiniteWeights(),
        WriteCard(about),
        MarkComplete(),
        BestLink(),
        Rotate(recipe.output.keep_checkpoints),
        ConsoleProgress(console),
    ]
    if data.store is not None and data.mixture is not None:
        found.append(WriteCritiques(data.store, steps, data.mixture, critique_writer(recipe, encoder)))
    return found
