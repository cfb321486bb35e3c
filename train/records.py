"""Training records as what the packed trainer asks for: an order of indices, and each record as an encoded group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from data.images import decode
from data.mixture import Mixture
from data.preference import Preference, text
from models.config import Read
from models.encoder import Encoder
from models.packing import PATCH_COST
from train.steps import Encoded

PATCHES_PER_TOKEN = 4
"""The backbone merges 2 x 2 patches into a token."""


def load(mixture: Mixture, index: int, encode: Callable[[Preference], Encoded]) -> Encoded:
    """Return an encoded record, with the number of unusable ones that this process met for the first time on the way."""
    before = len(mixture.bad)
    encoded = mixture.load(index, encode)
    return replace(encoded, passed_over=len(mixture.bad) - before)


@dataclass(frozen=True, slots=True)
class MixtureRecords:
    """The mixture's epochs; a record that cannot be used is handled by the mixture's own policy."""

    mixture: Mixture
    encode: Callable[[Preference], Encoded]

    def __len__(self) -> int:
        return self.mixture.epoch_size

    def __getitem__(self, index: int) -> Encoded:
        return load(self.mixture, index, self.encode)

    def order(self, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of an epoch, the same on every rank."""
        return self.mixture.order(epoch)


def expected_costs(mixture: Mixture) -> npt.NDArray[np.float32]:
    """Return what each training record will take of a token budget, (len,), before anything is read or decoded."""
    text_tokens, image_tokens = mixture.lengths().T
    return np.asarray(text_tokens + image_tokens + PATCH_COST * PATCHES_PER_TOKEN * image_tokens, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class PairEncoder:
    """A preference as one group of two continuations, chosen first; runs in loader workers."""

    encoder: Encoder
    read: Read

    def __call__(self, record: Preference) -> Encoded:
        """Decode the images and encode both responses; raises RecordError as decoding and encoding do."""
        pictures = [decode(image, record.identity) for image in record.images]
        responses = (record.chosen, record.rejected)
        conversations = [self.encoder.render((*record.prompt, text("assistant", response))) for response in responses]
        group = self.encoder.encode(pictures, conversations, self.read)
        return Encoded(group, record.margin or 0.0, self._lengths(responses), record=record.identity)

    def _lengths(self, responses: tuple[str, str]) -> tuple[int, ...]:
        return tuple(len(self.encoder.tokenizer(response, add_special_tokens=False)["input_ids"]) for response in responses)
