"""A check that the installed trl has the methods that rollout_trainer.py overrides.

It is made before anything is loaded.
"""

import inspect
from importlib import metadata

EXPECTED = "1.16"
"""The version of trl that the overrides are written for."""

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
"""Texts that must occur in the source of a method of GRPOTrainer.

They are the attributes, keys and calls that the overrides read or replace.
"""


def check_trl(trainer: type) -> None:
    """Check that trl's GRPOTrainer has the methods and source texts that the overrides expect.

    Args:
        trainer: The class GRPOTrainer.

    Raises:
        RuntimeError: A method in HOOKS or READ is missing, has other parameters, or does not
        mention
            one of the texts.
    """
    methods = vars(trainer)
    problems: list[str] = []
    for name, expected in HOOKS.items():
        parameters: tuple[str, ...] = ()
        if name in methods:
            parameters = tuple(inspect.signature(methods[name]).parameters)
        if parameters[: len(expected)] != expected:
            problems.append(
                f"GRPOTrainer.{name} takes ({', '.join(parameters)}), "
                f"expected ({', '.join(expected)})"
            )
    for name, source_texts in READ.items():
        source = ""
        if name in methods:
            source = inspect.getsource(methods[name])
        for source_text in source_texts:
            if source_text not in source:
                problems.append(f"GRPOTrainer.{name} does not mention {source_text!r}")
    if problems:
        raise RuntimeError(
            f"trl {metadata.version('trl')}: {'; '.join(problems)}. StableReinforce overrides "
            "these parts of GRPOTrainer and would compute something else. It is tested with trl "
            f"{EXPECTED}; install that version."
        )
