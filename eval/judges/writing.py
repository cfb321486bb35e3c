"""Critics as judges: write a critique of each response, then score it, or score given critiques, or none.

Request and limit of a critique come with the checkpoint.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from mmrm.eval.candidates import Verdict
from mmrm.eval.judges.packed_inference import Packed
from mmrm.models.config import SamplingConfig
from mmrm.models.generation import Generation, WritingCost, generate
from mmrm.models.packing.groups import PackedBatch


@dataclass
class JudgingCost:
    """What judging cost, for the table beside the scalar judge."""

    judgements: int = 0
    critiques: int = 0
    tokens: int = 0
    """Of the critiques, with their ends."""
    truncated: int = 0
    """Critiques that the limit cut off."""
    seconds: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return what a log shows; shares of written critiques are left out where none was written."""
        found = {"seconds_per_judgement": self.seconds / max(self.judgements, 1)}
        if self.critiques:
            written = {
                "truncated": self.truncated / self.critiques,
                "tokens_per_critique": self.tokens / self.critiques,
            }
            found |= written | {"generated_tokens_per_second": self.tokens / self.seconds}
        return found

    def add(self, judgements: int, written: Iterable[tuple[int, int]], started: float) -> None:
        """Count judgements that began at `started`: the tokens of what was written for them, and how often the limit cut off."""
        self.judgements += judgements
        for tokens, truncated in written:
            self.tokens += tokens
            self.truncated += truncated
        self.seconds += perf_counter() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingJudge:
    """What judges that write have in common."""

    model: Any
    """Unwrapped, in eval mode."""
    packed: Packed
    sampling: SamplingConfig
    spent: JudgingCost = field(default_factory=JudgingCost)
    """Of all ranks together."""
    about: tuple[str, ...] = ()
    """What must be said beside its figures, whatever judging costs."""
    penalty: float = 1.0
    """On tokens that are there already; 1 is none."""

    @property
    def cost(self) -> WritingCost:
        """What a group takes of a token budget while it is written on."""
        return WritingCost.of(self.model.config, self.sampling)

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures: also what judging cost."""
        spent = self.spent
        mean = spent.tokens / max(spent.judgements, 1)
        cost = f"{spent.judgements:,} judgements of {mean:.0f} tokens on average; {spent.truncated:,} cut off at the limit."
        return (*self.about, cost)

    def write(
        self, batch: PackedBatch, forbidden: Sequence[int], seeds: Sequence[str]
    ) -> list[Generation]:
        """Write after every continuation of a row, never one of the `forbidden` tokens."""
        end = self.packed.encoder.end_of_turn
        settings: dict[str, Any] = {
            "sampling": self.sampling,
            "seeds": seeds,
            "penalty": self.penalty,
        }
        return generate(self.model, batch, end=end, forbidden=forbidden, **settings)


Judged = tuple[Verdict, int, int]
"""A verdict, the tokens of its critiques, and how many of them were cut off; ranks gather it."""
