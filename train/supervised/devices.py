"""The device of this process, and the model inside the wrappers of training."""

from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from peft import PeftModel


def device() -> torch.device:
    """Return the current CUDA device of this rank, or the CPU if there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def unwrapped(model: Any) -> Any:
    """Return the model inside the wrappers of DeepSpeed, DDP and PEFT.

    PEFT's adapters stay active: they are in the layers of the returned model.
    """
    inner = extract_model_from_parallel(model)
    return inner.get_base_model() if isinstance(inner, PeftModel) else inner
