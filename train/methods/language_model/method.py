"""The language-model methods: the cold start of a generative judge, ratings, and other texts.

In a cold start records with rationales become judgements to learn. A pair is shown in a random
order, with the winner first in exactly half of an epoch's records, or in both orders. The loss is
on the judgement and its end of turn alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from mmrm.data.config.registry import load
from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, Response, text
from mmrm.data.prompts import (
    TEMPLATES,
    Answer,
    JudgeTemplate,
    criteria_conversation,
    judge_conversation,
    reading_conversation,
    written_answer,
)
from mmrm.data.rationales import obstacle, swapped
from mmrm.data.rubric import read_rubric, write_criteria
from mmrm.eval.judges.generative.judge import GenerativeJudge, by_template, reader_of
from mmrm.eval.judges.generative.soft_verdicts import WrittenJudgement, verdict_choice
from mmrm.eval.judges.points.judge import point_judge
from mmrm.eval.judges.pointwise import PointJudge
from mmrm.eval.verdict_form import verdict_form_of
from mmrm.models.distributed import rank
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packing.segments import TokenisedConversation, prefix_tree
from mmrm.train.methods.language_model.config import LanguageModelConfig, LossOn
from mmrm.train.methods.language_model.rating_texts import RatingEncoder
from mmrm.train.methods.method import Method, SupervisedMethod
from mmrm.train.supervised.devices import unwrapped
from mmrm.train.supervised.objectives import Objective, perplexity
from mmrm.train.supervised.steps import (
    Costs,
    Encode,
    MixtureRecords,
    PackedRow,
    TrainingExample,
    expected_costs,
)

Indices = npt.NDArray[np.int64]

RECORDS = {"lessons": "mmrm.train.embedded.lessons:Lessons"}
"""The records of targets other than judgements. Each class takes config, source and encoder."""
SIDES_STREAM = 7
"""Separates the draws of sides from other draws with the same seed and epoch."""
BOTH_SIDES = -1
"""Stands for a record that can be shown on both sides, in an array of the only possible sides."""


def indices_with_sides(
    records: npt.NDArray[np.integer],
    seed: int,
    epoch: int,
    *,
    both: bool = False,
    only_sides: npt.NDArray[np.integer] | None = None,
) -> Indices:
    """Draw for every record of an epoch if its winner is shown first (side 0) or second (side 1).

    Exactly half of the records (the larger half of an odd number) have the winner first: one of the
    first and second record, one of the third and fourth, and so on. A step with an even number of
    records is then balanced. In a step that is not, it pays to name always the same response, and a
    policy that has learned to do so explores no more.

    A record that can be shown on one side only is shown there, and is left out of this balance.

    Args:
        records: The record indices of the epoch in their order, (records,).
        seed: The mixture's seed. Seed and epoch decide all sides, so all ranks draw the same.
        epoch: The number of the epoch.
        both: Show every record in both orders. A record that can be shown on one side only is shown
            there twice, so that all records have the same weight.
        only_sides: The side of each record that can be shown on one side only, and BOTH_SIDES for
            the others, (records,). None if all can be shown on both.

    Returns:
        `2 * record + side` for every record, in the order of `records`, (records,). With `both`,
        these numbers for both orders in random sequence, (2 * records,).
    """
    generator = np.random.default_rng([seed, epoch, SIDES_STREAM])
    if only_sides is None:
        only_sides = np.full(len(records), BOTH_SIDES)
    has_both_sides = only_sides == BOTH_SIDES
    winner_first = 2 * records.astype(np.int64)
    if both:
        one_order = winner_first + np.where(has_both_sides, 0, only_sides)
        other_order = winner_first + np.where(has_both_sides, 1, only_sides)
        in_both_orders: Indices = generator.permutation(np.concatenate([one_order, other_order]))
        return in_both_orders

    num_drawn = int(has_both_sides.sum())
    # A row for every two successive records: (0, 1) or (1, 0).
    sides_of_two = generator.permuted(np.tile(np.arange(2), (num_drawn // 2, 1)), axis=1)
    # The last record of an odd number has the winner first.
    side_of_last = np.zeros(num_drawn % 2, np.int64)
    sides = only_sides.astype(np.int64)
    sides[has_both_sides] = np.append(sides_of_two.ravel(), side_of_last)
    return winner_first + sides


def _possible_side(record: Preference, side: int) -> int:
    """Return `side`, or the other side if the record's rationale can be shown only there.

    Such a rationale refers to the responses by their order, and cannot be rewritten for the other
    order. `side` is the wrong one only for a record that replaces an unreadable one: an epoch
    otherwise draws each record on a side that its rationale allows.
    """
    # Without an obstacle the rationale can be rewritten for the other order.
    if record.rationale is None or obstacle(record.rationale) is None:
        return side
    return _side_of_rationale(record)


def _side_of_rationale(record: Preference) -> int:
    """Return the side for which a record's rationale was written: 0 if it saw the winner first."""
    return 0 if record.first_in_rationale == "chosen" else 1


