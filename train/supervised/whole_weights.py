"""Writing under ZeRO-3: the weights are gathered once for a whole evaluation or rollout, not again for every token."""

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
    """Gather the weights of a DeepSpeed engine under ZeRO-3 while it writes, where all ranks have the memory for them.

    Else, as without this, every layer is gathered for each token (the dry run prints when, and what that moves). All ranks call
    together, and nothing inside is differentiated. Nothing happens for weights that are not partitioned.
    """
    parameters = [one for one in model.parameters() if hasattr(one, "ds_numel")]
    size = sum(one.ds_numel * one.element_size() for one in parameters)
    if not parameters or not fits_everywhere(size, parameters[0].device):
        yield
        return
    import deepspeed
    from trl.models.utils import add_hooks, remove_hooks

    # ZeRO-3 has put a function with a backward pass of its own, written in Python, in the place of every linear layer's.
    linear = torch.nn.functional.linear
    with deepspeed.zero.GatheredParameters(parameters):
        remove_hooks(model)  # DeepSpeed's, which would gather and release each layer all the same
        torch.nn.functional.linear = torch.ops.aten.linear
        try:
            yield
        finally:
            torch.nn.functional.linear = linear
            add_hooks(model)


def fits_everywhere(size: int, device: torch.device) -> bool:
    """Say whether every rank has room for `size` more bytes beside its activations; on a CPU its ranks share the memory."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + unused
    else:
        free = psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return not max_over_ranks(int(size > SHARE_OF_FREE * free), device)
