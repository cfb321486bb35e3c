"""Generation of texts after the conversations of packed rows.

What the conversations of a tree share is computed once: the packed row is the prefill. Its keys and
values are held once and read by all texts, which hold only those of their generated tokens. A text
goes on from the segment of its output, which may be any node of the tree, and several texts may go
on from one segment. In recurrent layers each text has a state of its own, which begins as that of
its segment. The end-of-turn token is also computed, because the head of a critic reads its hidden
state. Critique and score then cost one pass. Ranks run equally many steps, as ZeRO-3 needs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import max_over_ranks
from mmrm.models.families.registry import family_of
from mmrm.models.packing.decode_attention import DecodePlan
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.positions import without_single_axis
from mmrm.models.packing.recurrent import PrefillCache
from mmrm.models.packing.segments import SegmentTree


@dataclass(frozen=True, slots=True)
class WritingCost:
    """Computes the cost of a tree while a text is generated after each of its outputs.

    It is called with the tree. Costs are counted in tokens, as in models/packing/bins.py, and rows
    of trees are filled up to a largest cost, the token budget.
    """

    cached: float
    """Cost of keeping the keys and values of one position in memory."""
    new_tokens: int
    """Largest number of tokens of a generated text."""
    states: float = 0.0
    """Cost of keeping the states of recurrent layers in memory for one text."""

    @classmethod
    def of(cls, config: Any, sampling: SamplingConfig) -> "WritingCost":
        """Return the costs of generating with one model.

        Args:
            config: The model's configuration in transformers.
            sampling: Limits the length of the texts.
        """
        text = config.text_config
        family = family_of(config.model_type)
        # The cache keeps a key and a value for every key head of every attention layer.
        numbers_per_position = (
            2 * family.attention_layers(text) * text.num_key_value_heads * family.head_size(text)
        )
        # The unit of cost, a token, stands for the memory that the forward pass of one layer takes
        # for a token: two hidden states and three vectors of the MLP.
        numbers_per_token = 2 * text.hidden_size + 3 * text.intermediate_size
        # 0.45 for Qwen2.5-VL-7B (57 KB per position in bf16), and 0.50 for 3B.
        cost_per_position = numbers_per_position / numbers_per_token
        return cls(
            cached=cost_per_position,
            new_tokens=sampling.max_new_tokens,
            states=family.state_numbers(text) / numbers_per_token,
        )

    def __call__(self, tree: SegmentTree) -> int:
        """Return the cost of a tree, with what texts of full length keep in memory."""
        num_texts = len(tree.outputs)
        num_positions = tree.tokens + num_texts * self.new_tokens
        return tree.cost + ceil(self.cached * num_positions + self.states * num_texts)


@dataclass(frozen=True, slots=True)
class Generation:
    """The text generated after one output."""

    ids: tuple[int, ...]
    """Token ids without the end-of-turn token."""
    truncated: bool
    """The limit ended the text; the end-of-turn token was then added to it."""
    end_hidden: Tensor
    """(H,): last hidden state at the end-of-turn token."""


@dataclass
class _State:
    """The C texts of a packed row that are still computed; some may be finished already."""

    outputs: Tensor
    """(C,) int64: index of the output, among all outputs of the row, that each text goes on from."""
    plan: DecodePlan
    """Keys and values of the row, and which of them each text sees."""
    cache: PrefillCache
    """Keys and values of the generated tokens, equally many for each text, and the states of
    recurrent layers."""
    positions: Tensor
    """(axes, C) int64: position ids of the next token."""
    hidden: Tensor
    """(C, H): hidden states from which the next token is predicted."""
    seen: Tensor | None = None
    """(C, vocabulary) bool: True for the tokens that a repetition penalty makes less likely, those
    of the conversation and of the generated text; None without a penalty."""

    def keep(self, index: Tensor) -> None:
        """Drop all texts except those at `index`, (kept,) int64."""
        self.outputs = self.outputs[index]
        self.positions = self.positions[:, index]
        self.hidden = self.hidden[index]
        self.plan.keep(index)
        self.cache.reorder_cache(index)  # the only selection that recurrent layers have
        if self.seen is not None:
            self.seen = self.seen[index]

    def feed(self, model: Any, tokens: Tensor) -> None:
        """Append a token to every text, `tokens` (C,) int64, and run the model on them."""
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        output = model.model(
            input_ids=tokens[:, None],
            attention_mask=self.plan,
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
    """Generate a text after every output of a packed row, and return the texts in their order.

    All ranks must call together, each with its own row. They run equally many steps, as ZeRO-3
    needs.

    Args:
        model: The language model without the wrappers of training.
        batch: The row.
        end: Id of the end-of-turn token.
        forbidden: Ids that are never chosen. An image token would break the count of images.
        sampling: How tokens are chosen.
        seeds: A seed for each output of the row. It alone decides the random draws of the output's
            text, whatever else is in the row. Not used at temperature 0.
        penalty: Repetition penalty (arXiv 1909.05858) on the tokens of the conversation and of the
            generated text; 1 is none.
    """
    device = batch.input_ids.device
    state = _prefill(model, batch)
    if penalty != 1:
        state.seen = _tokens_of_conversations(
            batch, len(state.outputs), model.config.text_config.vocab_size
        )
    generators = [random.Random(seed) for seed in seeds]
    ids_by_output: list[list[int]] = [[] for _ in seeds]
    generations: dict[int, Generation] = {}  # by the index of the output in the row
    # One step more than there are new tokens, because the end-of-turn token is computed as well.
    for step in range(sampling.max_new_tokens + 1):
        num_unfinished = len(seeds) - len(generations)
        if not max_over_ranks(num_unfinished, device):
            break
        is_last_step = step == sampling.max_new_tokens
        if is_last_step:
            tokens = torch.full_like(state.outputs, end)
        else:
            tokens = _choose(model, state, forbidden, sampling, generators, penalty)
        state.feed(model, tokens)

        outputs = state.outputs.tolist()
        for index, token in enumerate(tokens.tolist()):
            output = outputs[index]
            is_stand_in = output >= len(seeds)  # on a rank without work
            if output in generations or is_stand_in:
                continue
            if token != end:
                ids_by_output[output].append(token)
                continue
            generations[output] = Generation(
                ids=tuple(ids_by_output[output]),
                truncated=is_last_step,
                end_hidden=state.hidden[index],
            )
        unfinished_indices = [
            index for index, output in enumerate(outputs) if output not in generations
        ]
        # Finished texts are computed along with the others until they are the majority.
        if 0 < len(unfinished_indices) <= len(outputs) // 2:
            state.keep(torch.tensor(unfinished_indices, device=device))
    return [generations[output] for output in range(len(seeds))]


def _prefill(model: Any, batch: PackedBatch) -> _State:
    """Run the model once on a packed row, and return the state before the first generated token.

    A rank without work runs a row that has no output, only a blank image. Its state then has a
    stand-in for one, which goes on from the image, so that the rank takes the same steps as the
    others.
    """
    segment_of_row_without_work = 0
    segments = batch.output_segments or (segment_of_row_without_work,)
    cache = PrefillCache(
        model.config.text_config, torch.tensor(segments, device=batch.input_ids.device)
    )
    inputs = {**batch.model_inputs(), "use_cache": True, "past_key_values": cache}
    hidden = model.model(**inputs).last_hidden_state[0]
    visible_positions = [batch.plan.keys_of(segment) for segment in segments]
    last_positions = torch.stack([positions[-1] for positions in visible_positions])
    # An image at the end of a segment has different positions on the axes; a text goes on after the
    # largest of them, on all axes.
    last_position_ids = batch.position_ids[:, 0, last_positions]
    next_position_ids = (last_position_ids.amax(0) + 1).expand_as(last_position_ids).clone()
    return _State(
        outputs=torch.arange(len(segments), device=hidden.device),
        plan=DecodePlan.of(cache.take_keys(), visible_positions),
        cache=cache,
        positions=next_position_ids,
        hidden=hidden[last_positions],
    )


def _tokens_of_conversations(batch: PackedBatch, count: int, vocabulary: int) -> Tensor:
    """Return the tokens that occur in each conversation of a row, as (count, vocabulary) bool.

    Args:
        batch: The packed row.
        count: Number of its outputs; 1 if it has none, and no token is then marked.
        vocabulary: Number of tokens that there are.
    """
    seen = torch.zeros(count, vocabulary, dtype=torch.bool, device=batch.input_ids.device)
    for index, segment in enumerate(batch.output_segments):
        seen[index, batch.input_ids[0, batch.plan.keys_of(segment)]] = True
    return seen


def _choose(
    model: Any,
    state: _State,
    forbidden: Sequence[int],
    sampling: SamplingConfig,
    generators: Sequence[random.Random],
    penalty: float,
) -> Tensor:
    """Return the next token of every text in `state`, (C,) int64.

    The arguments are those of `generate`, except that `generators` are made from its seeds.
    """
    logits = model.lm_head(state.hidden).float()
    if state.seen is not None:
        # A penalty above 1 lowers the logit whether it is positive or negative.
        penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(state.seen, penalised, logits)
    logits[:, list(forbidden)] = -torch.inf
    if sampling.temperature == 0:
        greedy: Tensor = logits.argmax(1)
        return greedy
    points = []
    for output in state.outputs.tolist():
        is_stand_in = output >= len(generators)  # on a rank without work
        points.append(0.0 if is_stand_in else generators[output].random())
    return sample(
        logits / sampling.temperature, sampling.top_p, torch.tensor(points, device=logits.device)
    )


def sample(logits: Tensor, top_p: float, points: Tensor) -> Tensor:
    """Draw a token from each row of `logits` by inverse transform sampling; return (C,) int64.

    Args:
        logits: (C, vocabulary) fp32, already divided by the temperature.
        top_p: Only the fewest likeliest tokens that together have this probability are drawn
            (nucleus sampling, arXiv 1904.09751).
        points: (C,), random numbers from [0, 1). Each decides the token of its row.
    """
    probabilities, tokens = logits.softmax(1).sort(1, descending=True)  # likeliest tokens first
    # A token is excluded if the likelier ones have `top_p` without it.
    is_excluded = probabilities.cumsum(1) - probabilities >= top_p
    kept = probabilities.masked_fill(is_excluded, 0.0)
    cumulative = kept.cumsum(1)
    total = cumulative[:, -1:]
    drawn_index = (cumulative <= points[:, None] * total).sum(1)
    # In fp32 a point just below 1 is 1, and would select an index beyond all kept tokens.
    last_kept_index = (kept > 0).sum(1) - 1
    index = torch.minimum(drawn_index, last_kept_index)[:, None]
    return tokens.gather(1, index)[:, 0]
