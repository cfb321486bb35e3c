"""Checks and notes for a run that is continued with another number of steps.

Weights, optimizer states, random numbers and the order of the data continue from the checkpoint.
The steps before it are not trained again. From the checkpoint on, the learning rate is that of a
run that had the new number of steps from the beginning, also in the warm-up.
"""

from pathlib import Path

import torch
from transformers import TrainingArguments, get_scheduler

from mmrm.data.errors import UserError
from mmrm.data.storage.files import read_json
from mmrm.train.recipe.sections import OptimConfig

STATE = "trainer_state.json"
"""The file in a checkpoint folder with the number of steps done and of the run."""


def continuation(optim: OptimConfig, arguments: TrainingArguments, checkpoint: Path) -> str:
    """Return a note on the number of steps of a run that continues from `checkpoint`.

    The note says that the run has more steps than before, or that no steps are left. In all other
    cases the result is empty.

    Args:
        optim: The section `optim` of the recipe.
        arguments: The arguments of the trainer, with the number of steps that the run now has.
        checkpoint: The checkpoint folder.

    Raises:
        UserError: If the run would have fewer steps than before.
    """
    state = read_json(checkpoint / STATE)
    steps_done = int(state["global_step"])
    steps_before = int(state["max_steps"])
    steps_now = int(arguments.max_steps)
    key = "optim.max_steps" if optim.max_steps is not None else "optim.epochs"
    if steps_now < steps_before:
        raise UserError(
            f"{checkpoint} is of a run of {steps_before:,} steps, and {key} makes {steps_now:,} of "
            "it. A run can be given more steps, but not fewer, because its learning rate followed "
            "the longer schedule. Give the length that it had, or start another run: "
            f"output.folder=NEW and, to begin from these weights, backbone.path={checkpoint}."
        )
    if steps_now == steps_before:
        if steps_done < steps_now:
            return ""
        return (
            f"{checkpoint} is the last of {steps_before:,} steps; for more, raise {key} and give "
            "--resume"
        )
    return _note_on_more_steps(optim, arguments, checkpoint, steps_done, steps_before, steps_now)


def _note_on_more_steps(
    optim: OptimConfig,
    arguments: TrainingArguments,
    checkpoint: Path,
    steps_done: int,
    steps_before: int,
    steps_now: int,
) -> str:
    """Return a note on the learning rate of a run that is continued with more steps.

    Args:
        optim: The section `optim` of the recipe.
        arguments: The arguments of the trainer, with the kind of schedule.
        checkpoint: The checkpoint folder.
        steps_done: The number of steps up to the checkpoint.
        steps_before: The number of steps that the run had when the checkpoint was saved.
        steps_now: The number of steps that the run has now.
    """
    share_before = share(optim, arguments, steps_before, steps_done)
    share_now = share(optim, arguments, steps_now, steps_done)
    warmup_steps = optim.warmup_steps(steps_now)
    rates = [f"{share_now:.1%} at step {steps_done + 1:,}"]
    if steps_done < warmup_steps:
        rates.append(f"100% at step {warmup_steps + 1:,}, after the warm-up")
    if optim.schedule != "constant":
        rates.append(f"0% after step {steps_now:,}")
    return (
        f"{checkpoint}: {steps_now - steps_before:,} steps more for a run of {steps_before:,}. "
        "Optimizer states, random numbers and the order of the data go on; the first "
        f"{steps_done:,} steps stay as they are.\n"
        f"learning rate: the {optim.schedule} schedule over {steps_before:,} steps gave "
        f"{share_before:.1%} of the highest for step {steps_done + 1:,}; from here on it is "
        f"computed over {steps_now:,} steps: {', '.join(rates)}"
    )


def share(
    optim: OptimConfig, arguments: TrainingArguments, num_steps: int, steps_done: int
) -> float:
    """Return the learning rate after `steps_done` of `num_steps` steps, divided by the highest."""
    # transformers makes a schedule only for an optimizer, so it gets one that is never used.
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = get_scheduler(
        arguments.lr_scheduler_type, optimizer, optim.warmup_steps(num_steps), num_steps
    )
    share_of_highest = schedule.lr_lambdas[0]
    return float(share_of_highest(steps_done))
