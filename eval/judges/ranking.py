"""From pairwise verdicts to a ranking of N candidates.

`all_pairs` compares every candidate with every other in both orders, as R1-Reward does on MM-RLHF-RewardBench: N (N - 1)
judgements. `ring` compares each with the next `reach` candidates only, in both orders: 2 N x reach judgements. How well the
cheap ranking agrees with the full one is a property of the judge: `agreement` measures it, and a report states it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

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
    examples = [_example(prompt, images, candidates, pair) for pair in pairs]
    return ranking(len(candidates), pairs, judge.judge(examples))


def ranking(candidates: int, pairs: Sequence[Pair], verdicts: Sequence[Verdict]) -> Ranking:
    """Count what each candidate won of the votes that were cast on it."""
    won, cast, unreadable = [0] * candidates, [0] * candidates, 0
    for pair, verdict in zip(pairs, verdicts, strict=True):
        for vote in verdict.votes:
            unreadable += vote.names is None
            for candidate in pair:
                cast[candidate] += 1
                won[candidate] += vote.names is not None and pair[vote.names] == candidate
    shares = tuple(w / max(c, 1) for w, c in zip(won, cast, strict=True))
    order = tuple(sorted(range(candidates), key=lambda i: -shares[i]))
    return Ranking(order, shares, sum(cast) // 2, unreadable)


def agreement(first: Ranking, second: Ranking) -> float:
    """Return Kendall's tau-a of two rankings of the same candidates: 1 alike, -1 reversed; a tie in either counts 0."""
    pairs = all_pairs(len(first.shares))
    signs = [_sign(first, pair) * _sign(second, pair) for pair in pairs]
    return sum(signs) / max(len(pairs), 1)


def _sign(found: Ranking, pair: Pair) -> int:
    one, two = found.shares[pair[0]], found.shares[pair[1]]
    return (one > two) - (one < two)


def _example(prompt: Sequence[Message], images: Sequence[EncodedImage], candidates: Sequence[str], pair: Pair) -> Example:
    name = f"candidates {pair[0]} and {pair[1]}"
    shown = (candidates[pair[0]], candidates[pair[1]])
    return Example(name, tuple(images), tuple(prompt), shown, 0, "", "", name, {})
