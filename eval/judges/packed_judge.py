"""Any number of responses to one prompt, scored or compared in pairs, and brought into an order.

A reward model and a critic score each response. A judge that compares holds a tournament: every two responses meet twice, each
shown first once, which is N (N - 1) judgements; a response's score is the share of its judgements that name it, one that cannot
be read counting half for both.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar

import torch

from mmrm.data.errors import NonFiniteError, RecordError
from mmrm.data.preference import control_token, texts
from mmrm.eval.candidates import Candidates, Ranking, Verdict
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.packed_inference import Cost, Packed, run_packed
from mmrm.eval.protocol import journal_key
from mmrm.models.packing.groups import Group, PackedBatch

Item = TypeVar("Item")

Found = TypeVar("Found")


BYTES_A_TOKEN = 3
"""Of a response, to estimate before it is tokenised how many fit into a row; rather too few than too many."""


@dataclass(frozen=True, slots=True)
class PackedRanker(Generic[Item, Found]):
    """A model on packed rows, in the steps of ranking: a server takes them apart, `rank` runs them all."""

    packed: Packed
    encode: Callable[[Item], Group]
    cost: Cost
    run: Callable[[PackedBatch, Sequence[Item]], Sequence[Found]]
    kind: Any
    """Type of what `run` finds of an item, for a journal."""
    cut: Callable[[Candidates], Iterator[tuple[str, Item]]]
    """What is encoded as a group each, with a key."""
    join: Callable[[Candidates, Sequence[Found]], Ranking]
    share: Callable[[Found, slice], Found] | None
    """Returns what `run` found of some of the responses, where responses to equal prompts may be judged as one group."""

    def split(self, candidates: Candidates) -> list[tuple[str, Item]]:
        """Return what is encoded as a group each, with a key; raises RecordError for a control token in a text."""
        for content in (
            *("".join(texts([turn])) for turn in candidates.prompt),
            *candidates.responses,
        ):
            if token := control_token(content, self.packed.encoder.control_tokens):
                raise RecordError(
                    f"{candidates.identity}: a text contains {token!r}, which the tokenizer reads as a control token, not as "
                    "text. Remove it."
                )
        return list(self.cut(candidates))

    @torch.no_grad()
    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each, in order; all ranks must call together.

        Raises: RecordError for what cannot be encoded; NonFiniteError for a score that is no finite number.
        """
        parts = [self.split(one) for one in candidates]
        items = [item for part in parts for _, item in part]
        keys = [
            f"{content}/{key}"
            for content, part in zip(map(journal_key, candidates), parts, strict=True)
            for key, _ in part
        ]
        with journal.judging(keys, self.kind, len(candidates)) as judging:
            found = iter(run_packed(self.packed, items, self.encode, self.run, self.cost, judging))
        return [
            self.join(one, list(islice(found, len(part))))
            for one, part in zip(candidates, parts, strict=True)
        ]


def _cut(budget: int, candidates: Candidates) -> Iterator[tuple[str, Candidates]]:
    """Cut candidates into groups whose responses fit into a row by their estimated tokens, one response at least."""
    responses, start, used = candidates.responses, 0, 0
    for place, response in enumerate(responses):
        tokens = len(response.encode(errors="surrogatepass")) // BYTES_A_TOKEN + 1
        if place > start and used + tokens > budget:
            yield _part(candidates, start, place)
            start, used = place, 0
        used += tokens
    yield _part(candidates, start, len(responses))


def _part(candidates: Candidates, start: int, end: int) -> tuple[str, Candidates]:
    """Return some of the responses as candidates, with their key in a journal.

    Which responses are judged together depends on the token budget, so that the key names them.
    """
    if end - start == len(candidates.responses):
        return candidates.key, candidates
    label = f"{candidates.key}/{start}"
    part = replace(candidates, key=label, responses=candidates.responses[start:end])
    return f"{label}-{end}", part


def _share(verdict: Verdict, places: slice) -> Verdict:
    critiques = verdict.critiques and verdict.critiques[places]
    return replace(verdict, scores=verdict.scores and verdict.scores[places], critiques=critiques)


def _scored(candidates: Candidates, found: Sequence[Verdict]) -> Ranking:
    scores = tuple(score for verdict in found for score in verdict.scores or ())
    wrong = [place for place, score in enumerate(scores) if not math.isfinite(score)]
    if wrong:
        raise NonFiniteError(
            f"{candidates.identity}: the scores of the responses {wrong[:9]} are no finite numbers (the first is "
            f"{scores[wrong[0]]}). The checkpoint is broken, or computes in a dtype that overflows: take another one."
        )
    return Ranking(scores, tuple(text for verdict in found for text in verdict.critiques or ()))
