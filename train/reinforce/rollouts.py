"""The prompts of a reinforcement-learning run in the order in which they are trained on.

A subclass of `RunPrompts` makes prompts from pairs, for a judge, or from questions, for a policy.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import numpy as np
from PIL.Image import Image

from mmrm.data.errors import RecordError
from mmrm.data.images import decode
from mmrm.data.preference import Message, Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import Answer, question
from mmrm.models.encoder import Encoder
from mmrm.models.packing.groups import Group
from mmrm.train.methods.language_model.method import Indices


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a run. Its place is its position in the order of all prompts of the run."""

    group: Group
    """The whole prompt with its images, and no continuation."""
    images: tuple[Image, ...]
    """For engines that encode images themselves."""
    winner: Answer | None
    """The better response of a judge's pair; None for a policy."""
    shown: str
    """The question, or the judge's request, for tables of examples."""
    place: int
    """The position in the order of all prompts of the run. The sampled texts depend on it."""
    record: str
    """The record's identity, for tables of examples."""
    question: Preference | None = None
    """The record that a policy is asked about, for its reward. It is not kept in checkpoints."""


def deal_places(
    num_batches: int, steps_per_batch: int, records_per_step: int, num_ranks: int
) -> Indices:
    """Return the places of a run's prompts in the order in which trl hands them out, (places,) int64.

    trl gives each rank a contiguous block of every rollout batch, and each optimizer step a
    contiguous part of every rank's block. The places are dealt so that step k of the run trains on
    the places from `k * records_per_step` up to `(k + 1) * records_per_step` on any number of
    ranks that divides `records_per_step`.

    Example: two steps a batch, four records a step, two ranks. The first batch is
    [0, 1, 4, 5, 2, 3, 6, 7]. Rank 0 takes 0, 1, 4, 5, and its first step trains on 0 and 1. Rank 1
    takes 2, 3, 6, 7, and its first step trains on 2 and 3.
    """
    places = np.arange(num_batches * steps_per_batch * records_per_step)
    by_step = places.reshape(num_batches, steps_per_batch, num_ranks, records_per_step // num_ranks)
    by_rank = by_step.swapaxes(1, 2)
    return by_rank.ravel()


@dataclass
class RunPrompts(ABC):
    """All prompts of a run, by their place, which is the position over all epochs of the mixture.

    A prompt of more than `max_tokens` tokens is counted, and replaced by the next record of its
    source.
    """

    mixture: Mixture
    encoder: Encoder
    max_tokens: int
    too_long: int = field(default=0, kw_only=True)
    _order: tuple[int, Indices] | None = field(default=None, repr=False, kw_only=True)

    def __getitem__(self, place: int) -> Prompt:
        epoch, position = divmod(place, self.mixture.epoch_size)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self.order(epoch)
        return self.load(int(self._order[1][position]), place)

    @abstractmethod
    def order(self, epoch: int) -> Indices:
        """Return the indices of the prompts of an epoch, in their order."""

    @abstractmethod
    def load(self, index: int, place: int) -> Prompt:
        """Return the prompt of one of the indices that `order` returns."""

    def encode(self, record: Preference, request: tuple[Message, ...], place: int) -> Prompt:
        """Return the prompt that asks `request` about a record.

        Raises:
            RecordError: If it is too long or cannot be used.
        """
        self.encoder.refuse_control_tokens(record)
        images = tuple(decode(image, record.identity) for image in record.images)
        encoded = self.encoder.encode(images, [self.encoder.render(request)], None)
        ids = encoded.prompt_ids + encoded.continuations[0].ids
        if len(ids) > self.max_tokens:
            self.too_long += 1
            raise RecordError(
                f"{record.identity}: the prompt has {len(ids)} tokens, method.max_prompt_tokens "
                f"allows {self.max_tokens}"
            )
        group = replace(encoded, prompt_ids=ids, continuations=())
        return Prompt(group, images, None, question(request), place, record.identity)
