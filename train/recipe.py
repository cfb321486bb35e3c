"""The whole recipe of a run: one section for each component, checked before torch is imported.

The sections of data, models and evaluation live beside what they configure; train/rules.py holds what they must be to one
another, train/parsing.py reads the file, train/plan.py says what will happen.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from pydantic import Field

from data.config import Section
from data.mixture import MixtureConfig
from eval.benchmarks.table import BenchmarkConfig
from eval.judging import JudgingConfig
from eval.protocol import ProtocolConfig
from models.config import BackboneConfig, HeadConfig
from train.methods import WITH_HEAD, Method
from train.sections import OptimConfig, OutputConfig

HELD_OUT = "held_out"
"""What the records of data.validation are called among the benchmarks; see train/held_out.py."""
HELD_OUT_LOSS = f"{HELD_OUT}/loss"


class EvaluationConfig(Section):
    """Which benchmarks score every saved checkpoint, and which figure chooses the best one."""

    benchmarks: list[BenchmarkConfig] = Field(default=[])
    """Empty, and without data.validation, evaluates nothing; checkpoints are then only kept by age."""
    protocol: ProtocolConfig = ProtocolConfig()
    judging: JudgingConfig = JudgingConfig()
    """How a judge that writes does so; of no use, and refused, for one that scores."""
    at_start: bool = True
    """Also evaluate before the first step: the figure to improve on."""
    best_metric: str | None = None
    """`benchmark/figure` whose highest value chooses `best/`; with data.validation also `held_out/accuracy` (not in a cold
    start) and `held_out/loss`, of which the lowest does (not in RL). Null keeps no best checkpoint."""
    baselines: bool = True
    """Print what judges that see no content reach, beside every figure."""


class Recipe(Section):
    """Everything that decides how a run goes, but for the machine that it runs on."""

    backbone: BackboneConfig
    head: HeadConfig = HeadConfig()
    """Of no use, and refused, where the method has no head."""
    data: MixtureConfig
    method: Method
    optim: OptimConfig
    deepspeed: str = "none"
    """The name of a file in recipes/deepspeed, or `none`."""
    evaluation: EvaluationConfig = EvaluationConfig()
    output: OutputConfig
    workers: int = Field(default=2, ge=0)
    """Processes of each rank that decode and tokenise ahead of the step; 0 does it in between."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the head's first weights, dropout and sampling; the data have a seed of their own."""
    deterministic: bool = False
    """Only kernels that give the same bits each time; slower."""

    @property
    def has_head(self) -> bool:
        """Say whether the method trains a reward head."""
        return self.method.type in WITH_HEAD

    @property
    def evaluates(self) -> bool:
        """Say whether anything is evaluated."""
        return bool(self.evaluation.benchmarks or self.data.validation)

    @property
    def held_out_figures(self) -> tuple[str, ...]:
        """The figures on the records of data.validation: RL has no loss on pairs, a cold start is measured by its loss."""
        figures = {"language_model": (HELD_OUT_LOSS,), "stable_reinforce": (f"{HELD_OUT}/accuracy",)}
        both = (f"{HELD_OUT}/accuracy", HELD_OUT_LOSS)
        return figures.get(self.method.type, both) if self.data.validation else ()

    def steps(self, records: int) -> int:
        """Return the optimizer steps of a run over an epoch of `records` records, whose last step may be a smaller one."""
        if self.optim.max_steps is not None:
            return self.optim.max_steps
        return int((self.optim.epochs or 0.0) * ceil(records / self.optim.records_per_step))

    def resolved(self) -> dict[str, Any]:
        """Return every key of use to the method with its value, as plain data that parses to the same recipe."""
        unused: dict[str, Any] = {"evaluation": {"judging"}} if self.has_head else {"head": True}
        return self.model_dump(mode="json", exclude=unused)


STAND_IN: dict[str, Any] = {
    "backbone": {"path": "embedded"},
    "data": {"sources": [{"type": "shapes", "level": "demo", "rows": 1}]},
    "method": {"type": "naive"},
    "optim": {"records_per_step": 1, "learning_rate": 1e-6},
    "output": {"folder": "runs", "save_every_steps": 1},
}
"""Fills the place of a required section that is wrong, while the rules look at the others."""
