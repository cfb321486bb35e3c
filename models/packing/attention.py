"""Attention over packed rows: a continuation sees its prompt and itself, as if it were alone.

Two functions are registered with transformers; nothing is patched. `shared_prefix` is the attention
of the language model. In place of a mask it takes an `AttentionPlan`, or a `DecodePlan` while
continuations are generated. `flash_windows` is the attention of the vision tower and takes all runs
of a layer in one call. On CUDA in bf16 or fp16 each is one varlen call (FlashAttention inside
torch); elsewhere they are batched SDPA.
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
from mmrm.models.packing.vision import PatchRuns, SdpaCall, SdpaCalls, VisionPlan, cumulative

Kernel = Literal["auto", "sdpa", "varlen"]


@dataclass(frozen=True)
class AttentionPlan:
    """Which positions of a row of groups `[prompt | continuation | continuation ...]` see which.

    A segment is a prompt or a continuation; S segments are in the order of the row. Segment i has
    the queries `cu_seqlens_q[i]:cu_seqlens_q[i + 1]` of the row. Its keys are
    `key_index[cu_seqlens_k[i]:cu_seqlens_k[i + 1]]`: its prompt, then itself. The mask is causal
    with both ends aligned, so the last query sees every key. A plan holds indices and no dense
    mask, so it is cheap to pickle.

    Example: a prompt of 3 tokens with continuations of 2 and 1 tokens.

        segment         row positions   keys
        prompt          0 1 2           0 1 2
        continuation 0  3 4             0 1 2 3 4
        continuation 1  5               0 1 2 5

        query_lengths (3, 2, 1)   cu_seqlens_q [0, 3, 5, 6]
        key_lengths   (3, 5, 4)   cu_seqlens_k [0, 3, 8, 12]
        key_index     [0, 1, 2,  0, 1, 2, 3, 4,  0, 1, 2, 5]
    """

    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    cu_seqlens_q: Tensor
    """(S + 1,) int32."""
    cu_seqlens_k: Tensor
    """(S + 1,) int32."""
    key_index: Tensor
    """(sum of key_lengths,) int64: row positions."""
    ndim: ClassVar[int] = 1
    """Transformers treats a mask of two dimensions as one of padding and passes others on as is."""
    _calls: dict[torch.dtype, SdpaCalls] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]]) -> AttentionPlan:
        """Return the plan of a row.

        Args:
            groups: For each group the length of its prompt, then of its continuations (all >= 1).
        """
        query_lengths: list[int] = []
        keys_by_segment: list[Tensor] = []
        start = 0
        for lengths in groups:
            prompt = torch.arange(start, start + lengths[0])
            query_lengths.append(lengths[0])
            keys_by_segment.append(prompt)
            start += lengths[0]
            for length in lengths[1:]:
                continuation = torch.arange(start, start + length)
                query_lengths.append(length)
                keys_by_segment.append(torch.cat([prompt, continuation]))
                start += length
        key_lengths = [len(keys) for keys in keys_by_segment]
        return cls(
            query_lengths=tuple(query_lengths),
            key_lengths=tuple(key_lengths),
            cu_seqlens_q=cumulative(query_lengths),
            cu_seqlens_k=cumulative(key_lengths),
            key_index=torch.cat(keys_by_segment),
        )

    @property
    def shape(self) -> tuple[int]:
        """Number of tokens in the row; transformers reads the shape of every mask."""
        return (sum(self.query_lengths),)

    def calls(self, dtype: torch.dtype) -> SdpaCalls:
        """Return the padded SDPA calls for queries of `dtype`.

        They are built when the first layer asks for them and kept for the other layers.
        """
        if dtype not in self._calls:
            self._calls[dtype] = _padded_calls(self, dtype)
        return self._calls[dtype]


def _padded_calls(plan: AttentionPlan, dtype: torch.dtype) -> SdpaCalls:
    """Return SDPA calls for a row, each of which pads segments of similar lengths to one length.

    Segments are sorted into buckets by the powers of two of both lengths, so padding at most
    doubles either side. Padded entries point to position 0 of the row, and the outputs of padded
    queries are dropped.
    """
    segments_by_bucket: dict[tuple[bool, int, int], list[int]] = {}
    lengths = zip(plan.query_lengths, plan.key_lengths, strict=True)
    for segment, (num_queries, num_keys) in enumerate(lengths):
        sees_itself_alone = num_queries == num_keys
        bucket = (sees_itself_alone, (num_queries - 1).bit_length(), (num_keys - 1).bit_length())
        segments_by_bucket.setdefault(bucket, []).append(segment)

    device = plan.key_index.device
    row_positions = torch.arange(sum(plan.query_lengths))
    queries_by_segment = torch.split(row_positions, list(plan.query_lengths))
    keys_by_segment = torch.split(plan.key_index.cpu(), list(plan.key_lengths))
    output_index = torch.empty_like(row_positions)
    calls = []
    num_outputs = 0
    for (sees_itself_alone, _, _), segments in segments_by_bucket.items():
        queries = pad_sequence([queries_by_segment[i] for i in segments], batch_first=True)
        keys = pad_sequence([keys_by_segment[i] for i in segments], batch_first=True)
        for index_in_batch, segment in enumerate(segments):
            positions = queries_by_segment[segment]
            first_output = num_outputs + index_in_batch * queries.shape[1]
            output_index[positions] = first_output + torch.arange(len(positions))
        num_outputs += queries.numel()
        mask = None
        if not sees_itself_alone:
            mask = _mask(plan, segments, queries.shape[1], keys.shape[1], dtype).to(device)
        # A segment that sees itself alone needs no mask: padding comes after all of its queries,
        # so plain causal attention hides it.
        calls.append(SdpaCall(queries.to(device), keys.to(device), mask, causal=sees_itself_alone))
    return SdpaCalls(calls, output_index.to(device))


def _mask(
    plan: AttentionPlan,
    segments: Sequence[int],
    max_queries: int,
    max_keys: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the additive mask (n, 1, max_queries, max_keys) of n padded segments.

    Query j of a segment with q queries and k keys sees the first k - q + j + 1 keys.
    """
    num_queries = torch.tensor([plan.query_lengths[i] for i in segments])[:, None]
    num_keys = torch.tensor([plan.key_lengths[i] for i in segments])[:, None]
    num_visible = torch.minimum(num_keys - num_queries + torch.arange(max_queries) + 1, num_keys)
    is_hidden = torch.arange(max_keys) >= num_visible[..., None]
    return torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf)[:, None]


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
    """Attend in a layer of the language model, as transformers calls it.

    What is computed depends on `attention_mask`: a packed row (`AttentionPlan`), one step of
    generation (`DecodePlan`, see `decode`), or stock `sdpa` for padded batches and stock
    `generate`.

    Args:
        module: The attention layer.
        query: (1, heads, T, d) for a packed row of T tokens.
        key: (1, key heads, T, d).
        value: (1, key heads, T, d).
        attention_mask: The plan, or a stock mask.
        dropout: Probability with which an attention weight is set to 0.
        scaling: Factor of the logits; None is d ** -0.5.
        kernel: The recipe's choice, `backbone.attention`.
        kwargs: Arguments of the stock attention.

    Returns:
        (1, T, heads, d), and None for the attention weights.
    """
    if isinstance(attention_mask, DecodePlan):
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        return decode(query, key, value, attention_mask, layer, scaling), None
    if not isinstance(attention_mask, AttentionPlan):
        stock: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return stock

    plan = attention_mask
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if torch.is_autocast_enabled(q.device.type):
        # Under autocast, rotary positions leave queries and keys in fp32.
        autocast_dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (tensor.to(autocast_dtype) for tensor in (q, k, v))
    if not _takes_varlen(q, kernel, dropout):
        return _sdpa(q, k, v, plan.calls(q.dtype), scaling, dropout)[None], None

    # Gathered in fp32, so that the backward pass adds up the gradients that several continuations
    # give to a token of the prompt without rounding.
    keys = k.float().index_select(0, plan.key_index).to(k.dtype)
    values = v.float().index_select(0, plan.key_index).to(v.dtype)
    attended = _varlen(
        q,
        keys,
        values,
        ends=(plan.cu_seqlens_q, plan.cu_seqlens_k),
        longest=(max(plan.query_lengths), max(plan.key_lengths)),
        scaling=scaling,
        causal=True,
    )
    return attended[None], None


