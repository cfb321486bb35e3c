"""Runs RL trainings on a tiny model and prints what they logged; started by test_stable_reinforce.py, alone or by torchrun.

python tests/train/reinforce_worker.py JSON    # a list of runs: {"recipe": path, "overrides": [...], "reward": name}
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import os
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.runs.environment import run_environment

os.environ.setdefault("WANDB_MODE", "disabled")


def even_tokens(completion_ids: Sequence[list[int]], **rest: Any) -> list[float]:
    """Pay for tokens with an even number: something that a random model can earn, and learn."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def endless(completion_ids: Sequence[list[int]], **rest: Any) -> list[float]:
    """Pay the first without end, which no advantage survives."""
    return [float("inf") if place == 0 else 0.0 for place in range(len(completion_ids))]


REWARDS = {"even_tokens": even_tokens, "endless": endless}
"""Instead of the reward of judgements, which a random model never earns. Any other name keeps that, and `parity` reads judgements
from any text."""


def read_parity(
    reward: Any,
    completion_ids: Sequence[list[int]],
    prompts: Sequence[Any],
    read_alternatives: Any,
) -> Any:
    """Read a judgement from any text: a random model hardly ever writes one that ends by itself.

    The answer is the parity of the text's first token, and every seventh text names no response.
    Most texts have the largest length, so that some of their tokens are left out.
    """
    from mmrm.data.prompts import Judgement
    from mmrm.train.reinforce.stable_reinforce.judgement_terms import JudgementBatch

    judgements = []
    for ids in completion_ids:
        answer: Any = None if ids[0] % 7 == 0 else 1 + ids[0] % 2
        judgements.append(Judgement(None, answer, formatted=False))
    is_whole = [True] * len(completion_ids)
    token_ids = [ids[: 2 + ids[0] % 4] for ids in completion_ids]
    return JudgementBatch(
        prompts, token_ids, judgements, is_whole, reward.group_size, read_alternatives
    )


def ended(reward: Any, end_of_turn: int, completion_ids: Sequence[list[int]], **rest: Any) -> Any:
    """Return the rewards of texts as if each ended by itself."""
    return reward([[*ids, end_of_turn] for ids in completion_ids], **rest)


class AnyText:
    """Stands for the tokenizer of the reward by points: any text is a score, and one of five is none."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return a score by the first token of a text."""
        return "abcx "[ids[0] % 5]


class VllmDouble:
    """Stands for trl's VLLMGeneration: writes two tokens, every third time with a probability that training does not share."""

    def __init__(self, **arguments: Any) -> None:
        """Take what trl's takes."""

    def sync_weights(self) -> None:
        """Need no weights."""

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int
    ) -> tuple[Any, ...]:
        """Return log-probabilities of 0, so that the weights are below 1, and of -50, so that they are far above 3."""
        log_p = [[[-50.0 * (place % 3 == 0)]] * 2 for place in range(len(prompts))]
        return prompts, [[20 + place % 7, 40] for place in range(len(prompts))], log_p, None


def note_trl(
    trainer: Any, computed_by_trl: list[list[float]], compute: Any, *arguments: Any
) -> Any:
    """Compute advantages, and add those that trl has just computed from the same rewards to a list."""
    num_texts = len(arguments[0])
    computed_by_trl.append(list(trainer._logs["advantages"])[-num_texts:])
    return compute(*arguments)


def rl_trainer(recipe: Any, *, resumes: bool) -> Any:
    """Return the trainer that train/runs/build.py makes of a recipe."""
    from rich.console import Console

    from mmrm.data.config.registry import load
    from mmrm.models.backbone import load_encoder
    from mmrm.train.runs.callbacks import run_callbacks
    from mmrm.train.runs.evaluation_loop import evaluation
    from mmrm.train.runs.model import make_model

    encoder = load_encoder(recipe.backbone)
    method: Any = load(recipe.method.implementation)(recipe, encoder, Console(quiet=True))
    method.setup()
    arguments = method.arguments()
    arguments.eval_on_start &= not resumes
    return method.trainer(
        evaluate=evaluation(method),
        model=make_model(recipe),
        args=arguments,
        callbacks=run_callbacks(method),
    )


def run(recipe_path: str, overrides: Sequence[str], reward: str) -> dict[str, Any]:
    """Train and return the log lines, a digest of the weights and the error, if one stopped the run."""
    from transformers.modeling_layers import GradientCheckpointingLayer
    from trl.trainer import grpo_trainer

    from mmrm.data.errors import NonFiniteError
    from mmrm.models.activations import checkpoint_with_input_on_host

    grpo_trainer.VLLMGeneration = VllmDouble
    recipe = read_recipe(Path(recipe_path), overrides, entry="rl")
    resume = None if recipe.output.resume == "never" else recipe.output.resume
    trainer = rl_trainer(recipe, resumes=resume is not None)
    # This project computes advantages itself, and tells trl not to divide its own ones by a deviation. Here they are GRPO's.
    trainer.scale_rewards = "group"
    if reward in REWARDS:
        trainer.reward_funcs = [REWARDS[reward]]
    elif reward == "parity":
        [judgement_reward] = trainer.reward_funcs
        judgement_reward._read = partial(read_parity, judgement_reward)
    elif reward == "points":
        [order_reward] = trainer.reward_funcs
        end_of_turn = trainer.encoder.end_of_turn
        order_reward.encoder = SimpleNamespace(tokenizer=AnyText(), end_of_turn=end_of_turn)
        trainer.reward_funcs = [partial(ended, order_reward, end_of_turn)]
    computed_by_trl: list[list[float]] = []
    trainer.compute_advantages = partial(
        note_trl, trainer, computed_by_trl, trainer.compute_advantages
    )
    error = ""
    try:
        trainer.train(resume_from_checkpoint=resume)
    except NonFiniteError as found:
        error = str(found)
    layers = [
        module
        for module in trainer.model.modules()
        if isinstance(module, GradientCheckpointingLayer)
    ]
    checkpoints = {layer._gradient_checkpointing_func for layer in layers}
    return {
        "log": trainer.state.log_history,
        "error": error,
        "trl_advantages": computed_by_trl,
        "keeps_inputs_on_host": checkpoints == {checkpoint_with_input_on_host},
    }


def main() -> None:
    """Run what the command line holds and print one line of JSON on the first rank."""
    runs = json.loads(sys.argv[1])
    deepspeed = any("deepspeed=zero" in text for one in runs for text in one["overrides"])
    with run_environment(seed=0, deterministic=False, deepspeed=deepspeed):
        found = [
            run(one["recipe"], one["overrides"], one.get("reward", "even_tokens")) for one in runs
        ]
        if os.environ["RANK"] == "0":
            print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
