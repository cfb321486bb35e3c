"""One object a method: what a run asks of it. Its records and what they cost, its objective, its judge and its trainer.

And the arguments of Hugging Face's Trainer: what Trainer must not do by itself is switched off there. wandb writes to its server
where there is a login, else into the run folder, from which `wandb sync` sends it later.
"""

import os
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from mmrm.models.distributed import rank
from mmrm.train.recipe.deepspeed_config import deepspeed_config
from mmrm.train.recipe.recipe import Recipe


def training_arguments(
    recipe: Recipe, steps: int, *, kind: type[TrainingArguments] = TrainingArguments, **own: Any
) -> TrainingArguments:
    """Return the arguments for a run of `steps` optimizer steps; `own` goes to `kind` as it is.

    The loader hands out whole optimizer steps, so Trainer sees a batch of one and no accumulation; it evaluates exactly when
    it saves, so that the best checkpoint is one that exists. It removes none: `KeepCheckpoints` does.
    """
    optim, output = recipe.optim, recipe.output
    cpu, evaluates = not torch.cuda.is_available(), recipe.evaluates
    if output.wandb_project is not None and rank() == 0:
        prepare_wandb(output.wandb_project, Path(output.folder))
    if output.tensorboard:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(Path(output.folder) / "tensorboard")
    shared: dict[str, Any] = {
        "output_dir": output.folder,
        "max_steps": steps,
        "per_device_train_batch_size": 1,
        "learning_rate": optim.learning_rate,
        # Trainer's "constant" knows no warm-up.
        "lr_scheduler_type": "constant_with_warmup"
        if optim.schedule == "constant"
        else optim.schedule,
        "warmup_steps": optim.warmup_steps(steps),
        "max_grad_norm": optim.max_grad_norm,
        "weight_decay": optim.weight_decay,
        "logging_steps": output.log_every_steps,
        "logging_nan_inf_filter": False,
        "save_steps": output.save_every_steps,
        "eval_strategy": "steps" if evaluates else "no",
        "eval_steps": output.save_every_steps,
        "eval_on_start": evaluates and recipe.evaluation.at_start,
        "metric_for_best_model": recipe.evaluation.best_metric,  # greater is better, but for one that ends with `loss`
        "bf16": recipe.backbone.dtype == "bfloat16",
        "use_cpu": cpu,
        "deepspeed": deepspeed_config(recipe.deepspeed, recipe.backbone.dtype, cpu=cpu),
        "dataloader_num_workers": recipe.workers,
        "dataloader_prefetch_factor": 2 if recipe.workers else None,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,  # they are constants, and a step that is computed again must not wait for them
        "disable_tqdm": True,
        "log_level_replica": "error",
        "report_to": [
            *compress(
                ("wandb", "tensorboard"), (output.wandb_project is not None, output.tensorboard)
            )
        ],
        "seed": recipe.seed,
        "full_determinism": recipe.deterministic,
    }
    return kind(**{**shared, **own})


def prepare_wandb(project: str, folder: Path) -> None:
    """Set what Trainer's wandb callback reads from the environment; what is set there already stays.

    Nobody is asked for a key, and without one nothing is sent.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_PROJECT", project)
    os.environ.setdefault("WANDB_DIR", str(folder))
    if "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False):
        os.environ["WANDB_MODE"] = "offline"
        wandb.teardown()  # it read the environment when it was asked, and would not look again
