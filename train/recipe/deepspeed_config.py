"""The DeepSpeed configurations in the folder recipes/deepspeed, and their properties.

Every function takes the value of the key `deepspeed` of a recipe: the name of a file in that
folder without its ending, or `none` for a run without DeepSpeed.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "deepspeed"
"""The folder of the DeepSpeed configurations."""

NONE = "none"
"""The value of `deepspeed` for a run without it: distributed data parallel, or a single process."""

SHARE_OF_FREE = 0.7
"""The share of a rank's free memory that gathered weights may take while a model generates.

Weights are gathered if ZeRO-3 divides them among the ranks. The rest of the memory is for
activations, and for the keys and values of attention.
"""


def deepspeed_names() -> list[str]:
    """Return all values that the key `deepspeed` of a recipe may have, `none` first."""
    return [NONE, *sorted(file.stem for file in FOLDER.glob("*.json"))]


def deepspeed_config(
    name: str, dtype: str, *, cpu: bool, other_ranks: bool = False
) -> dict[str, Any] | None:
    """Return a DeepSpeed configuration for one run, None if `name` is `none`.

    Hugging Face's Trainer replaces the values "auto" that are left in it. There is no section
    `optimizer`, because the trainer passes its own AdamW, with a learning rate for each part of the
    model.

    Args:
        name: The name of the configuration.
        dtype: The dtype of the backbone, such as "bfloat16".
        cpu: True if the run has no GPU.
        other_ranks: True if the run continues from a checkpoint of another number of ranks, whose
            states were converted (train/checkpoints/universal.py).
    """
    if name == NONE:
        return None
    config = _read(name)
    if other_ranks:
        config["checkpoint"] = {"load_universal": True}
    config["bf16"]["enabled"] = dtype == "bfloat16"
    if cpu:
        # DeepSpeed would compile an optimizer of its own, which takes half a minute.
        config["zero_force_ds_cpu_optimizer"] = False
        # Pinned memory makes copies to a device faster, and there is no device.
        for section in {"offload_optimizer", "offload_param"} & config["zero_optimization"].keys():
            config["zero_optimization"][section]["pin_memory"] = False
    return config


def stage(name: str) -> int:
    """Return the ZeRO stage (0 to 3) of a DeepSpeed configuration, 0 for `none`."""
    if name == NONE:
        return 0
    return int(_read(name)["zero_optimization"]["stage"])


def copies_within(name: str) -> int:
    """Return the number of ranks among which a second copy of the weights is divided under ZeRO-3.

    These ranks are on one node, so that weights are gathered without the network between nodes.
    DeepSpeed calls this hpZ. The result is 0 for a configuration without a second copy.
    """
    if name == NONE:
        return 0
    return int(_read(name)["zero_optimization"].get("zero_hpz_partition_size", 0))


def sums_in_fp32(name: str) -> bool:
    """Return True if a step sums the gradients of its passes in fp32, even if weights are bf16."""
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
