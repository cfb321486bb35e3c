"""Scalar reward models as judges: one forward pass, one score for each response."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from torch import nn

from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import (
    PackedJudge,
    ResponsesLayout,
    Unit,
    UnitResult,
    joined_values,
    refuse_non_finite,
    units_of_responses,
)
from mmrm.eval.judges.scalar.config import ScalarJudgeConfig
from mmrm.models.backbone import load_scalar
from mmrm.models.config import HeadConfig, StoredRead
from mmrm.models.packing.groups import PackedBatch


@dataclass(frozen=True, kw_only=True)
class ScalarJudge(PackedJudge):
    """A scalar reward model: the response with the higher score is the better one."""

    model: nn.Module
    """May be wrapped by DeepSpeed or DDP; in eval mode."""
    read: StoredRead
    """The token of a response at which the head reads its score."""

    @property
    def info(self) -> JudgeInfo:
        """A scalar reward model neither compares nor writes."""
        return JudgeInfo()

    @property
    def layout(self) -> ResponsesLayout:
        """The prompt once, then the responses."""
        return ResponsesLayout(self.read)

    @property
    def units_share_groups(self) -> bool:
        """True: a score depends on the prompt and its own response only."""
        return True

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return the responses in groups that fit into a row; a benchmark's row is one group."""
        budget = self.packed.token_budget if self.protocol is None else None
        return list(units_of_responses(candidates, budget))

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Return the score of each response, an fp32 value."""
        scores = iter(self.model(**batch.score_inputs()).tolist())
        return [UnitResult(values=tuple(islice(scores, len(unit.shown)))) for unit in units]

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all units."""
        values = joined_values(results)
        if self.protocol is None:
            refuse_non_finite(candidates, values)
        return Scores(values)


def load_scalar_judge(path: Path, runtime: Runtime, config: ScalarJudgeConfig) -> ScalarJudge:
    """Return the scalar reward model that `config` names.

    A checkpoint that a YAML file names may be another trainer's: it gets that trainer's head if its
    own files describe none.
    """
    load_model = load_scalar
    if path.is_file():
        head = HeadConfig(layers=1, activation="none", read=config.read)
        load_model = partial(load_scalar, head=head)
    checkpoint = load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_model)
    return ScalarJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        read=checkpoint.model.config.reward_head["read"],
        about=checkpoint.notes,
    )
