"""The interface of all judges, which benchmarks, rankings, the server, rewards and best-of-N call.

A judge has two uses, which differ in the handling of an unusable score:

- A judge that was only loaded ranks responses to people's own prompts. A text with a control token
  is an error, as is a score that is not a finite number. A written score that cannot be read is 0.
- `under` returns the judge of a benchmark. Its scores may be NaN or infinite, because the protocol
  counts such rows as unparsable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.candidates import Candidates, Scores, total_usage
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.protocol import ProtocolConfig


@dataclass(frozen=True, slots=True)
class JudgeInfo:
    """Properties of a judge that callers need."""

    compares: bool = False
    """The judge names the better of two responses, and ranks N of them by comparisons."""
    compares_all: bool = True
    """A judge that compares ranks N responses by all N (N - 1) comparisons, and not by fewer."""
    writes: bool = False
    """The judge generates text, so each rank needs all weights."""
    joint: bool = False
    """The judge scores all responses in one conversation, so that their order matters."""


class Judge(Protocol):
    """Anything that scores the responses to a prompt, or compares them."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge that callers need."""
        ...

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each prompt's responses, in the order of `batch`, on every rank.

        All ranks must call together. The journal shows the progress, and keeps the results.
        """
        ...

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> Judge:
        """Return a copy of this judge that follows a benchmark's protocol.

        The protocol decides the seed, the orders and the number of votes. The copy has the same
        weights. It asks with the benchmark's own prompt if this kind of judge uses such prompts.

        Raises: CheckpointError if the judge cannot follow the protocol.
        """
        ...

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes to print with figures that are computed from these scores of this judge.

        They are, for example, the number of tokens that were written.
        """
        ...


def cost_figures(scores: Sequence[Scores]) -> dict[str, float]:
    """Return the figures of the cost of judging for the log.

    They are the seconds per judgement and, if critiques were written, the share of them that the
    limit cut off, their mean number of tokens, and the tokens generated in a second.
    """
    usage = total_usage(scores)
    # Only comparisons and written scores are counted as judgements. Of other judges, such as a
    # critic, the scores of one prompt are one judgement.
    num_judgements = usage.judgements or len(scores)
    figures = {"seconds_per_judgement": usage.seconds / max(num_judgements, 1)}
    if usage.critiques:
        figures["truncated"] = usage.truncated / usage.critiques
        figures["tokens_per_critique"] = usage.tokens / usage.critiques
        figures["generated_tokens_per_second"] = usage.tokens / usage.seconds
    return figures
