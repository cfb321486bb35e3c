"""Recurrent layers over packed rows: a state and a convolution that branch wherever a tree does.

A gated delta-rule layer (arXiv 2412.06464) carries two things from token to token: a recurrent
state, and the last inputs of a causal convolution. In a packed row both go on from a segment into
each of its children. `RecurrentPlan` says how: segments are computed level by level, the roots
first, and each begins with the final state of the segment before it. The convolution looks back
through as many segments as it needs.

`branching_convolution` and `branching_delta_rule` compute a row by such a plan. Both are
differentiable: what the children of a segment give back to its state is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

CHUNK = 64
"""Number of tokens that the kernels of the delta rule compute at a time. They pad every sequence to
a multiple of it."""


class DeltaInputs(NamedTuple):
    """The inputs of the delta rule for T tokens, in the order in which the kernels take them."""

    query: Tensor
    """(T, heads, key size)."""
    key: Tensor
    """(T, heads, key size)."""
    value: Tensor
    """(T, heads, value size)."""
    decay: Tensor
    """(T, heads) fp32, at most 0: the state is multiplied by exp(decay)."""
    rate: Tensor
    """(T, heads): how far the state moves towards the value, between 0 and 1."""


DeltaRule = Callable[..., tuple[Tensor, Tensor]]
"""A kernel of the delta rule: takes `DeltaInputs` as a batch with `initial_state` (sequences, heads,
key size, value size), and returns the outputs and the final states."""


@dataclass(frozen=True)
class TreeLevel:
    """The segments of one depth, in the order of their batches."""

    batches: tuple[Tensor, ...]
    """The row positions of the segments of each batch, (segments of the batch, L) int64. They are
    padded with T, the number of tokens of the row. A batch is computed in one call."""
    parents: Tensor | None
    """(segments,) int64: for each segment the one before it, counted in the level before; None for
    the roots."""
    tokens: Tensor
    """(tokens,) int64: the row positions of all segments, one segment after another."""
    cu_seqlens: Tensor
    """(segments + 1,) int64: 0 and the end of each segment in `tokens`."""


@dataclass(frozen=True)
class RecurrentPlan:
    """The indices by which recurrent layers compute a packed row of S segments and T tokens.

    A plan holds nothing else, so it is cheap to pickle.

    Example: a prompt of 3 tokens with responses of 2 and 1 tokens, and a convolution over 3 inputs.
    The row has 6 tokens, so 6 stands for an input of zeros.

        row position      0 1 2   3 4   5
        segment           0       1     2

        window_tokens     6 6 0 1 2   1 2 3 4   1 2 5
        window_ends       2 3 4 7 8 11
        last_inputs       [[0, 1, 2], [2, 3, 4], [1, 2, 5]]

        level 0: batch [[0, 1, 2]], no parents
        level 1: batch [[3, 4], [5, 6]], parents [0, 0]
        output_index      [0, 1, 2, 3, 4, 5]
        state_index       [0, 1, 2]
    """

    window_tokens: Tensor
    """(T + S (K - 1),) int64: for each segment, the row positions of the K - 1 inputs before it in its
    conversation, and its own; T stands for zeros."""
    window_ends: Tensor
    """(T,) int64: the index of each token in `window_tokens`, where its window of K inputs ends."""
    last_inputs: Tensor
    """(S, K) int64: the row positions of the last K inputs of the conversation that each segment
    ends; T stands for zeros."""
    levels: tuple[TreeLevel, ...]
    output_index: Tensor
    """(T,) int64: where each token is in the flattened outputs of all batches."""
    token_index: Tensor
    """(T,) int64: where each token is in `tokens` of all levels."""
    state_index: Tensor
    """(S,) int64: where the final state of each segment is among those of all levels."""
    ndim: ClassVar[int] = 1
    """A plan is passed in place of a mask of padding, which has two dimensions."""

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        parents: Sequence[int | None],
        kernel_size: int,
        device: torch.device | None = None,
    ) -> RecurrentPlan:
        """Return the plan of a row.

        Args:
            lengths: Number of tokens of each segment, in the order of the row.
            parents: For each segment the one before it in its tree; None for a root. A parent comes
                before its children.
            kernel_size: Number of inputs that the convolution sees, K.
            device: Where the tensors of the plan are.
        """
        row = _Row(lengths, parents, kernel_size, device)
        row.add_windows()
        for depth in range(max(row.depths) + 1):
            row.add_level(depth)
        return cls(
            window_tokens=torch.cat(row.windows).to(device),
            window_ends=torch.cat(row.window_ends).to(device),
            last_inputs=torch.stack(row.last_inputs).to(device),
            levels=tuple(row.levels),
            output_index=row.output_index.to(device),
            token_index=row.token_index.to(device),
            state_index=row.state_index.to(device),
        )


class _Row:
    """The parts of a plan in the making; the names are those of `RecurrentPlan`."""

    def __init__(
        self,
        lengths: Sequence[int],
        parents: Sequence[int | None],
        kernel_size: int,
        device: torch.device | None,
    ) -> None:
        """Begin a plan; the arguments are those of `RecurrentPlan.of`."""
        self.device = device
        self.lengths = lengths
        self.parents = parents
        self.kernel_size = kernel_size
        self.num_tokens = sum(lengths)
        self.positions = torch.split(torch.arange(self.num_tokens), list(lengths))
        self.depths: list[int] = []
        for parent in parents:
            self.depths.append(0 if parent is None else self.depths[parent] + 1)

        self.windows: list[Tensor] = []
        self.window_ends: list[Tensor] = []
        self.last_inputs: list[Tensor] = []

        self.levels: list[TreeLevel] = []
        self.output_index = torch.empty(self.num_tokens, dtype=torch.int64)
        self.token_index = torch.empty(self.num_tokens, dtype=torch.int64)
        self.state_index = torch.empty(len(lengths), dtype=torch.int64)
        self.number_in_level: dict[int, int] = {}
        self.num_outputs = 0
        """The number of outputs, with padding, of the levels so far."""
        self.num_indexed = 0
        """The number of tokens of the levels so far."""
        self.num_states = 0
        """The number of segments of the levels so far."""

    def add_windows(self) -> None:
        """Find the inputs that the convolution sees at each token, and after each segment."""
        before_a_root = torch.full((self.kernel_size,), self.num_tokens)
        num_inputs = 0
        for positions, parent in zip(self.positions, self.parents, strict=True):
            inputs_before = before_a_root if parent is None else self.last_inputs[parent]
            window = torch.cat([inputs_before[1:], positions])
            num_inputs += len(window)
            self.windows.append(window)
            self.window_ends.append(torch.arange(num_inputs - len(positions), num_inputs))
            self.last_inputs.append(torch.cat([inputs_before, positions])[-self.kernel_size :])

    def add_level(self, depth: int) -> None:
        """Add the segments of one depth; those of the depth before have been added."""
        members = [segment for segment, own in enumerate(self.depths) if own == depth]
        batches: list[Tensor] = []
        ordered: list[int] = []
        for segments in _batches_of_similar_lengths(members, self.lengths):
            batch = pad_sequence(
                [self.positions[segment] for segment in segments],
                batch_first=True,
                padding_value=self.num_tokens,
            )
            for segment in segments:
                positions = self.positions[segment]
                self.output_index[positions] = self.num_outputs + torch.arange(len(positions))
                self.num_outputs += batch.shape[1]
            batches.append(batch.to(self.device))
            ordered += segments

        for number, segment in enumerate(ordered):
            self.number_in_level[segment] = number
            self.state_index[segment] = self.num_states + number
        self.num_states += len(ordered)

        tokens = torch.cat([self.positions[segment] for segment in ordered])
        self.token_index[tokens] = self.num_indexed + torch.arange(len(tokens))
        self.num_indexed += len(tokens)
        ends = torch.tensor([0, *(self.lengths[segment] for segment in ordered)]).cumsum(0)
        self.levels.append(
            TreeLevel(
                batches=tuple(batches),
                parents=self._parents_of(ordered),
                tokens=tokens.to(self.device),
                cu_seqlens=ends.to(self.device),
            )
        )

    def _parents_of(self, segments: Sequence[int]) -> Tensor | None:
        """Return `TreeLevel.parents` for the segments of one depth."""
        numbers: list[int] = []
        for segment in segments:
            parent = self.parents[segment]
            if parent is None:
                return None  # the segments of the first level are roots
            numbers.append(self.number_in_level[parent])
        return torch.tensor(numbers, device=self.device)


def _batches_of_similar_lengths(segments: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Divide segments into batches, so that padding at most doubles the chunks of a segment.

    Args:
        segments: The numbers of the segments.
        lengths: Number of tokens of each segment of the row.
    """
    segments_by_size: dict[int, list[int]] = {}
    for segment in segments:
        num_chunks = -(-lengths[segment] // CHUNK)
        # Numbers of chunks with the same bit length are at most a factor of two apart.
        size = (num_chunks - 1).bit_length()
        segments_by_size.setdefault(size, []).append(segment)
    return list(segments_by_size.values())


def branching_convolution(
    inputs: Tensor, convolution: torch.nn.Conv1d, plan: RecurrentPlan
) -> Tensor:
    """Compute a causal convolution over each conversation of a packed row.

    The convolution is called as a module, and not used by its weight alone, so that the hooks of
    ZeRO-3 gather the weight.

    Args:
        inputs: (T, channels).
        convolution: A convolution of every channel by itself, with K - 1 zeros on either side.
        plan: The plan of the row.

    Returns:
        (T, channels).
    """
    windows = gather(inputs, plan.window_tokens)
    # Output i sees the inputs i - K + 1 to i. Those whose windows reach into another segment are
    # the K - 1 outputs before each segment, which are left out.
    outputs: Tensor = convolution(windows.t()[None])[0, :, : len(windows)]
    return outputs.t().index_select(0, plan.window_ends)


def gather(inputs: Tensor, positions: Tensor) -> Tensor:
    """Return the rows of `inputs` (T, n) at `positions` (m,), as (m, n); position T is zeros.

    They are gathered in fp32, so that the backward pass adds up the gradients that several segments
    give to a token without rounding.
    """
    with_zeros = F.pad(inputs.float(), (0, 0, 0, 1))
    return with_zeros.index_select(0, positions).to(inputs.dtype)


def branching_delta_rule(
    inputs: DeltaInputs, plan: RecurrentPlan, rule: DeltaRule
) -> tuple[Tensor, Tensor]:
    """Compute the delta rule over each conversation of a packed row, by padded batches.

    Padding changes no state: it has a decay of 0, which multiplies by 1, and a rate of 0.

    Args:
        inputs: The inputs of the T tokens.
        plan: The plan of the row.
        rule: The kernel.

    Returns:
        The outputs (T, heads, value size), and the state after each of the S segments, (S, heads,
        key size, value size) fp32.
    """
    padded_inputs = [_with_zero_row(tensor) for tensor in inputs]
    outputs: list[Tensor] = []
    states_by_level: list[Tensor] = []
    for level in plan.levels:
        states_before: Tensor | None = None
        if level.parents is not None:
            states_before = states_by_level[-1].index_select(0, level.parents)
        states: list[Tensor] = []
        first = 0
        for batch in level.batches:
            end = first + len(batch)
            initial = None if states_before is None else states_before[first:end]
            rows = [_select(tensor, batch) for tensor in padded_inputs]
            batch_outputs, batch_states = _call(rule, rows, initial)
            outputs.append(batch_outputs.flatten(0, 1))
            states.append(batch_states)
            first = end
        states_by_level.append(torch.cat(states))
    row_outputs = torch.cat(outputs).index_select(0, plan.output_index)
    return row_outputs, torch.cat(states_by_level).index_select(0, plan.state_index)


def varlen_delta_rule(
    inputs: DeltaInputs, plan: RecurrentPlan, rule: DeltaRule
) -> tuple[Tensor, Tensor]:
    """Compute the delta rule over each conversation, by a kernel that takes sequences of any lengths.

    Arguments and results are those of `branching_delta_rule`. The kernel also takes `cu_seqlens`,
    and gets all segments of a level as one sequence without padding.
    """
    outputs: list[Tensor] = []
    states_by_level: list[Tensor] = []
    for level in plan.levels:
        initial: Tensor | None = None
        if level.parents is not None:
            initial = states_by_level[-1].index_select(0, level.parents)
        rows = [tensor.index_select(0, level.tokens)[None] for tensor in inputs]
        level_outputs, states = _call(rule, rows, initial, cu_seqlens=level.cu_seqlens)
        outputs.append(level_outputs[0])
        states_by_level.append(states)
    row_outputs = torch.cat(outputs).index_select(0, plan.token_index)
    return row_outputs, torch.cat(states_by_level).index_select(0, plan.state_index)


def _call(
    rule: DeltaRule, rows: Sequence[Tensor], initial: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Call a kernel of the delta rule, and return its outputs and final states.

    Autocast would compute the kernel's products of states, which are fp32, in half precision.
    """
    query, key, value, decay, rate = rows
    with torch.autocast(query.device.type, enabled=False):
        return rule(
            query,
            key,
            value,
            g=decay,
            beta=rate,
            initial_state=initial,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            **kwargs,
        )


def _with_zero_row(tensor: Tensor) -> Tensor:
    """Return `tensor` (T, ...) with a row of zeros at its end."""
    return torch.cat([tensor, tensor.new_zeros(1, *tensor.shape[1:])])


def _select(tensor: Tensor, tokens: Tensor) -> Tensor:
    """Return the rows of `tensor` (T + 1, ...) at `tokens` (n, L), as (n, L, ...)."""
    return tensor.index_select(0, tokens.flatten()).view(*tokens.shape, *tensor.shape[1:])


class PrefillCache(DynamicCache):  # type: ignore[misc]
    """The cache of a packed row from which texts are generated.

    Attention layers keep the keys and values of the row. Recurrent layers keep the state and the
    last inputs of the conversation of each text.
    """

    def __init__(self, config: Any, segments: Tensor) -> None:
        """Create an empty cache.

        Args:
            config: The configuration of the language model.
            segments: (C,) int64: the segment, counted over the row, that each text goes on from.
        """
        super().__init__(config=config)
        self.segments = segments

    def keep_states(self, layer: int, inputs: Tensor, states: Tensor, plan: RecurrentPlan) -> None:
        """Keep what a recurrent layer needs to go on after the segments of the texts.

        Args:
            layer: Index of the layer.
            inputs: The inputs of the convolution, (T, channels).
            states: The state after each segment, (S, heads, key size, value size).
            plan: The plan of the row.
        """
        positions = plan.last_inputs.index_select(0, self.segments)  # (C, K)
        last_inputs = gather(inputs, positions.flatten())
        last_inputs = last_inputs.view(*positions.shape, -1).transpose(1, 2)  # (C, channels, K)
        self.update_conv_state(last_inputs, layer, conv_kernel_size=positions.shape[1])
        self.update_recurrent_state(states.index_select(0, self.segments), layer)

    def take_keys(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the keys and values of the row, (key heads, T, d) each, by attention layer.

        They are removed from the cache, which is then ready for those of generated tokens.
        """
        keys_by_layer: dict[int, tuple[Tensor, Tensor]] = {}
        for index, layer in enumerate(self.layers):
            if isinstance(layer, LinearAttentionCacheLayerMixin):
                continue
            keys_by_layer[index] = (layer.keys[0], layer.values[0])
            self.layers[index] = DynamicLayer()
        return keys_by_layer
