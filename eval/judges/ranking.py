"""From pairwise verdicts to a ranking of N candidates.

`all_pairs` compares every candidate with every other in both orders, as R1-Reward does on MM-RLHF-RewardBench: N (N - 1)
judgements. `ring` compares each with the next `reach` candidates only, in both orders: 2 N x reach judgements. How well the
cheap ranking agrees with the full one is a property of the judge: `agreement` measures it, and a report states it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.preference import EncodedImage, Message
from eval.protocol import Example, Judge, Verdict

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates from best to worst."""

    order: tuple[int, ...]
    """Candidate indices; equal shares keep the order given."""
    shares: tuple[float, ...]
    """Of each candidate, in the order given: the share of its judgements that name it. Unreadable ones name nobody."""
    judgements: int
    unreadable: int


def all_pairs(candidates: int) -> list[Pair]:
    """Return every pair once; the judge's protocol shows it in both orders."""
    return list(itertools.combinations(range(candidates), 2))


def ring(candidates: int, reach: int) -> list[Pair]:
    """Return each candidate with the next `reach` ones on a ring, no pair twice; `reach` 1 asks 2 N judgements."""
    steps = [(i, (i + step) % candidates) for i in range(candidates) for step in range(1, reach + 1)]
    return sorted({(min(pair), max(pair)) for pair in steps if pair[0] != pair[1]})


def rank(
    judge: Judge, prompt: Sequence[Message], images: Sequence[EncodedImage], candidates: Sequence[str], pairs: Sequence[Pair]
) -> Ranking:
    """Let a pairwise judge, whose protocol shows both orders, compare `pairs` of candidates; all ranks must call together."""
    examples = []
    for one, two in pairs:
        name = f"candidates {one} and {two}"
        shown = candidates[one], candidates[two]
        examples.append(Example(name, tuple(images), tuple(prompt), shown, 0, "", "", name, {}))
    return ranking(len(candidates), pairs, judge.judge(examples))


def ranking(candidates: int, pairs: Sequence[Pair], verdicts: Sequence[Verdict]) -> Ranking:
    """Count what each candidate won of the votes that were cast on it."""
    votes = [(pair, vote.names) for pair, verdict in zip(pairs, verdicts, strict=True) for vote in verdict.votes]
    won = Counter(pair[names] for pair, names in votes if names is not None)
    cast = Counter(candidate for pair, _ in votes for candidate in pair)
    shares = tuple(won[i] / max(cast[i], 1) for i in range(candidates))
    order = tuple(sorted(range(candidates), key=lambda i: -shares[i]))
    return Ranking(order, shares, len(votes), sum(names is None for _, names in votes))


def agreement(first: Ranking, second: Ranking) -> float:
    """Return Kendall's tau-a of two rankings of the same candidates: 1 alike, -1 reversed; a tie in either counts 0."""
    one, two = (np.sign(np.subtract.outer(found.shares, found.shares)) for found in (first, second))
    n = len(one)
    return float((one * two).sum() / max(n * (n - 1), 1))
