"""The interface of all judges, which benchmarks, rankings, the server, rewards and best-of-N call.

A judge has two ways to be used, which differ in what an unusable score is:

- As it is loaded, a judge ranks responses to people's own prompts. A text with a control token is
  an error, as is a score that is not a finite number. A written score that cannot be read is 0.
- `under` returns the judge of a benchmark. Its scores are NaN or infinite where the model's are,
  because the protocol counts such rows as unparsable.
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
    """What callers ask about a judge."""

    compares: bool = False
    """The judge names the better of two responses, and ranks N of them by N (N - 1) comparisons."""
    writes: bool = False
    """The judge generates text, so that it needs the whole weights on each rank."""


class Judge(Protocol):
    """Anything that scores the responses to a prompt, or compares them."""

    @property
    def info(self) -> JudgeInfo:
        """What callers ask about the judge."""
        ...

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of each, in order, on every rank; all ranks must call together.

        The journal shows the progress, and keeps what was judged.
        """
        ...

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> Judge:
        """Return the judge of a benchmark.

        It has the same weights, the protocol's seed, and the benchmark's prompt if it asks with one.

        Raises: CheckpointError if the judge cannot be asked as the protocol requires.
        """
        ...

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return what must be said next to figures that are made of these scores of this judge."""
        ...


def cost_figures(scores: Sequence[Scores]) -> dict[str, float]:
    """Return what a log shows of the cost of judging.

    Shares of written critiques are left out if none was written. A critic judges each prompt once,
    whatever the number of its critiques.
    """
    usage = total_usage(scores)
    num_judgements = usage.judgements or len(scores)
    figures = {"seconds_per_judgement": usage.seconds / max(num_judgements, 1)}
    if usage.critiques:
        figures["truncated"] = usage.truncated / usage.critiques
        figures["tokens_per_critique"] = usage.tokens / usage.critiques
        figures["generated_tokens_per_second"] = usage.tokens / usage.seconds
    return figures
