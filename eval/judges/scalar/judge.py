"""Scalar reward models as judges: one forward pass, and one score to rank each response by.

The reward head may compute further numbers for each response, such as named attributes or a
standard deviation. They are in the results next to the scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from mmrm.data.errors import CheckpointError
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import (
    PackedJudge,
    ResponsesLayout,
    Unit,
    UnitResult,
    joined_attributes,
    joined_values,
    refuse_non_finite,
    units_of_responses,
)
from mmrm.eval.judges.scalar.config import ScalarJudgeConfig
from mmrm.models.backbone import load_scalar
from mmrm.models.config import StoredRead
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.portable.head_columns import HeadColumns, columns_of


@dataclass(frozen=True, kw_only=True)
class ScalarJudge(PackedJudge):
    """A scalar reward model: the response with the higher score is the better one."""

    model: nn.Module
    """The model in eval mode. It may be wrapped by DeepSpeed or DDP."""
    read: StoredRead
    """The token of a response at which the head reads its score."""
    columns: HeadColumns
    """The numbers that the head computes for each response."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores each response, and neither compares nor writes."""
        return JudgeInfo()

    @property
    def layout(self) -> ResponsesLayout:
        """The function that makes the conversations about some of the responses to a prompt."""
        return ResponsesLayout(self.read)

    @property
    def can_divide_units(self) -> bool:
        """True: the server may divide the responses of a unit over several rows.

        A score depends only on the prompt and its own response.
        """
        return True

    def units(self, candidates: Candidates) -> list[Unit]:
        """Divide the responses to a prompt into units that fit into a packed row.

        The responses of a unit are judged together. The responses of a benchmark's row are always
        one unit.
        """
        is_benchmark = self.protocol is not None
        budget = None if is_benchmark else self.packed.token_budget
        return list(units_of_responses(candidates, budget, self.packed.encoder.image_tokens))

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Run the model on a packed row, and return one result for each unit in the row.

        A result has the fp32 scores of the unit's responses, and the further numbers of the head.
        """
        output = self.model(**batch.score_inputs())
        columns = output.reshape(-1, len(self.columns.names))
        scores = self.columns.ranking_scores(columns).tolist()
        attributes: dict[str, list[float]] = {}
        for name, values in self.columns.attributes(columns).items():
            attributes[name] = values.tolist()

        results: list[UnitResult] = []
        start = 0
        for unit in units:
            end = start + len(unit.shown)
            unit_attributes = {
                name: tuple(values[start:end]) for name, values in attributes.items()
            }
            results.append(UnitResult(values=tuple(scores[start:end]), attributes=unit_attributes))
            start = end
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all responses to a prompt, and the further numbers of the head.

        The arguments are those of `PackedJudge.merge`.

        Raises: NonFiniteError if a number is not finite and this is not the judge of a benchmark.
        """
        values = joined_values(results)
        attributes = joined_attributes(results)
        if self.protocol is None:
            refuse_non_finite(candidates, values)
            for numbers in attributes.values():
                refuse_non_finite(candidates, numbers)
        return Scores(values, attributes=attributes)


def load_scalar_judge(path: Path, runtime: Runtime, config: ScalarJudgeConfig) -> ScalarJudge:
    """Load the scalar reward model that `config` names, and return it as a judge.

    `path` is the checkpoint folder, or the YAML file that names a checkpoint of another trainer.
    The latter gets a head of one layer if its own files describe none.
    """
    load_model = load_scalar
    is_yaml_file = path.is_file()
    if is_yaml_file:
        expected_head = ScoreHeadConfig(layers=1, activation="none", read=config.read)
        load_model = partial(load_scalar, head=expected_head)
    checkpoint = load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_model)
    if "joint_responses" in vars(checkpoint.model.config):
        raise CheckpointError(
            f"{path}: {config.checkpoint} was trained to score all responses in one conversation. "
            "Scored one by one, as a judge of type scalar does, its scores mean nothing. Write "
            "`type: joint`, or give the folder itself."
        )
    head = checkpoint.model.config.reward_head
    return ScalarJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        read=head["read"],
        columns=columns_of(head),
        about=checkpoint.notes,
    )
