"""Reward models that others released, as judges: each is loaded, asked and read as its authors' code does it.

A row says what no checkpoint says of itself. A generative one has the stock class of its family, in the released key layout or in
the current one; a scalar one brings its head beside it, in `value_head.safetensors`. To add one, add a row to `RELEASED` and its
name to `ReleasedModel`, its texts to `released_templates.py`, and a judge file to `recipes/judges/`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import torch

from mmrm.eval.candidates import Candidates, Ranking, Verdict
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.packed_inference import run_packed
from mmrm.eval.judges.packed_judge import PackedRanker
from mmrm.eval.judges.released.templates import PointTemplate
from mmrm.eval.judges.writing import Judged, WritingJudge
from mmrm.eval.protocol import journal_key
from mmrm.models.encoder import Encoder
from mmrm.models.packing.groups import Group, PackedBatch


@dataclass(frozen=True, slots=True)
class PointEncoder:
    """Encodes one response, up to the place where the judge begins to write; runs in loader workers."""

    encoder: Encoder
    way: PointTemplate

    def __call__(self, one: Candidates) -> Group:
        """Encode it; raises RecordError for an image that cannot be decoded."""
        return self.encoder.encode_conversations(
            one.images, [self.way.ask(one)], None, one.identity
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PointJudge(WritingJudge):
    """A judge that writes about each response by itself and ends with its score; NaN where the text gives none."""

    way: PointTemplate
    seed: int

    @property
    def encode(self) -> PointEncoder:
        """How one response becomes a group."""
        return PointEncoder(self.packed.encoder, self.way)

    @torch.no_grad()
    def judge(self, examples: Sequence[Candidates], journal: Journal = SILENT) -> list[Verdict]:
        """Return the scores of all responses, and what was written of each; all ranks must call together."""
        started, parts = perf_counter(), [list(alone(example)) for example in examples]
        items = [item for part in parts for item in part]
        keys = [
            f"{content}/{place}"
            for content, part in zip(map(journal_key, examples), parts, strict=True)
            for place in range(len(part))
        ]
        with journal.judging(keys, Judged, len(examples)) as judging:
            found = run_packed(
                self.packed, [one for _, one in items], self.encode, self.run, self.cost, judging
            )
        self.spent.add(len(found), ((tokens, cut) for _, tokens, cut in found), started)
        rest = iter(found)
        return [_together([verdict for verdict, _, _ in islice(rest, len(part))]) for part in parts]

    def run(self, batch: PackedBatch, items: Sequence[Candidates]) -> list[Judged]:
        """Return what a row says of its responses."""
        seeds = [f"{self.seed}/{one.key}" for one in items]
        found = []
        for one in self.write(batch, [self.packed.encoder.vision.image], seeds):
            text = self.packed.encoder.tokenizer.decode(one.ids)
            found.append(
                (
                    Verdict(scores=(self.way.read(text),), critiques=(text,)),
                    len(one.ids) + 1,
                    int(one.truncated),
                )
            )
        return found


def alone(candidates: Candidates) -> Iterator[tuple[str, Candidates]]:
    """Yield each response by itself, with its key."""
    for place, response in enumerate(candidates.responses):
        key = f"{candidates.key}/{place}"
        yield (
            key,
            Candidates(key, candidates.images, candidates.prompt, (response,), candidates.identity),
        )


def _together(parts: Sequence[Verdict]) -> Verdict:
    scores = tuple(score for part in parts for score in part.scores or ())
    return Verdict(
        scores=scores, critiques=tuple(text for part in parts for text in part.critiques or ())
    )


def points_ranker(judge: PointJudge) -> PackedRanker[Candidates, Judged]:
    """Return what ranks by written scores; one that cannot be read is 0, as the authors' scripts count it, and `unread`."""

    def join(candidates: Candidates, found: Sequence[Judged]) -> Ranking:
        verdict = _together([one for one, _, _ in found])
        read = [math.isfinite(score) for score in verdict.scores or ()]
        scores = tuple(
            score if known else 0.0 for score, known in zip(verdict.scores or (), read, strict=True)
        )
        return Ranking(scores, verdict.critiques or (), len(read), read.count(False))

    return PackedRanker(
        judge.packed, judge.encode, judge.cost, judge.run, Judged, alone, join, None
    )
