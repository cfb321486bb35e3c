"""The keys that all methods of reinforcement learning share: the update and the sampling.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mmrm.data.config.registry import OneOf
from mmrm.data.config.section import Count, Fraction, Section, Tokens, Url, Weight
from mmrm.train.recipe.sections import Broken, MethodConfig, RunConfig
from mmrm.train.reinforce.advantage_config import (
    AdvantageConfig,
    Bound,
    StableReinforceAdvantages,
)
from mmrm.train.reinforce.registry import ADVANTAGES

AnyAdvantages = Annotated[AdvantageConfig, OneOf(ADVANTAGES, default="stable_reinforce")]
"""The section of any computation of advantages. Without a `type` it is StableReinforce's."""

IMPORTANCE_CAP = 3.0
"""The largest importance weight; trl's default, stated here so that it cannot change with trl."""


class PreClipConfig(Section):
    """Bounds on the ratio of a token's probabilities under the new and the old policy.

    They are applied to the log-ratio: the ratio becomes exp(clip(log ratio, log lowest, log
    highest)).
    """

    lowest: Bound = 1e-3
    """The smallest ratio. Smaller ratios are set to it [Q]."""
    highest: Bound = 1e3
    """The largest ratio. Larger ratios are set to it [Q]."""


class RolloutConfig(MethodConfig):
    """Reinforcement learning on sampled texts: the update and the sampling.

    The texts are judgements of a judge, or answers of a policy.
    """

    script = "rl"
    model = "language_model"
    divides_rows = False
    state_is_per_rank = True

    epsilon: Fraction = 0.2
    """PPO clips the ratio to 1 - epsilon ... 1 + epsilon [Q]."""
    epsilon_high: Bound | None = None
    """A separate upper clip ("clip higher"). Null takes `epsilon`, as the paper does."""
    dual_clip: Annotated[float, Field(gt=1.0, le=1e6)] | None = None
    """Bound of the loss for negative advantages (dual-clip PPO); null as in the paper."""
    pre_clip: PreClipConfig | None = PreClipConfig()
    """Bounds on the log-ratio before the exponential is taken. Null switches them off."""
    advantages: AnyAdvantages = StableReinforceAdvantages()
    """The computation of advantages from rewards, by its `type`, which is `stable_reinforce` by
    default."""
    kl_coefficient: Weight = 0.0
    """The weight of the KL divergence from the initial model: 0 in the paper [Q], 1e-3 in the
    released script [Q]. Above 0, a frozen copy of the initial model is kept."""
    kl_form: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence, in the names of John Schulman's note."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL divergence enters: it is added to the loss of every token, or its sum over a
    text is subtracted from the reward, as the released script does."""
    num_generations: int = Field(default=1, ge=1, le=1024)
    """The number of texts that are sampled for each prompt; 1 in the released script [Q]."""
    pairs_per_pass: Count = 1
    """The number of pairs, or questions of a policy, that a rank computes in one forward and
    backward pass, each with all its texts. It bounds the memory and does not change the result."""
    steps_per_rollout: int = Field(default=2, ge=1, le=10_000)
    """The number of optimizer steps on one batch of rollouts. The paper trains on rollouts of 256
    in batches of 128 [Q]."""
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)
    """The temperature at which texts are sampled [Q]."""
    max_new_tokens: Tokens = 1024
    """The maximum length of a sampled text in tokens [Q]."""
    max_prompt_tokens: Tokens = 20480
    """The maximum length of a prompt in tokens [Q]."""
    engine: Literal["transformers", "vllm_colocate", "vllm_server"] = "transformers"
    """The program that samples the texts. The released script uses vLLM [Q]."""
    vllm_url: Url = "http://localhost:8000"
    """The URL at which `trl vllm-serve` listens, for the engine vllm_server."""
    vllm_memory: Fraction = 0.3
    """The share of the GPU's memory for the engine vllm_colocate."""
    # vLLM's probabilities differ from those in training, and uncorrected that is a bias (trl#3867).
    # A token's weight stays near 1 however long the text is. A text's weight is the product of
    # hundreds of them, which shrinks or drops the longest texts (trl#5815: 0.57 on average, where
    # the tokens agree).
    importance_correction: Literal["none", "token_truncate", "sequence_mask"] = "token_truncate"
    """The weights of the loss for texts that vLLM samples. A weight is the probability in training,
    divided by that in vLLM. `none` uses no weights. `token_truncate` gives every token a weight of
    at most 3. `sequence_mask` gives every text a weight, and drops texts whose weight is above 3.
    The share that was truncated or dropped is logged as `importance/...`."""
    rollouts_shown: int = Field(default=2, ge=0, le=1000)
    """The number of texts that are printed at every log line. All texts are written to the run
    folder, and to wandb if it is used."""

    @property
    def texts_a_record(self) -> int:
        """The number of texts that the model writes about each record in a step."""
        return self.num_generations

    @property
    def update(self) -> str:
        """The description of the sampling and the update in a summary of the method."""
        weights = ""
        if self.engine != "transformers":
            weights = f" with importance weights {self.importance_correction}"
        return (
            f"by {self.engine}{weights}, epsilon {self.epsilon:g}, advantages by "
            f"{self.advantages.summary}, KL {self.kl_coefficient:g}"
        )

    def written_texts(self, run: RunConfig) -> tuple[str, ...]:
        """Return descriptions of the texts that this process writes.

        They are those of evaluations, and rollouts if vLLM does not sample them.
        """
        texts = super().written_texts(run)
        if self.engine == "transformers":
            texts = ("rollouts", *texts)
        return texts

    def needs_reference(self, *, lora: bool) -> bool:
        """Return True if a frozen copy of the initial model is held for the KL divergence.

        With LoRA (`lora`) there is no copy: the model without its adapters is the initial model.
        """
        return self.kl_coefficient > 0 and not lora

    def frozen_copies(self, *, lora: bool) -> int:
        """Return the number of frozen copies of the initial model that are held."""
        return int(self.needs_reference(lora=lora))

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that `run` breaks on advantages, the pre-clip and the pairs of a pass."""
        yield from self.advantages.rules(self.num_generations)
        if run.optim.router_aux_loss_coef != 0:
            message = (
                "the load-balancing loss is not part of reinforcement learning here, so this weight "
                "would be unused; remove it"
            )
            yield Broken(message, ("optim.router_aux_loss_coef", "method.type"))

        bounds = self.pre_clip
        if bounds is not None and (bounds.lowest >= 1 or bounds.highest <= 1):
            message = (
                f"the bounds {bounds.lowest:g} and {bounds.highest:g} must enclose 1, the ratio "
                "before any update"
            )
            yield Broken(message, ("method.pre_clip",))

        pairs = run.optim.records_per_step
        if pairs % self.pairs_per_pass:
            message = (
                f"{self.pairs_per_pass} pairs a pass do not divide the {pairs} pairs of a step; "
                f"take a divisor of {pairs}"
            )
            yield Broken(message, ("method.pairs_per_pass", "optim.records_per_step"))
