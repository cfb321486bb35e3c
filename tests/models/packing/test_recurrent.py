"""Recurrent layers over packed rows: plans, the branching convolution and the branching delta rule."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mmrm.models.families.qwen3_5_layers import torch_kernel
from mmrm.models.packing.recurrent import (
    CHUNK,
    DeltaInputs,
    RecurrentPlan,
    branching_convolution,
    branching_delta_rule,
    varlen_delta_rule,
)
from tests.models.exactness import assert_exact

HEADS = 3
KEY_SIZE = 4
VALUE_SIZE = 5
CHANNELS = 6


def test_the_documented_plan() -> None:
    plan = RecurrentPlan.of(lengths=[3, 2, 1], parents=[None, 0, 0], kernel_size=3)

    assert plan.window_tokens.tolist() == [6, 6, 0, 1, 2, 1, 2, 3, 4, 1, 2, 5]
    assert plan.window_ends.tolist() == [2, 3, 4, 7, 8, 11]
    assert plan.last_inputs.tolist() == [[0, 1, 2], [2, 3, 4], [1, 2, 5]]
    root_level, response_level = plan.levels
    assert [batch.tolist() for batch in root_level.batches] == [[[0, 1, 2]]]
    assert root_level.parents is None
    assert [batch.tolist() for batch in response_level.batches] == [[[3, 4], [5, 6]]]
    assert response_level.parents is not None
    assert response_level.parents.tolist() == [0, 0]
    assert response_level.cu_seqlens.tolist() == [0, 2, 3]
    assert plan.output_index.tolist() == [0, 1, 2, 3, 4, 5]
    assert plan.state_index.tolist() == [0, 1, 2]


def test_a_convolution_looks_through_segments_that_are_shorter_than_its_kernel() -> None:
    plan = RecurrentPlan.of(lengths=[1, 1, 1, 2], parents=[None, 0, 1, 2], kernel_size=4)

    assert plan.last_inputs.tolist() == [[5, 5, 5, 0], [5, 5, 0, 1], [5, 0, 1, 2], [1, 2, 3, 4]]
    *_, own_window = torch.split(plan.window_tokens, [4, 4, 4, 5])
    assert own_window.tolist() == [0, 1, 2, 3, 4]


def test_a_plan_travels_to_other_processes() -> None:
    plan = RecurrentPlan.of(lengths=[3, 2], parents=[None, 0], kernel_size=4)

    copy = pickle.loads(pickle.dumps(plan))

    assert torch.equal(copy.window_tokens, plan.window_tokens)
    assert torch.equal(copy.levels[1].tokens, plan.levels[1].tokens)


class RandomTrees:
    """Random lengths and parents of the segments of a row, and random inputs of its tokens."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.lengths: list[int] = []
        self.parents: list[int | None] = []
        for _ in range(draw.randint(1, 9)):
            candidates = [None, *range(len(self.lengths))]
            self.lengths.append(draw.choice((1, 1, 2, 3, 20, CHUNK, CHUNK + 1, 150)))
            self.parents.append(draw.choice(candidates))
        self.plan = RecurrentPlan.of(self.lengths, self.parents, kernel_size=4)
        generator = torch.Generator().manual_seed(seed)
        num_tokens = sum(self.lengths)

        def noise(*size: int) -> Tensor:
            return torch.randn(num_tokens, *size, generator=generator).requires_grad_()

        self.inputs = DeltaInputs(
            query=noise(HEADS, KEY_SIZE),
            key=noise(HEADS, KEY_SIZE),
            value=noise(HEADS, VALUE_SIZE),
            decay=-noise(HEADS).detach().abs().requires_grad_(),
            rate=noise(HEADS).detach().sigmoid().requires_grad_(),
        )
        self.channels = noise(CHANNELS)
        positions = torch.split(torch.arange(num_tokens), self.lengths)
        self.paths: list[Tensor] = []
        """For each segment the row positions of the conversation that it ends."""
        for own, parent in zip(positions, self.parents, strict=True):
            before = own[:0] if parent is None else self.paths[parent]
            self.paths.append(torch.cat([before, own]))

    def own_part(self, segment: int, of_path: Tensor) -> Tensor:
        """Return the last entries of `of_path`, those of the segment's own tokens."""
        return of_path[-self.lengths[segment] :]


