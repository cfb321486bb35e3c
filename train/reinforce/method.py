"""Reinforcement learning as the method of a run: the arguments and the trainer of trl.

A rollout batch is the texts that are sampled at one time, from the prompts of
`method.steps_per_rollout` optimizer steps.
"""

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
from mmrm.train.reinforce.rollouts import RunPrompts, deal_places


class ReinforceMethod(Method):
    """Reinforcement learning on sampled texts, by this project's trainer on the basis of trl's.

    A subclass makes the prompts and the reward.
    """

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
        """The largest reward of a text; infinite if it is not known."""
        return inf

    @abstractmethod
    def reward(self) -> tuple[Callable[..., list[float]], Any]:
        """Return the function that trl calls for the rewards of texts, and the model that it runs.

        The model is None if the function runs no model in this process that the trainer has to
        place on the device.
        """

    def arguments(self, *, other_ranks: bool = False) -> TrainingArguments:
        """Return trl's arguments. Features of trl that this project replaces are switched off.

        Raises:
            RecipeError: If `method.pairs_per_pass` does not divide the number of pairs of a step
                that each rank takes.
        """
        # trl takes seconds that other methods need not spend.
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from trl import GRPOConfig

        self.warn_of_idle_filter()
        config = self.config
        pairs_of_step = self.recipe.optim.records_per_step
        pairs_of_rank = pairs_of_step // world_size()
        pairs_of_pass = config.pairs_per_pass
        if pairs_of_rank % pairs_of_pass:
            message = (
                f"a rank takes {pairs_of_rank} of the {pairs_of_step} pairs of a step, which "
                f"{pairs_of_pass} a pass do not divide; set it to a divisor of {pairs_of_rank}"
            )
            problem = Problem("recipe", "method.pairs_per_pass", str(pairs_of_pass), message)
            raise RecipeError("this start", [problem])
        texts_per_pass = pairs_of_pass * config.num_generations
        passes_per_step = pairs_of_rank // pairs_of_pass
        # GRPOConfig refuses fewer than two texts of a prompt, and batches that they do not divide,
        # because trl's advantages compare the texts of a prompt. This project's advantages need
        # not, so the true numbers are set when the arguments have been made.
        arguments = training_arguments(
            self.recipe,
            self.recipe.steps(self.mixture.epoch_size),
            kind=GRPOConfig,
            other_ranks=other_ranks,
            per_device_train_batch_size=2 * texts_per_pass,
            per_device_eval_batch_size=2,
            gradient_accumulation_steps=passes_per_step,
            steps_per_generation=passes_per_step * config.steps_per_rollout,
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
        arguments.per_device_train_batch_size = texts_per_pass
        texts_of_rank = texts_per_pass * arguments.steps_per_generation
        arguments.generation_batch_size = texts_of_rank * world_size()
        return arguments

    def vllm_arguments(self) -> dict[str, Any]:
        """Return the arguments for trl's vLLM client or engine; empty if vLLM is not used."""
        config = self.config
        encoder = self.encoder
        if config.engine == "transformers":
            return {}
        # trl finds the images of a prompt by this attribute of a processor. A tokenizer has none.
        encoder.tokenizer.image_token_id = encoder.vision.image
        # The policy must not write an image token.
        never_sampled = {encoder.vision.image: -100.0}
        return {
            "use_vllm": True,
            "vllm_mode": config.engine.removeprefix("vllm_"),
            "vllm_server_base_url": config.vllm_url if config.engine == "vllm_server" else None,
            "vllm_gpu_memory_utilization": config.vllm_memory,
            "vllm_max_model_length": config.max_prompt_tokens + config.max_new_tokens,
            "vllm_importance_sampling_correction": config.importance_correction != "none",
            "vllm_importance_sampling_mode": config.importance_correction,
            "vllm_importance_sampling_clip_max": IMPORTANCE_CAP,
            "generation_kwargs": {"logit_bias": never_sampled},
        }

    def trainer(self, **trainer: Any) -> Trainer:
        """Return the trainer, whose training data are the positions of the run's prompts.

        Args:
            trainer: Arguments of trl's GRPOTrainer that do not depend on the method.
        """
        from mmrm.train.reinforce.rollout_trainer import StableReinforceTrainer

        config = self.config
        reference = None
        if config.needs_reference(lora=self.recipe.optim.lora is not None):
            reference = load_language_model(self.recipe.backbone)
        reward, reward_model = self.reward()
        # Only whole rollout batches can be sampled, so the last one may have more prompts than
        # used.
        num_batches = ceil(trainer["args"].max_steps / config.steps_per_rollout)
        places = deal_places(
            num_batches, config.steps_per_rollout, self.recipe.optim.records_per_step, world_size()
        )
        # trl is given the tokenizer in place of the encoder of this project.
        trainer = {**trainer, "processing_class": self.encoder.tokenizer}
        return StableReinforceTrainer(
            self.prompts,
            config,
            optim=self.recipe.optim,
            token_budget=self.packed().token_budget,
            reference=reference,
            reward_model=reward_model,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"place": places}),
            **trainer,
        )

    def warn_of_idle_filter(self) -> None:
        """Print a warning if no advantage of a rollout batch can reach the filter's bound."""
        config = self.config
        num_prompts = self.recipe.optim.records_per_step * config.steps_per_rollout
        num_texts = num_prompts * config.num_generations
        note = config.advantages.idle_note(num_texts, config.num_generations, self.largest_reward)
        if note is not None and rank() == 0:
            self.console.print(note, style="yellow")
