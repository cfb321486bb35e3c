"""Rows gathered by an index, many of them more than once, and how the gradients of one row are added up."""

from typing import Any

import torch
from torch import Tensor


class Repeated(torch.autograd.Function):
    """Rows of (S, heads, d) by an index (N,), most of them several times; gradients of one row are added up in fp32.

    In half precision, as the backward of `index_select` does it, the keys and values of a prompt with eight continuations got
    gradients 1.6 times as wrong as SDPA's (H100, bf16).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        """Gather."""
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Add up what each row was given at its places."""
        (index,), (gradient,) = ctx.saved_tensors, gradients
        total = gradient.new_zeros(ctx.rows, *gradient.shape[1:], dtype=torch.float32)
        return total.index_add_(0, index, gradient.float()).to(gradient.dtype), None


def take(x: Tensor, index: Tensor, start: int | None) -> Tensor:
    """Gather rows of (S, heads, d) by `index` (n, length) into (n, heads, length, d), as a view from `start` on if given.

    The backward of `index_select` is one `index_add`; that of `x[index]` sorts and accumulates, and costs several times as
    much on a CPU.
    """
    taken = x.index_select(0, index.flatten()) if start is None else x[start : start + index.numel()]
    return taken.view(*index.shape, *x.shape[1:]).transpose(1, 2)
