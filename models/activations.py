"""Activation checkpointing: which results a layer keeps for the backward pass.

What is not kept is computed again in the backward pass. `full` is the checkpointing of
transformers, and `offloaded` the same with the inputs of the layers in host memory. `linear` and
`attention` are selective activation checkpointing, as PyTorch has it since 2.5
(torch.utils.checkpoint.create_selective_checkpoint_contexts): results are kept by the operation
that computed them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from mmrm.models.config import TESTED_TRANSFORMERS, CheckpointingMode

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
    if mode in ("linear", "attention"):
        kept_operations = ATTENTION_OPERATIONS
        if mode == "linear":
            kept_operations |= LINEAR_OPERATIONS
        policy = functools.partial(keep_results, kept_operations)
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, policy)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    if mode == "offloaded":
        offload_inputs(model)


def offload_inputs(model: nn.Module) -> None:
    """Let the layers of a model with activation checkpointing keep their inputs in host memory.

    Raises:
        RuntimeError: Another version of transformers calls the checkpointing of a layer by another
            name.
    """
    for module in model.modules():
        if not isinstance(module, GradientCheckpointingLayer):
            continue
        if not hasattr(module, "_gradient_checkpointing_func"):
            raise RuntimeError(
                f"transformers {transformers.__version__}: a layer has no "
                "_gradient_checkpointing_func, through which its input is moved to host memory. "
                f"This project is tested with transformers {TESTED_TRANSFORMERS}; install one of "
                "these versions, or set optim.activation_checkpointing to full."
            )
        module._gradient_checkpointing_func = checkpoint_with_input_on_host


def checkpoint_with_input_on_host(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Call a layer as `torch.utils.checkpoint.checkpoint` does, with its inputs in host memory.

    Checkpointing saves the inputs as an operation saves its tensors, so these hooks get them, and
    nothing else: what is computed inside the layer goes through hooks of its own. An input that
    needs no gradient, such as that of a frozen tower, is not copied.
    """
    needs_gradient = any(isinstance(value, Tensor) and value.requires_grad for value in inputs)
    if not needs_gradient:
        return checkpoint(layer, *inputs, use_reentrant=False)
    with saved_tensors_hooks(to_host, to_device):
        return checkpoint(layer, *inputs, use_reentrant=False)


def to_host(tensor: Tensor) -> tuple[torch.device, Tensor]:
    """Copy a tensor to host memory, and return its device and the copy.

    The host does not wait for the copy: the device makes copies and computations in order, and
    only the device reads the copy again.
    """
    on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    on_host.copy_(tensor, non_blocking=True)
    return tensor.device, on_host


def to_device(kept: tuple[torch.device, Tensor]) -> Tensor:
    """Return the tensor that `to_host` has copied, on its device."""
    device, on_host = kept
    return on_host.to(device, non_blocking=True)


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
