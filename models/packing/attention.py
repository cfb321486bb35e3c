"""Attention over packed rows: a segment sees the ones before it in its tree, and itself.

Two functions are registered with transformers; nothing is patched. `shared_prefix` is the attention
of the language model. In place of a mask it takes an `AttentionPlan`, or a `DecodePlan` while
texts are generated. `flash_windows` is the attention of the vision tower. It computes all
windows or frames of a row of patches in one call. On CUDA in bf16 or fp16, each is one varlen call
(FlashAttention inside torch); elsewhere they are batched SDPA.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mmrm.models.packing.decode_attention import DecodePlan, decode
from mmrm.models.packing.recurrent import RecurrentPlan
from mmrm.models.packing.sequence_group import SequenceGroup
from mmrm.models.packing.vision import PatchRuns, SdpaCall, SdpaCalls, VisionPlan, cumulative

if TYPE_CHECKING:
    from mmrm.models.packing.segments import SegmentTree

Kernel = Literal["auto", "sdpa", "varlen"]


@dataclass(frozen=True)
class AttentionPlan:
    """The keys that each position of a packed row attends to.

    A row holds trees of segments; its S segments are in the order of the row. Segment i has the
    queries `cu_seqlens_q[i]:cu_seqlens_q[i + 1]` of the row. Its keys are
    `key_index[cu_seqlens_k[i]:cu_seqlens_k[i + 1]]`: the segments before it in its tree, from the
    root on, then itself. The mask is causal and aligned at the ends, so the last query of a segment
    sees all of its keys. A plan holds indices and no dense mask, so it is cheap to pickle.

    Example: a prompt of 3 tokens with responses of 2 and 1 tokens.

        segment      parent  row positions   keys
        0, prompt    -       0 1 2           0 1 2
        1, response  0       3 4             0 1 2 3 4
        2, response  0       5               0 1 2 5

        query_lengths (3, 2, 1)   cu_seqlens_q [0, 3, 5, 6]
        key_lengths   (3, 5, 4)   cu_seqlens_k [0, 3, 8, 12]
        parents       (None, 0, 0)
        key_index     [0, 1, 2,  0, 1, 2, 3, 4,  0, 1, 2, 5]
    """

    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    parents: tuple[int | None, ...]
    """For each segment the segment before it in its tree, counted over the row; None for a root."""
    cu_seqlens_q: Tensor
    """(S + 1,) int32."""
    cu_seqlens_k: Tensor
    """(S + 1,) int32."""
    key_index: Tensor
    """(sum of key_lengths,) int64: row positions."""
    used_positions: Tensor | None = None
    """(U,) int64: the positions whose hidden states after the last layer are used (see
    `mmrm.models.packing.last_layer`). None for all."""
    ndim: ClassVar[int] = 1
    """A plan is passed in place of a mask. Transformers changes masks of two dimensions, because it
    takes them for masks of padding, and passes others on unchanged."""
    _calls: dict[torch.dtype, SdpaCalls] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _recurrent: dict[int, RecurrentPlan] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def from_trees(cls, trees: Sequence[SegmentTree]) -> AttentionPlan:
        """Return the plan of a row of trees, whose segments follow one another."""
        query_lengths: list[int] = []
        keys_by_segment: list[Tensor] = []
        parents: list[int | None] = []
        start = 0
        for tree in trees:
            first_segment = len(keys_by_segment)
            for segment in tree.segments:
                length = len(segment.ids)
                keys = torch.arange(start, start + length)
                parent = None
                if segment.parent is not None:
                    parent = first_segment + segment.parent
                    keys = torch.cat([keys_by_segment[parent], keys])
                parents.append(parent)
                query_lengths.append(length)
                keys_by_segment.append(keys)
                start += length
        key_lengths = [len(keys) for keys in keys_by_segment]
        return cls(
            query_lengths=tuple(query_lengths),
            key_lengths=tuple(key_lengths),
            parents=tuple(parents),
            cu_seqlens_q=cumulative(query_lengths),
            cu_seqlens_k=cumulative(key_lengths),
            key_index=torch.cat(keys_by_segment),
        )

    def for_positions(self, used_positions: Tensor) -> AttentionPlan:
        """Return the plan of a forward pass of which the hidden states at some positions are used.

        Both plans share the SDPA calls and the recurrent plans that they keep for the layers.
        """
        plan = replace(self, used_positions=used_positions)
        object.__setattr__(plan, "_calls", self._calls)
        object.__setattr__(plan, "_recurrent", self._recurrent)
        return plan

    def keys_of(self, segment: int) -> Tensor:
        """Return the row positions of the conversation that a segment ends, (keys,) int64."""
        start, end = self.cu_seqlens_k[segment : segment + 2].tolist()
        return self.key_index[start:end]

    @property
    def shape(self) -> tuple[int]:
        """The number of tokens in the row. Transformers reads the shape of every mask."""
        return (sum(self.query_lengths),)

    def calls(self, dtype: torch.dtype) -> SdpaCalls:
        """Return the padded SDPA calls for queries of `dtype`.

        They are built for the first layer and kept for the other layers.
        """
        if dtype not in self._calls:
            self._calls[dtype] = _padded_calls(self, dtype)
        return self._calls[dtype]

    def recurrent(self, kernel_size: int) -> RecurrentPlan:
        """Return the plan of recurrent layers whose convolutions have kernels of this size.

        It is built for the first layer and kept for the other layers.
        """
        if kernel_size not in self._recurrent:
            self._recurrent[kernel_size] = RecurrentPlan.of(
                self.query_lengths, self.parents, kernel_size, self.key_index.device
            )
        return self._recurrent[kernel_size]


@dataclass(frozen=True)
class DividedPlan:
    """The plan of a packed row that the ranks of a group compute together.

    Like an `AttentionPlan`, it is given in place of a mask. It changes the work of a model that
    `mmrm.models.packing.sequence_parallel.divide_sequences` has prepared.
    """

    plan: AttentionPlan
    """The plan of the whole row."""
    group: SequenceGroup
    ndim: ClassVar[int] = 1

    @property
    def shape(self) -> tuple[int]:
        """The number of tokens in the row. Transformers reads the shape of every mask."""
        return self.plan.shape


def _padded_calls(plan: AttentionPlan, dtype: torch.dtype) -> SdpaCalls:
    """Return SDPA calls for a row, each of which pads segments of similar lengths to one length.

    Segments are sorted into buckets by the powers of two of both lengths, so padding at most
    doubles either side. Padded entries point to position 0 of the row, and the outputs of padded
    queries are dropped.

    A segment with q queries and k keys needs a mask, and SDPA computes q x k products. Plain causal
    attention needs no mask and computes about k x k / 2. If k is less than 2 q, this is less, and
    the segment then attends as a whole conversation: its queries are those of all its keys, and the
    outputs of the segments before it are dropped.
    """
    segments_by_bucket: dict[tuple[bool, int, int], list[int]] = {}
    lengths = zip(plan.query_lengths, plan.key_lengths, strict=True)
    for segment, (num_queries, num_keys) in enumerate(lengths):
        is_whole = num_keys < 2 * num_queries
        # Lengths with the same bit length are at most a factor of two apart.
        bucket = (is_whole, (num_queries - 1).bit_length(), (num_keys - 1).bit_length())
        segments_by_bucket.setdefault(bucket, []).append(segment)

    device = plan.key_index.device
    row_positions = torch.arange(sum(plan.query_lengths))
    queries_by_segment = torch.split(row_positions, list(plan.query_lengths))
    keys_by_segment = torch.split(plan.key_index.cpu(), list(plan.key_lengths))
    output_index = torch.empty_like(row_positions)
    calls = []
    num_outputs = 0
    for (is_whole, _, _), segments in segments_by_bucket.items():
        keys = pad_sequence([keys_by_segment[i] for i in segments], batch_first=True)
        if is_whole:
            queries = keys
            mask = None  # the padding comes after all queries, so causal attention hides it
        else:
            queries = pad_sequence([queries_by_segment[i] for i in segments], batch_first=True)
            mask = _additive_mask(plan, segments, queries.shape[1], keys.shape[1], dtype)
            mask = mask.to(device)
        for index_in_batch, segment in enumerate(segments):
            positions = queries_by_segment[segment]
            num_dropped = plan.key_lengths[segment] - len(positions) if is_whole else 0
            first_output = num_outputs + index_in_batch * queries.shape[1] + num_dropped
            output_index[positions] = first_output + torch.arange(len(positions))
        num_outputs += queries.numel()
        calls.append(SdpaCall(queries.to(device), keys.to(device), mask, causal=is_whole))
    return SdpaCalls(calls, output_index.to(device))


def _additive_mask(
    plan: AttentionPlan,
    segments: Sequence[int],
    max_queries: int,
    max_keys: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the additive mask (n, 1, max_queries, max_keys) of n padded segments.

    Query j of a segment with q queries and k keys sees the first k - q + j + 1 keys.

    Args:
        plan: The plan of the row.
        segments: The numbers of the n segments.
        max_queries: Number of queries to which each segment is padded.
        max_keys: Number of keys to which each segment is padded.
        dtype: Dtype of the mask.
    """
    num_queries = torch.tensor([plan.query_lengths[i] for i in segments])[:, None]  # (n, 1)
    num_keys = torch.tensor([plan.key_lengths[i] for i in segments])[:, None]
    # (n, max_queries); the minimum is for padded queries.
    num_visible = torch.minimum(num_keys - num_queries + torch.arange(max_queries) + 1, num_keys)
    is_hidden = torch.arange(max_keys) >= num_visible[..., None]
    return torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf)[:, None]


