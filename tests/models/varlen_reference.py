"""torch's varlen kernel, which exists on CUDA only, written out by its documented meaning; and the devices that tests run on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from models.packing import attention

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
"""The CPU runs the kernel written out, a CUDA device torch's own."""


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Attention of q (Q, heads, d) to k, v (K, key heads, d), the last query aligned with the last key."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(len(k) - len(q) + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def reference_varlen(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, max_q: int, max_k: int, *, scale: float, **options: Any
) -> Tensor:
    """Do what torch documents of varlen_attn: one attention a segment, causal aligned to the bottom right."""
    assert options.pop("enable_gqa") is True
    window = options.pop("window_size")
    assert not options
    assert ends_q.dtype == ends_k.dtype == torch.int32
    lengths = [[b - a for a, b in pairwise(ends.tolist())] for ends in (ends_q, ends_k)]
    assert (max(lengths[0]), max(lengths[1])) == (max_q, max_k)
    out = []
    parts = (torch.split(x, n) for x, n in ((q, lengths[0]), (k, lengths[1]), (v, lengths[1])))
    for part_q, part_k, part_v in zip(*parts, strict=True):
        out.append(attend(part_q, part_k, part_v, scale, window == (-1, 0)))
    return torch.cat(out)


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every kernel but `sdpa` be the varlen kernel, written out."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", reference_varlen)
    monkeypatch.setattr(attention, "_grouped_heads", lambda: {"enable_gqa": True})
    monkeypatch.setattr(attention, "_takes_varlen", lambda query, kernel, dropout=0.0: kernel != "sdpa")