def shown_responses(record: Preference, side: int) -> tuple[Response, Response]:
    """Return a record's responses with the winner first (`side` 0) or second (1)."""
    if side == 0:
        return record.chosen, record.rejected
    return record.rejected, record.chosen


def _shown_rationale(record: Preference, side: int) -> str | None:
    """Return a record's rationale for the order in which its responses are shown.

    Returns None if the record has no rationale.

    Args:
        record: The record.
        side: 0 if the winner is shown first, else 1. It must be a result of `_possible_side`.
    """
    if record.rationale is None or side == _side_of_rationale(record):
        return record.rationale
    rationale = swapped(record.rationale)
    assert rationale is not None, f"{record.identity}: the rationale is for the other order"
    return rationale


@dataclass(frozen=True, slots=True)
class JudgementEncoder:
    """Encodes a preference as a judge's prompt and the judgement to learn, in loader workers."""

    encoder: Encoder
    template: JudgeTemplate
    rubric_parts: tuple[str, ...] = ()
    """Further texts to learn, as in `LanguageModelConfig.rubric_parts`."""

    def __call__(self, record: Preference, side: int) -> TrainingExample:
        """Encode a record with the winner first (`side` 0) or second (1).

        If the rationale of the record fits one order only, this order is used instead.

        Raises:
            RecordError: The record has no rationale, or one that is not in the template's form.
        """
        self.encoder.refuse_control_tokens(record)
        side = _possible_side(record, side)
        rationale = _shown_rationale(record, side)
        if rationale is None:
            raise RecordError(
                f"{record.identity}: the record holds no rationale, and a cold start learns from "
                "rationales. Annotate the records first (python eval/annotate.py --help), or train "
                "on them with train/rl.py, which needs none."
            )
        form = TEMPLATES[self.template].form
        if not form.holds(rationale):
            raise RecordError(
                f"{record.identity}: the rationale is not criteria and checks in the form of "
                f"data/rubric.py, which method.template={self.template} learns. Annotate the "
                f"records with this template (python eval/annotate.py --template {self.template}), "
                "or train with a template without a rubric."
            )
        answer = right_answer(side)
        judgement = form.write(rationale, answer)
        conversations = [judged_pair(self.template, record, side, judgement)]
        if "criteria" in self.rubric_parts:
            conversations.append(self._criteria(record, rationale))
        if "reading" in self.rubric_parts:
            reading = reading_conversation(self.template, record.prompt, rationale)
            verdict = text("assistant", written_answer(answer))
            conversations.append(Conversation((*reading, verdict), loss=True))
        tree = self.encoder.encode_conversations(conversations, None, record.identity)
        return TrainingExample(tree, record=record.identity)

    def _criteria(self, record: Preference, rationale: str) -> Conversation:
        """Return the conversation that writes the criteria of a rationale from the prompt alone."""
        rubric = read_rubric(rationale)
        assert rubric is not None, f"{record.identity}: the rationale is in the template's form"
        request = criteria_conversation(self.template, record.prompt)
        criteria = text("assistant", write_criteria(rubric.criteria).strip())
        return Conversation((*request, criteria), record.images, loss=True, videos=record.videos)


