"""The language-model methods: the cold start of a generative judge, and other learned texts.

In a cold start records with rationales become judgements to learn. A pair is shown in a random
order, with the winner first in exactly half of an epoch's records, or in both orders. The loss is on
the judgement and its end of turn alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from mmrm.data.config.registry import load
from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, text
from mmrm.data.prompts import Answer, JudgeTemplate, judge_conversation, write_judgement
from mmrm.data.rationales import obstacle, swapped
from mmrm.eval.judges.generative.judge import GenerativeJudge, by_template
from mmrm.models.distributed import rank
from mmrm.models.encoder import Encoder
from mmrm.train.methods.language_model.config import LanguageModelConfig
from mmrm.train.methods.method import Method, SupervisedMethod
from mmrm.train.supervised.devices import unwrapped
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.steps import (
    Costs,
    MixtureRecords,
    PackedRow,
    TrainingExample,
    expected_costs,
)

Indices = npt.NDArray[np.int64]

RECORDS = {"lessons": "mmrm.train.embedded.lessons:Lessons"}
"""The records of targets other than judgements. Each class takes config, source and encoder."""


def with_winners(
    records: npt.NDArray[np.integer],
    seed: int,
    epoch: int,
    *,
    both: bool = False,
    only_sides: npt.NDArray[np.integer] | None = None,
) -> Indices:
    """Return `2 * record + side` for an epoch's record indices: on side 0 the winner is shown first, on side 1 second.

    Of the records that can be shown on both sides exactly half (the larger half of an odd number)
    have the winner first, drawn again for each epoch: one of every two neighbours, so that a step
    of even size is even, too. In a step that is not, naming always the same response pays, and a
    policy that once learned to do so explores no more. A record that can be shown on one side only
    is shown there, and is no part of this balance.

    Args:
        records: The record indices of the epoch in their order, (records,).
        seed: The mixture's seed; with the epoch it decides every side, on all ranks alike.
        epoch: The number of the epoch.
        both: Return every record in both orders, in a random sequence of twice the length. A record
            that can be shown on one side only is there twice, so that it has the same weight as the
            others.
        only_sides: The side of each of `records` that can be shown on one side only, -1 for the
            others, (records,). None if all can be shown on both.
    """
    generator = np.random.default_rng([seed, epoch, 7])
    if only_sides is None:
        only_sides = np.full(len(records), -1)
    is_free = only_sides < 0
    first = 2 * records.astype(np.int64)
    if both:
        one_order = first + np.where(is_free, 0, only_sides)
        other_order = first + np.where(is_free, 1, only_sides)
        in_both_orders: Indices = generator.permutation(np.concatenate([one_order, other_order]))
        return in_both_orders

    num_free = int(is_free.sum())
    pairs = generator.permuted(np.tile(np.arange(2), (num_free // 2, 1)), axis=1)
    sides = only_sides.astype(np.int64)
    sides[is_free] = np.append(pairs.ravel(), np.zeros(num_free % 2, np.int64))
    return first + sides


def side_shown(record: Preference, side: int) -> int:
    """Return the side on which a record is shown if `side` was drawn for it.

    That is another one if its rationale speaks of the other order and cannot be rewritten. It
    happens only for a record that stands in for one that could not be read: an epoch draws each
    record on a side that it can be shown on.
    """
    if record.rationale is None or obstacle(record.rationale) is None:
        return side
    return 0 if record.first_in_rationale == "chosen" else 1


def shown_responses(record: Preference, side: int) -> tuple[str, str]:
    """Return the responses with the winner first (`side` 0) or second (1)."""
    if side == 0:
        return record.chosen, record.rejected
    return record.rejected, record.chosen


def shown_rationale(record: Preference, side: int) -> str | None:
    """Return a record's rationale for a side that `side_shown` returned; None if it has none."""
    written_for = 0 if record.first_in_rationale == "chosen" else 1
    if record.rationale is None or side == written_for:
        return record.rationale
    rationale = swapped(record.rationale)
    assert rationale is not None, f"{record.identity}: the rationale is for the other order"
    return rationale


