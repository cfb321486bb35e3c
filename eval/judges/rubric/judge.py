"""Judges that compare two responses by criteria: they check each criterion, then name the better one.

The judge writes the criteria in each judgement, or once for a prompt, or they are the user's own. In
the last two cases they are given to it as the beginning of its text. In all cases a judgement has
the form of `mmrm.data.rubric`, and is read strictly: without a criterion, or with
another number of checks, it names no response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import control_token
from mmrm.data.prompts import RUBRIC_FORM, TEMPLATES, JudgeTemplate, criteria_conversation
from mmrm.data.rubric import read_criteria, write_criteria
from mmrm.data.storage.content import shown_key
from mmrm.eval.candidates import NO_USAGE, Candidates, Scores, Usage, total_usage
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_checkpoint
from mmrm.eval.judges.generative.judge import (
    GenerativeJudge,
    PairLayout,
    by_template,
    load_writer,
    reader_of,
)
from mmrm.eval.judges.judging_config import EVERY_PAIR
from mmrm.eval.judges.packed_judge import PairRounds, Unit, UnitResult
from mmrm.eval.judges.rubric.config import RubricJudgeConfig
from mmrm.eval.judges.tournament import refuse_single_response
from mmrm.eval.verdict_form import verdict_form_of
from mmrm.models.encoder import Conversation


@dataclass(frozen=True, slots=True)
class RubricLayout(PairLayout):
    """Makes the conversations that ask a judge to compare two responses by criteria.

    A unit that shows no response asks for the criteria of a prompt.
    """

    template: JudgeTemplate
    criteria: tuple[str, ...] = ()
    """The user's own criteria; empty if the judge writes some."""

    def opening(self, unit: Unit) -> str:
        """Return the given criteria as the beginning of the judge's text; empty without any."""
        criteria = unit.candidates.criteria or self.criteria
        return write_criteria(criteria) if criteria and unit.shown else ""

    def __call__(self, unit: Unit) -> tuple[list[Conversation], None]:
        """Return one conversation for each text of a unit, which ends where the text begins."""
        if unit.shown:
            # Zero-argument `super` does not work in dataclasses with slots.
            return PairLayout.__call__(self, unit)
        candidates = unit.candidates
        messages = criteria_conversation(self.template, candidates.prompt)
        request = Conversation(messages, candidates.images, videos=candidates.videos)
        return [request] * len(unit.seeds), None


@dataclass(frozen=True, kw_only=True)
class RubricJudge(GenerativeJudge):
    """A judge that compares two responses by criteria, its own or given ones.

    Shared criteria are written for `Candidates` without responses. They are then a part of the
    candidates that are judged.
    """

    template: JudgeTemplate
    criteria: tuple[str, ...] = ()
    """The user's own criteria; empty if the judge writes some."""
    shares_criteria: bool = False
    """True writes criteria once for a prompt. False writes them in each judgement, if there are no
    given ones."""

    @property
    def layout(self) -> RubricLayout:
        """The function that makes the conversations about two responses, or about a prompt."""
        return RubricLayout(self.ask, self.template, self.criteria)

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each prompt's responses, in the order of `batch`, on every rank.

        If criteria are shared, they are written for all prompts first. All ranks must call
        together. The journal shows the progress, and keeps the results.

        Raises:
            RecordError: A text or an image cannot be encoded, or a prompt has a single response.
        """
        if not self.shares_criteria:
            return super().score_batch(batch, journal)
        batch_with_criteria, usages = self._write_criteria(batch, journal.of("criteria"))
        all_scores = super().score_batch(batch_with_criteria, journal.of("judgements"))
        return [
            replace(scores, usage=scores.usage + usage)
            for scores, usage in zip(all_scores, usages, strict=True)
        ]

    def _write_criteria(
        self, batch: Sequence[Candidates], journal: Journal
    ) -> tuple[list[Candidates], list[Usage]]:
        """Write criteria for each prompt of a batch; all ranks call together.

        Candidates with the same prompt share them.

        Returns:
            The candidates with their criteria, and the cost of writing them. It belongs to the
            first candidates with the prompt.
        """
        requests = [request_of(candidates) for candidates in batch]
        request_by_key = {request.key: request for request in requests}
        writer = replace(self, shares_criteria=False, comparisons=EVERY_PAIR)
        if self.protocol is not None:
            # No verdict is read behind criteria.
            writer = replace(writer, protocol=self.protocol.with_hard_verdicts)
        written = writer.score_batch(list(request_by_key.values()), journal)
        scores_by_key = dict(zip(request_by_key, written, strict=True))
        batch_with_criteria: list[Candidates] = []
        usages: list[Usage] = []
        used_keys: set[str] = set()
        for candidates, request in zip(batch, requests, strict=True):
            scores = scores_by_key[request.key]
            criteria = self.written_criteria(scores)
            batch_with_criteria.append(replace(candidates, criteria=criteria))
            usages.append(NO_USAGE if request.key in used_keys else scores.usage)
            used_keys.add(request.key)
        return batch_with_criteria, usages

    def written_criteria(self, scores: Scores) -> tuple[str, ...]:
        """Return the criteria that the judge wrote for a prompt; empty if they cannot be read."""
        [text] = scores.texts
        control = control_token(text, self.packed.encoder.control_tokens)
        criteria = read_criteria(text)
        if criteria is None or control is not None:
            return ()
        return criteria

    def ranking(self, candidates: Candidates) -> PairRounds | None:
        """Return a new ranking of people's own responses; None if it takes a single round.

        Raises: RecordError for a single response.
        """
        if not self.shares_criteria or self.protocol is not None:
            return super().ranking(candidates)
        refuse_single_response(candidates)
        return SharedCriteriaRounds(candidates, self)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return one unit for every ordered pair of responses, or one for a prompt without any."""
        if candidates.responses:
            return super().units(candidates)
        protocol_seed = self.protocol.seed if self.protocol else 0
        seeds = (f"{protocol_seed}/{candidates.key}",)
        return [Unit("criteria", candidates, shown=(), seeds=seeds)]

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the votes and scores of a prompt's responses; without responses, the criteria.

        The arguments are those of `PackedJudge.merge`.
        """
        if candidates.responses:
            return super().merge(candidates, units, results)
        [result] = results
        scores = Scores(texts=result.texts)
        num_unread = 0 if self.written_criteria(scores) else 1
        usage = result.usage + Usage(rubrics=1, unread_rubrics=num_unread)
        return replace(scores, usage=usage)

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with figures that are computed from these scores.

        If criteria are shared, one of them counts the prompts whose criteria could not be read.
        """
        notes = super().notes(scores)
        if not self.shares_criteria:
            return notes
        usage = total_usage(scores)
        shared = (
            f"Criteria were written once for each of {usage.rubrics:,} prompts. Those of "
            f"{usage.unread_rubrics:,} could not be read, and each judgement about these wrote its "
            "own."
        )
        return (*notes, shared)


