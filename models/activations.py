"""Activation checkpointing: which results a layer keeps for the backward pass.

What is not kept is computed again in the backward pass. `full` is the checkpointing of
transformers. The other modes are selective activation checkpointing, as PyTorch has it since 2.5
(torch.utils.checkpoint.create_selective_checkpoint_contexts): results are kept by the operation
that computed them.
"""

import functools
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from mmrm.models.config import CheckpointingMode

ATTENTION_OPERATIONS = frozenset(
    {
        "torch_attn::_varlen_attn",  # packed rows on CUDA
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    }
)
"""Attention kernels of PyTorch, each of which is one operation."""
LINEAR_OPERATIONS = frozenset({"aten::mm", "aten::addmm", "aten::_grouped_mm"})
"""What linear layers become, without and with a bias, and all experts of a layer."""


def set_checkpointing(model: Any, mode: CheckpointingMode) -> None:
    """Set which results the layers of both towers keep for the backward pass.

    Gradients are the same in every mode, because the same operations are computed again on the
    same inputs. Recipes refuse two combinations. PyTorch does not look inside compiled modules, so
    `linear` would keep no results of linear layers there. Under ZeRO-3, `linear` and `attention`
    cannot be used: weights are gathered at other times when a layer is computed again, which
    PyTorch ends with an error, and the linear layers of DeepSpeed (LinearFunctionForZeroStage3 in
    version 0.19) add a bias in place to the result that is kept, so that it would be added twice.

    Args:
        model: A model of transformers, whose layers support activation checkpointing.
        mode: What is kept.

    Raises:
        RuntimeError: The mode is `linear`, and a library has replaced `torch.nn.functional.linear` in
            this process. ZeRO-3 does so, and does not take it back.
    """
    if mode == "linear" and functional.linear is not torch._C._nn.linear:
        raise RuntimeError(
            f"torch.nn.functional.linear is {functional.linear}, which may change the results that "
            "optim.activation_checkpointing=linear keeps. Required is PyTorch's own function. Set "
            "optim.activation_checkpointing to attention, full or none."
        )
    if mode == "none":
        model.gradient_checkpointing_disable()
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode != "full":
        kept_operations = ATTENTION_OPERATIONS
        if mode == "linear":
            kept_operations |= LINEAR_OPERATIONS
        policy = functools.partial(keep_results, kept_operations)
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, policy)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def keep_results(
    kept_operations: frozenset[str],
    context: SelectiveCheckpointContext,
    operation: Any,
    *inputs: Any,
    **options: Any,
) -> CheckpointPolicy:
    """Decide whether the result of an operation is kept, as PyTorch asks for each one.

    Args:
        kept_operations: The names of the operations whose results are kept.
        context: Whether PyTorch asks in the forward pass or while it computes a layer again.
        operation: An operation of PyTorch, such as `torch.ops.aten.mm.default`.
        *inputs: Its inputs.
        **options: Its named inputs.
    """
    if operation.name() in kept_operations:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
