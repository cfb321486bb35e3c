"""The arguments of Hugging Face's Trainer.

They also switch off what this project does itself, such as accumulating gradients and removing
checkpoints. wandb writes to its server if there is a login, and else into the run folder, from
which `wandb sync` sends it later.
"""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from mmrm.models.distributed import rank
from mmrm.train.recipe.deepspeed_config import deepspeed_config
from mmrm.train.recipe.recipe import Recipe


def training_arguments(
    recipe: Recipe,
    steps: int,
    *,
    kind: type[TrainingArguments] = TrainingArguments,
    other_ranks: bool = False,
    **further_arguments: Any,
) -> TrainingArguments:
    """Return the arguments of Trainer for a run of `steps` optimizer steps.

    An item of the loader is a whole optimizer step, so that Trainer sees batches of one item and
    accumulates no gradients. It evaluates exactly when it saves, so that the best checkpoint is one
    that exists. It removes no checkpoint: `KeepCheckpoints` does.

    Args:
        recipe: The recipe.
        steps: The optimizer steps of the run.
        kind: The class of the returned arguments.
        other_ranks: True if the run continues from a checkpoint of another number of ranks, whose
            states were converted.
        further_arguments: Further arguments. They replace those that this function sets.
    """
    optim = recipe.optim
    output = recipe.output
    if output.wandb_project is not None and rank() == 0:
        prepare_wandb(output.wandb_project, Path(output.folder))
    if output.tensorboard:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(Path(output.folder) / "tensorboard")
    reports = []
    if output.wandb_project is not None:
        reports.append("wandb")
    if output.tensorboard:
        reports.append("tensorboard")
    schedule: str = optim.schedule
    if schedule == "constant":
        schedule = "constant_with_warmup"  # Trainer's "constant" knows no warm-up
    evaluations = "steps" if recipe.evaluates else "no"
    prefetched_steps = 2 if recipe.workers else None
    is_on_cpu = not torch.cuda.is_available()
    shared: dict[str, Any] = {
        "output_dir": output.folder,
        "max_steps": steps,
        "per_device_train_batch_size": 1,
        "learning_rate": optim.learning_rate,
        "lr_scheduler_type": schedule,
        "warmup_steps": optim.warmup_steps(steps),
        "max_grad_norm": optim.max_grad_norm,
        "weight_decay": optim.weight_decay,
        "logging_steps": output.log_every_steps,
        "logging_nan_inf_filter": False,
        "save_steps": output.save_every_steps,
        "eval_strategy": evaluations,
        "eval_steps": output.save_every_steps,
        "eval_on_start": recipe.evaluates and recipe.evaluation.at_start,
        # Trainer takes the highest figure as the best, except for one whose name ends with `loss`.
        "metric_for_best_model": recipe.evaluation.best_metric,
        "bf16": recipe.backbone.dtype == "bfloat16",
        "use_cpu": is_on_cpu,
        "deepspeed": deepspeed_config(
            recipe.deepspeed, recipe.backbone.dtype, cpu=is_on_cpu, other_ranks=other_ranks
        ),
        "dataloader_num_workers": recipe.workers,
        "dataloader_prefetch_factor": prefetched_steps,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        # Buffers are constants, and a step that is computed again must not wait for them.
        "ddp_broadcast_buffers": False,
        "disable_tqdm": True,
        "log_level_replica": "error",
        "report_to": reports,
        "seed": recipe.seed,
        "full_determinism": recipe.deterministic,
    }
    return kind(**{**shared, **further_arguments})


def prepare_wandb(project: str, folder: Path) -> None:
    """Set the environment variables that Trainer's wandb callback reads, unless they are set.

    Without a login wandb sends nothing, and does not ask for a key.

    Args:
        project: The name of the project in wandb.
        folder: The run folder, into which wandb writes its files.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_PROJECT", project)
    os.environ.setdefault("WANDB_DIR", str(folder))
    # `login` returns False if there is no key.
    if "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False):
        os.environ["WANDB_MODE"] = "offline"
        # wandb read the environment when it was asked for a login, and would not look again.
        wandb.teardown()
