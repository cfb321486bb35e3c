"""The reward of a policy's answers: the weighted sum of the terms that the recipe lists."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmrm.data.config.registry import load
from mmrm.eval.judges.judge import Judge
from mmrm.eval.policies.answering import readable_text
from mmrm.eval.verifiers import is_right_answer
from mmrm.models.encoder import Encoder
from mmrm.train.reinforce.policy.config import PolicyConfig
from mmrm.train.reinforce.policy.reward_terms import AnswerBatch, RewardTerm, TermSetting
from mmrm.train.reinforce.rollouts import Prompt


def reward_terms(config: PolicyConfig, judges: Mapping[int, Judge]) -> list[RewardTerm]:
    """Return the terms of the reward, in the order of the recipe.

    Args:
        config: The section `method` of the recipe.
        judges: The loaded judges, by the index of their term in `config.rewards`.

    Raises:
        UserError: A term standardises the scores of a judge (`form: standardised`) whose checkpoint
            states no mean and standard deviation of its scores.
    """
    terms: list[RewardTerm] = []
    first_judge_index = min(judges, default=None)
    for index, term in enumerate(config.rewards):
        # The name of the log column with the judge's scores. The first judge, which is often the
        # only one, has no number.
        judge_column = f"judge_{index}"
        if index == first_judge_index:
            judge_column = "judge"
        setting = TermSetting(
            key=f"method.rewards.{index}",
            max_new_tokens=config.max_new_tokens,
            judge=judges.get(index),
            judge_column=judge_column,
        )
        terms.append(load(term.implementation)(term, setting))
    return terms


class AnswerReward:
    """The function that trl calls for the rewards of a policy's answers.

    It logs every term of the reward: its mean, and a column in trl's table of rollouts.
    """

    __name__ = "answer"  # trl logs the rewards under the name of the function

    def __init__(self, config: PolicyConfig, judges: Mapping[int, Judge], encoder: Encoder) -> None:
        """Make the terms of the reward. Arguments are as in `reward_terms`."""
        self.group_size = config.num_generations
        self.encoder = encoder
        self.terms = reward_terms(config, judges)

    def __call__(
        self,
        completion_ids: Sequence[list[int]],
        asked: Sequence[Prompt],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float]:
        """Return the reward of every answer. The answers to one question follow one another.

        Args:
            completion_ids: The tokens of every answer.
            asked: The prompt of every answer. trl passes each column of its rows by the column's
                name, and `asked` is the column that the trainer adds.
            log_metric: A function that logs a number, given its name and its value.
            log_extra: A function that adds a column to the table of rollouts, given its name and
                its values.
            rest: Further columns and values that trl passes.
        """
        answers = self._read(completion_ids, asked)
        totals = [0.0] * len(answers.texts)
        columns: dict[str, list[float]] = {}
        for term in self.terms:
            term_scores = term(answers)
            for index, reward in enumerate(term_scores.rewards):
                totals[index] += term.config.weight * reward
            columns.update(term_scores.columns)
        columns["right"] = [float(is_right) for is_right in answers.is_right]

        for name, values in columns.items():
            log_metric(f"rewards/{name}", sum(values) / len(values))
        log_metric("rollouts/cut_off", 1 - sum(answers.is_whole) / len(answers.is_whole))
        for name, values in columns.items():
            log_extra(name, values)
        log_extra("record", [prompt.record for prompt in asked])
        return totals

    def _read(self, completion_ids: Sequence[list[int]], prompts: Sequence[Prompt]) -> AnswerBatch:
        """Return the answers with their texts, and flags for complete and for right answers."""
        end_of_turn = self.encoder.end_of_turn
        texts: list[str] = []
        is_whole: list[bool] = []
        is_right: list[bool] = []
        for ids, prompt in zip(completion_ids, prompts, strict=True):
            has_end = ids[-1] == end_of_turn
            text_ids = ids[:-1] if has_end else ids
            text, is_complete = readable_text(self.encoder, text_ids, ended=has_end)
            # A record without a known answer has no truth, and no answer to it counts as right.
            truth = None if prompt.question is None else prompt.question.truth
            texts.append(text)
            is_whole.append(is_complete)
            is_right.append(is_complete and truth is not None and is_right_answer(text, truth))
        return AnswerBatch(prompts, completion_ids, texts, is_whole, is_right, self.group_size)
