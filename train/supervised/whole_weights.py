"""Generation under ZeRO-3: weights are gathered once for all tokens instead of once per token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from mmrm.models.distributed import max_over_ranks
from mmrm.train.recipe.deepspeed_config import SHARE_OF_FREE


@contextmanager
def whole_weights(model: Any) -> Iterator[None]:
    """Gather the weights of a DeepSpeed engine under ZeRO-3, if all ranks have memory for them.

    Texts are generated much faster inside this context. Without the memory, every layer is gathered
    for each token, as outside of the context; the dry run of a recipe prints if that happens, and
    how many bytes are exchanged. Nothing happens for weights that are not partitioned.

    All ranks must enter the context together. No gradients may be computed inside it.

    Args:
        model: A DeepSpeed engine, or any module.
    """
    partitioned = [parameter for parameter in model.parameters() if hasattr(parameter, "ds_numel")]
    num_bytes = sum(parameter.ds_numel * parameter.element_size() for parameter in partitioned)
    if not partitioned or not fits_everywhere(num_bytes, partitioned[0].device):
        yield
        return
    import deepspeed
    from trl.models.utils import add_hooks, remove_hooks

    # ZeRO-3 replaces `linear` with a Python function that has a backward pass of its own. The
    # original is faster, and no gradient is needed here.
    partitioned_linear = torch.nn.functional.linear
    with deepspeed.zero.GatheredParameters(partitioned):
        # DeepSpeed's hooks would gather and release each layer although it is gathered already.
        remove_hooks(model)
        torch.nn.functional.linear = torch.ops.aten.linear
        try:
            yield
        finally:
            torch.nn.functional.linear = partitioned_linear
            add_hooks(model)


def fits_everywhere(size: int, device: torch.device) -> bool:
    """Return True if every rank has memory for `size` further bytes, and for activations.

    All ranks must call together. On a CPU the ranks of a node share its memory.
    """
    if device.type == "cuda":
        free_on_device, _ = torch.cuda.mem_get_info(device)
        # PyTorch's allocator has reserved more than its tensors use.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        num_free = free_on_device + unused
    else:
        num_ranks_of_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        num_free = psutil.virtual_memory().available // num_ranks_of_node
    is_too_small = size > SHARE_OF_FREE * num_free
    return not max_over_ranks(int(is_too_small), device)
