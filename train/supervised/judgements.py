"""The cold start of a generative judge: records with rationales as judgements to learn, and who is shown first.

A pair is shown in a random order, the winner first in exactly half of an epoch's records (or in both orders, if asked
for); the loss is on the judgement and its end of turn alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.errors import RecordError
from data.mixture import Mixture
from data.preference import Preference, text
from data.prompts import Answer, JudgeTemplate, ask, swapped, write_judgement
from models.encoder import Encoder
from train.supervised.steps import TrainingExample, load

Indices = npt.NDArray[np.int64]


def with_winners(records: npt.NDArray[np.integer], seed: int, epoch: int, *, both: bool = False) -> Indices:
    """Return `2 * record + side` for an epoch's record indices: on side 0 the winner is shown first, on side 1 second.

    Exactly half of the records (the larger half of an odd number) have the winner first, drawn anew for each epoch: one of
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


def judged(record: Preference, answer: Answer) -> tuple[tuple[str, str], str | None]:
    """Return the responses in the order in which `answer` is right, and the record's rationale for that order."""
    rationale = record.rationale
    if answer == 1:
        return (record.chosen, record.rejected), rationale
    return (record.rejected, record.chosen), None if rationale is None else swapped(rationale)


@dataclass(frozen=True, slots=True)
class JudgementEncoder:
    """A preference as one judge's prompt and the judgement to learn; runs in loader workers."""

    encoder: Encoder
    template: JudgeTemplate

    def encode(self, record: Preference, answer: Answer) -> TrainingExample:
        """Encode a record so that `answer` is right; raises RecordError for one without a rationale."""
        shown, rationale = judged(record, answer)
        if rationale is None:
            raise RecordError(
                f"{record.identity}: the record holds no rationale, and a cold start learns from rationales. Annotate the "
                "records first (python eval/annotate.py --help), or train on them with train/rl.py, which needs none."
            )
        request = ask(self.template, record.prompt, *shown)
        conversation = (*request, text("assistant", write_judgement(rationale, answer)))
        group = self.encoder.encode_conversations(record.images, [conversation], None, record.identity, with_loss=1)
        return TrainingExample(group, record=record.identity)


@dataclass(frozen=True, slots=True)
class JudgementRecords:
    """The mixture's epochs as judgements; see `train.supervised.steps.Records`."""

    mixture: Mixture
    encoder: JudgementEncoder
    both: bool = False

    def __len__(self) -> int:
        return self.mixture.epoch_size * (2 if self.both else 1)

    def __getitem__(self, index: int) -> TrainingExample:
        record, side = divmod(index, 2)
        answer: Answer = 1 if side == 0 else 2
        return load(self.mixture, record, lambda found: self.encoder.encode(found, answer))

    def order(self, epoch: int) -> Indices:
        """Return the indices of an epoch, the same on every rank."""
        return with_winners(self.mixture.order(epoch), self.mixture.config.seed, epoch, both=self.both)
