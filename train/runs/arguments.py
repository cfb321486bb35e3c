"""From a recipe to the arguments of Hugging Face's Trainer; what Trainer must not do by itself is switched off here.

Where wandb writes: to the server with a login, else into the run folder, from which `wandb sync` sends it later.

From a recipe to trl's arguments; what trl would do by itself and we do otherwise is switched off here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import wandb
from transformers import TrainingArguments
from trl import GRPOConfig

from data.errors import Problem, RecipeError
from models.distributed import rank, world_size
from models.encoder import Encoder
from train.recipe.deepspeed_config import deepspeed_config
from train.recipe.methods import IMPORTANCE_CAP, StableReinforceConfig
from train.recipe.recipe import HELD_OUT_LOSS, Recipe


def training_arguments(
    recipe: Recipe, steps: int, *, resumes: bool, kind: type[TrainingArguments] = TrainingArguments, **own: Any
) -> TrainingArguments:
    """Return the arguments for a run of `steps` optimizer steps, begun anew or resumed; `own` goes to `kind` as it is.

    The loader hands out whole optimizer steps, so Trainer sees a batch of one and no accumulation; it evaluates exactly when
    it saves, so that the best checkpoint is one that exists. It removes none: train/supervised/checkpoints.py does.
    """
    optim, output = recipe.optim, recipe.output
    cpu, evaluates = not torch.cuda.is_available(), recipe.evaluates
    if output.wandb_project is not None and rank() == 0:
        prepare_wandb(output.wandb_project, Path(output.folder))
    shared: dict[str, Any] = {
        "output_dir": output.folder,
        "max_steps": steps,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "learning_rate": optim.learning_rate,
        # Trainer's "constant" knows no warm-up.
        "lr_scheduler_type": "constant_with_warmup" if optim.schedule == "constant" else optim.schedule,
        "warmup_steps": round(optim.warmup_ratio * steps),
        "max_grad_norm": optim.max_grad_norm,
        "weight_decay": optim.weight_decay,
        "logging_steps": output.log_every_steps,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": output.save_every_steps,
        "eval_strategy": "steps" if evaluates else "no",
        "eval_steps": output.save_every_steps if evaluates else None,
        "eval_on_start": evaluates and recipe.evaluation.at_start and not resumes,
        "metric_for_best_model": recipe.evaluation.best_metric if evaluates else None,
        "greater_is_better": recipe.evaluation.best_metric != HELD_OUT_LOSS if evaluates else None,
        "bf16": recipe.backbone.dtype == "bfloat16",
        "use_cpu": cpu,
        "deepspeed": deepspeed_config(recipe.deepspeed, recipe.backbone.dtype, cpu=cpu),
        "dataloader_num_workers": recipe.workers,
        "dataloader_prefetch_factor": 2 if recipe.workers else None,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,  # they are constants, and a step that is computed anew must not wait for them
        "disable_tqdm": True,
        "log_level_replica": "error",
        "report_to": ["wandb"] if output.wandb_project is not None else [],
        "seed": recipe.seed,
        "full_determinism": recipe.deterministic,
    }
    return kind(**{**shared, **own})


def prepare_wandb(project: str, folder: Path) -> None:
    """Set what Trainer's wandb callback reads from the environment; what is set there already stays.

    Nobody is asked for a key, and without one nothing is sent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_PROJECT", project)
    os.environ.setdefault("WANDB_DIR", str(folder))
    if "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False):
        os.environ["WANDB_MODE"] = "offline"
        wandb.teardown()  # it read the environment when it was asked, and would not look again


def passes_of(recipe: Recipe, method: StableReinforceConfig) -> int:
    """Return the forward passes of a rank's optimizer step; raises RecipeError where they are no whole number."""
    pairs, each = recipe.optim.records_per_step // world_size(), method.pairs_per_pass
    if pairs % each == 0:
        return pairs // each
    message = (
        f"a rank takes {pairs} of the {recipe.optim.records_per_step} pairs of a step, which {each} a pass do not divide; "
        f"set it to a divisor of {pairs}"
    )
    raise RecipeError("this start", [Problem("recipe", "method.pairs_per_pass", str(each), message)])


def reinforce_arguments(
    recipe: Recipe, method: StableReinforceConfig, steps: int, encoder: Encoder, *, resumes: bool
) -> GRPOConfig:
    """Return trl's arguments; what trl would do by itself and we do otherwise is switched off here.

    trl wants two generations at least, because its advantages compare them; ours need not, so one is set afterwards.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    passes, count = passes_of(recipe, method), method.num_generations
    rows = method.pairs_per_pass * count
    arguments = training_arguments(
        recipe,
        steps,
        resumes=resumes,
        kind=GRPOConfig,
        per_device_train_batch_size=2 * rows,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes * method.steps_per_rollout,
        num_generations=2,
        temperature=method.temperature,
        max_completion_length=method.max_new_tokens,
        beta=0.0,
        loss_type="grpo",
        scale_rewards="none",
        shuffle_dataset=False,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
        dataloader_prefetch_factor=None,
        log_completions=True,
        num_completions_to_print=method.rollouts_shown,
        **vllm_arguments(method, encoder),
    )
    arguments.num_generations = count
    arguments.per_device_train_batch_size = rows
    arguments.generation_batch_size = rows * arguments.steps_per_generation * world_size()
    return arguments


def vllm_arguments(method: StableReinforceConfig, encoder: Encoder) -> dict[str, Any]:
    """Return what trl's vLLM client or engine is told; an image token can never be sampled."""
    if method.engine == "transformers":
        return {}
    # trl looks for the images of a prompt by this attribute, which processors have and tokenizers have not.
    encoder.tokenizer.image_token_id = encoder.vision.image
    return {
        "use_vllm": True,
        "vllm_mode": method.engine.removeprefix("vllm_"),
        "vllm_server_base_url": method.vllm_url if method.engine == "vllm_server" else None,
        "vllm_gpu_memory_utilization": method.vllm_memory,
        "vllm_max_model_length": method.max_prompt_tokens + method.max_new_tokens,
        "vllm_importance_sampling_correction": method.importance_correction != "none",
        "vllm_importance_sampling_mode": method.importance_correction,
        "vllm_importance_sampling_clip_max": IMPORTANCE_CAP,
        "generation_kwargs": {"logit_bias": {encoder.vision.image: -100.0}},
    }
