"""The numbers that each type of reward head computes for a response, and the score made of them.

A reward head computes one or more columns. Responses are ranked by one score, which a pure function
makes of the columns. This file is saved with every checkpoint that has a reward head. It does not
import torch, so that recipes can be checked quickly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


class HeadColumns(ABC):
    """The columns of a reward head that is described by `config.reward_head`."""

    has_bias: ClassVar[bool]
    """True if the last layer of the head has a bias."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        """Store `head`, the value of `config.reward_head`."""
        self.head = head

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in the order in which the head computes them."""

    @property
    @abstractmethod
    def reported_names(self) -> tuple[str, ...]:
        """The names of the numbers that are reported next to the score, as `attributes` has them."""

    @abstractmethod
    def ranking_scores(self, columns: Tensor) -> Tensor:
        """Return the score of each response by which responses are ranked, (outputs,).

        `columns` are the numbers that the head computed, (outputs, columns). The response with the
        higher score is the better one.
        """

    @abstractmethod
    def attributes(self, columns: Tensor) -> dict[str, Tensor]:
        """Return the numbers that are reported next to the score, (outputs,) each, by name.

        `columns` are the numbers that the head computed, (outputs, columns). The result is empty if
        the head computes nothing but the score.
        """


class ScoreColumns(HeadColumns):
    """One column, which is the score.

    Its last layer has no bias. A bias would get no gradient from a Bradley-Terry loss, which
    depends only on differences of scores.
    """

    has_bias = False

    @property
    def names(self) -> tuple[str, ...]:
        """The only column is named `score`."""
        return ("score",)

    @property
    def reported_names(self) -> tuple[str, ...]:
        """There are no further numbers."""
        return ()

    def ranking_scores(self, columns: Tensor) -> Tensor:
        """Return the only column."""
        return columns[..., 0]

    def attributes(self, columns: Tensor) -> dict[str, Tensor]:
        """Return nothing: the head computes nothing but the score."""
        return {}


class AttributesColumns(HeadColumns):
    """A column for each named attribute. The score is their weighted sum.

    `config.reward_head` has the names of the attributes as `names`, and their weights by name as
    `weights`. Without weights, the score is the mean of the attributes.
    """

    has_bias = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the attributes."""
        return tuple(self.head["names"])

    @property
    def reported_names(self) -> tuple[str, ...]:
        """The names of the attributes."""
        return self.names

    @property
    def weights(self) -> list[float]:
        """The weight of each attribute in the score, in the order of `names`."""
        weight_by_name = self.head["weights"]
        if weight_by_name is None:
            return [1 / len(self.names)] * len(self.names)
        return [weight_by_name[name] for name in self.names]

    def ranking_scores(self, columns: Tensor) -> Tensor:
        """Return the weighted sum of the attributes of each response."""
        return (columns * columns.new_tensor(self.weights)).sum(-1)

    def attributes(self, columns: Tensor) -> dict[str, Tensor]:
        """Return the numbers of each attribute by its name."""
        return dict(zip(self.names, columns.unbind(-1), strict=True))


class GaussianColumns(HeadColumns):
    """The mean and the log-variance of a normal distribution. The score is the mean."""

    has_bias = True

    @property
    def names(self) -> tuple[str, ...]:
        """The columns are named `mean` and `log_variance`."""
        return ("mean", "log_variance")

    @property
    def reported_names(self) -> tuple[str, ...]:
        """The standard deviation is named `std`."""
        return ("std",)

    def ranking_scores(self, columns: Tensor) -> Tensor:
        """Return the means."""
        return columns[..., 0]

    def attributes(self, columns: Tensor) -> dict[str, Tensor]:
        """Return the standard deviations as `std`."""
        return {"std": (columns[..., 1] / 2).exp()}


HEAD_COLUMNS: dict[str, type[HeadColumns]] = {
    "score": ScoreColumns,
    "attributes": AttributesColumns,
    "gaussian": GaussianColumns,
}
"""The columns of a reward head by its `type` in `config.reward_head`."""


def hidden_widths(layers: int, width: int | Sequence[int] | None, num_inputs: int) -> list[int]:
    """Return the width of each hidden layer of a reward head; empty for a single layer.

    Args:
        layers: Number of linear layers.
        width: The width of all hidden layers, or a list of their widths. None stands for
            `num_inputs`.
        num_inputs: Size of the hidden states that the head reads.
    """
    if width is None:
        return [num_inputs] * (layers - 1)
    if isinstance(width, int):
        return [width] * (layers - 1)
    return list(width)


def columns_of(head: Mapping[str, Any]) -> HeadColumns:
    """Return the columns of a reward head.

    Args:
        head: The value of `config.reward_head`. Without a `type` it describes a head of one score:
            checkpoints of older versions do not have this key.

    Raises:
        ValueError: This version does not know the type of the head.
    """
    head_type = head.get("type", "score")
    if head_type not in HEAD_COLUMNS:
        raise ValueError(
            f"config.json describes a reward head of type {head_type!r}, and this version can only "
            f"compute heads of the types {', '.join(HEAD_COLUMNS)}. Use the version that saved the "
            "checkpoint, or load it with trust_remote_code=True."
        )
    return HEAD_COLUMNS[head_type](head)
