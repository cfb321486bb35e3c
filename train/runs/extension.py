"""A run that is given more steps than it had: what is said of its learning rate, and what is refused.

Everything goes on from the checkpoint: weights, optimizer states, random numbers and the order of the data. The learning rate
follows the schedule of the new length, warm-up included, so that from here on it is that of a run which had this length from
the beginning; what was trained before is not trained again.
"""

from pathlib import Path

import torch
from transformers import TrainingArguments, get_scheduler

from mmrm.data.errors import UserError
from mmrm.data.storage.files import read_json
from mmrm.train.recipe.sections import OptimConfig

STATE = "trainer_state.json"


def continuation(optim: OptimConfig, arguments: TrainingArguments, checkpoint: Path) -> str:
    """Return what to say of the length of a run that continues from `checkpoint`; nothing where it is what it was.

    Raises: UserError where the run would be shorter than it was.
    """
    state = read_json(checkpoint / STATE)
    done, before, now = int(state["global_step"]), int(state["max_steps"]), int(arguments.max_steps)
    key = "optim.max_steps" if optim.max_steps is not None else "optim.epochs"
    if now < before:
        raise UserError(
            f"{checkpoint} is of a run of {before:,} steps, and {key} makes {now:,} of it. A run can be given more steps, but "
            "not fewer, because its learning rate followed the longer schedule. Give the length that it had, or start another "
            f"run: output.folder=NEW and, to begin from these weights, backbone.path={checkpoint}."
        )
    if now == before:
        return (
            ""
            if done < now
            else f"{checkpoint} is the last of {before:,} steps; for more, raise {key} and give --resume"
        )
    old, new, warm = (
        share(optim, arguments, before, done),
        share(optim, arguments, now, done),
        optim.warmup_steps(now),
    )
    course = [f"{new:.1%} at step {done + 1:,}"]
    course += [f"100% at step {warm + 1:,}, after the warm-up"] if done < warm else []
    course += [f"0% after step {now:,}"] if optim.schedule != "constant" else []
    return (
        f"{checkpoint}: {now - before:,} steps more for a run of {before:,}. Optimizer states, random numbers and the order of "
        f"the data go on; the first {done:,} steps stay as they are.\nlearning rate: the {optim.schedule} schedule over "
        f"{before:,} steps gave {old:.1%} of the highest for step {done + 1:,}; from here on it is computed over {now:,} steps: "
        f"{', '.join(course)}"
    )


def share(optim: OptimConfig, arguments: TrainingArguments, steps: int, done: int) -> float:
    """Return the learning rate of the step after `done` as a share of the highest, in a run of `steps`."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = get_scheduler(
        arguments.lr_scheduler_type, optimizer, optim.warmup_steps(steps), steps
    )
    return float(schedule.lr_lambdas[0](done))
