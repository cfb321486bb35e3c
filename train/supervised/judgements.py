"""The language-model methods: the cold start of a generative judge, and lessons of the embedded world.

In a cold start records with rationales become judgements to learn. A pair is shown in a random order, the winner first in
exactly half of an epoch's records (or in both orders, if asked for); the loss is on the judgement and its end of turn alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data.errors import RecordError
from data.preference import Preference, text
from data.prompts import Answer, JudgeTemplate, ask, swapped, write_judgement
from eval.judges.generative import GenerativeJudge, by_template
from models.encoder import Encoder
from train.recipe.methods import LanguageModelConfig
from train.supervised.lessons import Lessons
from train.supervised.method import Method, SupervisedMethod, unwrapped
from train.supervised.objectives import LanguageModelling
from train.supervised.steps import Costs, MixtureRecords, TrainingExample, expected_costs

Indices = npt.NDArray[np.int64]


def with_winners(
    records: npt.NDArray[np.integer], seed: int, epoch: int, *, both: bool = False
) -> Indices:
    """Return `2 * record + side` for an epoch's record indices: on side 0 the winner is shown first, on side 1 second.

    Exactly half of the records (the larger half of an odd number) have the winner first, drawn again for each epoch: one of
    every two neighbours, so that a step of even size is even, too. In a step that is not, naming always the same response
    pays, and a policy that once learned to do so explores no more. With `both` every record comes in both orders, in a random
    sequence of twice the length.
    """
    generator = np.random.default_rng([seed, epoch, 7])
    doubled: Indices = 2 * records.astype(np.int64)
    if both:
        twice: Indices = generator.permutation(np.concatenate([doubled, doubled + 1]))
        return twice
    pairs = generator.permuted(np.tile(np.arange(2), (len(records) // 2, 1)), axis=1)
    sides: Indices = np.append(pairs.ravel(), np.zeros(len(records) % 2, np.int64))
    return doubled + sides


def judged(record: Preference, side: int) -> tuple[tuple[str, str], str | None]:
    """Return the responses with the winner first (`side` 0) or second (1), and the record's rationale for that order."""
    if side == 0:
        return (record.chosen, record.rejected), record.rationale
    return (record.rejected, record.chosen), None if record.rationale is None else swapped(
        record.rationale
    )


@dataclass(frozen=True, slots=True)
class JudgementEncoder:
    """A preference as one judge's prompt and the judgement to learn; runs in loader workers."""

    encoder: Encoder
    template: JudgeTemplate

    def __call__(self, record: Preference, side: int) -> TrainingExample:
        """Encode a record with the winner first or second; raises RecordError for one without a rationale."""
        self.encoder.refuse_control_tokens(record)
        shown, rationale = judged(record, side)
        if rationale is None:
            raise RecordError(
                f"{record.identity}: the record holds no rationale, and a cold start learns from rationales. Annotate the "
                "records first (python eval/annotate.py --help), or train on them with train/rl.py, which needs none."
            )
        answer: Answer = 1 if side == 0 else 2
        request = ask(self.template, record.prompt, *shown)
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
        return with_winners(
            self.mixture.order(epoch), self.mixture.config.seed, epoch, both=self.both
        )


def generative_judge(method: Method, template: JudgeTemplate, model: Any) -> GenerativeJudge:
    """Return the judge that writes judgements, as the evaluation section of the recipe says."""
    evaluation = method.recipe.evaluation
    return GenerativeJudge(
        model=unwrapped(model),
        packed=method.packed(),
        sampling=evaluation.judging,
        ask=by_template(template),
        protocol=evaluation.protocol,
    )


class LanguageModelMethod(SupervisedMethod):
    """Supervised fine-tuning of a judge, or of the embedded backbone."""

    config: LanguageModelConfig
    needs_rationale = True

    def prepare(self) -> None:
        """Take lessons, or the mixture's records as judgements."""
        config, self.objective = self.config, LanguageModelling()
        self.encode = JudgementEncoder(self.encoder, config.template)
        if config.target == "lessons":
            self.records = Lessons(config, self.recipe.data.sources[0], self.encoder)
        else:
            self.records = JudgementRecords(self.mixture, self.encode, both=config.both_orders)
            self.costs = Costs(
                np.repeat(expected_costs(self.mixture), 2)
            )  # by index: once for either response shown first

    def judge(self, model: Any) -> GenerativeJudge:
        """Return the judge that writes judgements."""
        return generative_judge(self, self.config.template, model)
