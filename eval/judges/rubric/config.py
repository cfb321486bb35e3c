"""The settings of a judge that compares two responses by criteria. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from mmrm.data.rubric import MOST_CRITERIA, fault_of_criterion
from mmrm.eval.judges.judging_config import ComparisonsConfig, JudgeConfig, JudgingConfig

RubricTemplate = Literal["rubric", "rubric_turns"]
"""The templates whose judgements hold criteria and checks."""


def _checked_criterion(criterion: str) -> str:
    """Return a criterion; raise ValueError if it cannot be a line of a rubric."""
    fault = fault_of_criterion(criterion)
    if fault is not None:
        raise ValueError(
            f"{criterion!r} cannot be a criterion: {fault}. Required is a text of one line without "
            "the tags of a rubric."
        )
    return criterion


Criterion = Annotated[str, AfterValidator(_checked_criterion)]
Criteria = Annotated[list[Criterion], Field(min_length=1, max_length=MOST_CRITERIA)]


class RubricJudgeConfig(JudgeConfig, JudgingConfig, ComparisonsConfig):
    """A generative judge that checks two responses by criteria before it names the better one.

    type: rubric
    checkpoint: runs/judge_rubric/best      # or any language model, such as Qwen/Qwen2.5-VL-7B-Instruct
    criteria:                               # leave this out, and the judge writes its own
      - Everything that the answer says is in the image.
      - The answer is complete.
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.rubric.judge:load_rubric_judge"

    type: Literal["rubric"]
    checkpoint: str
    """A checkpoint folder or a hub id of a language model."""
    template: RubricTemplate | None = None
    """The words with which the judge is asked. Null takes the template of the checkpoint's
    training, and `rubric` for a model that was not trained by a template with a rubric."""
    criteria: Literal["each", "shared"] | Criteria = "each"
    """`each`: the judge writes criteria in each of its judgements. `shared`: it writes them once for
    a prompt, before it sees responses, and judges all pairs of them by these, in both orders. A
    list: your own criteria. Shared and own criteria are given to the judge as the beginning of its
    text, and it goes on with the checks."""

    @property
    def compares(self) -> bool:
        """True, because the judge names the better of two responses."""
        return True

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint that the judge loads."""
        return (self.checkpoint,)
