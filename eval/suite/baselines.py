"""Benchmarks judged: the rows as a judge sees them, its verdicts, and the result with everything a score should stand beside.

A result holds figures with intervals, judges that ignore the content, a diagnosis, and the same verdicts under published rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmrm.eval.candidates import Example, Verdict
from mmrm.eval.protocol import draw

BASELINES: dict[str, Callable[[Example, int], tuple[float, float]]] = {
    "longest": lambda example, seed: (len(example.responses[0]), len(example.responses[1])),
    "shortest": lambda example, seed: (-len(example.responses[0]), -len(example.responses[1])),
    "first": lambda example, seed: (1.0, 0.0),
    "random": lambda example, seed: (
        (0.0, 1.0) if draw(seed, example.key, "random baseline") else (1.0, 0.0)
    ),
}
"""Judges that ignore the content, name to scores: more characters, fewer characters, the response listed first, a coin."""


def baseline(name: str, examples: Sequence[Example], seed: int = 0) -> list[Verdict]:
    """Return the verdicts of one of `BASELINES`; equal lengths are a tie."""
    return [Verdict(scores=BASELINES[name](example, seed)) for example in examples]
