"""Texts sampled on prompts in packed rows, and the log-probabilities of their tokens.

A prompt and its image are computed once, whatever the number of texts: sampling and training both see the packed group. A rank
without an image runs the filler image, so that mixed batches neither hang nor crash.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import max_over_ranks
from mmrm.models.encoder import Encoder
from mmrm.models.generation import Generation, WritingCost, generate
from mmrm.models.packing.bins import pack_first_fit
from mmrm.models.packing.groups import Continuation, Group


@torch.no_grad()
def generate_packed(
    model: Any,
    encoder: Encoder,
    groups: Sequence[Group],
    seeds: Sequence[Sequence[str]],
    sampling: SamplingConfig,
    budget: int,
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
        batch, own = (
            encoder.pack([groups[i] for i in row]).to(device),
            [seed for i in row for seed in seeds[i]],
        )
        found = iter(
            generate(model, batch, end=end, forbidden=forbidden, sampling=sampling, seeds=own)
        )
        written |= {i: [next(found) for _ in seeds[i]] for i in row}
    return [written[i] for i in range(len(groups))]


def to_write(prompt: Group, count: int) -> Group:
    """Return a prompt ready to be written on `count` times: its last token opens every continuation."""
    return replace(
        prompt,
        prompt_ids=prompt.prompt_ids[:-1],
        continuations=(Continuation(prompt.prompt_ids[-1:]),) * count,
    )


def log_probabilities(
    model: Any,
    encoder: Encoder,
    prompts: Sequence[Group],
    owners: Sequence[int],
    ids: Tensor,
    mask: Tensor,
    temperature: float,
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
    groups = [
        replace(prompts[owner], continuations=tuple(own for _, own in rows))
        for owner, rows in together
    ]
    batch = encoder.pack(groups).to(ids.device)
    found: Tensor = model(**batch.label_inputs(), temperature=temperature)
    return found.new_zeros(ids.shape).masked_scatter(mask.bool(), found)
