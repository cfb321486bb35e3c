"""The section `method` of a recipe for the cold start of a judge, and for lessons.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mmrm.data.prompts import JudgeTemplate
from mmrm.train.recipe.sections import HELD_OUT_LOSS, Broken, MethodConfig, RunConfig


class LanguageModelConfig(MethodConfig):
    """The cold start of a judge (R1-Reward), or the pretraining of the embedded backbone.

    Both learn texts by cross-entropy.
    """

    implementation = "mmrm.train.methods.language_model.method:LanguageModelMethod"
    script = "sft"
    model = "language_model"
    judge_type = "generative"
    paradigm = "judge"

    type: Literal["language_model"]
    target: Literal["judgement", "lessons"]
    """Learn the records' rationales as judgements of two responses (R1-Reward's cold start), or
    lessons: answers to questions about generated images of shapes, and verdicts on answers."""
    answers: Literal["right", "stated"] = "stated"
    """For lessons: learn right answers only (`right`), or state near misses, too, and learn a
    verdict on every answer (`stated`)."""
    text_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """For lessons with verdicts: the share of right answers whose text is learned as well. Of the
    others only the verdict is learned."""
    asked_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """For lessons with verdicts: the share of verdicts given in a turn of their own, in critiques
    and in comparisons of two answers, instead of directly after the answer."""
    most_things: int | None = Field(default=None, ge=1, le=100)
    """For lessons: the largest number of shapes in an image, which then has no words or digits.
    null takes the images of the level."""
    questions: int = Field(default=12, ge=1, le=1000)
    """Questions about one image, for lessons."""
    template: JudgeTemplate = "r1_reward"
    """For judgements: the prompt of the judge. `r1_reward` is R1-Reward's [Q], `short` a short one
    for the generated shapes data, and `turns` shows each response as a turn of the assistant."""
    both_orders: bool = False
    """For judgements: learn every pair in both orders, instead of one with the winner first in
    exactly half [Q]."""

    @property
    def summary(self) -> str:
        """A description of the loss, for the plan and the model card."""
        target = "judgements"
        if self.target == "lessons":
            target = f"lessons of {self.questions} questions about an image"
        return f"language_model: cross-entropy on {target}"

    @property
    def judge_template(self) -> JudgeTemplate | None:
        """The prompt of the judge. None for lessons, which are not about comparing responses."""
        if self.target == "lessons":
            return None
        return self.template

    def held_out_figures(self, run: RunConfig) -> tuple[str, ...]:
        """Return the names of the figures on the records of data.validation: the loss alone.

        A model after the cold start is not measured by its judgements.
        """
        if not run.data.validation:
            return ()
        return (HELD_OUT_LOSS,)

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that the recipe breaks.

        Judgements need a source with rationales, and lessons need the generated shapes data.
        """
        types = {source.type for source in run.data.sources}
        if self.target == "judgement":
            if not any(source.has_rationales for source in run.data.sources):
                message = (
                    f"a cold start learns from rationales, and records of "
                    f"{', '.join(sorted(types))} hold none; annotate them "
                    "(python eval/annotate.py --help) and take the files as a source of type "
                    "project"
                )
                yield Broken(message, ("method.target", "data.sources"))
            return
        if run.data.validation:
            message = "lessons are generated on the fly and none is held out; remove this key"
            yield Broken(message, ("data.validation", "method.target"))
        if len(run.data.sources) > 1 or types != {"shapes"}:
            message = (
                "lessons are made from generated scenes of shapes: data.sources must hold exactly "
                "one source, of type shapes"
            )
            yield Broken(message, ("method.target", "data.sources"))