def request_of(candidates: Candidates) -> Candidates:
    """Return a prompt without its responses, for which a judge writes criteria.

    Its key depends on the prompt, its images and its videos alone.
    """
    media = (*candidates.images, *candidates.videos)
    return Candidates(
        key=f"criteria/{shown_key(candidates.prompt, media, ())}",
        images=candidates.images,
        prompt=candidates.prompt,
        responses=(),
        identity=candidates.identity,
        videos=candidates.videos,
    )


class SharedCriteriaRounds:
    """The ranking of responses by shared criteria: first the criteria are written, then pairs judged.

    It is a `PairRounds`.
    """

    def __init__(self, candidates: Candidates, judge: RubricJudge) -> None:
        self.candidates = candidates
        self.judge = judge
        self.usage = NO_USAGE
        self.scores_of_round: Scores | None = None
        self.ranking: PairRounds | None = None
        """The rounds after the criteria; None if all pairs are compared in one round."""
        self.num_rounds = 0

    def next_pairs(self) -> list[Candidates]:
        """Return the prompt alone in the first round, and then the responses to judge."""
        self.num_rounds += 1
        if self.num_rounds == 1:
            return [request_of(self.candidates)]
        if self.ranking is not None:
            return self.ranking.next_pairs()
        return [self.candidates] if self.num_rounds == 2 else []

    def add(self, scores_of_pairs: Sequence[Scores]) -> None:
        """Add the scores of what `next_pairs` returned: the criteria first, and then votes."""
        if self.num_rounds == 1:
            [written] = scores_of_pairs
            self.usage = written.usage
            criteria = self.judge.written_criteria(written)
            self.candidates = replace(self.candidates, criteria=criteria)
            self.ranking = replace(self.judge, shares_criteria=False).ranking(self.candidates)
        elif self.ranking is not None:
            self.ranking.add(scores_of_pairs)
        else:
            [self.scores_of_round] = scores_of_pairs

    def scores(self) -> Scores:
        """Return the scores of all responses after the last round."""
        scores = self.scores_of_round if self.ranking is None else self.ranking.scores()
        assert scores is not None, "the round of all pairs was judged"
        return replace(scores, usage=scores.usage + self.usage)


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
    shares_criteria = config.criteria == "shared"
    criteria = tuple(config.criteria) if isinstance(config.criteria, list) else ()
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
        template=template,
        criteria=criteria,
        shares_criteria=shares_criteria,
        comparisons=config,
        about=notes,
    )


def _template_of_training(checkpoint: LoadedCheckpoint) -> JudgeTemplate | None:
    """Return the template with a rubric that a checkpoint was trained by; None if there is none."""
    template = None if checkpoint.card is None else checkpoint.card.template
    if template is None or TEMPLATES[template].form is not RUBRIC_FORM:
        return None
    return template
