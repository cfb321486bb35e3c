"""Checks, before anything is loaded, that the installed trl fits train/reinforce/rollout_trainer.py."""

import inspect
from importlib import metadata

EXPECTED = "1.16"

HOOKS: dict[str, tuple[str, ...]] = {
    "_prepare_inputs": ("self", "generation_batch"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
    ),
    "_save_checkpoint": ("self", "model", "trial"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
}
"""Methods of GRPOTrainer that are overridden, with their first parameters."""

READ: dict[str, tuple[str, ...]] = {
    "_prepare_inputs": ("_step", "_buffered_inputs", "steps_per_generation"),
    "_generate": ("rollout_func", "completion_ids", "logprobs"),
    "_generate_single_turn": ("_, completion_ids, logprobs, _ = self.vllm_generation.generate(",),
    "_generate_and_score_completions": (
        "_get_per_token_logps_and_entropies",
        "old_per_token_logps, _, _ =",
        "_calculate_rewards",
        '"completion_ids"',
        '"completion_mask"',
        '"advantages"',
        '"old_per_token_logps"',
        '"importance_sampling_ratio"',
    ),
}
"""Words in the source of a method that these overrides read or replace."""


def check_trl(trainer: type) -> None:
    """Check that trl's GRPOTrainer still has the hooks in their expected shape.

    Raises:
        RuntimeError: A hook is missing or has another shape.
    """
    methods = vars(trainer)
    problems: list[str] = []
    for name, wanted in HOOKS.items():
        given: tuple[str, ...] = ()
        if name in methods:
            given = tuple(inspect.signature(methods[name]).parameters)
        if given[: len(wanted)] != wanted:
            problems.append(
                f"GRPOTrainer.{name} takes ({', '.join(given)}), expected ({', '.join(wanted)})"
            )
    for name, words in READ.items():
        source = ""
        if name in methods:
            source = inspect.getsource(methods[name])
        problems += [
            f"GRPOTrainer.{name} does not mention {word!r}" for word in words if word not in source
        ]
    if problems:
        raise RuntimeError(
            f"trl {metadata.version('trl')}: {'; '.join(problems)}. StableReinforce overrides these "
            "parts of GRPOTrainer and would compute something else. It is tested with trl "
            f"{EXPECTED}; install that version."
        )
