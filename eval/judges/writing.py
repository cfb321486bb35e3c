"""Common parts of judges that write: the generating model, and the cost of writing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrm.eval.candidates import Scores, Usage, total_usage
from mmrm.eval.judges.packed_inference import Cost
from mmrm.eval.judges.packed_judge import PackedJudge
from mmrm.models.config import SamplingConfig
from mmrm.models.generation import Generation, WritingCost, generate
from mmrm.models.packing.groups import PackedBatch


@dataclass(frozen=True, kw_only=True)
class WritingJudge(PackedJudge):
    """A judge that generates text after every continuation of a packed row."""

    model: Any
    """Unwrapped, in eval mode."""
    sampling: SamplingConfig
    penalty: float = 1.0
    """Penalty on tokens that occurred before; 1 is none."""

    @property
    def row_cost(self) -> Cost:
        """Returns the tokens that a group needs of a row's budget, with the text generated after it."""
        return WritingCost.of(self.model.config, self.sampling)

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with the figures, with the cost of judging."""
        usage = total_usage(scores)
        mean_tokens = usage.tokens / max(usage.judgements, 1)
        cost = (
            f"{usage.judgements:,} judgements of {mean_tokens:.0f} tokens on average; {usage.truncated:,} cut off at the "
            "limit."
        )
        return (*self.about, cost)

    def write(
        self, batch: PackedBatch, forbidden: Sequence[int], seeds: Sequence[str]
    ) -> list[Generation]:
        """Write after every continuation of a row, and never one of the `forbidden` tokens."""
        return generate(
            self.model,
            batch,
            end=self.packed.encoder.end_of_turn,
            forbidden=forbidden,
            sampling=self.sampling,
            seeds=seeds,
            penalty=self.penalty,
        )


def usage_of_texts(written: Sequence[Generation]) -> Usage:
    """Return the tokens of texts, with their ends, and how many texts the limit cut off."""
    num_tokens = sum(len(generation.ids) + 1 for generation in written)
    num_truncated = sum(generation.truncated for generation in written)
    return Usage(tokens=num_tokens, truncated=num_truncated)
