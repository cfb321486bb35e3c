"""Compare flash-linear-attention's kernel on packed rows with the kernel in plain torch, without a GPU.

    make fla-interpreted

Recurrent layers of Qwen3.5 use the kernel of flash-linear-attention on a GPU. Here Triton's
interpreter runs it on the CPU, with the segments of random trees as its sequences, and the outputs,
the last states and the gradients of all inputs are compared. Both compute in fp32. The status is 1 if
a difference exceeds `LIMIT`.

The interpreter of Triton 3.9 cannot run fla 0.6.0 as it is. The target of the Makefile replaces
`i_t.to(tl.int64)` in the installed copy, because a loop's counter is a number of Python there. This
file makes tensors of the numbers of Python that kernels are given, and takes the first configuration
of each kernel in place of the fastest.
"""

import os
import random
import sys
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import autotuner, interpreter

from mmrm.models.families.qwen3_5_layers import torch_kernel
from mmrm.models.packing.recurrent import (
    DeltaInputs,
    RecurrentPlan,
    branching_delta_rule,
    varlen_delta_rule,
)

NUM_ROWS = 40
LIMIT = 1e-4
"""The largest difference that counts as the same, relative to the largest number of the tensor."""
HEADS = 2
SIZE = 16
"""Size of a head, the smallest that the kernels take."""
LENGTHS = (1, 3, 20, 64, 65)
"""Lengths of segments. A kernel computes chunks of 64 tokens."""

Rule = Callable[[DeltaInputs, RecurrentPlan, Any], tuple[Tensor, Tensor]]


def prepare_interpreter() -> None:
    """Make Triton's interpreter run the kernels of fla; see the text at the top."""
    stock_conversion = interpreter._implicit_cvt

    def conversion(given: Any) -> Any:
        if isinstance(given, float):
            number = np.array([given], dtype=np.float32)
            return tl.tensor(interpreter.TensorHandle(number, tl.float32), tl.float32)
        return stock_conversion(given)

    def run_first(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return tuner.fn.run(*args, **kwargs, **tuner.configs[0].all_kwargs())

    interpreter._implicit_cvt = conversion
    autotuner.Autotuner.run = run_first


def random_row(seed: int) -> tuple[RecurrentPlan, list[Tensor]]:
    """Return the plan of random trees of three to five segments, and the inputs of its tokens."""
    draw = random.Random(seed)
    lengths: list[int] = []
    parents: list[int | None] = []
    for _ in range(draw.randint(3, 5)):
        parents.append(draw.choice([None, *range(len(lengths))]))
        lengths.append(draw.choice(LENGTHS))
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths)

    def noise(*size: int) -> Tensor:
        return torch.randn(num_tokens, *size, generator=generator)

    query = noise(HEADS, SIZE)
    key = noise(HEADS, SIZE)
    value = noise(HEADS, SIZE)
    decay = -noise(HEADS).abs()
    rate = noise(HEADS).sigmoid()
    plan = RecurrentPlan.of(lengths, parents, kernel_size=4)
    return plan, [query, key, value, decay, rate]


def computed(rule: Rule, kernel: Any, plan: RecurrentPlan, inputs: list[Tensor]) -> list[Tensor]:
    """Return outputs, last states and the gradients of all inputs."""
    own_inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    outputs, states = rule(DeltaInputs(*own_inputs), plan, kernel)
    weights = torch.linspace(-1, 2, outputs.numel()).view(outputs.shape)
    loss = (outputs * weights).sum() + states.square().sum()
    gradients = torch.autograd.grad(loss, own_inputs)
    return [outputs.detach(), states.detach(), *gradients]


def main() -> int:
    """Compare random rows, print the largest differences, and return the status."""
    prepare_interpreter()
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    names = ("outputs", "states", *(f"gradient of {name}" for name in DeltaInputs._fields))
    largest = dict.fromkeys(names, 0.0)
    for seed in range(NUM_ROWS):
        plan, inputs = random_row(seed)
        expected = computed(branching_delta_rule, torch_kernel(), plan, inputs)
        found = computed(varlen_delta_rule, chunk_gated_delta_rule, plan, inputs)
        for name, ours, wanted in zip(names, found, expected, strict=True):
            difference = float((ours - wanted).abs().max() / wanted.abs().max())
            largest[name] = max(largest[name], difference)
    print(f"{NUM_ROWS} rows, largest difference relative to the largest number of the tensor:")
    for name, difference in largest.items():
        print(f"  {name}: {difference:.1e}")
    return int(max(largest.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
