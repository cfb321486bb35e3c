"""The reward of a text that scores one response: the order of its pair by points."""

from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import Any

from mmrm.data.point_prompt import PointPrompt
from mmrm.eval.judges.points.judge import PromptedPoint
from mmrm.models.encoder import Encoder
from mmrm.train.reinforce.rollouts import Prompt


def pair_order(better: float, worse: float) -> float:
    """Return 1 if the better response of a pair has more points, 1/2 for a tie, 0 for fewer.

    With half a credit for a tie, a judge that always writes the same points earns as much as one
    that guesses. Points that could not be read are NaN, and the result is then 0.
    """
    if isnan(better) or isnan(worse):
        return 0.0
    if better == worse:
        return 0.5
    return float(better > worse)


def order_rewards(points: Sequence[float]) -> list[float]:
    """Return the reward of every text about a pair.

    The reward of a text is the mean of `pair_order` over all texts about the other response. A text
    without readable points earns nothing, and all texts about the other response earn less.

    Args:
        points: The points in every text, NaN if it has none. The first half of the texts is about
            the better response, the second half about the worse one.
    """
    half = len(points) // 2
    points_of_better = points[:half]
    points_of_worse = points[half:]
    rewards: list[float] = []
    for better in points_of_better:
        credits_of_text = [pair_order(better, worse) for worse in points_of_worse]
        rewards.append(sum(credits_of_text) / half)
    for worse in points_of_worse:
        credits_of_text = [pair_order(better, worse) for better in points_of_better]
        rewards.append(sum(credits_of_text) / half)
    return rewards


def share_tied(points: Sequence[float]) -> float:
    """Return the share of equal points among the pairs of texts about the two responses of a pair.

    `points` are as in `order_rewards`. Points that could not be read equal no others.
    """
    half = len(points) // 2
    num_tied = sum(better == worse for better in points[:half] for worse in points[half:])
    return num_tied / half**2


class OrderReward:
    """The function that trl calls for the rewards of texts that score one response each."""

    __name__ = "order"  # trl logs the rewards under the name of the function

    def __init__(self, points: PointPrompt, group_size: int, encoder: Encoder) -> None:
        """Make the reward.

        Args:
            points: The question, which has the form of a written score.
            group_size: The number of texts about each pair.
            encoder: The encoder of the judge.
        """
        self.read = PromptedPoint(points).read
        self.group_size = group_size
        self.encoder = encoder

    def __call__(
        self,
        completion_ids: Sequence[list[int]],
        asked: Sequence[Prompt],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float]:
        """Return the reward of every text; all texts about one pair follow one another.

        A text that the length limit cut off has no points.

        Args:
            completion_ids: The tokens of every text.
            asked: The prompt of every text. trl passes each column of its rows by the column's
                name, and `asked` is a column that the trainer adds.
            log_metric: A function that logs a number, given its name and its value.
            log_extra: A function that adds a column to the table of rollouts, given its name and
                its values.
            rest: Further columns and values that trl passes.
        """
        is_whole = [ids[-1] == self.encoder.end_of_turn for ids in completion_ids]
        points: list[float] = []
        for ids, whole in zip(completion_ids, is_whole, strict=True):
            # The last token ends the turn, and is no part of the text.
            points.append(self.read(self.encoder.tokenizer.decode(ids[:-1])) if whole else nan)
        groups = [
            points[start : start + self.group_size]
            for start in range(0, len(points), self.group_size)
        ]
        rewards: list[float] = []
        for group in groups:
            rewards += order_rewards(group)
        log_metric("rewards/order", sum(rewards) / len(rewards))
        log_metric("rollouts/tied", sum(map(share_tied, groups)) / len(groups))
        log_metric("rollouts/unreadable", sum(map(isnan, points)) / len(points))
        log_metric("rollouts/cut_off", 1 - sum(is_whole) / len(is_whole))
        half = self.group_size // 2
        log_extra("response", (["better"] * half + ["worse"] * half) * len(groups))
        log_extra("points", points)
        log_extra("record", [prompt.record for prompt in asked])
        return rewards
