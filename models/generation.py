"""Generation of texts after the continuations of packed rows.

The prompt and image of a group are computed once for all its continuations: the packed row is the
prefill. Its keys and values are held once and read by all continuations, which hold only those of
their generated tokens. The end-of-turn token is also computed, because the head of a critic reads
its hidden state. Critique and score then cost one pass. Ranks run equally many steps, as ZeRO-3
needs.
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
    """The cost of a group in a token budget while its continuations are generated."""

    cached: float
    """Cost of the keys and values of one position, in tokens of a budget."""
    new_tokens: int
    """Largest number of tokens that are generated after a continuation."""

    @classmethod
    def of(cls, config: Any, sampling: SamplingConfig) -> "WritingCost":
        """Return the cost for a model of this configuration.

        A position has 2 vectors for every key head in every layer. A token of a budget stands for
        the memory of one layer's forward: two residuals and the three vectors of the MLP. That is
        the least, because a training step also keeps the inputs of layers. The ratio is 0.45 for
        Qwen2.5-VL-7B (57 KB per position in bf16) and 0.50 for 3B.
        """
        text = config.text_config
        head_size = family_of(config.model_type).head_size(text)
        numbers_per_position = 2 * text.num_hidden_layers * text.num_key_value_heads * head_size
        numbers_per_token = 2 * text.hidden_size + 3 * text.intermediate_size
        return cls(numbers_per_position / numbers_per_token, sampling.max_new_tokens)

    def __call__(self, group: Group) -> int:
        """Return the cost of computing the group and keeping its positions at full length."""
        num_generated = len(group.continuations) * self.new_tokens
        return group.cost + ceil(self.cached * (group.tokens + num_generated))


@dataclass(frozen=True, slots=True)
class Generation:
    """The text generated after one continuation."""

    ids: tuple[int, ...]
    """Token ids without the end-of-turn token."""
    truncated: bool
    """The limit ended the text; the end-of-turn token was then added to it."""
    end_hidden: Tensor
    """(H,): last hidden state at the end-of-turn token."""


@dataclass
class _State:
    """The C continuations that are still computed; some may be finished already."""

    rows: Tensor
    """(C,) int64: number of each continuation in the packed row."""
    prompt: DecodePlan
    cache: Any
    """Keys and values of the generated tokens, equally many for each continuation."""
    positions: Tensor
    """(axes, C) int64: position ids of the next token."""
    hidden: Tensor
    """(C, H): hidden states from which the next token is predicted."""
    seen: Tensor | None = None
    """(C, V) bool: tokens of the conversation and of the generated text; None without a penalty."""

    def keep(self, index: Tensor) -> None:
        """Drop all continuations except those at `index`, (kept,) int64."""
        self.rows = self.rows[index]
        self.positions = self.positions[:, index]
        self.hidden = self.hidden[index]
        self.prompt.keep(index)
        self.cache.batch_select_indices(index)
        if self.seen is not None:
            self.seen = self.seen[index]

    def feed(self, model: Any, tokens: Tensor) -> None:
        """Run the model on the next token of every continuation, `tokens` (C,) int64."""
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        output = model.model(
            input_ids=tokens[:, None],
            attention_mask=self.prompt,
            position_ids=without_single_axis(self.positions)[..., None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.hidden = output.last_hidden_state[:, 0]
        self.positions = self.positions + 1


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
    """Generate a text after every continuation of a packed row; all ranks must call together.

    Args:
        model: The language model without the wrappers of training.
        batch: The row.
        end: Id of the end-of-turn token.
        forbidden: Ids that are never chosen. An image token would break the count of images.
        sampling: How tokens are chosen.
        seeds: A text for each continuation, which alone decides its draws, whatever else is in the
            row. Not used at temperature 0.
        penalty: Repetition penalty (arXiv 1909.05858) on the tokens of the conversation and of the
            generated text.
    """
    state = _prefill(model, batch)
    if penalty != 1:
        state.seen = _tokens_of_conversations(
            batch, len(state.rows), model.config.text_config.vocab_size
        )
    generators = [random.Random(seed) for seed in seeds]
    ids_by_row: list[list[int]] = [[] for _ in seeds]
    generations: dict[int, Generation] = {}
    for step in range(sampling.max_new_tokens + 1):
        num_unfinished = len(seeds) - len(generations)
        if not max_over_ranks(num_unfinished, batch.input_ids.device):
            break
        is_last = step == sampling.max_new_tokens
        tokens = torch.full_like(state.rows, end)
        if not is_last:
            tokens = _choose(model, state, forbidden, sampling, generators, penalty)
        state.feed(model, tokens)

        rows = state.rows.tolist()
        for index, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            is_stand_in = row >= len(seeds)  # for a row of filler alone
            if row in generations or is_stand_in:
                continue
            if token == end:
                generations[row] = Generation(tuple(ids_by_row[row]), is_last, state.hidden[index])
            else:
                ids_by_row[row].append(token)
        unfinished = [index for index, row in enumerate(rows) if row not in generations]
        if 0 < len(unfinished) <= len(rows) // 2:
            state.keep(torch.tensor(unfinished, device=state.rows.device))
    return [generations[row] for row in range(len(seeds))]


def _prefill(model: Any, batch: PackedBatch) -> _State:
    """Run the packed row once, and return the state before the first generated token.

    A row of filler alone has no continuation; its prompt takes the place of one.
    """
    cache = DynamicCache()
    inputs = {**batch.model_inputs(), "use_cache": True, "past_key_values": cache}
    hidden = model.model(**inputs).last_hidden_state[0]
    plan = batch.plan
    lengths = zip(plan.query_lengths, plan.key_lengths, strict=True)
    # A prompt sees itself alone, a continuation also sees its prompt.
    continuations = [
        segment
        for segment, (num_queries, num_keys) in enumerate(lengths)
        if num_queries != num_keys
    ]
    segments = continuations or [0]
    query_ends = plan.cu_seqlens_q.tolist()
    key_ends = plan.cu_seqlens_k.tolist()
    visible = [plan.key_index[key_ends[i] : key_ends[i + 1]] for i in segments]
    last_positions = torch.tensor([query_ends[i + 1] - 1 for i in segments], device=hidden.device)
    layers = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
    del cache  # so that `layers` alone holds the keys and values, and `DecodePlan` can release them
    return _State(
        rows=torch.arange(len(segments), device=hidden.device),
        prompt=DecodePlan.of(layers, visible),
        cache=DynamicCache(),
        positions=batch.position_ids[:, 0, last_positions] + 1,
        hidden=hidden[last_positions],
    )


def _tokens_of_conversations(batch: PackedBatch, num_rows: int, vocabulary: int) -> Tensor:
    """Return which tokens occur in each conversation, (num_rows, vocabulary) bool.

    The stand-in of a row of filler alone has no conversation, and no token.
    """
    seen = torch.zeros(num_rows, vocabulary, dtype=torch.bool)
    row = 0
    for group in batch.groups:
        for continuation in group.continuations:
            seen[row, [*group.prompt_ids, *continuation.ids]] = True
            row += 1
    return seen.to(batch.input_ids.device)


def _choose(
    model: Any,
    state: _State,
    forbidden: Sequence[int],
    sampling: SamplingConfig,
    generators: Sequence[random.Random],
    penalty: float,
) -> Tensor:
    """Return the next token of every continuation, (C,) int64; arguments as in `generate`."""
    logits = model.lm_head(state.hidden).float()
    if state.seen is not None:
        penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(state.seen, penalised, logits)
    logits[:, list(forbidden)] = -torch.inf
    if sampling.temperature == 0:
        greedy: Tensor = logits.argmax(1)
        return greedy
    points = []
    for row in state.rows.tolist():
        is_stand_in = row >= len(generators)
        points.append(0.0 if is_stand_in else generators[row].random())
    return sample(
        logits / sampling.temperature, sampling.top_p, torch.tensor(points, device=logits.device)
    )


def sample(logits: Tensor, top_p: float, points: Tensor) -> Tensor:
    """Return a token for every row, (C,) int64, by inverting its distribution function.

    Args:
        logits: (C, V) fp32.
        top_p: Only the fewest likeliest tokens that together have this probability are drawn
            (nucleus sampling, arXiv 1904.09751).
        points: (C,) in [0, 1), uniformly drawn.
    """
    probabilities, order = logits.softmax(1).sort(1, descending=True)
    reached = probabilities.cumsum(1)
    kept = probabilities.masked_fill(reached - probabilities >= top_p, 0.0)
    cumulative = kept.cumsum(1)
    drawn = (cumulative <= points[:, None] * cumulative[:, -1:]).sum(1)
    # In fp32 a point just below 1 is 1, and would select an index beyond all kept tokens.
    last_kept = (kept > 0).sum(1) - 1
    return order.gather(1, torch.minimum(drawn, last_kept)[:, None])[:, 0]
