"""Puts the adapters of a LoRA checkpoint on their base, completely or not at all."""

from pathlib import Path
from typing import Any

from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn

from mmrm.data.storage.files import read_json
from mmrm.data.storage.manifest import verify_settings, verify_weights
from mmrm.models.portable.reward import refuse_incomplete, refuse_other_numbers

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def is_adapter(folder: Path) -> bool:
    """Say whether `folder` holds adapters and no whole model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """Return the folder or hub id of the base as it was called when the adapters were trained."""
    found: str = read_json(folder / CONFIG)["base_model_name_or_path"]
    return found


def with_adapters(base: nn.Module, folder: Path) -> nn.Module:
    """Return `base` with the adapters (and a head saved with them) of `folder`, not merged: the same sums as in training.

    Adapters keep the dtype in which they were saved, whatever the base's. (peft would cast them to the base's.)
    Raises: IncompleteCheckpointError unless the tensors of `folder` are exactly the adapters' (peft itself only warns) and
    floating-point numbers; CheckpointError for a file that is not as it was saved.
    """
    verify_settings(folder)
    verify_weights(folder)
    refuse_other_numbers(folder, [folder / WEIGHTS])
    stored = load_file(folder / WEIGHTS)
    config = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False  # marks the adapters as trainable, which tells them from the base
    model: Any = get_peft_model(base, config, autocast_adapter_dtype=False)
    expected = get_peft_model_state_dict(model)
    both = stored.keys() & expected.keys()
    refuse_incomplete(
        folder,
        {
            "missing_keys": expected.keys() - stored.keys(),
            "unexpected_keys": stored.keys() - expected.keys(),
            "mismatched_keys": [
                name for name in both if stored[name].shape != expected[name].shape
            ],
        },
    )
    dtype = next(iter(stored.values())).dtype
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    set_peft_model_state_dict(model, stored)
    return model.requires_grad_(False)  # type: ignore[no-any-return]
