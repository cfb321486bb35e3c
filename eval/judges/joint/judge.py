"""Joint reward models as judges: all responses in one conversation, each scored at its own end.

A response sees the responses before it, so that a score depends on the order of the responses. The
judge therefore reads them in several orders, one conversation for each, and averages the scores of
a response over the orders. What the conversations have in common, the prompt and its images, is
computed once.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from torch import nn

from mmrm.data.display.console import say_on_first_rank
from mmrm.data.errors import CheckpointError, RecordError
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.checkpoint import LoadedCheckpoint, Runtime, load_checkpoint
from mmrm.eval.judges.joint.config import JointJudgeConfig
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import (
    PackedJudge,
    Unit,
    UnitResult,
    refuse_non_finite,
)
from mmrm.eval.judges.registry import judge_config
from mmrm.models.backbone import load_scalar
from mmrm.models.config import StoredRead
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.orders import rotations


@dataclass(frozen=True, slots=True)
class JointLayout:
    """Makes the conversation for a model that scores several responses together."""

    read: StoredRead
    """The token of each response at which its score is read."""

    def __call__(self, unit: Unit) -> tuple[list[Conversation], StoredRead]:
        """Return a single conversation, which ends with all responses of the unit.

        The second value is the token of a response at which its score is read.
        """
        candidates = unit.candidates
        conversation = Conversation.answered(
            candidates.prompt, candidates.images, *unit.responses, videos=candidates.videos
        )
        return [conversation], self.read


@dataclass(frozen=True, slots=True)
class JointUnitEncoder:
    """Encodes responses to a prompt in one order as one conversation.

    It runs in loader workers, so it holds no model.
    """

    encoder: Encoder
    layout: JointLayout
    largest_cost: int | None
    """Largest cost of a conversation with several responses, in tokens; None for no limit."""

    def __call__(self, unit: Unit) -> SegmentTree:
        """Return a conversation as a tree of token ids and pixels, with an output for each response.

        Raises: RecordError if an image cannot be decoded, or if several responses in one
        conversation do not fit into a packed row.
        """
        [conversation], read = self.layout(unit)
        candidates = unit.candidates
        num_responses = len(unit.shown)
        tree = self.encoder.encode_joint(conversation, num_responses, read, candidates.identity)
        if num_responses == 1 or self.largest_cost is None or tree.cost <= self.largest_cost:
            return tree
        raise RecordError(
            f"{candidates.identity}: the prompt with all {num_responses} responses takes "
            f"{tree.cost:,} tokens of a row, its images' patches among them, and a row holds "
            f"{self.largest_cost:,}. A joint reward model reads all responses in one row. Give "
            "fewer responses at a time, or raise --token-budget."
        )


@dataclass(frozen=True, kw_only=True)
class JointJudge(PackedJudge):
    """A reward model that scores all responses to a prompt in one conversation."""

    model: nn.Module
    """The model in eval mode. It may be wrapped by DeepSpeed or DDP."""
    read: StoredRead
    """The token of a response at which the head reads its score."""
    most_trained: int
    """Largest number of responses of a conversation in training."""
    orders: int
    """Largest number of orders in which the responses to a prompt are read."""
    seed: int = 0
    """Seed of the orders of people's own responses."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores all responses together, and writes nothing."""
        return JudgeInfo(joint=True)

    @property
    def layout(self) -> JointLayout:
        """The function that makes the conversation with responses in one order."""
        return JointLayout(self.read)

    @property
    def encode(self) -> Callable[[Unit], SegmentTree]:
        """The function that encodes responses in one order for the model.

        A benchmark's rows have a fixed number of responses. One that does not fit into the token
        budget gets a packed row of its own, as with other judges.
        """
        is_benchmark = self.protocol is not None
        largest_cost = None if is_benchmark else self.packed.token_budget
        return JointUnitEncoder(self.packed.encoder, self.layout, largest_cost)

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return a unit for each order in which the responses to a prompt are read."""
        num_responses = len(candidates.responses)
        if self.protocol is None and num_responses > self.most_trained:
            _say_more_than_trained(num_responses, self.most_trained)
        units: list[Unit] = []
        for order in self.orders_of(candidates):
            key = "-".join(map(str, order))
            units.append(Unit(key, candidates, shown=order))
        return units

    def orders_of(self, candidates: Candidates) -> list[tuple[int, ...]]:
        """Return the orders in which the responses to a prompt are read, as indices of responses.

        A benchmark's protocol decides the orders of two responses. Otherwise the orders are
        `rotations` of an order that is drawn for the prompt.
        """
        num_responses = len(candidates.responses)
        if candidates.presentations and num_responses == 2:
            # Several rounds of votes repeat the orders, and with them the scores.
            return list(dict.fromkeys(candidates.presentations))
        seed = self.seed if self.protocol is None else self.protocol.seed
        first_order = list(range(num_responses))
        random.Random(f"{seed}/{candidates.key}").shuffle(first_order)
        return rotations(first_order, self.orders)

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Run the model on a packed row, and return one result for each unit in the row.

        A result has the fp32 scores of the unit's responses, in the order in which they are shown.
        """
        scores = iter(self.model(**batch.score_inputs()).tolist())
        results: list[UnitResult] = []
        for unit in units:
            unit_scores = tuple(islice(scores, len(unit.shown)))
            results.append(UnitResult(values=unit_scores))
        return results

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all responses to a prompt, each the mean over the orders.

        The arguments are those of `PackedJudge.merge`.

        Raises: NonFiniteError if a score is not finite and this is not the judge of a benchmark.
        """
        sums = [0.0] * len(candidates.responses)
        for unit, result in zip(units, results, strict=True):
            for index, value in zip(unit.shown, result.values, strict=True):
                sums[index] += value
        values = tuple(total / len(units) for total in sums)
        if self.protocol is None:
            refuse_non_finite(candidates, values)
        return Scores(values)

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return notes on the orders, and on rows with more responses than in training."""
        note = (
            "All responses to a prompt are read in one conversation, and scores are averaged over "
            f"the orders of the protocol, or over at most {self.orders} orders of three or more "
            "responses."
        )
        notes = [*self.about, note]
        counts = [len(row_scores.values) for row_scores in scores]
        num_larger = sum(count > self.most_trained for count in counts)
        if num_larger:
            notes.append(
                f"{num_larger:,} of {len(counts):,} rows have more than {self.most_trained} "
                f"responses, up to {max(counts)}. The checkpoint was trained on at most "
                f"{self.most_trained} in one conversation."
            )
        return tuple(notes)


