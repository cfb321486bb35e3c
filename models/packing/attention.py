"""Attention over packed rows: every continuation sees its own prompt and itself, exactly as if it stood alone.

Two functions are registered with transformers and nothing is patched. `shared_prefix` reads an `AttentionPlan`
where the language model expects a mask; `flash_windows` takes all windows of a vision layer in one call.
On CUDA in bf16 or fp16 both are one varlen call (FlashAttention inside torch); elsewhere they are batched SDPA.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from models.packing.vision import SegmentCall, Segments, VisionPlan

Kernel = Literal["auto", "sdpa", "varlen"]


@dataclass(frozen=True)
class Bucket:
    """Segments of like length, padded to the longest: one SDPA call."""

    queries: Tensor
    """(n, Q) row positions, int64; padding points at position 0 and its output is dropped."""
    keys: Tensor
    """(n, K) row positions, int64."""
    mask: Tensor | None
    """(n, 1, Q, K) additive; None where plain causal attention is the mask (padding then lies behind every query)."""


@dataclass(frozen=True)
class Buckets:
    """All SDPA calls of a row and the way back from their padded outputs to row order."""

    calls: tuple[Bucket, ...]
    restore: Tensor
    """(T,) int64: where each row position lies in the concatenated, flattened outputs."""


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
    _buckets: dict[tuple[torch.device, torch.dtype], Buckets] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]]) -> AttentionPlan:
        """Plan a row; `groups` holds for each group the length of its prompt, then of its continuations (all >= 1)."""
        queries: list[int] = []
        keys: list[int] = []
        index: list[Tensor] = []
        start = 0
        for prompt, *continuations in groups:
            shared = torch.arange(start, start + prompt)
            queries.append(prompt)
            keys.append(prompt)
            index.append(shared)
            start += prompt
            for length in continuations:
                queries.append(length)
                keys.append(prompt + length)
                index += [shared, torch.arange(start, start + length)]
                start += length
        return cls(tuple(queries), tuple(keys), _cumulative(queries), _cumulative(keys), torch.cat(index))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> AttentionPlan:
        """Return the plan with its tensors on `device`."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def map(self, move: Callable[[Tensor], Tensor]) -> AttentionPlan:
        """Return the plan with `move` applied to its tensors."""
        ends_q, ends_k, index = (move(one) for one in (self.cu_seqlens_q, self.cu_seqlens_k, self.key_index))
        return replace(self, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, key_index=index, _buckets={})

    def buckets(self, dtype: torch.dtype) -> Buckets:
        """Return the padded SDPA calls for queries of `dtype`, built at the first use and kept for the other layers."""
        place = (self.key_index.device, dtype)
        if place not in self._buckets:
            self._buckets[place] = _buckets(self, dtype)
        return self._buckets[place]


def _cumulative(lengths: Sequence[int]) -> Tensor:
    return F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))


def _buckets(plan: AttentionPlan, dtype: torch.dtype) -> Buckets:
    """Sort segments into power-of-two buckets by both lengths, so that padding at most doubles either side."""
    members: dict[tuple[bool, int, int], list[int]] = {}
    for i, (queries, keys) in enumerate(zip(plan.query_lengths, plan.key_lengths, strict=True)):
        members.setdefault((queries == keys, (queries - 1).bit_length(), (keys - 1).bit_length()), []).append(i)
    query_starts, key_starts = plan.cu_seqlens_q.tolist(), plan.cu_seqlens_k.tolist()
    row, key_index = torch.arange(query_starts[-1]), plan.key_index.cpu()
    restore = torch.empty_like(row)
    calls, offset = [], 0
    for (square, _, _), segments in members.items():
        index = _padded([row[query_starts[i] : query_starts[i + 1]] for i in segments])
        seen = _padded([key_index[key_starts[i] : key_starts[i + 1]] for i in segments])
        for n, i in enumerate(segments):
            own = row[query_starts[i] : query_starts[i + 1]]
            restore[own] = offset + n * index.shape[1] + own - query_starts[i]
        offset += index.numel()
        mask = None if square else _mask(plan, segments, index.shape[1], seen.shape[1], dtype)
        calls.append((index, seen, mask))
    device = plan.key_index.device
    moved = tuple(Bucket(q.to(device), k.to(device), None if m is None else m.to(device)) for q, k, m in calls)
    return Buckets(moved, restore.to(device))


def _padded(indices: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(indices), batch_first=True)


