"""The trainer of an RL run, from its recipe: what train/runs/build.py is for the other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console
from transformers import TrainerCallback
from trl.models.utils import prepare_deepspeed

from data.mixture import Mixture
from models.backbone import load_language_model, load_processor, window_size
from models.config import BackboneConfig
from models.distributed import rank
from models.encoder import Encoder
from train.recipe.methods import CheckpointJudge, ServerJudge, StableReinforceConfig
from train.recipe.recipe import Recipe
from train.reinforce.losses import largest_advantage
from train.reinforce.rewards import ByCheckpoint, ByServer, Consistencies, JudgementReward, by_rule
from train.reinforce.rollouts import Prompts
from train.reinforce.trainer import ReinforceInputs, StableReinforceTrainer
from train.runs.arguments import reinforce_arguments
from train.runs.callbacks import BestLink, ConsoleProgress
from train.runs.model import make_model
from train.runs.model_card import About, WriteCard
from train.runs.parts import device, evaluation, inference_budget, unwrapped
from train.runs.provenance import data_fingerprints
from train.supervised.checkpoints import MarkComplete, Rotate
from train.supervised.non_finite import FiniteWeights

COLUMNS = {
    "loss": "{:.4f}",
    "reward": "{:.3f}",
    "rewards/result": "{:.3f}",
    "rewards/format": "{:.3f}",
    "completions/mean_length": "{:.1f}",
    "kl": "{:.4f}",
    "clipped/ppo": "{:.3f}",
    "filtered/advantages": "{:.3f}",
    "grad_norm": "{:.2f}",
}
"""What a console line of an RL run shows of all that is logged."""


def reinforce_trainer(
    recipe: Recipe, encoder: Encoder, console: Console, *, resumes: bool
) -> tuple[StableReinforceTrainer, Mixture]:
    """Return the trainer and the mixture behind its prompts; raises RecipeError where ranks and passes do not fit."""
    method = recipe.method
    assert isinstance(method, StableReinforceConfig)  # a rule of the recipe
    backbone = recipe.backbone
    mixture = Mixture(recipe.data, min_pixels=backbone.min_pixels, max_pixels=backbone.max_pixels)
    steps = recipe.steps(mixture.epoch_size)
    arguments = reinforce_arguments(recipe, method, steps, encoder, resumes=resumes)
    warn_of_idle_filter(recipe, method, console)
    # DeepSpeed's ZeRO-3 shards weights while they are loaded, which needs the arguments above to exist.
    model = make_model(recipe)
    parts = ReinforceInputs(
        method=method,
        optim=recipe.optim,
        prompts=Prompts(mixture, encoder, method.template, method.max_prompt_tokens),
        encoder=encoder,
        token_budget=inference_budget(recipe),
        seed=recipe.seed,
        evaluate=evaluation(recipe, encoder, Path(recipe.output.folder), console, mixture),
        reference=load_language_model(backbone) if method.kl_coefficient and recipe.optim.lora is None else None,
    )
    end = encoder.tokenizer.convert_tokens_to_ids("<|im_end|>")
    judge = consistencies(recipe, method)
    trainer = StableReinforceTrainer(
        parts,
        unwrapped,
        model=model,
        args=arguments,
        reward_funcs=JudgementReward(method.rewards, judge, encoder.tokenizer.decode, end),
        train_dataset=places(recipe, method, steps),
        eval_dataset=[0] if parts.evaluate else None,
        processing_class=encoder.tokenizer,
        callbacks=callbacks(recipe, mixture, steps, console),
    )
    for frozen in filter(None, (parts.reference, judge.model if isinstance(judge, ByCheckpoint) else None)):
        settle(frozen, trainer)
    return trainer, mixture


def callbacks(recipe: Recipe, mixture: Mixture, steps: int, console: Console) -> list[TrainerCallback]:
    """Return what happens beside the loop."""
    card = WriteCard(About(recipe, data_fingerprints(recipe, mixture), steps))
    kept = [FiniteWeights(), card, MarkComplete(), BestLink(), Rotate(recipe.output.keep_checkpoints)]
    return [*kept, ConsoleProgress(console, COLUMNS)]


def places(recipe: Recipe, method: StableReinforceConfig, steps: int) -> Dataset:
    """Return the run's rows: places 0, 1 … of `Prompts`, enough for whole rollout batches."""
    batch = recipe.optim.records_per_step * method.steps_per_rollout
    return Dataset.from_dict({"place": np.arange(-(-steps // method.steps_per_rollout) * batch)})


def consistencies(recipe: Recipe, method: StableReinforceConfig) -> Consistencies:
    """Return who says whether a reasoning agrees with its answer."""
    judge = method.rewards.consistency
    if isinstance(judge, ServerJudge):
        return ByServer(judge, Path(recipe.output.folder) / "consistency")
    if not isinstance(judge, CheckpointJudge):
        return by_rule
    backbone = BackboneConfig(path=judge.path, dtype=recipe.backbone.dtype)
    processor = load_processor(backbone)
    encoder = Encoder(processor.tokenizer, processor.image_processor, backbone, window_size(backbone))
    return ByCheckpoint(load_language_model(backbone), encoder, inference_budget(recipe))


def settle(model: Any, trainer: StableReinforceTrainer) -> None:
    """Freeze a model that is only read, and place it as DeepSpeed or this device needs it."""
    model.requires_grad_(False)
    model.eval()
    if trainer.is_deepspeed_enabled:
        prepare_deepspeed(model, trainer.accelerator)
    else:
        model.to(device())


def warn_of_idle_filter(recipe: Recipe, method: StableReinforceConfig, console: Console) -> None:
    """Say so where no advantage of a rollout batch can reach the filter's bound."""
    bound = method.advantages.filter
    if bound is None or rank():
        return
    judgements = recipe.optim.records_per_step * method.steps_per_rollout * method.num_generations
    largest = largest_advantage(judgements, method.num_generations, method.advantages)
    if method.advantages.filter_variant == "r1_released":
        largest = 1 + method.rewards.consistency_weight + method.rewards.format_weight
    if largest <= bound:
        console.print(
            f"method.advantages.filter: {bound:g} never acts here, as no advantage of {judgements} judgements exceeds "
            f"{largest:.2f}. Take more pairs a rollout batch, another normalisation, or null.",
            style="yellow",
        )
