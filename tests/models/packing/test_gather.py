"""Rows that are gathered several times."""

import torch

from models.packing.gather import Repeated


def test_gradients_of_a_row_are_summed_in_fp32() -> None:
    """300 times 1 is 256 where every sum is rounded to bf16."""
    x = torch.randn(3, 2, 4, dtype=torch.bfloat16, requires_grad=True)
    index = torch.tensor([0] * 300 + [2, 1, 2])
    found = Repeated.apply(x, index)  # type: ignore[no-untyped-call]
    assert torch.equal(found, x[index])
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert gradient[:, 0, 0].tolist() == [300, 1, 2]
