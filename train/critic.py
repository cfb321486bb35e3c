"""The critic's training: critiques by cross-entropy and scores by Bradley-Terry, from one pass over a packed row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor, nn

from data.critiques import critiques_of, with_critique
from data.images import decode
from data.mixture import Mixture
from data.preference import Preference, text
from models.distributed import gather, rank, world_size
from models.encoder import Encoder, Learned, Span
from train.losses import pair_loss
from train.methods import CriticConfig
from train.objectives import score_report, score_sums
from train.steps import Encoded, Row

Critiques = Callable[[Preference], tuple[str, str] | None]
"""The critiques on which a record is scored; None for a record that has none."""


class MissingCritiquesError(ValueError):
    """Records without critiques where the recipe wants them; the message counts them and says what to do."""


@dataclass(frozen=True, slots=True)
class CriticEncoder:
    """A preference as one group `prompt | response, request, critique | response, request, critique`, chosen first.

    The critiques are the record's, and their tokens are learned. A record that is to be scored on critiques by the model
    gets two more continuations with those, which are not learned. A record without any critique is scored after the bare
    responses.
    """

    encoder: Encoder
    request: str
    written: Critiques | None = None
    """Critiques by the model for the records that are to be scored on its own; None, or a None from it: the ground truth."""

    def __call__(self, record: Preference) -> Encoded:
        """Decode the images and encode both continuations."""
        pictures = [decode(image, record.identity) for image in record.images]
        true, own = critiques_of(record), None if self.written is None else self.written(record)
        conversations = self._criticised(record, true, "last") + self._criticised(record, own, "none") or self._bare(record)
        group = self.encoder.encode(pictures, conversations, "end_of_turn")
        return Encoded(group, record.margin or 0.0, record=record.identity, own_critiques=own is not None)

    def _criticised(self, record: Preference, critiques: tuple[str, str] | None, learned: Learned) -> list[tuple[Span, ...]]:
        if critiques is None:
            return []
        return [
            self.encoder.render(with_critique(record.prompt, response, self.request, critique), learned=learned)
            for response, critique in zip((record.chosen, record.rejected), critiques, strict=True)
        ]

    def _bare(self, record: Preference) -> list[tuple[Span, ...]]:
        return [
            self.encoder.render((*record.prompt, text("assistant", response))) for response in (record.chosen, record.rejected)
        ]


class JointCritique:
    """Cross-entropy on critique tokens plus Bradley-Terry after them (MM-RLHF, arXiv 2502.10391, section 4)."""

    def __init__(self, config: CriticConfig) -> None:
        self.config = config
        self.step = 0

    def totals(self, row: Row) -> Tensor:
        """Return the pairs and the learned tokens of the row, (2,)."""
        return torch.tensor([row.records, len(row.batch.labels)], dtype=torch.float32)

    def loss(self, model: nn.Module, row: Row, totals: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return both losses, each over its own total of the step, weighted as the recipe says."""
        scores, log_probabilities = model(**row.batch.joint_inputs())
        surprise = -log_probabilities.sum()
        critique = self.config.cross_entropy_weight * surprise / totals[1]
        if not row.records:
            return critique + scores.sum() * 0.0, {}
        pairs = scores.view(-1, 2)
        last = torch.tensor(row.batch.group_sizes, device=scores.device).cumsum(0) // 2 - 1
        chosen, rejected = pairs[last].unbind(1)
        margins = row.margins if self.config.margin else None
        ranking = pair_loss(chosen, rejected, margins, self.config.zero_coefficient).sum()
        weight = self.config.score_weight if self.step >= self.config.score_warmup_steps else 0.0
        sums = {"surprise": surprise.detach(), "labels": totals.new_tensor(len(row.batch.labels)), "ranking": ranking.detach()}
        right = critique_sums(pairs.detach(), last, row)
        return critique + weight * ranking / totals[0], {**sums, **right, **score_sums(chosen.detach(), rejected.detach())}

    def report(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return both losses, the critiques' perplexity, accuracy by critique, and the figures of the scored pairs."""
        figures = {"loss_score": sums["ranking"] / max(sums["records"], 1.0), **score_report(sums)}
        if sums["labels"]:
            critique = sums["surprise"] / sums["labels"]
            figures |= {"loss_critique": critique, "perplexity": exp(min(critique, 50.0))}
        for kind in ("true", "own"):
            if sums[f"{kind}_pairs"]:
                figures[f"accuracy_{kind}_critique"] = sums[f"{kind}_right"] / sums[f"{kind}_pairs"]
        return figures

    def mean_loss(self, sums: Mapping[str, float]) -> float:
        """Return both losses as the recipe weighs them, the score's without its warm-up: checkpoints are compared by it."""
        critique, ranking = sums["surprise"] / max(sums["labels"], 1.0), sums["ranking"] / max(sums["records"], 1.0)
        return self.config.cross_entropy_weight * critique + self.config.score_weight * ranking


def critique_sums(pairs: Tensor, last: Tensor, row: Row) -> dict[str, Tensor]:
    """Count pairs, and those ranked right, with the records' critiques (their tokens are learned) and with the model's own.

    `pairs` (P, 2) fp32 are the scores of all pairs of the row, `last` (records,) int64 those that are trained on.
    """
    right = pairs[:, 0] > pairs[:, 1]
    true = torch.zeros_like(right).index_fill_(0, row.batch.label_owners // 2, True)
    own = torch.zeros_like(right).index_fill_(0, last[row.own_critiques], True)
    return {
        f"{kind}_{name}": (mask & what).sum()
        for kind, mask in (("true", true), ("own", own))
        for name, what in (("pairs", mask), ("right", right))
    }


def refuse_missing_critiques(mixture: Mixture) -> None:
    """Refuse the mixture if some records lack a critique; raises MissingCritiquesError with their number.

    All ranks call together and read a share of the records each. Records of a generator are all alike: one of them is read.
    """
    missing: list[int] = []
    start = 0
    for part in mixture.parts:
        records = range(start, start + len(part.rows))
        read = records[:1] if part.source.generated else records[rank() :: world_size()]
        missing += [index for index in read if critiques_of(mixture[index]) is None]
        start = records.stop
    missing = sorted(index for part_of_rank in gather(missing) for index in part_of_rank)
    if missing:
        raise MissingCritiquesError(
            f"{len(missing):,} of {len(mixture):,} records have no critique of both responses (the first: "
            f"{mixture[missing[0]].identity}). A critic learns from them. Add chosen_critique and rejected_critique to the "
            "records, or set method.records_without_critique: score_only to train their scores alone."
        )