def _mask(plan: AttentionPlan, segments: Sequence[int], width: int, depth: int, dtype: torch.dtype) -> Tensor:
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
    attention_mask: AttentionPlan | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    kernel: Kernel,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend over a packed row, or as stock `sdpa` where the mask is not a plan (padding, `generate`).

    `query` is (1, heads, T, d), `key` and `value` (1, key heads, T, d); returns (1, T, heads, d).
    """
    if not isinstance(attention_mask, AttentionPlan):
        stock: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return stock
    q, k, v = (_autocast(x[0].transpose(0, 1)) for x in (query, key, value))
    attend = _varlen_row if _takes_varlen(q, kernel, dropout) else _sdpa_row
    return attend(q, k, v, attention_mask, dropout, scaling)[None], None


def _autocast(x: Tensor) -> Tensor:
    """Return `x` in the dtype of the autocast around it: rotary positions leave queries and keys in fp32 there."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _takes_varlen(query: Tensor, kernel: Kernel, dropout: float = 0.0) -> bool:
    """Choose the kernel; the varlen kernel exists on CUDA in half precision and has no dropout."""
    possible = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and not dropout
    if kernel == "varlen" and not possible:
        raise ValueError(
            f"attention: varlen needs CUDA, bf16 or fp16, and no attention dropout; found {query.device.type}, "
            f"{query.dtype}, dropout {dropout}. Set `attention: auto` (or sdpa)."
        )
    return possible and kernel != "sdpa"


def _varlen_row(q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, dropout: float, scaling: float | None) -> Tensor:
    """One FlashAttention call for the row; its causal mask is aligned to the last query, which is what a plan means."""
    keys, values = k.index_select(0, plan.key_index), v.index_select(0, plan.key_index)
    longest = max(plan.query_lengths), max(plan.key_lengths)
    return _varlen(q, keys, values, (plan.cu_seqlens_q, plan.cu_seqlens_k), longest, scaling, causal=True)


def _sdpa_row(q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, dropout: float, scaling: float | None) -> Tensor:
    buckets = plan.buckets(q.dtype)
    outputs = []
    for call in buckets.calls:
        attended = F.scaled_dot_product_attention(
            _take(q, call.queries),
            _take(k, call.keys),
            _take(v, call.keys),
            attn_mask=call.mask,
            dropout_p=dropout,
            is_causal=call.mask is None,
            scale=scaling,
            enable_gqa=k.shape[1] != q.shape[1],
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, buckets.restore)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows of (S, heads, d) by `index` (n, length) into (n, heads, length, d).

    Its backward is one `index_add`; that of `x[index]` sorts and accumulates, and costs several times as much on a CPU.
    """
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:]).transpose(1, 2)


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
        plan.check(module.config.window_size)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if _takes_varlen(q, kernel):
        both, longest = (cu_seq_lens_q, cu_seq_lens_q), (max_length_q, max_length_q)
        return _varlen(q, k, v, both, longest, scaling, causal=False)[None], None
    segments = Segments(tuple(cu_seq_lens_q.diff().tolist()), cu_seq_lens_q) if plan is None else plan.segments(cu_seq_lens_q)
    calls, restore = segments.calls()
    outputs = [_window(q, k, v, call, scaling) for call in calls]
    whole = outputs[0] if calls[0].start == 0 and len(calls) == 1 else torch.cat(outputs).index_select(0, restore)
    return whole[None], None


def _window(q: Tensor, k: Tensor, v: Tensor, call: SegmentCall, scaling: float | None) -> Tensor:
    """Attend inside the segments of `call` of (S, heads, d); returns (their patches, heads, d)."""
    queries, keys, values = (_stretches(x, call) for x in (q, k, v))
    return F.scaled_dot_product_attention(queries, keys, values, scale=scaling).transpose(1, 2).flatten(0, 1)


def _stretches(x: Tensor, call: SegmentCall) -> Tensor:
    """Return the segments of (S, heads, d) as (n, heads, length, d), as a view if they are neighbours."""
    size = len(call.index)
    taken = x.index_select(0, call.index) if call.start is None else x[call.start : call.start + size]
    return taken.view(size // call.length, call.length, *x.shape[1:]).transpose(1, 2)


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
    attended = varlen_attn(q, k, v, *ends, *longest, scale=scaling, window_size=window, **_grouped_heads())
    assert isinstance(attended, Tensor)  # a tuple only when auxiliary outputs are asked for
    return attended


@functools.cache
def _grouped_heads() -> dict[str, Any]:
    """Fewer key heads than query heads: torch 2.13 wants to be told, 2.11 takes them as they are."""
    from torch.nn.attention.varlen import varlen_attn

    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


TEXT: dict[Kernel, str] = {"auto": "shared_prefix", "sdpa": "shared_prefix_sdpa", "varlen": "shared_prefix_varlen"}
VISION: dict[Kernel, str] = {"auto": "flash_windows", "sdpa": "flash_windows_sdpa", "varlen": "flash_windows_varlen"}
"""transformers hands the windows of a vision layer over in one call only to names that contain `flash`."""


def register() -> None:
    """Make both functions known to transformers, under one name for every choice of kernel."""
    for kernel, name in TEXT.items():
        _register(name, functools.partial(shared_prefix, kernel=kernel))
        # Without a mask function of the same name a padded call would lose its padding mask silently.
        AttentionMaskInterface.register(name, sdpa_mask)
    for kernel, name in VISION.items():
        _register(name, functools.partial(flash_windows, kernel=kernel))


def _register(name: str, function: Callable[..., tuple[Tensor, None]]) -> None:
    ALL_ATTENTION_FUNCTIONS.register(name, function)
