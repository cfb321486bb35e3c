"""StableReinforce on trl's GRPOTrainer (R1-Reward, arXiv 2505.02835, section 4).

A rollout batch is the texts that are sampled at one time, from the prompts of one or more optimizer
steps. A rollout buffer is the rollout batch of one rank, divided into passes. A pass is the part
that the rank computes in one forward and backward pass.

trl has the training loop, the rollout buffer, vLLM, the gathering of rewards and the tables of
rollouts. This project chooses the prompts (rollouts.py), samples texts and computes their
log-probabilities in packed rows, computes advantages over the rollout batch of all ranks
(advantages.py) and the loss (policy_loss.py), and stores the rollout buffer in every checkpoint. Texts are sampled by this
process, or by vLLM through trl. trl_hooks.py checks at the start that the methods of trl that are
overridden here still have the expected parameters.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from trl import GRPOTrainer
from trl.models.utils import prepare_deepspeed

from mmrm.data.config.registry import load
from mmrm.data.errors import CheckpointError, UserError
from mmrm.models.activations import set_checkpointing
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import rank, sum_over_ranks
from mmrm.models.packed_alternatives import Choice, log_probabilities_of_alternatives
from mmrm.models.packed_generation import generate_packed, log_probabilities, repeated
from mmrm.models.packing.segments import (
    ImagePlace,
    Output,
    ProcessedImage,
    Segment,
    SegmentTree,
)
from mmrm.train.reinforce.config import IMPORTANCE_CAP, RolloutConfig
from mmrm.train.reinforce.policy_loss import (
    kl_divergence,
    policy_loss,
    pre_clipped,
    sequence_mean,
)
from mmrm.train.reinforce.rollouts import Prompt, RunPrompts
from mmrm.train.reinforce.trl_hooks import check_trl
from mmrm.train.supervised.devices import unwrapped
from mmrm.train.supervised.optimizer import FiniteTrainer, refuse_weights
from mmrm.train.supervised.whole_weights import whole_weights

ROLLOUTS = "rollouts-{rank}.pt"
"""The name of the file with a rank's rollout buffer in a checkpoint folder."""
EARLIER_PROMPT_CLASS = "packing.groups.Group"
"""The end of the class name of stored prompts in checkpoints from before there were segment trees.
It had several prefixes."""


