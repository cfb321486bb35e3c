"""From a recipe to trl's arguments; what trl would do by itself and we do otherwise is switched off here."""

from __future__ import annotations

import os
from typing import Any

from trl import GRPOConfig

from models.distributed import world_size
from models.encoder import Encoder
from train.arguments import training_arguments
from train.layers import Problem, RecipeError
from train.methods import IMPORTANCE_CAP, StableReinforceConfig
from train.recipe import Recipe


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
