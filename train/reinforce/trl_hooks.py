"""Checks, before anything is loaded, that the installed trl calls and returns what train/reinforce/trainer.py stands on."""

from __future__ import annotations

import inspect
from typing import Any

EXPECTED = "1.16"

HOOKS: dict[str, tuple[str, ...]] = {
    "_prepare_inputs": ("self", "generation_batch"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": ("self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
}
"""Methods of GRPOTrainer that are overridden, with the parameters they must begin with."""

READ: dict[str, tuple[str, ...]] = {
    "_prepare_inputs": ("_step", "_buffered_inputs", "steps_per_generation"),
    "_generate": ("rollout_func", "completion_ids", "logprobs"),
    "_generate_single_turn": ("_, completion_ids, logprobs, _ = self.vllm_generation.generate(",),
    "_generate_and_score_completions": (
        *("_get_per_token_logps_and_entropies", "old_per_token_logps, _, _ =", "_calculate_rewards"),
        *('"completion_ids"', '"completion_mask"', '"advantages"', '"old_per_token_logps"', '"importance_sampling_ratio"'),
    ),
}
"""What the source of a method must mention, as these overrides read or replace it."""


def check_trl(trainer: type) -> None:
    """Raise RuntimeError unless `trainer` (trl's GRPOTrainer) still has the hooks in their expected shape."""
    import trl

    problems = [*missing_hooks(trainer), *unread(trainer)]
    if problems:
        raise RuntimeError(
            f"trl {trl.__version__}: {'; '.join(problems)}. StableReinforce overrides these parts of GRPOTrainer and would "
            f"compute something else. It is tested with trl {EXPECTED}; install that version."
        )


def missing_hooks(trainer: Any) -> list[str]:
    """Return what is wrong with the overridden methods."""
    found = []
    for name, wanted in HOOKS.items():
        method = vars(trainer).get(name)
        given = () if method is None else tuple(inspect.signature(method).parameters)
        if given[: len(wanted)] != wanted:
            found.append(f"GRPOTrainer.{name} takes ({', '.join(given)}), expected ({', '.join(wanted)})")
    return found


def unread(trainer: Any) -> list[str]:
    """Return which names the methods no longer mention."""
    found = []
    for name, words in READ.items():
        method = vars(trainer).get(name)
        source = "" if method is None else inspect.getsource(method)
        found += [f"GRPOTrainer.{name} does not mention {word!r}" for word in words if word not in source]
    return found
