"""Helpers for tests of exactness, which compare two ways of computing the same numbers.

Packed rows, shared prompts, several ranks and remote code compute the same numbers as the stock
model on padded rows, in another order. In float32 the results differ by rounding. How much depends
on the processor and on the kernels that torch chooses for it, and a real fault can be smaller. A
test of exactness is therefore marked `numerics` and does one of two things:

1. It runs both ways in float64, inside `float64()`, and compares with `assert_exact`, to 1e-9.
   Rounding in float64 is near 1e-16, and the smallest faults are near 1e-6, so that neither is
   mistaken for the other on any processor.
2. If the subject is a lower precision, such as bf16, it computes the numbers in float64 as well and
   uses `assert_no_worse`. Our error must be at most 1.2 times the error that the stock model makes
   in the same precision on the same processor.

`make numerics` runs all these tests with several choices of torch's kernels. This file imports
torch alone, because tests of remote code import it in processes without this repository.
"""

from __future__ import annotations

import copyreg
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

RELATIVE = 1e-9
"""Largest difference of two float64 computations, relative to the largest number compared."""
MARGIN = 1.2
"""Largest error of ours, relative to the stock model's own error in the same precision."""


def grouped_products(rows: Tensor, matrices: Tensor, *, offs: Tensor) -> Tensor:
    """Return the products that `torch.nn.functional.grouped_mm` computes for experts.

    It stands in for that function, whose own kernel takes no float64.

    Args:
        rows: (S, in), sorted by group.
        matrices: (groups, in, out).
        offs: (groups,) int32, the end of each group.

    Returns:
        (S, out), each row times the matrix of its group.
    """
    ends = offs.tolist()
    products = []
    for number, matrix in enumerate(matrices):
        start = ends[number - 1] if number > 0 else 0
        products.append(rows[start : ends[number]] @ matrix)
    return torch.cat(products)


FLOAT32_NAMES: list[tuple[Any, str, Any]] = [
    (torch, "float32", torch.float64),
    (torch, "float", torch.float64),
    (Tensor, "float", Tensor.double),
    (nn.Module, "float", nn.Module.double),
    (nn.functional, "grouped_mm", grouped_products),
]
"""The names of float32, and of a kernel that takes nothing wider, as (object, attribute,
replacement)."""

DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""The dtypes by their own names, such as `torch.float32`."""

Numbers = Tensor | float | Sequence[Any]
"""A tensor, a number, or a sequence of numbers (of any depth)."""


@contextmanager
def float64() -> Iterator[None]:
    """Run all code that computes in float32 in float64 instead, in all threads of this process.

    Models have to be built and saved inside this context: tensors that exist already keep their
    dtype, and a safetensors file of float32 cannot be read here. See `compute_in_float64`.
    """
    default_dtype = torch.get_default_dtype()
    if default_dtype == torch.float64:
        yield  # inside another one of these contexts
        return
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in FLOAT32_NAMES]
    compute_in_float64()
    try:
        yield
    finally:
        del copyreg.dispatch_table[torch.dtype]
        torch.set_default_dtype(default_dtype)
        for owner, name, original in originals:
            setattr(owner, name, original)


def compute_in_float64() -> None:
    """Let the names of float32 mean float64, for the rest of this process.

    The code under test names float32 itself: `dtype: float32` in a recipe, `Tensor.float()` in our
    heads, `.to(torch.float32)` in transformers' norms and rotary positions. `Module.double()` does
    not reach these conversions.
    """
    # torch makes its tables of dtypes for files when it first needs them. Let it do so before the
    # names change.
    buffer = io.BytesIO()
    torch.save(torch.zeros(1), buffer)
    buffer.seek(0)
    torch.load(buffer)
    for owner, name, replacement in FLOAT32_NAMES:
        setattr(owner, name, replacement)
    torch.set_default_dtype(torch.float64)
    # A dtype is pickled by its name, which `pickle` looks up in `torch`. Pictures are in float32
    # and are sent by loader workers. After an error there, the receiver would wait for ever.
    copyreg.pickle(torch.dtype, _reduce_dtype)


def _reduce_dtype(dtype: torch.dtype) -> tuple[Any, tuple[str]]:
    return _dtype_named, (str(dtype),)


def _dtype_named(name: str) -> torch.dtype:
    return DTYPES[name]


def assert_exact(
    found: Numbers | Mapping[str, Numbers], wanted: Numbers | Mapping[str, Numbers]
) -> None:
    """Assert that two float64 computations agree to `RELATIVE` of the largest number.

    A mapping is compared name by name, and the largest number is that of the whole mapping. This
    matters for gradients: the true gradient of the keys' bias is zero, and what is computed for
    it is nothing but rounding of larger numbers.
    """
    found_by_name = _as_float64(found)
    wanted_by_name = _as_float64(wanted)
    assert found_by_name.keys() == wanted_by_name.keys()
    largest = max(float(tensor.abs().max()) for tensor in wanted_by_name.values() if len(tensor))
    assert largest > 0, "all numbers are zero, so that the comparison shows nothing"
    for name, expected in wanted_by_name.items():
        actual = found_by_name[name]
        assert actual.shape == expected.shape, name
        assert bool(actual.isfinite().all()), f"{name} is not finite"
        difference = float((actual - expected).abs().max()) if len(expected) else 0.0
        assert difference <= RELATIVE * largest, (
            f"{name} differs by {difference:.3g}, which is {difference / largest:.3g} of the "
            f"largest number compared; {RELATIVE:g} is allowed"
        )


def _as_float64(numbers: Numbers | Mapping[str, Numbers]) -> dict[str, Tensor]:
    """Return the numbers by name as flat tensors; a tensor must have been computed in float64."""
    if not isinstance(numbers, Mapping):
        numbers = {"value": numbers}
    tensors: dict[str, Tensor] = {}
    for name, value in numbers.items():
        if isinstance(value, Tensor):
            assert value.dtype == torch.float64, f"{name} was computed in {value.dtype}"
            tensors[name] = value.detach().flatten()
        else:
            tensors[name] = torch.tensor(value, dtype=torch.float64).flatten()
    return tensors


def assert_no_worse(ours: Tensor, stock: Tensor, exact: Tensor) -> None:
    """Assert that our error is at most `MARGIN` times the stock model's error.

    `ours` and `stock` were computed in the same low precision, `exact` in float64. Errors are root
    mean squares, so that there should be many numbers: two single roundings differ by luck.
    """
    assert exact.dtype == torch.float64
    our_error = _root_mean_square(ours.detach().double() - exact)
    stock_error = _root_mean_square(stock.detach().double() - exact)
    assert our_error > 0, "there is no error, so that nothing was computed in a low precision"
    assert our_error <= MARGIN * stock_error, (
        f"our error is {our_error:.3g}, and the stock model's is {stock_error:.3g}: "
        f"{our_error / stock_error:.2f} times as much; {MARGIN} is allowed"
    )


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
