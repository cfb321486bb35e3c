"""The prompts of a reinforcement-learning run in the order in which they are trained on.

A subclass of `RunPrompts` makes prompts from pairs, for a judge, or from questions, for a policy. A
record's place is its position among all records of the run, over all epochs. Most records have one
prompt. A pair has two if its texts are sampled from both orders of its responses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL.Image import Image

from mmrm.data.encoded_video import Video
from mmrm.data.errors import RecordError
from mmrm.data.images import decode
from mmrm.data.preference import EncodedImage, Message, Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import Answer, question
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packed_alternatives import Choice
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.methods.language_model.method import Indices

ReadAlternatives = Callable[
    [Sequence[SegmentTree], Sequence[Sequence[Choice]]], list[list[tuple[float, ...]]]
]
"""Returns the policy's log-probability of every alternative of every choice after prompts.

Arguments and result are as in `log_probabilities_of_alternatives`. All ranks must call together."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a run, from which texts are sampled."""

    tree: SegmentTree
    """The tokens and encoded images of the prompt, without any text after it. It has one output."""
    images: tuple[Image, ...]
    """The decoded images, for vLLM, which encodes images itself."""
    winner: Answer | None
    """The better response of a judge's pair; None for a policy."""
    shown: str
    """The text of the question, or of the request to a judge, for tables of examples."""
    place: int
    """The position of the record in the order of the run. The sampled texts depend on it."""
    record: str
    """The record's identity, for tables of examples."""
    question: Preference | None = None
    """The record of the question, which rewards read. None in checkpoints, because the texts stored
    there already have their rewards."""
    has_videos: bool = False
    """The prompt has videos, which are in the tree alone."""


def deal_places(
    num_batches: int, steps_per_batch: int, records_per_step: int, num_ranks: int
) -> Indices:
    """Return the places of a run's prompts in the order in which trl reads them, (places,) int64.

    A place is the position of a prompt in the run. trl divides every rollout batch into one
    contiguous block for each rank, and each block into one contiguous part for each optimizer step.
    The order is chosen so that, on any number of ranks, step k trains on the places from
    `k * records_per_step` up to `(k + 1) * records_per_step`.

    Example: two steps in a rollout batch, four records in a step, two ranks. The first batch is
    [0, 1, 4, 5, 2, 3, 6, 7]. Rank 0 takes 0, 1, 4, 5, and its first step trains on 0 and 1. Rank 1
    takes 2, 3, 6, 7, and its first step trains on 2 and 3.

    Args:
        num_batches: The number of rollout batches of the run.
        steps_per_batch: The number of optimizer steps on each rollout batch.
        records_per_step: The number of prompts of an optimizer step, on all ranks together.
        num_ranks: The number of ranks, a divisor of `records_per_step`.
    """
    places = np.arange(num_batches * steps_per_batch * records_per_step)
    by_step = places.reshape(num_batches, steps_per_batch, num_ranks, records_per_step // num_ranks)
    by_rank = by_step.swapaxes(1, 2)
    return by_rank.ravel()


@dataclass
class RunPrompts(ABC):
    """All prompts of a run, by the place of their record: its position in the order of all epochs.

    A record with a prompt of more than `max_tokens` tokens is counted, and replaced by the next
    record of its source.
    """

    mixture: Mixture
    encoder: Encoder
    max_tokens: int
    too_long: int = field(default=0, kw_only=True)
    """The number of prompts so far that had too many tokens."""
    _epoch: int | None = field(default=None, repr=False, kw_only=True)
    """The epoch of `_indices`. None before the first prompt is read."""
    _indices: Indices = field(
        default_factory=lambda: np.empty(0, np.int64), repr=False, kw_only=True
    )
    """The order of the prompts of `_epoch`."""

    @property
    def prompts_per_place(self) -> int:
        """The number of prompts of a record, among which its texts are divided equally."""
        return 1

    def __getitem__(self, place: int) -> tuple[Prompt, ...]:
        """Return the prompts of the record with the position `place` in the run."""
        epoch, position = divmod(place, self.mixture.epoch_size)
        if epoch != self._epoch:
            self._indices = self.order(epoch)
            self._epoch = epoch
        return self.load(int(self._indices[position]), place)

    @abstractmethod
    def order(self, epoch: int) -> Indices:
        """Return an index for every record of an epoch, in the order of the epoch.

        `load` makes the prompts of an index. The meaning of an index is the subclass's own.
        """

    @abstractmethod
    def load(self, index: int, place: int) -> tuple[Prompt, ...]:
        """Return the prompts of an index that `order` returned, for a place of the run.

        They are as many as `prompts_per_place`.
        """

    def encode(
        self,
        record: Preference,
        request: tuple[Message, ...],
        images: Sequence[EncodedImage],
        videos: Sequence[Video],
        place: int,
    ) -> Prompt:
        """Return the prompt of a record for a place of the run.

        Args:
            record: The record.
            request: The conversation that the prompt consists of.
            images: The images of the conversation.
            videos: The videos of the conversation.
            place: The position of the record in the run.

        Raises:
            RecordError: If the prompt has too many tokens, or the record cannot be used.
        """
        self.encoder.refuse_control_tokens(record)
        decoded = tuple(decode(image, record.identity) for image in images)
        conversation = Conversation(request, images, videos=videos)
        tree = self.encoder.encode_conversations([conversation], None, record.identity)
        if tree.tokens > self.max_tokens:
            self.too_long += 1
            raise RecordError(
                f"{record.identity}: the prompt has {tree.tokens} tokens, method.max_prompt_tokens "
                f"allows {self.max_tokens}"
            )
        return Prompt(
            tree, decoded, None, question(request), place, record.identity, has_videos=bool(videos)
        )
