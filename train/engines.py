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
    """Sample through trl's vLLM client or engine; it has the policy's current weights by then.

    An image is a run of pads between its vision_start and vision_end. trl's client wants the whole run; an engine in this
    process expands the first pad it finds, so it must find one an image. Raises RuntimeError where other ids come of it.
    """
    asked = [prompt for prompt in trainer._asked for _ in range(trainer.num_generations)]
    images = [list(prompt.pictures) or None for prompt in asked]
    pad, given = trainer.parts.encoder.vision.image, prompt_ids
    if trainer.vllm_mode == "colocate":
        given = [[token for i, token in enumerate(ids) if token != pad or ids[i - 1] != pad] for ids in prompt_ids]
    count = trainer.num_generations
    used, completions, log_p, _ = trainer.vllm_generation.generate(given, images if any(images) else None, count)
    for prompt, wanted, found in zip(asked, prompt_ids, used, strict=True):
        if found != wanted:
            raise RuntimeError(
                f"{prompt.record}: vLLM sampled from {len(found)} tokens, {found.count(pad)} of them image pads, where training "
                f"reads {len(wanted)} with {wanted.count(pad)}. vLLM takes an image's size from the backbone's "
                "preprocessor_config.json, training from the recipe: make backbone.min_pixels and max_pixels agree with that "
                "file, or set method.engine=transformers."
            )
    return completions, [[token[0] for token in one] for one in log_p]
