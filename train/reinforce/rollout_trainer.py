"""StableReinforce on trl's GRPOTrainer (R1-Reward, arXiv 2505.02835, section 4).

trl has the loop, the rollout buffer, vLLM, the gathering of rewards and the tables of rollouts. This
project decides which prompts are asked (rollouts.py), computes judgements and log-probabilities
through packed groups, takes advantages over the whole rollout batch of all ranks, has the
pre-clipped loss (policy_loss.py), and stores the rollout buffer in every checkpoint. Texts are
sampled by this process, or by vLLM through trl. trl_hooks.py checks at the start that the methods
which are overridden here still have their shape.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from trl import GRPOTrainer
from trl.models.utils import prepare_deepspeed

from mmrm.data.errors import CheckpointError
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import rank, sum_over_ranks
from mmrm.models.packed_generation import generate_packed, group_to_continue, log_probabilities
from mmrm.models.packing.groups import Continuation, Group
from mmrm.train.reinforce.config import IMPORTANCE_CAP, RolloutConfig
from mmrm.train.reinforce.policy_loss import (
    compute_advantages,
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
"""A rank's rollout buffer in a checkpoint folder."""


class StableReinforceTrainer(FiniteTrainer, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer whose data rows are positions in `RunPrompts`.

    Its arguments are those of `ReinforceMethod.arguments`.
    """

    def __init__(
        self,
        prompts: RunPrompts,
        method: RolloutConfig,
        *,
        token_budget: int,
        reference: Any = None,
        reader: Any = None,
        **trainer: Any,
    ) -> None:
        """Make the trainer of a run.

        Args:
            prompts: The prompts of the run.
            method: The section of the recipe.
            token_budget: What a packed row may cost in sampling.
            reference: The frozen policy of the start, for a KL term. None with adapters: without
                them the model is this policy.
            reader: The model of a consistency judge. None if there is none.
            trainer: Arguments of FiniteTrainer and of trl's.
        """
        check_trl(GRPOTrainer)
        self.prompts = prompts
        self.encoder = prompts.encoder
        self.method = method
        self.token_budget = token_budget
        self.reference = reference
        self._buffered_inputs: list[dict[str, Any]] | None
        self._asked: list[Prompt] = []
        self._rewards = torch.empty(0)
        super().__init__(rollout_func=roll_out, **trainer)
        self.eos_token_ids = [self.encoder.end_of_turn]
        for frozen in filter(None, (reference, reader)):
            frozen.requires_grad_(False)
            frozen.eval()
            if self.is_deepspeed_enabled:
                prepare_deepspeed(frozen, self.accelerator)
            else:
                frozen.to(self.args.device)

    def _prepare_inputs(self, generation_batch: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the next part of the rollout buffer, filled again when it is used up.

        trl shuffles the buffer first, which would tear the judgements of a prompt apart.
        """
        passes = self.args.steps_per_generation
        if self._step % passes == 0 or self._buffered_inputs is None:
            rollout = self._generate_and_score_completions(generation_batch)
            count = len(rollout["sample"])
            buffered_inputs: list[dict[str, Any]] = [{} for _ in range(passes)]
            for name, value in rollout.items():
                if isinstance(value, Tensor) and value.shape[:1] == (count,):
                    parts = torch.split(value, count // passes)
                    for inputs_of_pass, part in zip(buffered_inputs, parts, strict=True):
                        inputs_of_pass[name] = part
            self._buffered_inputs = buffered_inputs
        inputs: dict[str, Any] = self._buffered_inputs[self._step % passes]
        return inputs

    def _generate_and_score_completions(self, inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Sample and score texts on the prompts at the rows' places, and return the rollout batch.

        trl scores the texts. The rewards of all ranks together become advantages.
        """
        count = self.num_generations
        method = self.method
        self._asked = [self.prompts[int(row["place"])] for row in inputs[::count]]
        rows = [
            {"prompt": [{"role": "user", "content": prompt.shown}], "asked": prompt}
            for prompt in self._asked
            for _ in range(count)
        ]
        rollout: dict[str, Any] = super()._generate_and_score_completions(rows)
        rollout["sample"] = torch.arange(len(rows), device=rollout["completion_ids"].device)
        rewards = self._rewards.to(rollout["sample"].device)
        if method.kl_coefficient:
            rewards = rewards - self._kl_penalty(rollout)
        advantages, filtered = compute_advantages(rewards, count, method.advantages)
        advantages_by_rank = torch.split(advantages, len(rows))
        rollout["advantages"] = advantages_by_rank[self.accelerator.process_index]
        # They push trl's own advantages, which are not what is trained on, out of the table.
        self._logs["advantages"].extend(advantages.tolist())
        self._note_importance_weights(rollout)
        self._note("filtered/advantages", filtered.float().mean())
        self._note("largest_advantage", advantages.abs().max())
        num_too_long = sum_over_ranks(rewards.new_tensor(self.prompts.too_long))
        self._note("rollouts/prompts_too_long", num_too_long)
        return rollout

    def _note_importance_weights(self, rollout: dict[str, Any]) -> None:
        """Log the share of tokens or texts whose weight for vLLM was truncated or dropped."""
        # (rollouts, T) of tokens, or (rollouts, 1) of texts
        weights = rollout.get("importance_sampling_ratio")
        if weights is None:
            return
        if self.method.importance_correction == "token_truncate":
            is_truncated = weights == IMPORTANCE_CAP
            self._note_shares(
                {"importance/truncated_tokens": is_truncated}, rollout["completion_mask"]
            )
        else:
            is_dropped = weights == 0
            self._note_shares(
                {"importance/dropped_judgements": is_dropped}, torch.ones_like(weights)
            )

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """Keep the rewards that trl gathered over all ranks, shape (rollouts, 1)."""
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
        """Return the log-probabilities of a whole rollout batch, and nothing else.

        trl asks here for the log-probabilities under the old policy.
        """
        ids = input_ids[:, -logits_to_keep:]
        mask = attention_mask[:, -logits_to_keep:]
        return self._all_log_probabilities(model, ids, mask), None, None

    def _all_log_probabilities(self, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the log-probabilities (B, T) of a whole rollout batch, a pass at a time."""
        samples = torch.arange(len(ids), device=ids.device)
        size = self.args.per_device_train_batch_size
        starts = range(0, len(ids), size)
        chunks = []
        for start in starts:
            chunk = slice(start, start + size)
            chunks.append(self._log_probabilities(model, ids[chunk], mask[chunk], samples[chunk]))
        return torch.cat(chunks)

    def _log_probabilities(self, model: Any, ids: Tensor, mask: Tensor, samples: Tensor) -> Tensor:
        """Return the log-probabilities (B, T) of texts, in one packed pass.

        `samples` (B,) are their positions in the rollout batch.
        """
        owners = [index // self.num_generations for index in samples.tolist()]
        groups = [prompt.group for prompt in self._asked]
        return log_probabilities(
            model, self.encoder, groups, owners, ids, mask, self.method.temperature
        )

    @torch.no_grad()
    def _kl_penalty(self, rollout: dict[str, Any]) -> Tensor:
        """Add the reference's log-probabilities to `rollout`, and return the penalty for the KL.

        The penalty is subtracted from the rewards of all ranks, shape (rollouts,). It is 0 if the
        KL is in the loss.
        """
        ids = rollout["completion_ids"]
        mask = rollout["completion_mask"]
        method = self.method
        if self.reference:
            rollout["reference"] = self._all_log_probabilities(self.reference, ids, mask)
        else:
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                rollout["reference"] = self._all_log_probabilities(self.model, ids, mask)
        if method.kl_in == "loss":
            return torch.zeros_like(self._rewards, device=ids.device)
        old = rollout.get("old_per_token_logps")
        if old is None:
            old = self._all_log_probabilities(self.model, ids, mask)
        kl = kl_divergence(old, rollout["reference"], method.kl_form)
        self._note_kl(kl, mask)
        gathered: Tensor = self.accelerator.gather((kl * mask).sum(1))
        return method.kl_coefficient * gathered

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the mean over texts of their mean token loss, over the step's passes."""
        method = self.method
        mask = inputs["completion_mask"]
        log_p = self._log_probabilities(model, inputs["completion_ids"], mask, inputs["sample"])
        old = inputs.get("old_per_token_logps")
        log_ratio = log_p - (log_p.detach() if old is None else old)
        token_loss = policy_loss(log_ratio, inputs["advantages"], method)
        if "importance_sampling_ratio" in inputs:
            token_loss = token_loss * inputs["importance_sampling_ratio"]
        if method.kl_coefficient and method.kl_in == "loss":
            kl = kl_divergence(log_p, inputs["reference"], method.kl_form)
            token_loss = token_loss + method.kl_coefficient * kl
            self._note_kl(kl.detach(), mask)
        loss: Tensor = (
            sequence_mean(token_loss, mask).mean() / self.current_gradient_accumulation_steps
        )
        prompt_indices = {sample // self.num_generations for sample in inputs["sample"].tolist()}
        prompts = [self._asked[index] for index in sorted(prompt_indices)]
        self.passes.append(
            {
                **inputs,
                "prompts": prompts,
                "records": [prompt.record for prompt in prompts],
                "log_probabilities": log_p.detach(),
                "loss": loss.detach(),
            }
        )
        self._note_ratios(log_ratio.detach(), log_p.detach(), mask, inputs["advantages"])
        return loss

    @torch.no_grad()
    def _note_ratios(
        self, log_ratio: Tensor, log_p: Tensor, mask: Tensor, advantages: Tensor
    ) -> None:
        """Log the shares of tokens that are pre-clipped and clipped, the entropy and the largest ratio.

        The entropy is estimated from the sampled tokens.
        """
        method = self.method
        weights = advantages[:, None]
        high = method.epsilon if method.epsilon_high is None else method.epsilon_high
        ratio = log_ratio.exp()
        shares = {
            "clipped/pre_clip": pre_clipped(log_ratio, method.pre_clip) != log_ratio,
            "clipped/ppo": ((ratio > 1 + high) & (weights > 0))
            | ((ratio < 1 - method.epsilon) & (weights < 0)),
            "entropy": -log_p,
        }
        self._note_shares(shares, mask)
        self._note("largest_log_ratio", (log_ratio.abs() * mask).max())

    def _note_shares(self, values: Mapping[str, Tensor], mask: Tensor) -> None:
        """Log the means of `values` where `mask` is 1, over all ranks."""
        own_sums = [mask.sum().float()]
        own_sums += [(value.float() * mask).sum() for value in values.values()]
        num_masked, *sums = sum_over_ranks(torch.stack(own_sums))
        for name, value in zip(values, sums, strict=True):
            self._note(name, value / num_masked)

    def _note_kl(self, kl: Tensor, mask: Tensor) -> None:
        self._note(
            "kl", sum_over_ranks(sequence_mean(kl, mask).mean()) / self.accelerator.num_processes
        )

    def _note(self, name: str, value: Tensor) -> None:
        self._metrics["train"][name].append(float(value))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save as trl does, with the image processor and every rank's rollout buffer."""
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if rank() == 0:
            self.encoder.image_processor.save_pretrained(folder)
        # These prompts have their rewards, so that no reward needs their questions again.
        prompts = [replace(prompt, question=None) for prompt in self._asked]
        state = {"step": self._step, "buffer": self._buffered_inputs, "prompts": prompts}
        torch.save(state, folder / ROLLOUTS.format(rank=rank()))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load as trl does, and this rank's rollout buffer.

        A resume inside a rollout batch continues with the same one.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = stored_rollouts(Path(checkpoint))
        self._step = state["step"]
        self._asked = state["prompts"]
        buffered_inputs: list[dict[str, Any]] = []
        for stored in state["buffer"]:
            on_device = {name: value.to(self.args.device) for name, value in stored.items()}
            buffered_inputs.append(on_device)
        self._buffered_inputs = buffered_inputs


def stored_rollouts(checkpoint: Path) -> dict[str, Any]:
    """Return this rank's rollout buffer in a checkpoint.

    It holds tensors, plain values and the classes named here, so that no code in it is run.

    Raises:
        CheckpointError: If the file cannot be read, or holds anything else.
    """
    file = checkpoint / ROLLOUTS.format(rank=rank())
    own_classes = [Prompt, Group, Continuation]
    # Before everything was imported as mmrm, files named these classes without it.
    earlier_names = [
        (known, f"{known.__module__.removeprefix('mmrm.')}.{known.__qualname__}")
        for known in own_classes
    ]
    try:
        with torch.serialization.safe_globals([*own_classes, *earlier_names, Image]):
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


def roll_out(prompts: Sequence[Any], trainer: StableReinforceTrainer) -> dict[str, Any]:
    """Sample the texts of a rollout batch, in trl's form.

    The form is a list of tokens for each text, and from vLLM their log-probabilities.
    """
    asked = trainer._asked
    count = trainer.num_generations
    refuse_weights(trainer.model, trainer.state.global_step, Path(trainer.args.output_dir))
    prompt_ids: list[list[int]] = []
    for prompt in asked:
        prompt_ids += [list(prompt.group.prompt_ids) for _ in range(count)]
    if trainer.use_vllm:
        completions, log_p = _by_vllm(trainer, prompt_ids)
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": log_p}

    model = trainer.model
    method = trainer.method
    sampling = SamplingConfig(temperature=method.temperature, max_new_tokens=method.max_new_tokens)
    groups = []
    seeds = []
    for prompt in asked:
        groups.append(group_to_continue(prompt.group, count))
        seeds.append([f"{trainer.args.seed}/{prompt.place}/{n}" for n in range(count)])
    was_training = model.training
    model.eval()
    with whole_weights(trainer.model_wrapped):
        texts_by_prompt = generate_packed(
            unwrapped(model), trainer.encoder, groups, seeds, sampling, trainer.token_budget
        )
    model.train(was_training)

    end = trainer.eos_token_ids[0]
    completions = []
    for text in chain.from_iterable(texts_by_prompt):
        ids = list(text.ids)
        if not text.truncated:
            ids.append(end)
        completions.append(ids)
    return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": None}


def _by_vllm(
    trainer: StableReinforceTrainer, prompt_ids: list[list[int]]
) -> tuple[list[list[int]], list[list[float | None]]]:
    """Sample through trl's vLLM client or engine; it has the policy's current weights by then.

    An image is a run of pads between its vision_start and vision_end. trl's client wants the whole
    run. An engine in this process expands the first pad it finds, so it must find one an image.

    Raises:
        RuntimeError: If vLLM sampled from other tokens than training reads.
    """
    count = trainer.num_generations
    asked = [prompt for prompt in trainer._asked for _ in range(count)]
    images = [list(prompt.images) or None for prompt in asked]
    pad = trainer.encoder.vision.image
    given = prompt_ids
    if trainer.vllm_mode == "colocate":
        given = [_with_one_pad_an_image(ids, pad) for ids in prompt_ids]
    used, completions, log_p, _ = trainer.vllm_generation.generate(
        given, images if any(images) else None, count
    )
    for prompt, wanted_ids, used_ids in zip(asked, prompt_ids, used, strict=True):
        if used_ids != wanted_ids:
            raise RuntimeError(
                f"{prompt.record}: vLLM sampled from {len(used_ids)} tokens, {used_ids.count(pad)} "
                f"of them image pads, where training reads {len(wanted_ids)} with "
                f"{wanted_ids.count(pad)}. vLLM takes an image's size from the backbone's "
                "preprocessor_config.json, training from the recipe: make backbone.min_pixels and "
                "max_pixels agree with that file, or set method.engine=transformers."
            )
    # vLLM returns a list of candidates for every token. The first is the sampled one.
    sampled_log_p = [[token[0] for token in text] for text in log_p]
    return completions, sampled_log_p


def _with_one_pad_an_image(ids: list[int], pad: int) -> list[int]:
    """Return the tokens of a prompt with every run of pads cut to its first one."""
    return [token for index, token in enumerate(ids) if token != pad or ids[index - 1] != pad]