@cache
def _say_more_than_trained(num_responses: int, most_trained: int) -> None:
    """Print once that more responses are scored together than in training."""
    say_on_first_rank(
        f"Note: {num_responses} responses are scored in one conversation, and the checkpoint was "
        f"trained on at most {most_trained}. Their scores may be less accurate. Give at most "
        f"{most_trained} responses at a time, or train with a larger method.responses."
    )


def load_joint_judge(path: Path, runtime: Runtime, config: JointJudgeConfig) -> JointJudge:
    """Load the joint reward model that `config` names, and return it as a judge.

    `path` is the folder or YAML file of the judge, for messages.

    Raises: CheckpointError if the checkpoint is of another kind of judge.
    """
    folder = Path(config.checkpoint).expanduser()
    judge_type = judge_config(folder).type
    if judge_type != "joint":
        raise CheckpointError(
            f"{path}: {folder} is a {judge_type!r} judge, which was not trained to read several "
            "responses in one conversation. Give a checkpoint of `method: joint`."
        )
    checkpoint = load_checkpoint(folder, runtime, load_scalar)
    return JointJudge(
        model=checkpoint.model,
        packed=checkpoint.packed,
        read=checkpoint.model.config.reward_head["read"],
        most_trained=_most_trained(checkpoint),
        orders=config.orders,
        seed=config.seed,
        about=checkpoint.notes,
    )


def _most_trained(checkpoint: LoadedCheckpoint) -> int:
    """Return the largest number of responses of a conversation in a checkpoint's training.

    It is in the judge card, because adapters have no config.json, and in the config.json of a
    checkpoint with all weights, which may have been copied without its card.
    """
    if checkpoint.card is not None and checkpoint.card.joint_responses is not None:
        return checkpoint.card.joint_responses
    from_config: int = checkpoint.model.config.joint_responses
    return from_config