def _takes_varlen(query: Tensor, kernel: Kernel, dropout: float = 0.0) -> bool:
    """Return True if the varlen kernel is to be used; it needs CUDA, half precision, no dropout.

    Raises:
        ValueError: The recipe demands the kernel and it cannot be used.
    """
    is_possible = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and not dropout
    if kernel == "varlen" and not is_possible:
        raise ValueError(
            "backbone.attention=varlen needs CUDA, bf16 or fp16, and no attention dropout, because "
            f"the kernel supports nothing else. Found {query.device.type}, {query.dtype} and "
            f"dropout {dropout}. Set backbone.attention=auto (or sdpa)."
        )
    return is_possible and kernel != "sdpa"


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, calls: SdpaCalls, scaling: float | None, dropout: float = 0.0
) -> Tensor:
    """Attend over rows (S, heads, d) call by call, and return (S, heads, d)."""
    outputs = []
    for call in calls.calls:
        attended = F.scaled_dot_product_attention(
            _gather(q, call.queries, call.start),
            _gather(k, call.keys, call.start),
            _gather(v, call.keys, call.start),
            attn_mask=call.mask,
            dropout_p=dropout,
            is_causal=call.causal,
            scale=scaling,
            enable_gqa=k.shape[1] != q.shape[1],
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    is_in_order = len(calls.calls) == 1 and calls.calls[0].start == 0
    if is_in_order:
        return outputs[0]
    return torch.cat(outputs).index_select(0, calls.output_index)


def _gather(x: Tensor, index: Tensor, start: int | None) -> Tensor:
    """Return the rows of `x` (S, heads, d) at `index` (n, length) as (n, heads, length, d).

    With `start`, the rows are neighbours from there on and the result is a view.
    """
    if start is not None:
        rows = x[start : start + index.numel()]
        return rows.view(*index.shape, *x.shape[1:]).transpose(1, 2)
    # The backward pass of `index_select` is one `index_add`. That of `x[index]` sorts first, which
    # costs several times as much on a CPU.
    rows = x.index_select(0, index.flatten())
    return rows.view(*index.shape, *x.shape[1:]).transpose(1, 2)


class PatchProjection(torch.nn.Conv3d):
    """The patch embedding of a vision tower, computed as a matrix product.

    A patch is as large as the convolution's kernel, so both are the same function. The parameters
    and their names are those of the convolution. On a CPU the product takes 0.4 of the
    convolution's time in fp32; in bf16 the convolution of cuDNN took seconds per call with some
    versions of torch (pytorch#174051).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map patches (P, channels, frames, rows, columns) to (P, width)."""
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
    """Attend in a layer of a vision tower, inside every run of patches, as transformers calls it.

    Args:
        module: The attention layer.
        query: (1, heads, P, d) for a row of P patches.
        key: Like `query`.
        value: Like `query`.
        attention_mask: Always None.
        cu_seq_lens_q: (runs + 1,) int32: 0 and the end of every run.
        max_length_q: Patches of the longest run.
        plan: The plan of a packed row, which knows the runs without asking the device; else None.
        scaling: Factor of the logits; None is d ** -0.5.
        kernel: The recipe's choice, `backbone.attention`.
        kwargs: Arguments of other attention functions, which are not used.

    Returns:
        (1, P, heads, d), and None for the attention weights.
    """
    if plan is not None:
        plan.check(module.config)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if _takes_varlen(q, kernel):
        attended = _varlen(
            q,
            k,
            v,
            ends=(cu_seq_lens_q, cu_seq_lens_q),
            longest=(max_length_q, max_length_q),
            scaling=scaling,
            causal=False,
        )
        return attended[None], None
    runs = _patch_runs(plan, cu_seq_lens_q)
    return _sdpa(q, k, v, runs.calls, scaling)[None], None


def _patch_runs(plan: VisionPlan | None, ends: Tensor) -> PatchRuns:
    """Return the runs of a layer with these `ends`; without a plan the device is asked for them."""
    if plan is not None:
        return plan.runs_of_layer(ends)
    return PatchRuns(tuple(ends.diff().tolist()), ends)


def _varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    ends: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    scaling: float | None,
    causal: bool,
) -> Tensor:
    """Attend inside segments with torch's varlen kernel.

    Args:
        q: (queries, heads, d).
        k: (keys, key heads, d).
        v: (keys, key heads, d).
        ends: 0 and the end of every segment in queries and in keys, (segments + 1,) int32 each.
        longest: Queries and keys of the longest segment.
        scaling: Factor of the logits; None is d ** -0.5.
        causal: Align the ends of queries and keys, and hide later keys.

    Returns:
        (queries, heads, d).
    """
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        q,
        k,
        v,
        *ends,
        *longest,
        scale=scaling,
        window_size=(-1, 0) if causal else (-1, -1),
        **_grouped_heads(),
    )
    assert isinstance(attended, Tensor)  # a tuple only if auxiliary outputs are requested
    return attended


