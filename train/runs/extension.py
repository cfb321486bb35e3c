"""Checks and notes for a run that is continued with another number of steps.

Everything continues from the checkpoint: weights, optimizer states, random numbers and the order of
the data. The learning rate follows the schedule of the new length, warm-up included. From here on it
is the learning rate of a run that had this length from the beginning. What was trained before is not
trained again.
"""

from pathlib import Path

import torch
from transformers import TrainingArguments, get_scheduler

from mmrm.data.errors import UserError
from mmrm.data.storage.files import read_json
from mmrm.train.recipe.sections import OptimConfig

STATE = "trainer_state.json"


def continuation(optim: OptimConfig, arguments: TrainingArguments, checkpoint: Path) -> str:
    """Return a note on the length of a run that continues from `checkpoint`.

    It is empty if the length is unchanged and steps are left.

    Raises:
        UserError: If the run would be shorter than it was.
    """
    state = read_json(checkpoint / STATE)
    step = int(state["global_step"])
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
        if step < steps_now:
            return ""
        return (
            f"{checkpoint} is the last of {steps_before:,} steps; for more, raise {key} and give "
            "--resume"
        )
    return _note_on_more_steps(optim, arguments, checkpoint, step, steps_before, steps_now)


def _note_on_more_steps(
    optim: OptimConfig,
    arguments: TrainingArguments,
    checkpoint: Path,
    step: int,
    steps_before: int,
    steps_now: int,
) -> str:
    """Return a note on the learning rate of a run that is continued with more steps."""
    share_before = share(optim, arguments, steps_before, step)
    share_now = share(optim, arguments, steps_now, step)
    warmup_steps = optim.warmup_steps(steps_now)
    course = [f"{share_now:.1%} at step {step + 1:,}"]
    if step < warmup_steps:
        course.append(f"100% at step {warmup_steps + 1:,}, after the warm-up")
    if optim.schedule != "constant":
        course.append(f"0% after step {steps_now:,}")
    return (
        f"{checkpoint}: {steps_now - steps_before:,} steps more for a run of {steps_before:,}. "
        "Optimizer states, random numbers and the order of the data go on; the first "
        f"{step:,} steps stay as they are.\nlearning rate: the {optim.schedule} schedule over "
        f"{steps_before:,} steps gave {share_before:.1%} of the highest for step {step + 1:,}; from "
        f"here on it is computed over {steps_now:,} steps: {', '.join(course)}"
    )


def share(optim: OptimConfig, arguments: TrainingArguments, steps: int, step: int) -> float:
    """Return the learning rate after `step` of `steps` steps, as a share of the highest."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = get_scheduler(
        arguments.lr_scheduler_type, optimizer, optim.warmup_steps(steps), steps
    )
    return float(schedule.lr_lambdas[0](step))
