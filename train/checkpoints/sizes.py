"""How many bytes a checkpoint takes."""

from __future__ import annotations

from pathlib import Path

from torch import nn

OPTIMIZER_BYTES = 12
"""Bytes of optimizer state for each trained parameter: two moments and a copy of the weight, in
fp32."""


def first_checkpoint_bytes(
    model: nn.Module, *, only_adapters: bool = False, share_of_states: float = 1.0
) -> int:
    """Return the expected size of a run's first checkpoint: weights and optimizer states.

    Args:
        model: The model that is saved.
        only_adapters: True if frozen weights are not saved.
        share_of_states: The share of the optimizer states that counts. A node holds less than all
            of them if they are divided over ranks.
    """
    weight_bytes = 0
    state_bytes = 0
    for parameter in model.parameters():
        # ZeRO-3 leaves only a part of a parameter on each rank.
        size = parameter.ds_numel if hasattr(parameter, "ds_numel") else parameter.numel()
        if parameter.requires_grad or not only_adapters:
            weight_bytes += size * parameter.element_size()
        if parameter.requires_grad:
            state_bytes += size * OPTIMIZER_BYTES
    return weight_bytes + round(state_bytes * share_of_states)


def folder_bytes(folder: Path) -> int:
    """Return the sum of the sizes of all files in a folder and in the folders inside it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
