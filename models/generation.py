"""Generation: prompt and image are computed once for a group, then all its continuations are generated together.

The packed row is the prefill; its keys and values stay where they are and are read by all continuations, which hold their
own for the generated tokens alone. What was generated ends with the end-of-turn token, which is fed as well: its hidden state
is where a critic's head reads, so that a critique and its score cost one pass. Ranks decode in lock-step, as ZeRO-3 needs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import max_over_ranks
from mmrm.models.families.registry import family_of
from mmrm.models.packing.decode_attention import DecodePlan
from mmrm.models.packing.groups import Group, PackedBatch
from mmrm.models.packing.positions import without_single_axis


@dataclass(frozen=True, slots=True)
class WritingCost:
    """What a group takes of a token budget while its continuations are generated."""

    cached: float
    """What a position's keys and values take, in tokens of a budget."""
    new_tokens: int
    """Tokens generated after a continuation at the most."""

    @classmethod
    def of(cls, config: Any, sampling: SamplingConfig) -> "WritingCost":
        """Return the cost for a model of this configuration.

        A position has 2 vectors of every key head in every layer. A token of a budget stands for what one layer's forward holds
        of it, two residuals and the three vectors of the MLP: the least, since a training step keeps the layers' inputs as well.
        The ratio is 0.45 for Qwen2.5-VL-7B (57 KB a position in bf16) and 0.50 for 3B.
        """
        text = config.text_config
        head = family_of(config.model_type).head_size(text)
        position = 2 * text.num_hidden_layers * text.num_key_value_heads * head
        return cls(
            position / (2 * text.hidden_size + 3 * text.intermediate_size), sampling.max_new_tokens
        )

    def __call__(self, group: Group) -> int:
        """Return the cost: computing the group, and keeping each of its positions once and what is generated at full length."""
        return group.cost + ceil(
            self.cached * (group.tokens + len(group.continuations) * self.new_tokens)
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """What was generated after one continuation."""

    ids: tuple[int, ...]
    """Without the end-of-turn token."""
    truncated: bool
    """The limit ended it; the end-of-turn token was then put there for it."""
    end_hidden: Tensor
    """(H,): the last hidden state at the end-of-turn token."""


@dataclass
class _State:
    """The C continuations that are not finished yet."""

    rows: Tensor
    """(C,) int64: which continuation each is."""
    prompt: DecodePlan
    cache: Any
    """Keys and values of what was generated; all are equally long."""
    positions: Tensor
    """(axes, C) int64: position ids of the next token."""
    hidden: Tensor
    """(C, H): last hidden states."""
    seen: Tensor | None = None
    """(C, V) bool: the tokens of the conversation and of what was generated; None where none is penalised."""

    def keep(self, index: Tensor) -> None:
        """Drop all continuations but those at `index`."""
        self.rows, self.positions, self.hidden = (
            self.rows[index],
            self.positions[:, index],
            self.hidden[index],
        )
        self.prompt.keep(index)
        self.cache.batch_select_indices(index)
        self.seen = None if self.seen is None else self.seen[index]


@torch.no_grad()
def generate(
    model: Any,
    batch: PackedBatch,
    *,
    end: int,
    forbidden: Sequence[int],
    sampling: SamplingConfig,
    seeds: Sequence[str],
    penalty: float = 1.0,
) -> list[Generation]:
    """Generate after every continuation of a packed row; all ranks must call together.

    `model` is the unwrapped language model, `end` the end-of-turn token, `forbidden` tokens that are never chosen (an
    image token would break the count of images). `seeds` holds a text for each continuation, which alone decides its
    draws, whatever else is in the row; it is not used at temperature 0. `penalty` is the repetition penalty (arXiv
    1909.05858) on the tokens of the conversation and of what was written after it.
    """
    state = _prefill(model, batch)
    if penalty != 1:
        state.seen = _seen(batch, len(state.rows), model.config.text_config.vocab_size)
    generators = [random.Random(seed) for seed in seeds]
    ids: list[list[int]] = [[] for _ in seeds]
    ends: dict[int, tuple[Tensor, bool]] = {}
    for step in range(sampling.max_new_tokens + 1):
        if not max_over_ranks(len(seeds) - len(ends), batch.input_ids.device):
            break
        last = step == sampling.max_new_tokens
        tokens = torch.full_like(state.rows, end)
        if not last:
            tokens = _choose(model, state, forbidden, sampling, generators, penalty)
        if state.seen is not None:
            state.seen.scatter_(1, tokens[:, None], True)
        state.hidden = model.model(
            input_ids=tokens[:, None],
            attention_mask=state.prompt,
            position_ids=without_single_axis(state.positions)[..., None],
            past_key_values=state.cache,
            use_cache=True,
        ).last_hidden_state[:, 0]
        state.positions = state.positions + 1
        for place, (row, token) in enumerate(
            zip(state.rows.tolist(), tokens.tolist(), strict=True)
        ):
            if row in ends or row >= len(seeds):
                continue
            if token == end:
                ends[row] = (state.hidden[place], last)
            else:
                ids[row].append(token)
        active = torch.tensor(
            [row not in ends for row in state.rows.tolist()], device=state.rows.device
        )
        if 0 < int(active.sum()) <= len(active) // 2:
            state.keep(active.nonzero()[:, 0])
    return [Generation(tuple(ids[row]), ends[row][1], ends[row][0]) for row in range(len(seeds))]


def _prefill(model: Any, batch: PackedBatch) -> _State:
    """Run the packed row once, and say what each continuation sees of it; a row of filler alone gets a stand-in."""
    cache = DynamicCache()
    hidden = model.model(
        **{**batch.model_inputs(), "use_cache": True, "past_key_values": cache}
    ).last_hidden_state[0]
    plan = batch.plan
    ends, key_ends = plan.cu_seqlens_q.tolist(), plan.cu_seqlens_k.tolist()
    own = [
        i
        for i, (q, k) in enumerate(zip(plan.query_lengths, plan.key_lengths, strict=True))
        if q != k
    ] or [0]
    seen = [plan.key_index[key_ends[i] : key_ends[i + 1]] for i in own]
    last = torch.tensor([ends[i + 1] - 1 for i in own], device=hidden.device)
    layers = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
    del cache
    prompt = DecodePlan.of(layers, seen)
    rows = torch.arange(len(own), device=hidden.device)
    return _State(rows, prompt, DynamicCache(), batch.position_ids[:, 0, last] + 1, hidden[last])


def _seen(batch: PackedBatch, rows: int, vocabulary: int) -> Tensor:
    """Return which tokens stand in each conversation, (rows, vocabulary) bool."""
    seen = torch.zeros(rows, vocabulary, dtype=torch.bool)
    whole = (
        [*group.prompt_ids, *continuation.ids]
        for group in batch.groups
        for continuation in group.continuations
    )
    for row, ids in zip(seen, whole, strict=False):  # a row of filler alone has a stand-in
        row[ids] = True
    return seen.to(batch.input_ids.device)


def _choose(
    model: Any,
    state: _State,
    forbidden: Sequence[int],
    sampling: SamplingConfig,
    generators: Sequence[random.Random],
    penalty: float,
) -> Tensor:
    """Return the next token of every row, (C,) int64."""
    logits = model.lm_head(state.hidden).float()
    if state.seen is not None:
        logits = torch.where(
            state.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits
        )
    logits[:, list(forbidden)] = -torch.inf
    if sampling.temperature == 0:
        greedy: Tensor = logits.argmax(1)
        return greedy
    points = [
        generators[row].random() if row < len(generators) else 0.0 for row in state.rows.tolist()
    ]
    return sample(
        logits / sampling.temperature, sampling.top_p, torch.tensor(points, device=logits.device)
    )


def sample(logits: Tensor, top_p: float, points: Tensor) -> Tensor:
    """Return a token for every row by inverting its distribution: logits (C, V) fp32, points (C,) in [0, 1) -> (C,) int64.

    Tokens are ordered from likely to unlikely; with `top_p` only the shortest beginning that holds that much probability
    is drawn from (nucleus sampling, arXiv 1904.09751).
    """
    probabilities, order = logits.softmax(1).sort(1, descending=True)
    reached = probabilities.cumsum(1)
    kept = probabilities.masked_fill(reached - probabilities >= top_p, 0.0)
    cumulative = kept.cumsum(1)
    place = (cumulative <= points[:, None] * cumulative[:, -1:]).sum(1)
    last = (kept > 0).sum(
        1
    ) - 1  # in fp32 a point just below 1 is 1, and would fall behind every token
    return order.gather(1, torch.minimum(place, last)[:, None])[:, 0]
