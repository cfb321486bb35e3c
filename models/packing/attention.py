"""Attention over packed rows: every continuation sees its own prompt and itself, exactly as if it stood alone.

Two functions are registered with transformers and nothing is patched. `shared_prefix` reads an `AttentionPlan`, or while
decoding a `DecodePlan`, in the place of a mask; `flash_windows` takes all segments of a vision layer in one call. On CUDA in
bf16 or fp16 both are one varlen call (FlashAttention inside torch); elsewhere they are batched SDPA.

The loader makes both plans once. The stock vision towers build what `VisionPlan` holds from the grids on the host and ask
the device for lengths in every layer, and each question makes the host wait; transformers takes it ready-made (5.17 to
5.23), and the results are the same bits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mmrm.models.packing.decode_attention import DecodePlan, decode
from mmrm.models.packing.vision import SdpaCall, SdpaCalls, Segments, VisionPlan, cumulative

Kernel = Literal["auto", "sdpa", "varlen"]


@dataclass(frozen=True)
class AttentionPlan:
    """Who sees whom in a row of groups `[prompt | continuation | continuation ...]`.

    A segment is a prompt or a continuation, in row order. Segment i has queries `cu_seqlens_q[i]:cu_seqlens_q[i+1]`
    of the row; its keys are `key_index[cu_seqlens_k[i]:cu_seqlens_k[i+1]]`, that is prompt ++ itself, and the mask
    is causal with both ends aligned (the last query sees every key). Cheap to pickle: indices, no dense mask.
    """

    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    cu_seqlens_q: Tensor
    """(S + 1,) int32."""
    cu_seqlens_k: Tensor
    """(S + 1,) int32."""
    key_index: Tensor
    """(sum of key_lengths,) int64 row positions."""
    ndim: ClassVar[int] = 1
    """Transformers takes a mask of two dimensions for one of padding, and hands others on as they are."""
    _calls: dict[torch.dtype, SdpaCalls] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]]) -> AttentionPlan:
        """Plan a row; `groups` holds for each group the length of its prompt, then of its continuations (all >= 1)."""
        seen: list[Tensor] = []
        start = 0
        for lengths in groups:
            prompt = torch.arange(0)
            for length in lengths:
                own = torch.arange(start, start + length)
                seen.append(torch.cat([prompt, own]))
                prompt = prompt if len(prompt) else own
                start += length
        queries, keys = [length for lengths in groups for length in lengths], list(map(len, seen))
        return cls(
            tuple(queries), tuple(keys), cumulative(queries), cumulative(keys), torch.cat(seen)
        )

    @property
    def shape(self) -> tuple[int]:
        """Tokens of the row, of which transformers asks every mask."""
        return (sum(self.query_lengths),)

    def calls(self, dtype: torch.dtype) -> SdpaCalls:
        """Return the padded SDPA calls for queries of `dtype`, built at the first use and kept for the other layers."""
        if dtype not in self._calls:
            self._calls[dtype] = _padded_calls(self, dtype)
        return self._calls[dtype]


def _padded_calls(plan: AttentionPlan, dtype: torch.dtype) -> SdpaCalls:
    """Sort segments into power-of-two buckets by both lengths, so that padding at most doubles either side.

    Padding points at position 0 of the row and its output is dropped.
    """
    members: dict[tuple[bool, int, int], list[int]] = {}
    for i, (own, seen) in enumerate(zip(plan.query_lengths, plan.key_lengths, strict=True)):
        members.setdefault(
            (own == seen, (own - 1).bit_length(), (seen - 1).bit_length()), []
        ).append(i)
    query_starts, key_starts = plan.cu_seqlens_q.tolist(), plan.cu_seqlens_k.tolist()
    device, row, key_index = (
        plan.key_index.device,
        torch.arange(query_starts[-1]),
        plan.key_index.cpu(),
    )
    restore = torch.empty_like(row)
    calls, offset = [], 0
    for (square, _, _), segments in members.items():
        places = [row[query_starts[i] : query_starts[i + 1]] for i in segments]
        queries = pad_sequence(places, batch_first=True)
        keys = pad_sequence(
            [key_index[key_starts[i] : key_starts[i + 1]] for i in segments], batch_first=True
        )
        for n, positions in enumerate(places):
            restore[positions] = offset + n * queries.shape[1] + torch.arange(len(positions))
        offset += queries.numel()
        # Plain causal attention is the mask where a segment sees itself alone: padding then lies behind every query.
        mask = (
            None
            if square
            else _mask(plan, segments, queries.shape[1], keys.shape[1], dtype).to(device)
        )
        calls.append(SdpaCall(queries.to(device), keys.to(device), mask, causal=square))
    return calls, restore.to(device)


def _mask(
    plan: AttentionPlan, segments: Sequence[int], width: int, depth: int, dtype: torch.dtype
) -> Tensor:
    """Build the additive mask (n, 1, width, depth): query j of q sees the first k - q + j + 1 of k keys."""
    queries = torch.tensor([plan.query_lengths[i] for i in segments])[:, None]
    keys = torch.tensor([plan.key_lengths[i] for i in segments])[:, None]
    visible = torch.minimum(keys - queries + torch.arange(width) + 1, keys)
    hidden = torch.arange(depth) >= visible[..., None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None]


def shared_prefix(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: AttentionPlan | DecodePlan | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    kernel: Kernel,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend over a packed row, in a decoding step, or as stock `sdpa` where the mask is no plan (padding, stock `generate`).

    For a packed row `query` is (1, heads, T, d), `key` and `value` (1, key heads, T, d); returns (1, T, heads, d).
    """
    if isinstance(attention_mask, DecodePlan):
        return decode(query, key, value, attention_mask, int(module.layer_idx), scaling), None  # type: ignore[arg-type]
    if not isinstance(attention_mask, AttentionPlan):
        stock: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return stock
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if torch.is_autocast_enabled(
        q.device.type
    ):  # rotary positions leave queries and keys in fp32 there
        q, k, v = (x.to(torch.get_autocast_dtype(x.device.type)) for x in (q, k, v))
    plan = attention_mask
    if not _takes_varlen(q, kernel, dropout):
        return _sdpa(q, k, v, plan.calls(q.dtype), scaling, dropout)[None], None
    # in fp32, so that the backward pass adds up what several continuations give to a prompt's token without rounding
    keys, values = (x.float().index_select(0, plan.key_index).to(x.dtype) for x in (k, v))
    ends, longest = (
        (plan.cu_seqlens_q, plan.cu_seqlens_k),
        (max(plan.query_lengths), max(plan.key_lengths)),
    )
    return _varlen(q, keys, values, ends, longest, scaling, causal=True)[None], None


