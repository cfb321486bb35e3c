"""The DeepSpeed configurations in recipes/deepspeed, by name.

`deepspeed_config` adapts one to the dtype and the device of a run.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "deepspeed"

NONE = "none"
"""Run without a DeepSpeed engine: plain distributed data parallel, or a single process."""

SHARE_OF_FREE = 0.7
"""The share of a rank's free memory that whole weights may take while it writes.

The rest is for activations, and for keys and values.
"""


def deepspeed_names() -> list[str]:
    """Return the names of all DeepSpeed configurations that a recipe may use, with `none`."""
    return [NONE, *sorted(file.stem for file in FOLDER.glob("*.json"))]


def deepspeed_config(name: str, dtype: str, *, cpu: bool) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration `name` for a backbone of `dtype`, None for `none`.

    The "auto" values left in it are for Hugging Face's Trainer, which knows the model. There is no
    optimizer section, because the trainer passes its own AdamW with a learning rate for each part.
    On a CPU that optimizer stays torch's, since DeepSpeed would first compile its own for half a
    minute. No memory is pinned there, since there is no device to copy to.
    """
    if name == NONE:
        return None
    config = _read(name)
    config["bf16"]["enabled"] = dtype == "bfloat16"
    if cpu:
        config["zero_force_ds_cpu_optimizer"] = False
        for section in {"offload_optimizer", "offload_param"} & config["zero_optimization"].keys():
            config["zero_optimization"][section]["pin_memory"] = False
    return config


def stage(name: str) -> int:
    """Return the ZeRO stage of the DeepSpeed configuration `name`; 0 for `none`."""
    if name == NONE:
        return 0
    return int(_read(name)["zero_optimization"]["stage"])


def copies_within(name: str) -> int:
    """Return the number of ranks of a node over which a second copy of the weights is divided (hpZ).

    The number is 0 for a configuration without such a copy.
    """
    if name == NONE:
        return 0
    return int(_read(name)["zero_optimization"].get("zero_hpz_partition_size", 0))


def sums_in_fp32(name: str) -> bool:
    """Return True if a run sums the gradients of a step in fp32 although its weights are bf16.

    DeepSpeed can sum in fp32 from ZeRO-1 on.

    Args:
        name: The name of a DeepSpeed configuration, or `none` for a run without DeepSpeed.
    """
    if name == NONE:
        return True  # without DeepSpeed, trained weights and their gradients are fp32
    dtypes: dict[str, str] = _read(name).get("data_types", {})
    return dtypes.get("grad_accum_dtype") == "fp32"


def offloads(name: str) -> tuple[bool, bool]:
    """Return two booleans: optimizer states are kept in host memory, and weights are kept there.

    Args:
        name: The name of a DeepSpeed configuration in recipes/deepspeed, or `none`.
    """
    if name == NONE:
        return False, False
    zero = _read(name)["zero_optimization"]
    return "offload_optimizer" in zero, "offload_param" in zero


def _read(name: str) -> dict[str, Any]:
    """Return the content of the file of the DeepSpeed configuration `name`."""
    config: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return config
