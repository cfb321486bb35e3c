"""Texts sampled on prompts in packed rows, and the log-probabilities of their tokens.

A prompt and its image are computed once, whatever the number of texts: sampling and training both
use the packed group. A rank without an image runs the filler image, so ranks with different data
run the same modules.
"""

from collections.abc import Sequence
from dataclasses import replace
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
    """Generate a text after every continuation of every group.

    All ranks must call together, each with its own groups.

    Args:
        model: The language model without the wrappers of training.
        encoder: The encoder of the model's backbone.
        groups: Prompts, each with one continuation for every text that is to be generated, as
            `group_to_continue` returns them.
        seeds: For each group, a seed for each of its continuations.
        sampling: How tokens are chosen.
        budget: Largest cost of a packed row, in tokens. It has to cover the keys and values of
            texts of full length.

    Returns:
        For each group, the generated texts in the order of its continuations.
    """
    device = next(model.parameters()).device
    cost = WritingCost.of(model.config, sampling)
    rows = pack_first_fit([cost(group) for group in groups], budget)
    # All ranks must run equally many rows. An empty row is computed for a blank image alone.
    num_empty_rows = max_over_ranks(len(rows), device) - len(rows)
    generations_by_group: dict[int, list[Generation]] = {}
    for row in rows + [[]] * num_empty_rows:
        seeds_of_row: list[str] = []
        for index in row:
            seeds_of_row += seeds[index]
        batch = encoder.pack([groups[index] for index in row]).to(device)
        generations = generate(
            model,
            batch,
            end=encoder.end_of_turn,
            forbidden=[encoder.vision.image],
            sampling=sampling,
            seeds=seeds_of_row,
        )
        start = 0
        for index in row:
            end = start + len(seeds[index])
            generations_by_group[index] = generations[start:end]
            start = end
    return [generations_by_group[index] for index in range(len(groups))]


def group_to_continue(prompt: Group, count: int) -> Group:
    """Return a group from which `count` texts can be generated after the same prompt.

    It has `count` equal continuations, because a text is generated after a continuation. A
    continuation has at least one token, so the last token of the prompt is moved into each.

    Args:
        prompt: A prompt without continuations.
        count: Number of texts.
    """
    last_token = Continuation(prompt.prompt_ids[-1:])
    return replace(prompt, prompt_ids=prompt.prompt_ids[:-1], continuations=(last_token,) * count)


def log_probabilities(
    model: Any,
    encoder: Encoder,
    prompts: Sequence[Group],
    owners: Sequence[int],
    ids: Tensor,
    mask: Tensor,
    temperature: float,
) -> Tensor:
    """Return the log-probability of every sampled token, (B, T) fp32, 0 where `mask` is 0.

    Successive texts with the same prompt are computed as one group, so their prompt is computed
    once.

    Args:
        model: The language model, which may be wrapped; it is called once.
        encoder: The encoder of the model's backbone.
        prompts: Prompts without continuations.
        owners: For each of the B texts, the index of its prompt in `prompts`.
        ids: Sampled tokens, (B, T) int64, padded on the right.
        mask: (B, T), 1 on tokens and 0 on padding.
        temperature: Temperature at which the tokens were sampled.
    """
    groups: list[Group] = []
    previous_owner = None
    lengths = mask.sum(1).tolist()
    for owner, padded_ids, length in zip(owners, ids.tolist(), lengths, strict=True):
        text = Continuation(tuple(padded_ids[:length]), loss_tokens=tuple(range(length)))
        if owner == previous_owner:
            groups[-1] = replace(groups[-1], continuations=(*groups[-1].continuations, text))
        else:
            groups.append(replace(prompts[owner], continuations=(text,)))
        previous_owner = owner
    batch = encoder.pack(groups).to(ids.device)
    # (number of tokens,), one text after another, like the ones in `mask`.
    values: Tensor = model(**batch.label_inputs(), temperature=temperature)
    return values.new_zeros(ids.shape).masked_scatter(mask.bool(), values)