def _takes_varlen(query: Tensor, kernel: Kernel, dropout: float = 0.0) -> bool:
    """Choose the kernel; the varlen kernel exists on CUDA in half precision and has no dropout."""
    possible = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and not dropout
    if kernel == "varlen" and not possible:
        raise ValueError(
            f"attention: varlen needs CUDA, bf16 or fp16, and no attention dropout; found {query.device.type}, "
            f"{query.dtype}, dropout {dropout}. Set `attention: auto` (or sdpa)."
        )
    return possible and kernel != "sdpa"


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, plan: SdpaCalls, scaling: float | None, dropout: float = 0.0
) -> Tensor:
    """Attend over rows (S, heads, d) in as many calls as `plan` says; returns (S, heads, d)."""
    calls, restore = plan
    outputs = []
    for call in calls:
        attended = F.scaled_dot_product_attention(
            _take(q, call.queries, call.start),
            _take(k, call.keys, call.start),
            _take(v, call.keys, call.start),
            attn_mask=call.mask,
            dropout_p=dropout,
            is_causal=call.causal,
            scale=scaling,
            enable_gqa=k.shape[1] != q.shape[1],
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    in_order = len(calls) == 1 and calls[0].start == 0
    return outputs[0] if in_order else torch.cat(outputs).index_select(0, restore)


def _take(x: Tensor, index: Tensor, start: int | None) -> Tensor:
    """Gather rows of (S, heads, d) by `index` (n, length) into (n, heads, length, d), as a view from `start` on if given.

    The backward of `index_select` is one `index_add`; that of `x[index]` sorts first, which costs several times as much on a CPU.
    """
    taken = (
        x.index_select(0, index.flatten()) if start is None else x[start : start + index.numel()]
    )
    return taken.view(*index.shape, *x.shape[1:]).transpose(1, 2)


class PatchProjection(torch.nn.Conv3d):
    """The vision towers' patch embedding as the matrix product that it is: a patch is as large as the kernel.

    Parameters and their names are the convolution's. On a CPU it takes 0.4 of the convolution's time in fp32; in bf16 cuDNN's has
    taken seconds a call with some versions of torch (pytorch#174051).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take patches (P, channels, frames, rows, columns) and return (P, width)."""
        return F.linear(input.flatten(1), self.weight.flatten(1), self.bias)


def flash_windows(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None = None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    plan: VisionPlan | None = None,
    scaling: float | None = None,
    kernel: Kernel,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend inside every window of a vision layer at once.

    `query`, `key` and `value` are (1, heads, S, d), the windows are `cu_seq_lens_q` (W + 1,) int32; `plan`, which packed
    rows bring along, knows them without asking the device. Returns (1, S, heads, d).
    """
    if plan is not None:
        plan.check(module.config)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if _takes_varlen(q, kernel):
        both, longest = (cu_seq_lens_q, cu_seq_lens_q), (max_length_q, max_length_q)
        return _varlen(q, k, v, both, longest, scaling, causal=False)[None], None
    segments = (
        plan.of_layer(cu_seq_lens_q)
        if plan
        else Segments(tuple(cu_seq_lens_q.diff().tolist()), cu_seq_lens_q)
    )
    return _sdpa(q, k, v, segments.calls, scaling)[None], None


def _varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    scaling: float | None,
    *,
    causal: bool,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    attended = varlen_attn(
        q, k, v, *ends, *longest, scale=scaling, window_size=window, **_grouped_heads()
    )
    assert isinstance(attended, Tensor)  # a tuple only when auxiliary outputs are asked for
    return attended


@functools.cache
def _grouped_heads() -> dict[str, Any]:
    """Fewer key heads than query heads: torch 2.13 wants to be told, 2.11 takes them as they are."""
    from torch.nn.attention.varlen import varlen_attn

    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


TEXT: dict[Kernel, str] = {kernel: f"shared_prefix_{kernel}" for kernel in get_args(Kernel)}

VISION: dict[Kernel, str] = {kernel: f"flash_windows_{kernel}" for kernel in get_args(Kernel)}
"""transformers hands the windows of a vision layer over in one call only to names that contain `flash`."""


def plan_or_mask(*, attention_mask: Any = None, **rest: Any) -> Any:
    """Return a plan as it is, and otherwise the stock mask: without one a padded call would lose its padding silently."""
    if isinstance(attention_mask, AttentionPlan | DecodePlan):
        return attention_mask
    return sdpa_mask(attention_mask=attention_mask, **rest)


def register() -> None:
    """Make both functions known to transformers, under one name for every choice of kernel."""
    for kernel in TEXT:
        ALL_ATTENTION_FUNCTIONS.register(
            TEXT[kernel], functools.partial(shared_prefix, kernel=kernel)
        )
        AttentionMaskInterface.register(TEXT[kernel], plan_or_mask)
        ALL_ATTENTION_FUNCTIONS.register(
            VISION[kernel], functools.partial(flash_windows, kernel=kernel)
        )