@dataclass(frozen=True, slots=True)
class VerdictEncoder:
    """Encodes a preference as a judge's prompt and a judgement whose rationale is empty.

    A record needs no rationale. If it has one, it is not used.
    """

    encoder: Encoder
    template: JudgeTemplate
    loss_on: LossOn = "answer"
    """The tokens that carry loss: the whole judgement and its end, or those of the verdict."""

    def __call__(self, record: Preference, side: int) -> TrainingExample:
        """Encode a record with the winner first (`side` 0) or second (1)."""
        self.encoder.refuse_control_tokens(record)
        answer = right_answer(side)
        if self.loss_on == "verdict":
            return self._verdict_alone(record, side, answer)
        judgement = TEMPLATES[self.template].form.write("", answer)
        conversation = judged_pair(self.template, record, side, judgement)
        tree = self.encoder.encode_conversations([conversation], None, record.identity)
        return TrainingExample(tree, record=record.identity)

    def _verdict_alone(self, record: Preference, side: int, answer: Answer) -> TrainingExample:
        """Return the tokens up to the verdict, as soft verdicts are read, with loss on the verdict.

        Nothing follows the verdict, because nothing after it is learned.
        """
        question = asked_pair(self.template, record, side)
        tree = self.encoder.encode_conversations([question], None, record.identity)
        (tokens,) = tree.conversations()
        form = verdict_form_of(self.template)
        nothing_written = WrittenJudgement(ids=(), text="")
        choice = verdict_choice(self.encoder.tokenizer, nothing_written, form)
        verdict = choice.alternatives[answer - 1]
        before_verdict = (*tokens.ids, *choice.written)
        first_label = len(before_verdict)
        judged = TokenisedConversation(
            ids=(*before_verdict, *verdict),
            images=tokens.images,
            labels=tuple(range(first_label, first_label + len(verdict))),
        )
        return TrainingExample(prefix_tree([judged]), record=record.identity)


def right_answer(side: int) -> Answer:
    """Return the number of the winner for a record whose winner is shown first (0) or second (1)."""
    return 1 if side == 0 else 2


def asked_pair(template: JudgeTemplate, record: Preference, side: int) -> Conversation:
    """Return the conversation in which a judge is asked about a record.

    Args:
        template: The prompt of the judge.
        record: The record.
        side: 0 if the winner is shown first, else 1.
    """
    first, second = shown_responses(record, side)
    messages = judge_conversation(template, record.prompt, first, second)
    images = (*record.images, *first.images, *second.images)
    videos = (*record.videos, *first.videos, *second.videos)
    return Conversation(messages, images, videos=videos)


def judged_pair(
    template: JudgeTemplate, record: Preference, side: int, judgement: str
) -> Conversation:
    """Return the conversation of `asked_pair` with the judgement that the judge writes.

    The tokens of the judgement, its whole text, carry loss.
    """
    question = asked_pair(template, record, side)
    messages = (*question.messages, text("assistant", judgement))
    return replace(question, messages=messages, loss=True)


@dataclass(frozen=True, slots=True)
class JudgementRecords(MixtureRecords):
    """The records of the mixture as judgements; an index is 2 * (index of the record) + side.

    On side 0 the winner is the first response, on side 1 the second.
    """

    both: bool = False
    """Every epoch has each record in both orders."""
    only_sides: npt.NDArray[np.integer] | None = None
    """The side of each record of the mixture that can be shown on one side only, and BOTH_SIDES for
    the others, (records,). None if all can be shown on both."""

    def __len__(self) -> int:
        return self.mixture.epoch_size * (2 if self.both else 1)

    def __getitem__(self, index: int) -> TrainingExample:
        record_index, side = divmod(index, 2)
        return self.load(record_index, side)

    def order(self, epoch: int) -> Indices:
        """Return the indices of an epoch in their order, the same on every rank."""
        records = self.mixture.order(epoch)
        only_sides = None if self.only_sides is None else self.only_sides[records]
        return indices_with_sides(
            records, self.mixture.config.seed, epoch, both=self.both, only_sides=only_sides
        )


def generative_judge(method: Method, template: JudgeTemplate, model: Any) -> GenerativeJudge:
    """Return a model in training as a judge that writes judgements.

    Args:
        method: The method of the run. Its recipe has the settings of sampling.
        template: The prompt of the judge.
        model: The model; DeepSpeed, DDP or PEFT may have wrapped it.
    """
    evaluation = method.recipe.evaluation
    return GenerativeJudge(
        model=unwrapped(model),
        packed=method.packed(),
        sampling=evaluation.judging,
        ask=by_template(template),
        read=reader_of(template),
        form=verdict_form_of(template),
    )