@dataclass(frozen=True, slots=True)
class JudgementEncoder:
    """A preference as one judge's prompt and the judgement to learn; runs in loader workers."""

    encoder: Encoder
    template: JudgeTemplate

    def __call__(self, record: Preference, side: int) -> TrainingExample:
        """Encode a record with the winner first or second, or in its rationale's only order.

        Raises: RecordError for a record without a rationale.
        """
        self.encoder.refuse_control_tokens(record)
        side = side_shown(record, side)
        rationale = shown_rationale(record, side)
        if rationale is None:
            raise RecordError(
                f"{record.identity}: the record holds no rationale, and a cold start learns from "
                "rationales. Annotate the records first (python eval/annotate.py --help), or train "
                "on them with train/rl.py, which needs none."
            )
        answer: Answer = 1 if side == 0 else 2
        request = judge_conversation(self.template, record.prompt, *shown_responses(record, side))
        conversation = (*request, text("assistant", write_judgement(rationale, answer)))
        group = self.encoder.encode_conversations(
            record.images, [conversation], None, record.identity, with_loss=1
        )
        return TrainingExample(group, record=record.identity)


@dataclass(frozen=True, slots=True)
class JudgementRecords(MixtureRecords):
    """The mixture's epochs as judgements; an index is that of `with_winners`."""

    both: bool = False

    def __len__(self) -> int:
        return self.mixture.epoch_size * (2 if self.both else 1)

    def __getitem__(self, index: int) -> TrainingExample:
        return self.load(*divmod(index, 2))

    def order(self, epoch: int) -> Indices:
        """Return the indices of an epoch, the same on every rank."""
        records = self.mixture.order(epoch)
        return with_winners(
            records,
            self.mixture.config.seed,
            epoch,
            both=self.both,
            only_sides=self.mixture.rationale_sides[records],
        )


def generative_judge(method: Method, template: JudgeTemplate, model: Any) -> GenerativeJudge:
    """Return the judge that writes judgements, as the evaluation section of the recipe says."""
    evaluation = method.recipe.evaluation
    return GenerativeJudge(
        model=unwrapped(model),
        packed=method.packed(),
        sampling=evaluation.judging,
        ask=by_template(template),
    )


class LanguageModelMethod(SupervisedMethod):
    """Supervised fine-tuning of a judge, or of the embedded backbone."""

    config: LanguageModelConfig
    needs_rationale = True

    def prepare(self) -> None:
        """Make judgements of the mixture's records, or the records of another target."""
        config = self.config
        self.objective = LanguageModelling()
        self.encode = JudgementEncoder(self.encoder, config.template)
        if config.target in RECORDS:
            make_records = load(RECORDS[config.target])
            self.records = make_records(config, self.recipe.data.sources[0], self.encoder)
            return
        self.records = JudgementRecords(self.mixture, self.encode, both=config.both_orders)
        self._print_rationales_of_one_order()
        # An index stands for a record with one of its responses first, so each cost is there twice.
        self.costs = Costs(np.repeat(expected_costs(self.mixture), 2))

    def _print_rationales_of_one_order(self) -> None:
        """Print for each source how many rationales are shown only in the order they have."""
        if rank():
            return
        for part in self.mixture.splits:
            num_one_order = int((part.rationale_sides() >= 0).sum())
            if num_one_order:
                self.console.print(
                    f"{part.config.label}: {num_one_order:,} of {len(part.rows):,} records are shown "
                    "only in the order in which their rationale was written; python data/mixture.py "
                    "RECIPE --plan prints examples",
                    markup=False,
                    highlight=False,
                )

    def judge(self, model: Any) -> GenerativeJudge:
        """Return the judge that writes judgements."""
        return generative_judge(self, self.config.template, model)


class LanguageModelling(Objective):
    """Supervised fine-tuning: cross-entropy on the learned tokens of every continuation."""

    unit = "labels"

    def loss(
        self, model: nn.Module, row: PackedRow, totals: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the row's negative log-likelihood over the step's learned tokens."""
        log_probabilities: Tensor = model(**row.batch.label_inputs())
        loss = -log_probabilities.sum()
        return loss / totals[1], {
            "nll": loss.detach(),
            "labels": totals.new_tensor(len(row.batch.labels)),
        }

    def report(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the perplexity of the learned tokens."""
        return {"perplexity": exp(min(sums["nll"] / max(sums["labels"], 1.0), 50.0))}
