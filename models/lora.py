"""Loading of the adapters of a LoRA checkpoint onto their base, completely or not at all."""

from pathlib import Path
from typing import Any

from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn

from mmrm.data.storage.files import read_json
from mmrm.data.storage.manifest import verify_settings, verify_weights
from mmrm.models.portable.reward import refuse_incomplete, refuse_other_numbers

CONFIG = "adapter_config.json"
"""File with the configuration of adapters."""
WEIGHTS = "adapter_model.safetensors"
"""File with the weights of adapters."""


def is_adapter(folder: Path) -> bool:
    """Return True if `folder` holds adapters and no whole model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """Return the folder or hub id of the base, as it was named when the adapters were trained."""
    base: str = read_json(folder / CONFIG)["base_model_name_or_path"]
    return base


def with_adapters(base: nn.Module, folder: Path) -> nn.Module:
    """Return `base` with the adapters of `folder`, and with a head that was saved with them.

    The adapters are not merged, so sums are computed as in training. They keep the dtype in which
    they were saved; peft would cast them to the dtype of the base.

    Raises:
        IncompleteCheckpointError: The tensors of `folder` are not exactly those of the adapters
            (peft itself only warns), or not floating-point numbers.
        CheckpointError: A file differs from the one that was saved.
    """
    verify_settings(folder)
    verify_weights(folder)
    refuse_other_numbers(folder, [folder / WEIGHTS])
    stored = load_file(folder / WEIGHTS)
    config = PeftConfig.from_pretrained(str(folder))
    # Adapters are then trainable, by which they are told from the base below.
    config.inference_mode = False
    model: Any = get_peft_model(base, config, autocast_adapter_dtype=False)
    expected = get_peft_model_state_dict(model)
    mismatched = [
        name
        for name in stored.keys() & expected.keys()
        if stored[name].shape != expected[name].shape
    ]
    refuse_incomplete(
        folder,
        {
            "missing_keys": expected.keys() - stored.keys(),
            "unexpected_keys": stored.keys() - expected.keys(),
            "mismatched_keys": mismatched,
        },
    )
    dtype = next(iter(stored.values())).dtype
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    set_peft_model_state_dict(model, stored)
    return model.requires_grad_(False)  # type: ignore[no-any-return]