class LanguageModelMethod(SupervisedMethod):
    """Supervised fine-tuning of a judge, or of the embedded backbone."""

    config: LanguageModelConfig
    needs_rationale = True

    def prepare(self) -> None:
        """Build the encoder, the objective and the records: judgements, verdicts, ratings or lessons."""
        config = self.config
        self.objective = LanguageModelling()
        if config.target == "ratings":
            self.needs_rationale = False
            self.encode = RatingEncoder(
                self.encoder, config.points, config.ratings_from, config.rating, config.loss_on
            )
            self.records = MixtureRecords(self.mixture, self.encode)
            self.costs = Costs(expected_costs(self.mixture))
            return
        if config.target == "verdict":
            self.needs_rationale = False
            self.encode = VerdictEncoder(self.encoder, config.template, config.loss_on)
            self.records = JudgementRecords(self.mixture, self.encode, both=config.both_orders)
            self.costs = Costs(np.repeat(expected_costs(self.mixture), 2))
            return
        self.encode = JudgementEncoder(self.encoder, config.template, tuple(config.rubric_parts))
        if config.target in RECORDS:  # lessons, whose module is imported only if it is needed
            make_records = load(RECORDS[config.target])
            self.records = make_records(config, self.recipe.data.sources[0], self.encoder)
            return
        self.records = JudgementRecords(
            self.mixture,
            self.encode,
            both=config.both_orders,
            only_sides=self.mixture.rationale_sides,
        )
        self._print_rationales_of_one_order()
        # An index is 2 * (index of the record) + side, so each record's cost is there twice.
        self.costs = Costs(np.repeat(expected_costs(self.mixture), 2))

    def _print_rationales_of_one_order(self) -> None:
        """Print for each source how many rationales fit only one order of the two responses."""
        if rank() != 0:
            return
        for split in self.mixture.splits:
            num_one_order = int((split.rationale_sides() != BOTH_SIDES).sum())
            if num_one_order:
                self.console.print(
                    f"{split.config.label}: {num_one_order:,} of {len(split.rows):,} records are "
                    "shown only in the order in which their rationale was written; python "
                    "data/mixture.py RECIPE --plan prints examples",
                    markup=False,
                    highlight=False,
                )

    def held_out_encoder(self) -> Encode:
        """Return the function that encodes a record of data.validation to see if it can be used.

        For ratings, it also refuses a record that has none.
        """
        if self.config.target == "ratings":
            return self.encode
        return super().held_out_encoder()

    def judge(self, model: Any) -> GenerativeJudge | PointJudge:
        """Return the model in training as a judge of two responses, or of single ones."""
        config = self.config
        if config.target != "ratings":
            return generative_judge(self, config.template, model)
        # A judge that answers at once calls the model in its wrappers, as a scalar judge does.
        judging_model = unwrapped(model) if config.points.rationale else model
        sampling = self.recipe.evaluation.judging
        return point_judge(config.points, "expected", judging_model, self.packed(), sampling)


class LanguageModelling(Objective):
    """Supervised fine-tuning: cross-entropy on the learned tokens of every output."""

    unit = "labels"

    def loss(
        self, model: nn.Module, row: PackedRow, totals: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the negative log-likelihood of the row's learned tokens, and sums for the log.

        The negative log-likelihood is divided by the number of learned tokens in the step.

        Args:
            model: The model in its wrappers.
            row: A packed row on the model's device.
            totals: The numbers of records and of learned tokens in the step, (2,) fp32.
        """
        log_probabilities: Tensor = model(**row.batch.label_inputs())
        nll = -log_probabilities.sum()
        num_labels_of_step = totals[1]
        sums = {"nll": nll.detach(), "labels": totals.new_tensor(len(row.batch.labels))}
        return nll / num_labels_of_step, sums

    def report(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the perplexity of the learned tokens."""
        mean_nll = sums["nll"] / max(sums["labels"], 1.0)
        return {"perplexity": perplexity(mean_nll)}