def shared_prefix(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: AttentionPlan | DividedPlan | DecodePlan | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    kernel: Kernel,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention in a layer of the language model; transformers calls this function.

    With an `AttentionPlan` as mask, it is that of a packed row. With a `DividedPlan`, several ranks
    compute a packed row, and T is the length of a rank's stretch. With a `DecodePlan`, it is that of
    one step of generation (see `decode`). With a stock mask or None it is stock `sdpa`, for padded
    batches and stock `generate`.

    Args:
        module: The attention layer.
        query: (1, heads, T, d) for a packed row of T tokens. In a step of generation, (C, heads, 1,
            d) for C texts.
        key: (1, key heads, T, d) for a packed row.
        value: (1, key heads, T, d) for a packed row.
        attention_mask: A plan, a stock mask, or None.
        dropout: Probability with which an attention weight is set to 0.
        scaling: Factor of the logits; None is d ** -0.5.
        kernel: The recipe's choice, `backbone.attention`.
        kwargs: Arguments of the stock attention.

    Returns:
        (1, T, heads, d) for a packed row, and None in place of the attention weights.
    """
    if isinstance(attention_mask, DecodePlan):
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        return decode(query, key, value, attention_mask, layer, scaling), None
    if isinstance(attention_mask, DividedPlan):
        group = attention_mask.group
        (num_tokens,) = attention_mask.shape
        attended, _ = shared_prefix(
            module,
            group.tokens_to_heads(query, num_tokens),
            group.tokens_to_heads(key, num_tokens),
            group.tokens_to_heads(value, num_tokens),
            attention_mask.plan,
            dropout,
            scaling,
            kernel=kernel,
        )
        return group.heads_to_tokens(attended), None
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

    # Gathered in fp32, so that the backward pass adds up the gradients that several segments
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
    """Return True if torch's varlen kernel is to be used, and False for SDPA.

    The kernel needs CUDA, bf16 or fp16, and no dropout. With `kernel="auto"` it is used if these
    are given.

    Raises:
        ValueError: The kernel cannot be used, but `kernel` is "varlen".
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
    """Compute attention by SDPA, one call after another, and return (S, heads, d).

    Args:
        q: (S, heads, d).
        k: (S, key heads, d).
        v: (S, key heads, d).
        calls: The calls, which pad the segments of the row.
        scaling: Factor of the logits; None is d ** -0.5.
        dropout: Probability with which an attention weight is set to 0.
    """
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
    # A single call that starts at 0 has neighbouring segments, so its output is in row order.
    is_in_order = len(calls.calls) == 1 and calls.calls[0].start == 0
    if is_in_order:
        return outputs[0]
    return torch.cat(outputs).index_select(0, calls.output_index)


def _gather(x: Tensor, index: Tensor, start: int | None) -> Tensor:
    """Return the rows of `x` (S, heads, d) at `index` (n, length), as (n, heads, length, d).

    Args:
        x: The rows of a packed row's queries, keys or values.
        index: Which of the rows are returned.
        start: If `index` counts start, start + 1, and so on, the result is a view of `x`. Else
            `start` is None, and the rows are copied.
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

    Transformers computes it as a convolution whose kernel is as large as a patch, which is the same
    function. The parameters and their names are those of the convolution. On a CPU the product
    takes 0.4 of the convolution's time in fp32. On a GPU in bf16, cuDNN's convolution took seconds
    per call with some versions of torch (pytorch#174051).
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
    """Compute attention in a layer of a vision tower; transformers calls this function.

    A patch attends to the patches of its run, which is a window or a frame of an image.

    Args:
        module: The attention layer.
        query: (1, heads, P, d) for a row of P patches.
        key: (1, heads, P, d).
        value: (1, heads, P, d).
        attention_mask: Always None.
        cu_seq_lens_q: (runs + 1,) int32: 0 and the end of every run.
        max_length_q: Patches of the longest run.
        plan: The plan of a packed row, which has the runs on the host; None for a padded batch.
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
    """Return the runs of patches in which a vision layer attends.

    Args:
        plan: The plan of a packed row, or None.
        ends: 0 and the end of every run, (runs + 1,) int32.
    """
    if plan is not None:
        return plan.runs_of_layer(ends)
    # The lengths are copied from the device, and the host waits for them.
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
    """Compute attention inside segments of any lengths, by one call of torch's varlen kernel.

    Args:
        q: (queries, heads, d).
        k: (keys, key heads, d).
        v: (keys, key heads, d).
        ends: 0 and the end of every segment in queries and in keys, (segments + 1,) int32 each.
        longest: The largest number of queries of a segment, and the largest number of keys.
        scaling: Factor of the logits; None is d ** -0.5.
        causal: The last query of a segment sees all of its keys, and each query before it sees one
            key less than the next. If false, every query sees all keys of its segment.

    Returns:
        (queries, heads, d).
    """
    from torch.nn.attention.varlen import varlen_attn

    # How many keys before and after its own a query sees; -1 is no limit.
    window = (-1, 0) if causal else (-1, -1)
    attended = varlen_attn(
        q,
        k,
        v,
        *ends,
        *longest,
        scale=scaling,
        window_size=window,
        **_grouped_heads(),
    )
    assert isinstance(attended, Tensor)  # a tuple only if auxiliary outputs are requested
    return attended


@functools.cache
def _grouped_heads() -> dict[str, Any]:
    """Return the keyword argument that lets the varlen kernel take fewer key heads than heads.

    torch 2.13 requires `enable_gqa`. torch 2.11 does not have it, and needs no argument.
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
    if isinstance(attention_mask, AttentionPlan | DividedPlan | DecodePlan):
        return attention_mask
    return sdpa_mask(attention_mask=attention_mask, **rest)


def take_plans(model: torch.nn.Module, plan_classes: Mapping[type, type]) -> None:
    """Let modules of a loaded model take on classes that can take the plan of a packed row.

    Parameters and their names stay as they are.

    Args:
        model: The model.
        plan_classes: Stock classes, and the classes that their modules take on.
    """
    for module in model.modules():
        if type(module) in plan_classes:
            module.__class__ = plan_classes[type(module)]


def register() -> None:
    """Register the attention of both towers with transformers, under one name for each kernel."""
    for kernel in TEXT:
        text_attention = functools.partial(shared_prefix, kernel=kernel)
        vision_attention = functools.partial(flash_windows, kernel=kernel)
        ALL_ATTENTION_FUNCTIONS.register(TEXT[kernel], text_attention)
        AttentionMaskInterface.register(TEXT[kernel], plan_or_mask)
        ALL_ATTENTION_FUNCTIONS.register(VISION[kernel], vision_attention)
