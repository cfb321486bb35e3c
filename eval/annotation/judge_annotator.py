"""A judge that runs in this process and annotates pairs: a checkpoint, or a released model.

With the judge's own sampled judgements, of which only the right ones are kept, a judge makes the
data of the next one's cold start (rejection sampling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mmrm.data.errors import CheckpointError, UserError
from mmrm.eval.annotation.pair_annotator import AnnotatorOptions, PairJudgement, ShownPair
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Candidates, Vote, candidates_from_record
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.generative.judge import GenerativeJudge, load_generative_judge
from mmrm.eval.judges.released.config import ReleasedJudgeConfig
from mmrm.eval.judges.released.models import load_released_judge
from mmrm.eval.protocol import LISTED, REVERSED, ProtocolConfig
from mmrm.eval.suite.fingerprint import judge_digest
from mmrm.eval.verdict_form import VerdictForm

CHUNK = 256
"""Number of records that are judged together, and lost by a kill."""


@dataclass(frozen=True, slots=True)
class JudgeAnnotator:
    """Judges pairs by a generative judge that is loaded in this process."""

    generative_judge: GenerativeJudge
    digest: str
    """A digest of the judge's checkpoint and settings."""
    max_tokens: int

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that decide the judgements, besides temperature and seed."""
        return {"judge": self.digest, "max_tokens": self.max_tokens}

    @property
    def records_together(self) -> int:
        """The number of records that share packed rows."""
        return CHUNK

    @property
    def notes(self) -> Sequence[str]:
        """Notes for people on how the judge is asked."""
        return self.generative_judge.about

    def judge(
        self, pairs: Sequence[ShownPair], temperature: float, seed: int
    ) -> list[tuple[PairJudgement, ...]]:
        """Return the judgements of each pair, one for each of its `sides`.

        The arguments are those of `PairAnnotator.judge`. `temperature` is used in place of that of
        the judge's file.

        Raises:
            RecordError: If an image cannot be decoded.
        """
        sampling = self.generative_judge.sampling.model_copy(
            update={"temperature": temperature, "max_new_tokens": self.max_tokens}
        )
        # The records are judged like the rows of a benchmark that is a folder of preference
        # records.
        judge = replace(self.generative_judge, sampling=sampling).under(
            ProtocolConfig(seed=seed), PREFERENCE_FOLDER
        )
        batch: list[Candidates] = []
        for pair in pairs:
            presentations = tuple(LISTED if side == 0 else REVERSED for side in pair.sides)
            candidates = candidates_from_record(pair.record)
            batch.append(replace(candidates, presentations=presentations))
        judgements: list[tuple[PairJudgement, ...]] = []
        for scores in judge.score_batch(batch):
            of_pair = [judgement_of_vote(vote, judge.form) for vote in scores.votes]
            judgements.append(tuple(of_pair))
        return judgements


def judgement_of_vote(vote: Vote, form: VerdictForm) -> PairJudgement:
    """Return the judgement that a judge's vote contains; `form` is the form of its judgements."""
    if vote.named is None:
        return PairJudgement(named=None, rationale="")
    position = vote.shown.index(vote.named)
    return PairJudgement(named=0 if position == 0 else 1, rationale=form.rationale(vote.text))


def open_generative_annotator(
    path: Path, config: GenerativeJudgeConfig, options: AnnotatorOptions
) -> JudgeAnnotator:
    """Load the checkpoint of a generative judge; `path` is its folder or its YAML file.

    Raises:
        CheckpointError: If there is no complete checkpoint.
        UserError: If `options` have a template.
    """
    _refuse_template(path, options)
    judge = load_generative_judge(path, _runtime(), config)
    return JudgeAnnotator(judge, judge_digest(path), options.max_tokens)


def open_released_annotator(
    path: Path, config: ReleasedJudgeConfig, options: AnnotatorOptions
) -> JudgeAnnotator:
    """Load a released model that compares two responses; `path` is its YAML file.

    Raises:
        CheckpointError: If there is no complete checkpoint, or the model gives scores instead.
        UserError: If `options` have a template.
    """
    if not config.compares:
        raise CheckpointError(
            f"{path}: {config.model} scores each response by itself, and rationales are about two "
            "responses. Annotate with a model that compares them."
        )
    _refuse_template(path, options)
    judge = load_released_judge(path, _runtime(), config)
    assert isinstance(judge, GenerativeJudge), "a released model that compares is generative"
    return JudgeAnnotator(judge, judge_digest(path), options.max_tokens)


def _refuse_template(path: Path, options: AnnotatorOptions) -> None:
    """Raise UserError if the command line names a template for a judge, which has its own."""
    if options.template is not None:
        raise UserError(
            f"--template {options.template} is for an endpoint, and {path} is a judge that is asked "
            "as its checkpoint or its file says. Remove --template, or set `template` in a file of "
            "`type: generative`."
        )


def _runtime() -> Runtime:
    """Return where the judge runs: on the first GPU if there is one, else on the CPU."""
    return Runtime(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
