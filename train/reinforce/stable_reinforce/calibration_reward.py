"""The term of a judgement's reward on calibration: the Brier score of its soft verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrm.eval.judges.generative.soft_verdicts import (
    WrittenJudgement,
    soft_verdict,
    verdict_choice,
)
from mmrm.eval.verdict_form import verdict_form_of
from mmrm.models.packed_alternatives import Choice
from mmrm.models.packed_generation import repeated
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.reinforce.rollouts import Prompt
from mmrm.train.reinforce.stable_reinforce.judgement_terms import JudgementBatch, JudgementTerm
from mmrm.train.reinforce.term_scores import TermScores


@dataclass(slots=True)
class _ReadablePrompt:
    """A prompt with those of its judgements that name a response."""

    prompt: Prompt
    indices: list[int] = field(default_factory=list)
    """The positions of the judgements in the batch."""


class CalibrationReward(JudgementTerm):
    """1 minus the Brier score of a judgement's soft verdict.

    The soft verdict is the probability p that the policy gives to the verdict for the better
    response, divided by that of both verdicts, after the rationale that it sampled. The value is
    1 - (1 - p)^2. It is a proper scoring rule: on average over pairs it is largest if p is the
    share of pairs on which this verdict is right. It does not depend on which verdict was sampled.
    A judgement that names no response, or that was cut off, has the value 0, as a certain and wrong
    one has.
    """

    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return the value of every judgement, and the same as a column."""
        rewards = [0.0] * len(batch.judgements)
        for index, probability in self._probabilities_of_better(batch).items():
            rewards[index] = calibration_value(probability)
        return TermScores(rewards, {"calibration": rewards})

    def _probabilities_of_better(self, batch: JudgementBatch) -> dict[int, float]:
        """Return the soft verdict for the better response, by the index of the judgement.

        Judgements that name no response have none. They are not computed.
        """
        readable = readable_prompts(batch)
        trees: list[SegmentTree] = []
        choices: list[list[Choice]] = []
        for of_prompt in readable:
            trees.append(repeated(of_prompt.prompt.tree, len(of_prompt.indices)))
            choices.append([self._choice(batch.token_ids[index]) for index in of_prompt.indices])
        log_probabilities = batch.read_alternatives(trees, choices)
        probabilities: dict[int, float] = {}
        for of_prompt, of_tree in zip(readable, log_probabilities, strict=True):
            for index, (first, second) in zip(of_prompt.indices, of_tree, strict=True):
                verdict = soft_verdict(first, second, is_opened=False)
                is_better_first = of_prompt.prompt.winner == 1
                probabilities[index] = verdict.first if is_better_first else 1 - verdict.first
        return probabilities

    def _choice(self, token_ids: Sequence[int]) -> Choice:
        """Return the choice between both verdicts at the verdict's place in a whole judgement."""
        written_ids = tuple(token_ids[:-1])  # the last token ends the turn
        tokenizer = self.setting.encoder.tokenizer
        written = WrittenJudgement(written_ids, tokenizer.decode(written_ids))
        return verdict_choice(tokenizer, written, verdict_form_of(self.setting.template))


def readable_prompts(batch: JudgementBatch) -> list[_ReadablePrompt]:
    """Return the prompts of the judgements that name a response, with the positions of these."""
    readable: list[_ReadablePrompt] = []
    for index, (named, prompt) in enumerate(zip(batch.names_better, batch.prompts, strict=True)):
        if named is None:
            continue
        if not readable or readable[-1].prompt is not prompt:
            readable.append(_ReadablePrompt(prompt))
        readable[-1].indices.append(index)
    return readable


def calibration_value(probability: float) -> float:
    """Return 1 minus the Brier score of the probability that was given to the better response."""
    return 1 - (1 - probability) ** 2
