"""The interface of models that annotate pairs: they judge two responses, and give their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mmrm.data.preference import Preference
from mmrm.data.prompts import JudgeTemplate
from mmrm.eval.candidates import Side


@dataclass(frozen=True, slots=True)
class ShownPair:
    """A pair of responses with the orders in which a model is shown them."""

    record: Preference
    sides: tuple[Side, ...]
    """For each judgement, the position of the chosen response: 0 if it is shown first."""


@dataclass(frozen=True, slots=True)
class PairJudgement:
    """A model's judgement of two responses."""

    named: Side | None
    """The position of the response that it names, 0 for the first; None if it cannot be read."""
    rationale: str
    """Its reasoning without the verdict; empty if there is none."""


@dataclass(frozen=True, slots=True)
class AnnotatorOptions:
    """Options of the command line that decide how a model is asked."""

    max_tokens: int
    """The largest number of tokens of a judgement."""
    template: JudgeTemplate | None = None
    """The wording of the question; None takes the model's own, or r1_reward behind an endpoint."""


class PairAnnotator(Protocol):
    """A model that judges pairs of responses in writing."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that decide the judgements, besides temperature and seed."""
        ...

    @property
    def records_together(self) -> int:
        """The number of records that should be judged in one call."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Notes for people on how the model is asked."""
        ...

    def judge(
        self, pairs: Sequence[ShownPair], temperature: float, seed: int
    ) -> list[tuple[PairJudgement, ...]]:
        """Return the judgements of each pair, one for each of its `sides`.

        Args:
            pairs: The pairs.
            temperature: The temperature at which the judgements are sampled.
            seed: Decides all random draws, together with the pair and the order.

        Raises:
            EndpointError: If an endpoint does not reply.
        """
        ...
