"""The whole recipe of a run: one section for each component, checked before torch is imported.

The sections of data, models and evaluation live beside what they configure, those of training itself (optimisation, LoRA, output)
here. train/recipe/rules.py checks the sections against each other, train/recipe/parsing.py reads the file.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from pydantic import Field

from mmrm.data.config.section import Section
from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.models.config import BackboneConfig, HeadConfig
from mmrm.train.recipe.methods import ENTRIES, Method, PolicyConfig
from mmrm.train.recipe.sections import (
    HELD_OUT_LOSS,
    QUESTION_FIGURES,
    EvaluationConfig,
    OptimConfig,
    OutputConfig,
)


class Recipe(Section):
    """Everything that decides how a run goes, but for the machine that it runs on."""

    backbone: BackboneConfig
    head: HeadConfig = HeadConfig()
    """Of no use, and refused, where the method has no head."""
    data: MixtureConfig
    method: Method
    """Which of the paradigms is trained, by its `type`, and with which numbers."""
    optim: OptimConfig
    deepspeed: str = "none"
    """The name of a file in recipes/deepspeed, or `none`."""
    evaluation: EvaluationConfig = EvaluationConfig()
    output: OutputConfig
    workers: int = Field(default=2, ge=0, le=1024)
    """Processes of each rank that decode and tokenise ahead of the step; 0 does it in between."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the head's first weights, dropout and sampling; the data have a seed of their own."""
    deterministic: bool = False
    """Only kernels that give the same bits each time; slower."""

    @property
    def entry(self) -> str:
        """The script that trains the method: rm, sft or rl."""
        return next(name for name, methods in ENTRIES.items() if self.method.type in methods)

    @property
    def has_head(self) -> bool:
        """Whether the method trains a reward head; one without writes judgements."""
        return self.entry == "rm"

    @property
    def evaluates(self) -> bool:
        """Whether anything is evaluated."""
        return bool(self.evaluation.benchmarks or self.evaluation.questions or self.data.validation)

    @property
    def question_sets(self) -> tuple[str, ...]:
        """The names of what a policy is evaluated on."""
        return (
            *(source.label for source in self.evaluation.questions),
            *([HELD_OUT] if self.data.validation else []),
        )

    @property
    def held_out_figures(self) -> tuple[str, ...]:
        """The figures on the records of data.validation: RL has no loss on pairs, a cold start is measured by its loss.

        A policy has those on all of its questions.
        """
        if isinstance(self.method, PolicyConfig):
            measured = [
                figure for figure in QUESTION_FIGURES if figure != "best" or self.method.judges
            ]
            return tuple(f"{name}/{figure}" for name in self.question_sets for figure in measured)
        accuracy = f"{HELD_OUT}/accuracy"
        figures = {"rm": (accuracy, HELD_OUT_LOSS), "sft": (HELD_OUT_LOSS,), "rl": (accuracy,)}
        return figures[self.entry] if self.data.validation else ()

    def steps(self, records: int) -> int:
        """Return the optimizer steps of a run over an epoch of `records` records, whose last step may be a smaller one.

        Raises: UserError where there is none.
        """
        if self.optim.max_steps is not None:
            return self.optim.max_steps
        epochs, size = self.optim.epochs or 0.0, self.optim.records_per_step
        steps = int(epochs * ceil(records / size))
        if not steps:
            raise UserError(
                f"{epochs:g} epochs of {records:,} records in steps of {size:,} are 0 steps: nothing would be trained; raise "
                "optim.epochs or add records"
            )
        return steps

    def resolved(self) -> dict[str, Any]:
        """Return every key of use to the method with its value, as plain data that parses to the same recipe."""
        unused: dict[str, Any] = {} if self.has_head else {"head": True}
        if not isinstance(self.method, PolicyConfig):
            unused["evaluation"] = {"questions", "samples", *(["judging"] if self.has_head else [])}
        return self.model_dump(mode="json", exclude=unused)


STAND_IN: dict[str, Any] = {
    "backbone": {"path": "embedded"},
    "data": {"sources": [{"type": "shapes", "level": "demo", "rows": 1}]},
    "method": {"type": "naive"},
    "optim": {"records_per_step": 1, "learning_rate": 1e-6},
    "output": {"folder": "runs", "save_every_steps": 1},
}
"""Fills the place of a required section that is wrong, while the rules look at the others."""
