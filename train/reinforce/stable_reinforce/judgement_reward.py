"""The reward of a judgement: the weighted sum of the terms that the recipe lists.

Without a list it is R1-Reward's (arXiv 2505.02835, section 4.3):
result x (1 + 0.5 x consistency) + 0.5 x format.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from mmrm.data.config.registry import load
from mmrm.data.prompts import Answer
from mmrm.train.reinforce.rollouts import Prompt, ReadAlternatives
from mmrm.train.reinforce.stable_reinforce.config import StableReinforceConfig
from mmrm.train.reinforce.stable_reinforce.judgement_term_setting import JudgementTermSetting
from mmrm.train.reinforce.stable_reinforce.judgement_terms import (
    JudgementBatch,
    JudgementTerm,
)


class JudgementReward:
    """The function that trl calls for the rewards of judgements.

    It logs every term of the reward: its mean, and a column in trl's table of rollouts.
    """

    __name__ = "judgement"  # trl logs the rewards under the name of the function

    def __init__(self, config: StableReinforceConfig, setting: JudgementTermSetting) -> None:
        self.group_size = config.num_generations
        self.form = setting.form
        self.encoder = setting.encoder
        self.terms: list[JudgementTerm] = []
        for term in config.reward_terms:
            self.terms.append(load(term.implementation)(term, setting))

    @property
    def model(self) -> Any:
        """The model in this process that one of the terms runs. None if none of them runs one.

        A recipe with several such terms is refused.
        """
        models = [term.model for term in self.terms if term.model is not None]
        assert len(models) <= 1, "at most one term of the reward runs a model in this process"
        return models[0] if models else None

    def __call__(
        self,
        completion_ids: Sequence[list[int]],
        asked: Sequence[Prompt],
        read_alternatives: Sequence[ReadAlternatives],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float]:
        """Return the reward of every judgement. The judgements of one pair follow one another.

        A judgement without the token that ends a turn was cut off by the length limit.

        Args:
            completion_ids: The tokens of every judgement.
            asked: The prompt of every judgement. trl passes each column of its rows by the column's
                name, and this column and the next one are those that the trainer adds.
            read_alternatives: A function that reads the policy's probabilities of given texts, the
                same for every judgement.
            log_metric: A function that logs a number, given its name and its value.
            log_extra: A function that adds a column to the table of rollouts, given its name and
                its values.
            rest: Further columns and values that trl passes.
        """
        batch = self._read(completion_ids, asked, read_alternatives[0])
        totals = [0.0] * len(batch.judgements)
        columns: dict[str, list[Any]] = {}
        for term in self.terms:
            scores = term(batch)
            for index, reward in enumerate(scores.rewards):
                totals[index] += term.config.weight * reward
            columns.update(scores.columns)

        for name, values in columns.items():
            log_metric(f"rewards/{name}", sum(values) / len(values))
        num_unreadable = sum(judgement.answer is None for judgement in batch.judgements)
        log_metric("rollouts/unreadable", num_unreadable / len(batch.judgements))
        log_metric("rollouts/cut_off", 1 - sum(batch.is_whole) / len(batch.is_whole))
        columns["winner"] = [cast(Answer, prompt.winner) for prompt in asked]
        columns["record"] = [prompt.record for prompt in asked]
        for name, values in columns.items():
            log_extra(name, values)
        return totals

    def _read(
        self,
        completion_ids: Sequence[list[int]],
        prompts: Sequence[Prompt],
        read_alternatives: ReadAlternatives,
    ) -> JudgementBatch:
        """Return the judgements with the parts of their texts, and flags for complete ones."""
        # The last token ends the turn, and is no part of the text.
        judgements = [
            self.form.read(self.encoder.tokenizer.decode(ids[:-1])) for ids in completion_ids
        ]
        is_whole = [ids[-1] == self.encoder.end_of_turn for ids in completion_ids]
        return JudgementBatch(
            prompts, completion_ids, judgements, is_whole, self.group_size, read_alternatives
        )