class StableReinforceTrainer(FiniteTrainer, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with the prompts, packed forward passes, advantages and loss of this project.

    A row of its training data is `{"place": N}`, the position of a record in the run. Its
    TrainingArguments are those of `ReinforceMethod.arguments`.
    """

    def __init__(
        self,
        prompts: RunPrompts,
        method: RolloutConfig,
        *,
        token_budget: int,
        reference: Any = None,
        reward_model: Any = None,
        **trainer: Any,
    ) -> None:
        """Make the trainer of a run.

        Args:
            prompts: The prompts of the run.
            method: The section of the recipe.
            token_budget: The largest size of a packed row in sampling, in tokens.
            reference: A frozen copy of the initial model, for the KL divergence from it. None if
                no divergence is computed. Also None if adapters are trained, because the model
                without its adapters is the initial model.
            reward_model: A model in this process that the reward runs. None if there is none.
            trainer: Arguments of FiniteTrainer and of GRPOTrainer.
        """
        check_trl(GRPOTrainer)
        self.prompts = prompts
        self.encoder = prompts.encoder
        self.method = method
        self.compute_advantages = load(method.advantages.implementation)
        self.token_budget = token_budget
        self.reference = reference
        self._buffered_inputs: list[dict[str, Any]] | None
        self.batch_prompts: list[Prompt] = []
        """The prompts of this rank's part of the current rollout batch."""
        self.texts_per_prompt = method.num_generations // prompts.prompts_per_place
        """The number of texts that are sampled from each of `batch_prompts`. The texts of all
        prompts of one record are a group, which has `num_generations` texts."""
        self._rewards = torch.empty(0)
        """The rewards of the current rollout batch of all ranks, (rollouts,)."""
        super().__init__(rollout_func=roll_out, **trainer)
        self.eos_token_ids = [self.encoder.end_of_turn]
        for frozen in (reference, reward_model):
            if frozen is None:
                continue
            frozen.requires_grad_(False)
            frozen.eval()
            if self.is_deepspeed_enabled:
                prepare_deepspeed(frozen, self.accelerator)
            else:
                frozen.to(self.args.device)

    def _prepare_inputs(self, generation_batch: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the inputs of the next pass, after sampling a rollout batch if none is left.

        This replaces trl's method, which shuffles the texts of a rollout batch. Here the texts of a
        prompt stay together, because a pass computes the prompt once for all of them.

        Args:
            generation_batch: The rows of a rollout batch, one for each text.
        """
        num_passes = self.args.steps_per_generation
        if self._step % num_passes == 0 or self._buffered_inputs is None:
            rollout = self._generate_and_score_completions(generation_batch)
            num_texts = len(rollout["sample"])
            buffered_inputs: list[dict[str, Any]] = [{} for _ in range(num_passes)]
            for name, value in rollout.items():
                # A pass reads only values that have one row for each text.
                if isinstance(value, Tensor) and value.shape[:1] == (num_texts,):
                    parts = torch.split(value, num_texts // num_passes)
                    for inputs_of_pass, part in zip(buffered_inputs, parts, strict=True):
                        inputs_of_pass[name] = part
            self._buffered_inputs = buffered_inputs
        inputs: dict[str, Any] = self._buffered_inputs[self._step % num_passes]
        return inputs

    def _generate_and_score_completions(self, inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Sample and score the texts of a rollout batch, and return this rank's part of it.

        trl samples through `roll_out` and calls the reward. Advantages are computed from the
        rewards of all ranks.

        Args:
            inputs: Rows with the `place` of a record in the run, one for each text.
        """
        num_generations = self.num_generations
        # trl repeats the row of a record for each of its texts.
        self.batch_prompts = []
        for row in inputs[::num_generations]:
            self.batch_prompts += self.prompts[int(row["place"])]
        rows: list[dict[str, Any]] = []
        for prompt in self.batch_prompts:
            for _ in range(self.texts_per_prompt):
                message = {"role": "user", "content": prompt.shown}
                rows.append(
                    {
                        "prompt": [message],
                        "asked": prompt,
                        "read_alternatives": self.read_alternatives,
                    }
                )
        rollout: dict[str, Any] = super()._generate_and_score_completions(rows)
        # trl switches activation checkpointing off while texts are sampled, and then on again in the
        # mode `full`.
        if self.optim.activation_checkpointing != "none":
            set_checkpointing(unwrapped(self.model), self.optim.activation_checkpointing)
        rollout["sample"] = torch.arange(len(rows), device=rollout["completion_ids"].device)
        rewards = self._rewards.to(rollout["sample"].device)
        if self.method.kl_coefficient:
            rewards = rewards - self._kl_penalty(rollout)
        advantages, filtered = self.compute_advantages(
            rewards, num_generations, self.method.advantages
        )
        advantages_by_rank = torch.split(advantages, len(rows))
        rollout["advantages"] = advantages_by_rank[self.accelerator.process_index]
        # trl has added its own advantages to its table of rollouts, on which nothing is trained.
        # The table keeps one value for each text, so these values replace them.
        self._logs["advantages"].extend(advantages.tolist())
        self._add_importance_metrics(rollout)
        self._add_metric("filtered/advantages", filtered.float().mean())
        self._add_metric("largest_advantage", advantages.abs().max())
        num_too_long = sum_over_ranks(rewards.new_tensor(self.prompts.too_long))
        self._add_metric("rollouts/prompts_too_long", num_too_long)
        return rollout

    @contextmanager
    def policy_with_whole_weights(self) -> Iterator[Any]:
        """Give the policy in eval mode, without wrappers, with whole weights under ZeRO-3.

        All ranks must enter together.
        """
        was_training = self.model.training
        self.model.eval()
        with whole_weights(self.model_wrapped):
            yield unwrapped(self.model)
        self.model.train(was_training)

    def read_alternatives(
        self, prompts: Sequence[SegmentTree], choices: Sequence[Sequence[Choice]]
    ) -> list[list[tuple[float, ...]]]:
        """Return the policy's log-probabilities of alternatives after written texts.

        Rewards call this (see `ReadAlternatives`). All ranks must call together.
        """
        with self.policy_with_whole_weights() as policy:
            return log_probabilities_of_alternatives(
                policy, self.encoder, prompts, choices, self.token_budget
            )

    def _add_importance_metrics(self, rollout: dict[str, Any]) -> None:
        """Log the share of importance weights that were truncated or set to 0.

        Texts that vLLM samples have importance weights, (probability in training) / (probability in
        vLLM). Other texts have none, and nothing is logged.
        """
        # (rollouts, T) for tokens, or (rollouts, 1) for texts
        weights = rollout.get("importance_sampling_ratio")
        if weights is None:
            return
        if self.method.importance_correction == "token_truncate":
            is_truncated = weights == IMPORTANCE_CAP
            self._add_masked_means(
                {"importance/truncated_tokens": is_truncated}, rollout["completion_mask"]
            )
        else:
            is_dropped = weights == 0
            self._add_masked_means(
                {"importance/dropped_judgements": is_dropped}, torch.ones_like(weights)
            )

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the rewards of all ranks as trl does, (rollouts, 1), and keep them."""
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        self._rewards = rewards[:, 0]
        return rewards

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int,
        **rest: Any,
    ) -> tuple[Tensor, None, None]:
        """Return the log-probabilities of this rank's rollout batch, (B, T), and None twice.

        trl calls this for the policy before the update, and does not use the two other values
        (entropies and an auxiliary loss). The last `logits_to_keep` tokens of each row of
        `input_ids` are the sampled text.
        """
        ids = input_ids[:, -logits_to_keep:]
        mask = attention_mask[:, -logits_to_keep:]
        return self._all_log_probabilities(model, ids, mask), None, None

    def _all_log_probabilities(self, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the log-probabilities (B, T) of this rank's rollout batch, computed pass by pass.

        `ids` are the tokens of the texts and `mask` is 1 where they are no padding, both (B, T).
        """
        text_indices = torch.arange(len(ids), device=ids.device)
        texts_per_pass = self.args.per_device_train_batch_size
        parts = []
        for start in range(0, len(ids), texts_per_pass):
            texts = slice(start, start + texts_per_pass)
            parts.append(
                self._log_probabilities(model, ids[texts], mask[texts], text_indices[texts])
            )
        return torch.cat(parts)

    def _log_probabilities(
        self, model: Any, ids: Tensor, mask: Tensor, text_indices: Tensor
    ) -> Tensor:
        """Return the log-probabilities (B, T) of texts of this rank's rollout batch, in one pass.

        Args:
            model: The model that computes them.
            ids: The tokens of the texts, (B, T).
            mask: 1 for tokens and 0 for padding, (B, T).
            text_indices: The positions of the texts in this rank's rollout batch, (B,).
        """
        prompt_indices = [index // self.texts_per_prompt for index in text_indices.tolist()]
        prompts = [prompt.tree for prompt in self.batch_prompts]
        return log_probabilities(
            model, self.encoder, prompts, prompt_indices, ids, mask, self.method.temperature
        )

    @torch.no_grad()
    def _kl_penalty(self, rollout: dict[str, Any]) -> Tensor:
        """Add the initial model's log-probabilities to `rollout`, and return the KL penalty.

        The penalty is the KL divergence from the initial model times its coefficient, (rollouts,)
        for the texts of all ranks. It is to be subtracted from the rewards. It is 0 if the recipe
        adds the divergence to the loss instead (`kl_in: loss`).
        """
        ids = rollout["completion_ids"]
        mask = rollout["completion_mask"]
        method = self.method
        if self.reference is not None:
            rollout["reference"] = self._all_log_probabilities(self.reference, ids, mask)
        else:
            # Without its adapters, the model is the initial model.
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                rollout["reference"] = self._all_log_probabilities(self.model, ids, mask)
        if method.kl_in == "loss":
            return torch.zeros_like(self._rewards, device=ids.device)
        log_p = rollout.get("old_per_token_logps")
        if log_p is None:
            log_p = self._all_log_probabilities(self.model, ids, mask)
        kl = kl_divergence(log_p, rollout["reference"], method.kl_form)
        self._add_kl_metric(kl, mask)
        gathered: Tensor = self.accelerator.gather((kl * mask).sum(1))
        return method.kl_coefficient * gathered

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the loss of a pass: the mean loss of a text's tokens, averaged over the texts.

        It is divided by the number of passes of the step, whose gradients are added up.
        """
        method = self.method
        mask = inputs["completion_mask"]
        log_p = self._log_probabilities(model, inputs["completion_ids"], mask, inputs["sample"])
        old_log_p = inputs.get("old_per_token_logps")
        if old_log_p is None:
            # One step is trained on each rollout batch, so the policy is still the one that
            # sampled.
            old_log_p = log_p.detach()
        log_ratio = log_p - old_log_p
        token_loss = policy_loss(log_ratio, inputs["advantages"], method)
        if "importance_sampling_ratio" in inputs:
            token_loss = token_loss * inputs["importance_sampling_ratio"]
        if method.kl_coefficient and method.kl_in == "loss":
            kl = kl_divergence(log_p, inputs["reference"], method.kl_form)
            token_loss = token_loss + method.kl_coefficient * kl
            self._add_kl_metric(kl.detach(), mask)
        loss: Tensor = (
            sequence_mean(token_loss, mask).mean() / self.current_gradient_accumulation_steps
        )
        prompt_indices = {index // self.texts_per_prompt for index in inputs["sample"].tolist()}
        prompts = [self.batch_prompts[index] for index in sorted(prompt_indices)]
        self.passes.append(
            {
                **inputs,
                "prompts": prompts,
                "records": [prompt.record for prompt in prompts],
                "log_probabilities": log_p.detach(),
                "loss": loss.detach(),
            }
        )
        self._add_ratio_metrics(log_ratio.detach(), log_p.detach(), mask, inputs["advantages"])
        return loss

    @torch.no_grad()
    def _add_ratio_metrics(
        self, log_ratio: Tensor, log_p: Tensor, mask: Tensor, advantages: Tensor
    ) -> None:
        """Log the shares of clipped tokens, the entropy and the largest ratio of a pass.

        The entropy is estimated from the sampled tokens.

        Args:
            log_ratio: The log-ratio of every token, (B, T).
            log_p: The log-probability of every token, (B, T).
            mask: 1 for tokens and 0 for padding, (B, T).
            advantages: The advantage of every text, (B,).
        """
        method = self.method
        ratio = log_ratio.exp()
        token_advantages = advantages[:, None]
        epsilon_high = method.epsilon if method.epsilon_high is None else method.epsilon_high
        is_clipped_above = (ratio > 1 + epsilon_high) & (token_advantages > 0)
        is_clipped_below = (ratio < 1 - method.epsilon) & (token_advantages < 0)
        values_by_metric = {
            "clipped/pre_clip": pre_clipped(log_ratio, method.pre_clip) != log_ratio,
            "clipped/ppo": is_clipped_above | is_clipped_below,
            "entropy": -log_p,
        }
        self._add_masked_means(values_by_metric, mask)
        self._add_metric("largest_log_ratio", (log_ratio.abs() * mask).max())

    def _add_masked_means(self, values: Mapping[str, Tensor], mask: Tensor) -> None:
        """Log the mean of each of `values` where `mask` is 1, over all ranks."""
        sums_of_rank = [mask.sum().float()]
        sums_of_rank += [(value.float() * mask).sum() for value in values.values()]
        num_tokens, *sums = sum_over_ranks(torch.stack(sums_of_rank))
        for name, value_sum in zip(values, sums, strict=True):
            self._add_metric(name, value_sum / num_tokens)

    def _add_kl_metric(self, kl: Tensor, mask: Tensor) -> None:
        """Log the KL divergence of a token, averaged over each text, the texts and the ranks."""
        mean_of_rank = sequence_mean(kl, mask).mean()
        self._add_metric("kl", sum_over_ranks(mean_of_rank) / self.accelerator.num_processes)

    def _add_metric(self, name: str, value: Tensor) -> None:
        """Add a value to those that trl averages in the next line of the log."""
        self._metrics["train"][name].append(float(value))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint as trl does, and in it the image processor and the rollout buffers.

        Each rank saves its own rollout buffer.
        """
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if rank() == 0:
            self.encoder.image_processor.save_pretrained(folder)
        # Only the reward reads `question`, and the texts in the buffer already have their rewards.
        prompts = [replace(prompt, question=None) for prompt in self.batch_prompts]
        state = {"step": self._step, "buffer": self._buffered_inputs, "prompts": prompts}
        torch.save(state, folder / ROLLOUTS.format(rank=rank()))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the states of optimizer and scheduler as trl does, and this rank's rollout buffer.

        A run that was interrupted between two steps of a rollout batch continues with that batch.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = stored_rollouts(Path(checkpoint))
        self._step = state["step"]
        self.batch_prompts = state["prompts"]
        buffered_inputs: list[dict[str, Any]] = []
        for stored in state["buffer"]:
            on_device = {name: value.to(self.args.device) for name, value in stored.items()}
            buffered_inputs.append(on_device)
        self._buffered_inputs = buffered_inputs


def stored_rollouts(checkpoint: Path) -> dict[str, Any]:
    """Return the state of this rank's rollout buffer from a checkpoint.

    The result has the number of passes until then (`step`), the inputs of the passes of the rollout
    batch (`buffer`) and its prompts (`prompts`). Loading runs no code of the file, because only
    tensors, plain values and the classes named here are accepted.

    Raises:
        CheckpointError: If the file cannot be read, was written by a version without segment trees,
            or contains objects of any other class.
    """
    file = checkpoint / ROLLOUTS.format(rank=rank())
    stored_classes = [Prompt, SegmentTree, Segment, Output, ImagePlace, ProcessedImage]
    try:
        with torch.serialization.safe_globals([*stored_classes, Image]):
            other_classes = torch.serialization.get_unsafe_globals_in_checkpoint(file)
            if not any(name.endswith(EARLIER_PROMPT_CLASS) for name in other_classes):
                state = torch.load(file, weights_only=True, map_location="cpu")
                return {name: state[name] for name in ("step", "buffer", "prompts")}
    except (
        pickle.UnpicklingError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(
            f"{file} is damaged, or no buffer of rollouts: {type(error).__name__}: "
            f"{str(error)[:200]}. A run goes on with the judgements that it had sampled: copy the "
            "file again, or give an earlier checkpoint, output.resume=PATH."
        ) from error
    raise CheckpointError(
        f"{file} was written by an earlier version, which stored prompts in another form that this "
        "version does not read. A run goes on with the texts that it had sampled, so it cannot be "
        "continued with this version. Continue it with the version that began it, or start a new "
        f"run from the weights: backbone.path={checkpoint} output.folder=NEW."
    )


def roll_out(prompts: Sequence[Any], trainer: StableReinforceTrainer) -> dict[str, Any]:
    """Sample the texts of a rollout batch: the `rollout_func` that trl calls.

    The prompts are those of the trainer's current rollout batch, with their images. Those that trl
    passes are not used. The result has the tokens of the prompt of each text, the tokens of each
    text, and the log-probabilities of these tokens if vLLM sampled them, else None.

    Raises:
        NonFiniteError: If a weight of the model is not finite.
    """
    batch_prompts = trainer.batch_prompts
    texts_per_prompt = trainer.texts_per_prompt
    refuse_weights(trainer.model, trainer.state.global_step, Path(trainer.args.output_dir))
    prompt_ids: list[list[int]] = []
    for prompt in batch_prompts:
        [conversation] = prompt.tree.conversations()
        prompt_ids += [list(conversation.ids) for _ in range(texts_per_prompt)]
    if trainer.use_vllm:
        completions, log_p = _by_vllm(trainer, prompt_ids)
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": log_p}

    method = trainer.method
    sampling = SamplingConfig(temperature=method.temperature, max_new_tokens=method.max_new_tokens)
    trees = []
    seeds = []
    for index, prompt in enumerate(batch_prompts):
        trees.append(repeated(prompt.tree, texts_per_prompt))
        # The texts of a record are numbered over all its prompts, so that no two have one seed.
        first_number = index % trainer.prompts.prompts_per_place * texts_per_prompt
        numbers = range(first_number, first_number + texts_per_prompt)
        seeds.append([f"{trainer.args.seed}/{prompt.place}/{number}" for number in numbers])
    with trainer.policy_with_whole_weights() as policy:
        texts_by_prompt = generate_packed(
            policy, trainer.encoder, trees, seeds, sampling, trainer.token_budget
        )

    end_of_turn = trainer.eos_token_ids[0]
    completions = []
    for text in chain.from_iterable(texts_by_prompt):
        ids = list(text.ids)
        # `ids` are without the token that ended the text. A truncated text has no such token.
        if not text.truncated:
            ids.append(end_of_turn)
        completions.append(ids)
    return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": None}


def _by_vllm(
    trainer: StableReinforceTrainer, prompt_ids: list[list[int]]
) -> tuple[list[list[int]], list[list[float | None]]]:
    """Sample through trl's vLLM client or engine, which has the policy's current weights by then.

    Returns the tokens of each text, and their log-probabilities in vLLM.

    Args:
        trainer: The trainer, whose current rollout batch is sampled.
        prompt_ids: The tokens of the prompt of each text.

    Raises:
        RuntimeError: If the prompts that vLLM sampled from have other tokens than `prompt_ids`.
        UserError: If a prompt has a video.
    """
    prompts: list[Prompt] = []
    for prompt in trainer.batch_prompts:
        if prompt.has_videos:
            raise UserError(
                f"{prompt.record}: the prompt has a video, and rollouts by vLLM are given images "
                "only. Set method.engine=transformers, or leave records with videos out."
            )
        prompts += [prompt] * trainer.texts_per_prompt
    # A prompt without images has None in place of a list.
    images = [list(prompt.images) or None for prompt in prompts]
    # In a prompt's tokens, an image is a sequence of pads between vision_start and vision_end.
    # trl's client takes the sequence as it is. An engine in this process expands the first pad that
    # it finds to such a sequence, so that it must find a single pad for each image.
    pad = trainer.encoder.vision.image
    ids_for_vllm = prompt_ids
    if trainer.vllm_mode == "colocate":
        ids_for_vllm = [_with_one_pad_per_image(ids, pad) for ids in prompt_ids]
    all_used_ids, completions, log_p, _ = trainer.vllm_generation.generate(
        ids_for_vllm, images if any(images) else None, trainer.texts_per_prompt
    )
    for prompt, wanted_ids, used_ids in zip(prompts, prompt_ids, all_used_ids, strict=True):
        if used_ids != wanted_ids:
            raise RuntimeError(
                f"{prompt.record}: vLLM sampled from {len(used_ids)} tokens, {used_ids.count(pad)} "
                f"of them image pads, where training reads {len(wanted_ids)} with "
                f"{wanted_ids.count(pad)}. vLLM takes an image's size from the backbone's "
                "preprocessor_config.json, training from the recipe: make backbone.min_pixels and "
                "max_pixels agree with that file, or set method.engine=transformers."
            )
    sampled_log_p: list[list[float | None]] = []
    for candidates_by_token in log_p:
        # vLLM returns several candidates for every token. The first is the sampled one.
        sampled_log_p.append([candidates[0] for candidates in candidates_by_token])
    return completions, sampled_log_p


def _with_one_pad_per_image(ids: list[int], pad: int) -> list[int]:
    """Return the tokens of a prompt, in which each image's sequence of pads is shortened to one."""
    shortened: list[int] = []
    previous = None
    for token in ids:
        if token != pad or previous != pad:
            shortened.append(token)
        previous = token
    return shortened
