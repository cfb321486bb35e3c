"""A frozen reader of rubrics: a model that names the better response from a rubric alone.

The idea is Proxy-GRM's (arXiv 2603.16600): a rubric is good if somebody else decides right by it.
Proxy-GRM's proxy sees the image, both responses and the criteria, without the judge's checks. This
reader sees the question and the criteria with their checks, and nothing else, so that a judge
cannot earn by naming the right response after a rubric that does not show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrm.data.prompts import Answer, Judgement, JudgeTemplate, reading_conversation
from mmrm.eval.verdict_form import verdict_form_of
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packed_alternatives import choice_after_text, log_probabilities_of_alternatives
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.reinforce.rollouts import Prompt
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import ReaderTerm
from mmrm.train.reinforce.stable_reinforce.judgement_term_setting import JudgementTermSetting
from mmrm.train.reinforce.stable_reinforce.judgement_terms import JudgementBatch, JudgementTerm
from mmrm.train.reinforce.term_scores import TermScores


@dataclass(frozen=True, slots=True)
class RubricReader:
    """Decides which response is better from the question and a rubric with its checks."""

    model: Any
    """A language model in eval mode."""
    encoder: Encoder
    """The encoder of the model's backbone."""
    token_budget: int
    """The largest size of a packed row, in tokens."""
    template: JudgeTemplate
    """The template of the judge, which has the words with which the reader is asked."""

    def verdicts(
        self, prompts: Sequence[Prompt], judgements: Sequence[Judgement]
    ) -> list[Answer | None]:
        """Return the response that the reader names for each judgement; all ranks call together.

        It is the likelier one of the two verdicts directly after the opening of the answer, so that
        nothing is generated. The result is None for a judgement without a rubric in its form, about
        which the reader is not asked, and if both verdicts are equally likely.

        Args:
            prompts: The prompt of each judgement, with its record.
            judgements: The judgements.
        """
        form = verdict_form_of(self.template)
        choice = choice_after_text(self.encoder.tokenizer, (), 0, form.opening, form.words)
        trees: list[SegmentTree] = []
        indices: list[int] = []
        for index, (prompt, judgement) in enumerate(zip(prompts, judgements, strict=True)):
            if judgement.reasoning is None:
                continue
            assert prompt.question is not None, "prompts that are rewarded hold their record"
            messages = reading_conversation(
                self.template, prompt.question.prompt, judgement.reasoning
            )
            conversation = Conversation(messages)
            trees.append(self.encoder.encode_conversations([conversation], None, prompt.record))
            indices.append(index)
        log_probabilities = log_probabilities_of_alternatives(
            self.model, self.encoder, trees, [[choice]] * len(trees), self.token_budget
        )
        verdicts: list[Answer | None] = [None] * len(judgements)
        for index, ((first, second),) in zip(indices, log_probabilities, strict=True):
            if first != second:
                verdicts[index] = 1 if first > second else 2
        return verdicts


class ReaderReward(JudgementTerm):
    """A term that is 1 if the reader names the better response from a judgement's rubric, else 0.

    A judgement without a rubric in its form, or that was cut off, has the value 0.
    """

    config: ReaderTerm

    def __init__(self, config: ReaderTerm, setting: JudgementTermSetting) -> None:
        super().__init__(config, setting)
        self.model, encoder = setting.load_model(config.path)
        self.reader = RubricReader(self.model, encoder, setting.token_budget, setting.template)

    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return 1 for every judgement from which the reader decides right, and the same column."""
        verdicts = self.reader.verdicts(batch.prompts, batch.judgements)
        rewards: list[float] = []
        for verdict, prompt, whole in zip(verdicts, batch.prompts, batch.is_whole, strict=True):
            rewards.append(float(whole and verdict == prompt.winner))
        return TermScores(rewards, {"reader": rewards})