@functools.cache
def _grouped_heads() -> dict[str, Any]:
    """Return the varlen kernel's argument for fewer key heads than query heads.

    torch 2.13 requires `enable_gqa`; torch 2.11 does not know it and needs no argument.
    """
    from torch.nn.attention.varlen import varlen_attn

    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        return {"enable_gqa": True}
    return {}


TEXT: dict[Kernel, str] = {kernel: f"shared_prefix_{kernel}" for kernel in get_args(Kernel)}
"""Name under which transformers knows the language model's attention, by choice of kernel."""
VISION: dict[Kernel, str] = {kernel: f"flash_windows_{kernel}" for kernel in get_args(Kernel)}
"""The same for the vision tower. Transformers passes all runs of a layer in one call only to
functions whose name contains `flash`."""


def plan_or_mask(*, attention_mask: Any = None, **rest: Any) -> Any:
    """Return the mask that transformers passes to `shared_prefix`: a plan unchanged, else `sdpa`'s.

    Without the stock mask, a padded call would silently attend to its padding.
    """
    if isinstance(attention_mask, AttentionPlan | DecodePlan):
        return attention_mask
    return sdpa_mask(attention_mask=attention_mask, **rest)


def register() -> None:
    """Register both attention functions with transformers, under one name per choice of kernel."""
    for kernel in TEXT:
        text_attention = functools.partial(shared_prefix, kernel=kernel)
        vision_attention = functools.partial(flash_windows, kernel=kernel)
        ALL_ATTENTION_FUNCTIONS.register(TEXT[kernel], text_attention)
        AttentionMaskInterface.register(TEXT[kernel], plan_or_mask)
        ALL_ATTENTION_FUNCTIONS.register(VISION[kernel], vision_attention)