def assert_all_exact(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Assert that two lists of float64 tensors are equal; see `assert_exact`."""
    assert_exact(
        {str(number): tensor.detach() for number, tensor in enumerate(found)},
        {str(number): tensor.detach() for number, tensor in enumerate(expected)},
    )


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a loss in which every number of the outputs counts differently."""
    loss = torch.zeros(())
    for output in outputs:
        loss = loss + (output * torch.linspace(-1, 2, output.numel()).view(output.shape)).sum()
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(12))
def test_the_convolution_is_that_of_each_conversation(seed: int) -> None:
    row = RandomTrees(seed)
    torch.manual_seed(seed)
    convolution = nn.Conv1d(CHANNELS, CHANNELS, 4, groups=CHANNELS, padding=3, bias=False)
    inputs = [row.channels, convolution.weight]

    found = branching_convolution(row.channels, convolution, row.plan)

    expected_parts = []
    for segment, path in enumerate(row.paths):
        whole = convolution(row.channels[path].t()[None])[0, :, : len(path)].t()
        expected_parts.append(row.own_part(segment, whole))
    expected = torch.cat(expected_parts)
    assert_all_exact([found], [expected])
    assert_all_exact(gradients([found], inputs), gradients([expected], inputs))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(12))
def test_the_delta_rule_is_that_of_each_conversation(seed: int) -> None:
    row = RandomTrees(seed)
    kernel = torch_kernel()

    outputs, states = branching_delta_rule(row.inputs, row.plan, kernel)

    expected_outputs = []
    expected_states = []
    for segment, path in enumerate(row.paths):
        query, key, value, decay, rate = (tensor[path][None] for tensor in row.inputs)
        whole, state = kernel(
            query,
            key,
            value,
            g=decay,
            beta=rate,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        expected_outputs.append(row.own_part(segment, whole[0]))
        expected_states.append(state[0])
    expected = [torch.cat(expected_outputs), torch.stack(expected_states)]
    assert_all_exact([outputs, states], expected)
    inputs = list(row.inputs)
    assert_all_exact(gradients([outputs, states], inputs), gradients(expected, inputs))


def sequences_one_by_one(*tensors: Tensor, cu_seqlens: Tensor, **kwargs: Any) -> Any:
    """Compute the delta rule as a kernel that takes `cu_seqlens` does, one sequence after another."""
    kernel = torch_kernel()
    lengths = cu_seqlens.diff().tolist()
    initial = kwargs.pop("initial_state")
    decays = torch.split(kwargs.pop("g"), lengths, dim=1)
    rates = torch.split(kwargs.pop("beta"), lengths, dim=1)
    split_tensors = [torch.split(tensor, lengths, dim=1) for tensor in tensors]
    outputs = []
    states = []
    for number, sequence in enumerate(zip(*split_tensors, strict=True)):
        output, state = kernel(
            *sequence,
            g=decays[number],
            beta=rates[number],
            initial_state=None if initial is None else initial[number : number + 1],
            **kwargs,
        )
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs, dim=1), torch.cat(states)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(6))
def test_a_kernel_for_sequences_of_any_lengths_computes_the_same(seed: int) -> None:
    row = RandomTrees(seed)

    found = varlen_delta_rule(row.inputs, row.plan, sequences_one_by_one)

    expected = branching_delta_rule(row.inputs, row.plan, torch_kernel())
    assert_all_exact(found, expected)


def test_padding_at_most_doubles_the_chunks_of_a_segment() -> None:
    draw = random.Random(0)
    lengths = [draw.randint(1, 2000) for _ in range(60)]
    plan = RecurrentPlan.of(lengths, [None] * 60, kernel_size=4)

    [level] = plan.levels
    num_padded_chunks = 0
    for batch in level.batches:
        num_padded_chunks += len(batch) * -(-batch.shape[1] // CHUNK)
    num_chunks = sum(-(-length // CHUNK) for length in lengths)
    assert num_padded_chunks < 2 * num_chunks
    padded = pad_sequence([torch.zeros(length) for length in lengths], batch_first=True)
    assert num_padded_chunks < padded.numel() // CHUNK
