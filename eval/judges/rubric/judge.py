"""Judges that compare two responses by criteria: they check each criterion, then name the better one.

The judge writes the criteria itself, or they are given as the beginning of its text. Either way a
judgement has the form of `mmrm.data.rubric`, and is read strictly: without a criterion, or with
another number of checks, it names no response.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import control_token
from mmrm.data.prompts import RUBRIC_FORM, TEMPLATES, JudgeTemplate
from mmrm.data.rubric import write_criteria
from mmrm.eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_checkpoint
from mmrm.eval.judges.generative.judge import (
    GenerativeJudge,
    PairLayout,
    by_template,
    load_writer,
    reader_of,
)
from mmrm.eval.judges.packed_judge import Unit
from mmrm.eval.judges.rubric.config import RubricJudgeConfig
from mmrm.eval.verdict_form import verdict_form_of


@dataclass(frozen=True, slots=True)
class RubricLayout(PairLayout):
    """Makes the conversations that ask a judge to compare two responses by criteria."""

    criteria: tuple[str, ...] = ()
    """The given criteria; empty if the judge writes its own."""

    def opening(self, unit: Unit) -> str:
        """Return the given criteria as the beginning of the judge's text; empty without any."""
        return write_criteria(self.criteria) if self.criteria else ""


@dataclass(frozen=True, kw_only=True)
class RubricJudge(GenerativeJudge):
    """A judge that compares two responses by criteria, its own or given ones."""

    criteria: tuple[str, ...] = ()
    """The given criteria; empty if the judge writes criteria in each judgement."""

    @property
    def layout(self) -> RubricLayout:
        """The function that makes the conversations about two responses."""
        return RubricLayout(self.ask, self.criteria)


def load_rubric_judge(path: Path, runtime: Runtime, config: RubricJudgeConfig) -> RubricJudge:
    """Load the language model that `config` names, and return it as a judge with a rubric.

    `path` is the folder or YAML file of the judge, for messages.

    Raises: CheckpointError if a given criterion holds a control token of the tokenizer.
    """
    checkpoint = load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_writer)
    notes = checkpoint.notes
    template: JudgeTemplate | None = config.template
    if template is None:
        template = _template_of_training(checkpoint)
    if template is None:
        template = "rubric"
        note = (
            f"{config.checkpoint} was not trained to write rubrics; it is asked by the template "
            "`rubric`."
        )
        notes = (*notes, note)
    criteria = () if config.criteria == "each" else tuple(config.criteria)
    for criterion in criteria:
        token = control_token(criterion, checkpoint.packed.encoder.control_tokens)
        if token is not None:
            raise CheckpointError(
                f"{path}: the criterion {criterion!r} contains {token!r}, which the tokenizer "
                "reads as a control token, not as text. Remove it."
            )
    return RubricJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        sampling=config,
        ask=by_template(template),
        read=reader_of(template),
        form=verdict_form_of(template),
        criteria=criteria,
        comparisons=config,
        about=notes,
    )


def _template_of_training(checkpoint: LoadedCheckpoint) -> JudgeTemplate | None:
    """Return the template with a rubric that a checkpoint was trained by; None if there is none."""
    template = None if checkpoint.card is None else checkpoint.card.template
    if template is None or TEMPLATES[template].form is not RUBRIC_FORM:
        return None
    return template
