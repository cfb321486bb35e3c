"""The whole recipe of a run: one section for each component, checked before torch is imported.

The sections of data, models and evaluation live beside what they configure, those of training itself (optimisation, LoRA, output)
here. train/recipe/rules.py checks the sections against each other, train/recipe/parsing.py reads the file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmrm.data.config.section import Count, Rate, Ratio, Section, Share
from mmrm.data.sources.registry import AnySource
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.judges.judging_config import JudgingConfig
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.run_folder import HELD_OUT

HELD_OUT_LOSS = f"{HELD_OUT}/loss"

QUESTION_FIGURES = ("greedy", "sampled", "best", "pass", "majority")
"""What is measured of a policy's answers, `best` where a judge scores them; see eval/policies/answering.py."""


class EvaluationConfig(Section):
    """Which benchmarks score every saved checkpoint, and which figure chooses the best one."""

    benchmarks: list[BenchmarkConfig] = Field(default=[])
    """Empty, and without data.validation, evaluates nothing; checkpoints are then only kept by age."""
    questions: list[AnySource] = Field(default=[])
    """What a policy is evaluated on, in place of benchmarks: sources of questions with known answers, all of whose records are
    answered."""
    samples: int = Field(default=8, ge=2, le=1024)
    """Answers that a policy samples to each question beside the greedy one, for best-of-N, pass@N and the majority's."""
    protocol: ProtocolConfig = ProtocolConfig()
    judging: JudgingConfig = JudgingConfig()
    """How a judge that writes does so; of no use, and refused, for one that scores."""
    at_start: bool = True
    """Also evaluate before the first step: the figure to improve on."""
    best_metric: str | None = None
    """`benchmark/figure` whose highest value chooses `best/`; with data.validation also `held_out/accuracy` (not in a cold
    start) and `held_out/loss`, of which the lowest does (not in RL). Of a policy SOURCE/FIGURE, with a name of `questions` or
    `held_out`, and greedy, sampled, best, pass or majority. Null keeps no best checkpoint."""
    baselines: bool = True
    """Print what judges that see no content reach, beside every figure."""


class LoraConfig(Section):
    """Low-rank adapters on the language model's projections; the head, if there is one, is trained and saved in full."""

    rank: int = Field(default=64, ge=1, le=2**14)
    """Of the two low-rank matrices of a projection."""
    alpha: int = Field(default=128, ge=1, le=2**20)
    """What the adapters add is multiplied by alpha / rank."""
    dropout: Share = 0.0
    """Probability with which an input of an adapter is set to 0 in training."""
    quantise: Literal["none", "nf4"] = "none"
    """`nf4` keeps the frozen backbone in 4 bits (QLoRA); it needs CUDA and the `quantisation` extra."""


class OptimConfig(Section):
    """The optimizer, its schedule and the size of a step."""

    optimizer: Literal["adamw"] = "adamw"
    """AdamW, with weight decay apart from the gradient."""
    learning_rate: Rate
    """The highest, reached after the warm-up."""
    head_learning_rate: Rate | None = None
    """Null takes `learning_rate`."""
    vision_learning_rate: Rate | None = None
    """For the vision tower and the projector; null takes `learning_rate`."""
    records_per_step: Count
    """The batch: preference pairs (or lessons of the language model) of one optimizer step on all ranks together."""
    epochs: Ratio | None = None
    """Passes over the data; give either this or `max_steps`."""
    max_steps: Count | None = None
    """Optimizer steps; give either this or `epochs`."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """The course of the learning rate after the warm-up: to 0, or not at all."""
    warmup_ratio: Share = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    weight_decay: Share = 0.0
    """On matrices only: norms and biases are never decayed."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of AdamW's two moments."""
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e9)
    """Gradients with a larger norm are scaled down to it."""
    token_budget: Count | Literal["auto"] = "auto"
    """What one packed row may hold, which bounds the memory of a forward: LM tokens, and a vision patch counted as 0.4 of one.
    `auto` finds what fits from the memory of the second step on CUDA, and takes 4096 on a CPU; under ZeRO-3 a number is reached
    in the same way. What is learnt stays the same."""
    activation_checkpointing: bool = True
    """Recompute the layers in the backward pass instead of keeping their activations."""
    compile: Literal["none", "layers"] = "none"
    """`layers` has torch.compile fuse the MLPs and norms of both towers; it takes minutes at the start, and pays on CUDA."""
    lora: LoraConfig | None = None
    """Null trains every weight that `backbone.freeze` leaves free."""

    def warmup_steps(self, steps: int) -> int:
        """Return over how many of `steps` the learning rate rises."""
        return round(self.warmup_ratio * steps)


class OutputConfig(Section):
    """Where a run writes, how often, and who else gets to see it."""

    folder: str
    """The run folder; a relative path starts at the working directory."""
    save_every_steps: Count
    """Optimizer steps between two checkpoints, each of which is evaluated."""
    keep_checkpoints: Count = 2
    """Newest checkpoints that stay on disk; the best one always stays."""
    log_every_steps: Count = 10
    """Optimizer steps between two lines of figures."""
    resume: str = "never"
    """`never` starts a new run and refuses a folder with checkpoints; `auto` continues from the last complete one, if there is
    any; a path continues from that checkpoint, which must be one that you trust like a program: DeepSpeed unpickles its states.
    Continuing with other settings than the checkpoint's own is refused, but for more `optim.epochs` or `optim.max_steps`."""
    push_to_hub: str | None = None
    """The hub repository that receives the best checkpoint at the end of the run; where there is none, a private one is made
    before the first step, so that a missing login is noticed then."""
    wandb_project: str | None = None
    """Null logs to the console and the run folder only; without a login the wandb run stays on disk."""
    tensorboard: bool = False
    """Also write event files into `tensorboard` of the run folder (`tensorboard --logdir`); it needs the extra `tensorboard`."""
