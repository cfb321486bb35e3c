"""What samples the judgements of a rollout batch: this process, or vLLM through trl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl.models.utils import unwrap_model_for_generation

from models.generation import SamplingConfig
from train.non_finite import refuse_weights
from train.rollouts import sample

if TYPE_CHECKING:
    from train.stable_reinforce import StableReinforceTrainer


def roll_out(prompts: Sequence[Any], trainer: StableReinforceTrainer) -> dict[str, Any]:
    """Sample the judgements of a rollout batch, in trl's form: token lists and, from vLLM, their log-probabilities."""
    asked, count = trainer._asked, trainer.num_generations
    refuse_weights(trainer.model, trainer.state.global_step, Path(trainer.args.output_dir))
    prompt_ids = [list(prompt.group.prompt_ids) for prompt in asked for _ in range(count)]
    if trainer.use_vllm:
        completions, log_p = _by_vllm(trainer, prompt_ids)
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": log_p}
    parts, model = trainer.parts, trainer.model
    sampling = SamplingConfig(temperature=parts.method.temperature, max_new_tokens=parts.method.max_new_tokens)
    training = model.training
    model.eval()
    # Under ZeRO-3 this gathers the weights once, instead of once a token.
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as gathered:
        inner = trainer.unwrapped(gathered)
        written = sample(inner, parts.encoder, asked, count, sampling, parts.token_budget, parts.seed)
    model.train(training)
    end = trainer.eos_token_ids[0]
    completions = [[*one.ids] if one.truncated else [*one.ids, end] for one in written]
    return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": None}


def _by_vllm(trainer: StableReinforceTrainer, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[float | None]]]:
    """Sample through trl's vLLM client or engine; it has the policy's current weights by then."""
    pictures = [list(prompt.pictures) or None for prompt in trainer._asked for _ in range(trainer.num_generations)]
    images = pictures if any(pictures) else None
    _, completions, log_p, _ = trainer.vllm_generation.generate(prompt_ids, images, trainer.num_generations)
    return completions, [[token[0] for token in one] for one in log_p]
