"""Rollouts: the prompts of a run in their order, the judgements written on them, and the log-probabilities of these.

A prompt and its image are held and computed once, whatever the number of judgements: sampling and training both see the
packed group. A rank without an image runs the filler image, so that mixed batches neither hang nor crash.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from data.errors import RecordError
from data.images import decode
from data.mixture import Mixture
from data.preference import Preference
from data.prompts import Answer, JudgeTemplate, ask, question
from models.config import SamplingConfig
from models.distributed import max_over_ranks
from models.encoder import Encoder
from models.generation import Generation, WritingCost, generate
from models.packing.groups import Continuation, Group, pack_first_fit
from train.supervised.judgements import Indices, judged, with_winners


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a judge is asked about one pair."""

    group: Group
    """The whole prompt with its images, and no continuation."""
    images: tuple[Image, ...]
    """For engines that encode images themselves."""
    winner: Answer
    shown: str
    """The judge's request, for tables of examples."""
    place: int
    """Where it stands in the run; decides its draws."""
    record: str
    """The record's identity, for tables of examples."""


@dataclass
class Prompts:
    """The run's prompts by place: epoch after epoch of the mixture, the winner first in exactly half of each.

    A prompt of more than `max_tokens` tokens is skipped for the next record of its source, and counted.
    """

    mixture: Mixture
    encoder: Encoder
    template: JudgeTemplate
    max_tokens: int
    too_long: int = 0
    _order: tuple[int, Indices] | None = field(default=None, repr=False)

    def __getitem__(self, place: int) -> Prompt:
        epoch, position = divmod(place, self.mixture.epoch_size)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, with_winners(self.mixture.order(epoch), self.mixture.config.seed, epoch)
        index, side = divmod(int(self._order[1][position]), 2)
        return self.mixture.load(index, lambda record: self._encode(record, side, place))

    def _encode(self, record: Preference, side: int, place: int) -> Prompt:
        self.encoder.refuse_control_tokens(record)
        images = tuple(decode(image, record.identity) for image in record.images)
        request = ask(self.template, record.prompt, *judged(record, side)[0])
        encoded = self.encoder.encode(images, [self.encoder.render(request)], None)
        ids = encoded.prompt_ids + encoded.continuations[0].ids
        if len(ids) > self.max_tokens:
            self.too_long += 1
            raise RecordError(
                f"{record.identity}: the judge's prompt has {len(ids)} tokens, method.max_prompt_tokens allows {self.max_tokens}"
            )
        group = replace(encoded, prompt_ids=ids, continuations=())
        return Prompt(group, images, 1 if side == 0 else 2, question(request), place, record.identity)


@torch.no_grad()
def generate_packed(
    model: Any, encoder: Encoder, groups: Sequence[Group], seeds: Sequence[Sequence[str]], sampling: SamplingConfig, budget: int
) -> list[list[Generation]]:
    """Write on every group once for each of its seeds, which is once for each of its continuations.

    `model` is the unwrapped language model. Rows take at most `budget` tokens, keys and values of what is written at full length
    included. All ranks must call together; they run equally many rows: one with fewer gets empty ones.
    """
    device = next(model.parameters()).device
    end, forbidden = encoder.end_of_turn, [encoder.vision.image]
    cost = WritingCost.of(model.config, sampling)
    rows = pack_first_fit([cost(group) for group in groups], budget)
    written: dict[int, list[Generation]] = {}
    for row in rows + [[]] * (max_over_ranks(len(rows), device) - len(rows)):
        batch, own = encoder.pack([groups[i] for i in row]).to(device), [seed for i in row for seed in seeds[i]]
        found = iter(generate(model, batch, end=end, forbidden=forbidden, sampling=sampling, seeds=own))
        written |= {i: [next(found) for _ in seeds[i]] for i in row}
    return [written[i] for i in range(len(groups))]


def to_write(prompt: Group, count: int) -> Group:
    """Return a prompt ready to be written on `count` times: its last token opens every continuation."""
    return replace(prompt, prompt_ids=prompt.prompt_ids[:-1], continuations=(Continuation(prompt.prompt_ids[-1:]),) * count)


def log_probabilities(
    model: Any, encoder: Encoder, prompts: Sequence[Group], owners: Sequence[int], ids: Tensor, mask: Tensor, temperature: float
) -> Tensor:
    """Return the log-probability of every sampled token at `temperature`, (B, T) fp32, 0 where `mask` is 0.

    `ids` and `mask` are (B, T), right-padded; `owners` says which of `prompts` each row belongs to. Neighbours of one
    prompt share its computation. `model` may be wrapped, and is called once.
    """
    lengths = mask.sum(1).tolist()
    written = (
        Continuation(tuple(row[:length]), loss_tokens=tuple(range(length)))
        for row, length in zip(ids.tolist(), lengths, strict=True)
    )
    together = groupby(zip(owners, written, strict=True), key=itemgetter(0))
    groups = [replace(prompts[owner], continuations=tuple(own for _, own in rows)) for owner, rows in together]
    batch = encoder.pack(groups).to(ids.device)
    found: Tensor = model(**batch.label_inputs(), temperature=temperature)
    return found.new_zeros(ids.shape).masked_scatter(mask.bool(), found)
