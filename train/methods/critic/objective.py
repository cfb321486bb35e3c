"""The critic: critiques by cross-entropy and scores by Bradley-Terry, from one pass over a packed row.

The scores may be trained on critiques that the critic itself writes at stated steps, to close the gap to inference. At the first
step of every window of `refresh_every_steps` steps, all ranks write the critiques of the window's records together and store
them in the run folder; loader workers, which run ahead, wait for that file. A resume inside a window finds the file and goes on
with the very same critiques; files of other windows are left from what the run did before it was cut off, perhaps with another
recipe, and are removed when it starts. Critiques are stored under a digest of their record, as two sources may call different
records alike.
"""

from collections.abc import Mapping
from math import exp

import torch
from torch import Tensor, nn

from mmrm.train.methods.critic.config import CriticConfig
from mmrm.train.supervised.objectives import Objective, pair_loss, score_report, score_sums
from mmrm.train.supervised.steps import PackedRow


class JointCritique(Objective):
    """Cross-entropy on critique tokens plus Bradley-Terry after them (MM-RLHF, arXiv 2502.10391, section 4)."""

    def __init__(self, config: CriticConfig) -> None:
        self.config = config

    def loss(
        self, model: nn.Module, row: PackedRow, totals: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return both losses, each over its own total of the step, weighted as the recipe says."""
        scores, log_probabilities = model(**row.batch.joint_inputs())
        nll = -log_probabilities.sum()
        critique = self.config.cross_entropy_weight * nll / totals[1]
        if not row.records:
            return critique + scores.sum() * 0.0, {}
        pairs = scores.index_select(0, row.places).view(-1, 2)
        last = row.counts.cumsum(0) // 2 - 1
        chosen, rejected = pairs[last].unbind(1)
        margins = row.margins if self.config.margin else None
        ranking = pair_loss(chosen, rejected, margins, self.config.zero_coefficient).sum()
        weight = self.config.score_weight if self.step >= self.config.score_warmup_steps else 0.0
        sums = {
            "nll": nll.detach(),
            "labels": totals.new_tensor(len(row.batch.labels)),
            "ranking": ranking.detach(),
        }
        right = critique_sums(pairs.detach(), last, row)
        return critique + weight * ranking / totals[0], {
            **sums,
            **right,
            **score_sums(chosen.detach(), rejected.detach()),
        }

    def report(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return both losses, the critiques' perplexity, accuracy by critique, and the figures of the scored pairs."""
        figures = {"loss_score": sums["ranking"] / max(sums["records"], 1.0), **score_report(sums)}
        if sums["labels"]:
            critique = sums["nll"] / sums["labels"]
            figures |= {"loss_critique": critique, "perplexity": exp(min(critique, 50.0))}
        for kind in ("true", "own"):
            if sums[f"{kind}_pairs"]:
                figures[f"accuracy_{kind}_critique"] = sums[f"{kind}_right"] / sums[f"{kind}_pairs"]
        return figures

    def mean_loss(self, sums: Mapping[str, float]) -> float:
        """Return both losses as the recipe weighs them, the score's without its warm-up: checkpoints are compared by it."""
        critique, ranking = (
            sums["nll"] / max(sums["labels"], 1.0),
            sums["ranking"] / max(sums["records"], 1.0),
        )
        return self.config.cross_entropy_weight * critique + self.config.score_weight * ranking


def critique_sums(pairs: Tensor, last: Tensor, row: PackedRow) -> dict[str, Tensor]:
    """Count pairs, and those ranked right, with the records' critiques (their tokens are learned) and with the model's own.

    `pairs` (P, 2) fp32 are the scores of all pairs of the row, `last` (records,) int64 those that are trained on.
    """
    right = pairs[:, 0] > pairs[:, 1]
    learned = right.new_zeros(sum(row.batch.group_sizes)).index_fill_(
        0, row.batch.label_owners, True
    )
    true = learned[row.places].view(-1, 2)[:, 0]
    own = torch.zeros_like(right).index_fill_(0, last[row.own_critiques], True)
    return {
        f"{kind}_{name}": (mask & what).sum()
        for kind, mask in (("true", true), ("own", own))
        for name, what in (("pairs", mask), ("right", right))
    }
