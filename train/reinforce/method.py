"""Reinforcement learning as the method of a run: trl's arguments and trainer; and StableReinforce, which trains a judge by it."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from math import ceil, inf
from typing import Any, ClassVar

from datasets import Dataset
from transformers import Trainer, TrainingArguments

from mmrm.data.errors import Problem, RecipeError
from mmrm.models.backbone import load_language_model
from mmrm.models.distributed import rank, world_size
from mmrm.train.methods.method import Method
from mmrm.train.methods.trainer_arguments import training_arguments
from mmrm.train.reinforce.config import IMPORTANCE_CAP, RolloutConfig
from mmrm.train.reinforce.policy_loss import largest_advantage
from mmrm.train.reinforce.rollouts import RunPrompts, deal_places


class ReinforceMethod(Method):
    """Reinforcement learning on sampled texts: trl's arguments and trainer."""

    columns: ClassVar[Mapping[str, str]] = {
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

    config: RolloutConfig
    prompts: RunPrompts

    @property
    def largest_reward(self) -> float:
        """What a text can earn at most, where that is known."""
        return inf

    @abstractmethod
    def reward(self) -> tuple[Callable[..., list[float]], Any]:
        """Return the reward as trl calls it, and a frozen model that it asks on this machine, or None."""

    def arguments(self) -> TrainingArguments:
        """Return trl's arguments; what trl would do by itself and we do otherwise is switched off here.

        trl wants two generations at least, because its advantages compare them; ours need not, so one is set afterwards.
        Raises: RecipeError where the pairs of a pass do not divide those of a rank.
        """
        # trl takes seconds that other methods need not spend.
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from trl import GRPOConfig

        self.warn_of_idle_filter()
        config, optim = self.config, self.recipe.optim
        pairs, each = optim.records_per_step // world_size(), config.pairs_per_pass
        if pairs % each:
            message = (
                f"a rank takes {pairs} of the {optim.records_per_step} pairs of a step, which {each} a pass do not divide; "
                f"set it to a divisor of {pairs}"
            )
            raise RecipeError(
                "this start", [Problem("recipe", "method.pairs_per_pass", str(each), message)]
            )
        rows, passes = each * config.num_generations, pairs // each
        arguments = training_arguments(
            self.recipe,
            self.recipe.steps(self.mixture.epoch_size),
            kind=GRPOConfig,
            per_device_train_batch_size=2 * rows,
            per_device_eval_batch_size=2,
            gradient_accumulation_steps=passes,
            steps_per_generation=passes * config.steps_per_rollout,
            num_generations=2,
            temperature=config.temperature,
            max_completion_length=config.max_new_tokens,
            beta=0.0,
            loss_type="grpo",
            scale_rewards="none",
            shuffle_dataset=False,
            gradient_checkpointing=False,
            dataloader_num_workers=0,
            dataloader_prefetch_factor=None,
            log_completions=True,
            num_completions_to_print=config.rollouts_shown,
            **self.vllm_arguments(),
        )
        arguments.num_generations = config.num_generations
        arguments.per_device_train_batch_size = rows
        arguments.generation_batch_size = rows * arguments.steps_per_generation * world_size()
        return arguments

    def vllm_arguments(self) -> dict[str, Any]:
        """Return the arguments of trl's vLLM client or engine; an image token can never be sampled."""
        config, encoder = self.config, self.encoder
        if config.engine == "transformers":
            return {}
        # trl looks for the images of a prompt by this attribute, which processors have and tokenizers have not.
        encoder.tokenizer.image_token_id = encoder.vision.image
        return {
            "use_vllm": True,
            "vllm_mode": config.engine.removeprefix("vllm_"),
            "vllm_server_base_url": config.vllm_url if config.engine == "vllm_server" else None,
            "vllm_gpu_memory_utilization": config.vllm_memory,
            "vllm_max_model_length": config.max_prompt_tokens + config.max_new_tokens,
            "vllm_importance_sampling_correction": config.importance_correction != "none",
            "vllm_importance_sampling_mode": config.importance_correction,
            "vllm_importance_sampling_clip_max": IMPORTANCE_CAP,
            "generation_kwargs": {"logit_bias": {encoder.vision.image: -100.0}},
        }

    def trainer(self, **trainer: Any) -> Trainer:
        """Return trl's trainer with StableReinforce in it, over the prompts of whole rollout batches."""
        from mmrm.train.reinforce.rollout_trainer import StableReinforceTrainer

        config, lora = self.config, self.recipe.optim.lora
        reference = (
            load_language_model(self.recipe.backbone)
            if config.kl_coefficient and lora is None
            else None
        )
        reward, reader = self.reward()
        batches = ceil(trainer["args"].max_steps / config.steps_per_rollout)
        places = deal_places(
            batches, config.steps_per_rollout, self.recipe.optim.records_per_step, world_size()
        )
        return StableReinforceTrainer(
            self.prompts,
            config,
            optim=self.recipe.optim,
            token_budget=self.packed().token_budget,
            reference=reference,
            reader=reader,
            **{**trainer, "processing_class": self.encoder.tokenizer},
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"place": places}),
        )

    def warn_of_idle_filter(self) -> None:
        """Say so where no advantage of a rollout batch can reach the filter's bound."""
        config = self.config
        bound = config.advantages.filter
        judgements = (
            self.recipe.optim.records_per_step * config.steps_per_rollout * config.num_generations
        )
        largest = largest_advantage(judgements, config.num_generations, config.advantages)
        if config.advantages.filter_variant == "r1_released":
            largest = self.largest_reward
        if bound is not None and largest <= bound and not rank():
            self.console.print(
                f"method.advantages.filter: {bound:g} never acts here, as no advantage of {judgements} texts exceeds "
                f"{largest:.2f}. Take more pairs a rollout batch, another normalisation, or null.",
                style="yellow",
            )
