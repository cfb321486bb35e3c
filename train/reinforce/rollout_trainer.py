"""StableReinforce on trl's GRPOTrainer (R1-Reward, arXiv 2505.02835, section 4).

trl's are the loop, the rollout buffer, vLLM, the gathering of rewards and the tables of rollouts. Ours are: which prompts,
judgements and log-probabilities through packed groups (rollouts.py), advantages over the whole rollout batch of all ranks, the
pre-clipped loss (losses.py), and the rollout buffer in every checkpoint. Judgements are sampled by this process, or by vLLM
through trl. trl_hooks.py checks at start that the methods overridden here still have their shape.
"""

import pickle
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
from mmrm.models.packed_generation import generate_packed, log_probabilities, to_write
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
    """GRPOTrainer whose rows are places of `RunPrompts`; its arguments are those of `ReinforceMethod.arguments`."""

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
        """Take the frozen policy of the start as `reference`, for a KL term; with adapters None, as switching them off gives it.

        `reader` is the model of a consistency judge, None without one. `token_budget` is that of sampling.
        """
        check_trl(GRPOTrainer)
        self.prompts, self.encoder, self.method = prompts, prompts.encoder, method
        self.token_budget, self.reference = token_budget, reference
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
            parts = {
                name: torch.split(value, count // passes)
                for name, value in rollout.items()
                if isinstance(value, Tensor) and value.shape[:1] == (count,)
            }
            self._buffered_inputs = [
                {name: part[k] for name, part in parts.items()} for k in range(passes)
            ]
        inputs: dict[str, Any] = self._buffered_inputs[self._step % passes]
        return inputs

    def _generate_and_score_completions(self, inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Ask the prompts at the rows' places, let trl score the judgements, and turn all ranks' rewards into advantages."""
        count, method = self.num_generations, self.method
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
        found = compute_advantages(rewards, count, method.advantages)
        rollout["advantages"] = torch.split(found.advantages, len(rows))[
            self.accelerator.process_index
        ]
        self._logs["advantages"].extend(
            found.advantages.tolist()
        )  # trl's own are not what is trained on; they fall out
        weights = rollout.get(
            "importance_sampling_ratio"
        )  # (rollouts, T) of tokens, or (rollouts, 1) of judgements
        if weights is not None:
            if method.importance_correction == "token_truncate":
                self._note_shares(
                    {"importance/truncated_tokens": weights == IMPORTANCE_CAP},
                    rollout["completion_mask"],
                )
            else:
                self._note_shares(
                    {"importance/dropped_judgements": weights == 0}, torch.ones_like(weights)
                )
        self._note("filtered/advantages", found.filtered.float().mean())
        self._note("largest_advantage", found.advantages.abs().max())
        self._note(
            "rollouts/prompts_too_long", sum_over_ranks(rewards.new_tensor(self.prompts.too_long))
        )
        return rollout

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """Keep what trl gathered over all ranks, (rollouts, 1)."""
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
        """Return the log-probabilities of a whole rollout batch; trl asks for those of the old policy here."""
        ids, mask = input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:]
        return self._all_log_probabilities(model, ids, mask), None, None

    def _all_log_probabilities(self, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        size, samples = (
            self.args.per_device_train_batch_size,
            torch.arange(len(ids), device=ids.device),
        )
        chunks = zip(*(torch.split(whole, size) for whole in (ids, mask, samples)), strict=True)
        return torch.cat([self._log_probabilities(model, *chunk) for chunk in chunks])

    def _log_probabilities(self, model: Any, ids: Tensor, mask: Tensor, samples: Tensor) -> Tensor:
        """Return log-probabilities (B, T) of judgements by their place in the rollout batch, in one packed pass."""
        owners = [index // self.num_generations for index in samples.tolist()]
        groups = [prompt.group for prompt in self._asked]
        return log_probabilities(
            model, self.encoder, groups, owners, ids, mask, self.method.temperature
        )

    @torch.no_grad()
    def _kl_penalty(self, rollout: dict[str, Any]) -> Tensor:
        """Note the reference's log-probabilities in `rollout`; return what all ranks' rewards lose by the KL, (rollouts,)."""
        ids, mask, method = rollout["completion_ids"], rollout["completion_mask"], self.method
        no_adapter = (
            nullcontext()
            if self.reference
            else self.accelerator.unwrap_model(self.model).disable_adapter()
        )
        with no_adapter:
            rollout["reference"] = self._all_log_probabilities(
                self.reference or self.model, ids, mask
            )
        if method.kl_in == "loss":
            return torch.zeros_like(self._rewards, device=ids.device)
        old = rollout.get("old_per_token_logps")
        old = self._all_log_probabilities(self.model, ids, mask) if old is None else old
        kl = kl_divergence(old, rollout["reference"], method.kl_form)
        self._note_kl(kl, mask)
        gathered: Tensor = self.accelerator.gather((kl * mask).sum(1))
        return method.kl_coefficient * gathered

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the mean over judgements of their mean token loss, over the step's passes."""
        method, mask = self.method, inputs["completion_mask"]
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
        asked = [
            self._asked[place]
            for place in sorted(
                {sample // self.num_generations for sample in inputs["sample"].tolist()}
            )
        ]
        shown = {
            **inputs,
            "prompts": asked,
            "records": [prompt.record for prompt in asked],
            "log_probabilities": log_p.detach(),
        }
        self.passes.append({**shown, "loss": loss.detach()})
        self._note_ratios(log_ratio.detach(), log_p.detach(), mask, inputs["advantages"])
        return loss

    @torch.no_grad()
    def _note_ratios(
        self, log_ratio: Tensor, log_p: Tensor, mask: Tensor, advantages: Tensor
    ) -> None:
        """Log shares of tokens that are pre-clipped and clipped, the entropy that the samples estimate, and the largest ratio."""
        method, weights = self.method, advantages[:, None]
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
        sums = sum_over_ranks(
            torch.stack(
                [mask.sum().float(), *((value.float() * mask).sum() for value in values.values())]
            )
        )
        for name, value in zip(values, sums[1:], strict=True):
            self._note(name, value / sums[0])

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
        asked = [
            replace(prompt, question=None) for prompt in self._asked
        ]  # they are paid for: no reward looks at them again
        state = {"step": self._step, "buffer": self._buffered_inputs, "prompts": asked}
        torch.save(state, folder / ROLLOUTS.format(rank=rank()))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load as trl does, and this rank's rollout buffer: a resume inside a rollout batch goes on with the same one."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            state = stored_rollouts(Path(checkpoint))
            self._step, self._asked = state["step"], state["prompts"]
            self._buffered_inputs = [
                {name: value.to(self.args.device) for name, value in one.items()}
                for one in state["buffer"]
            ]


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
    """Sample the judgements of a rollout batch, in trl's form: token lists and, from vLLM, their log-probabilities."""
    asked, count = trainer._asked, trainer.num_generations
    refuse_weights(trainer.model, trainer.state.global_step, Path(trainer.args.output_dir))
    prompt_ids = [list(prompt.group.prompt_ids) for prompt in asked for _ in range(count)]
    if trainer.use_vllm:
        completions, log_p = _by_vllm(trainer, prompt_ids)
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": log_p}
    model, method = trainer.model, trainer.method
    sampling = SamplingConfig(temperature=method.temperature, max_new_tokens=method.max_new_tokens)
    training = model.training
    model.eval()
    with whole_weights(trainer.model_wrapped):
        groups = [to_write(prompt.group, count) for prompt in asked]
        seeds = [
            [f"{trainer.args.seed}/{prompt.place}/{n}" for n in range(count)] for prompt in asked
        ]
        written = generate_packed(
            unwrapped(model), trainer.encoder, groups, seeds, sampling, trainer.token_budget
        )
    model.train(training)
    end = trainer.eos_token_ids[0]
    completions = [
        [*one.ids] if one.truncated else [*one.ids, end] for found in written for one in found
    ]
    return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": None}


def _by_vllm(
    trainer: StableReinforceTrainer, prompt_ids: list[list[int]]
) -> tuple[list[list[int]], list[list[float | None]]]:
    """Sample through trl's vLLM client or engine; it has the policy's current weights by then.

    An image is a run of pads between its vision_start and vision_end. trl's client wants the whole run; an engine in this
    process expands the first pad it finds, so it must find one an image. Raises RuntimeError where other ids come of it.
    """
    asked = [prompt for prompt in trainer._asked for _ in range(trainer.num_generations)]
    images = [list(prompt.images) or None for prompt in asked]
    pad, given = trainer.encoder.vision.image, prompt_ids
    if trainer.vllm_mode == "colocate":
        given = [
            [token for i, token in enumerate(ids) if token != pad or ids[i - 1] != pad]
            for ids in prompt_ids
        ]
    count = trainer.num_generations
    used, completions, log_p, _ = trainer.vllm_generation.generate(
        given, images if any(images) else None, count
    )
    for prompt, wanted, found in zip(asked, prompt_ids, used, strict=True):
        if found != wanted:
            raise RuntimeError(
                f"{prompt.record}: vLLM sampled from {len(found)} tokens, {found.count(pad)} of them image pads, where training "
                f"reads {len(wanted)} with {wanted.count(pad)}. vLLM takes an image's size from the backbone's "
                "preprocessor_config.json, training from the recipe: make backbone.min_pixels and max_pixels agree with that "
                "file, or set method.engine=transformers."
            )
    return completions, [[token[0] for token in one] for one in log_p]
