"""DeepSpeed configurations by name: the files in recipes/deepspeed, made to fit the dtype and the device of a run."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "deepspeed"


NONE = "none"
"""Run without a DeepSpeed engine: plain distributed data parallel, or a single process."""


def deepspeed_names() -> list[str]:
    """Return the names that a recipe may use; a file added to the folder is one of them."""
    return [NONE, *sorted(file.stem for file in FOLDER.glob("*.json"))]


def deepspeed_config(name: str, dtype: str, *, cpu: bool) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration `name` for a backbone of `dtype`, None for `none`.

    The "auto" values left in it are for Hugging Face's Trainer, which knows the model; there is no optimizer section, because
    the trainer passes its own AdamW with a learning rate for each part. On a CPU that optimizer stays torch's (DeepSpeed's
    own would be compiled first, for half a minute) and no memory is pinned, since there is no device to copy to.
    """
    if name == NONE:
        return None
    config = _read(name)
    config["bf16"]["enabled"] = dtype == "bfloat16"
    if cpu:
        config["zero_force_ds_cpu_optimizer"] = False
        for part in {"offload_optimizer", "offload_param"} & config["zero_optimization"].keys():
            config["zero_optimization"][part]["pin_memory"] = False
    return config


def stage(name: str) -> int:
    """Return the ZeRO stage of the configuration `name`; 0 for `none`."""
    return 0 if name == NONE else int(_read(name)["zero_optimization"]["stage"])


def copies_within(name: str) -> int:
    """Return over how many neighbouring ranks a second copy of the weights is divided (hpZ); 0 where there is none."""
    return (
        0
        if name == NONE
        else int(_read(name)["zero_optimization"].get("zero_hpz_partition_size", 0))
    )


def sums_in_fp32(name: str) -> bool:
    """Return whether the gradients of a step's rows are summed in fp32 where the weights are bf16.

    DeepSpeed can do so from ZeRO-1 on; without DeepSpeed what is trained is fp32, and so are its gradients.
    """
    return name == NONE or _read(name).get("data_types", {}).get("grad_accum_dtype") == "fp32"


def offloads(name: str) -> tuple[bool, bool]:
    """Return whether the configuration `name` keeps (optimizer states, parameters) in host memory."""
    zero = {} if name == NONE else _read(name)["zero_optimization"]
    return "offload_optimizer" in zero, "offload_param" in zero


def _read(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return config


SHARE_OF_FREE = 0.7
"""What whole weights may take of a rank's free memory while it writes; the rest is for activations, and for keys and values."""
