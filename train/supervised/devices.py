"""One object a method: what a run asks of it. Its records and what they cost, its objective, its judge and its trainer.

And the arguments of Hugging Face's Trainer: what Trainer must not do by itself is switched off there. wandb writes to its server
where there is a login, else into the run folder, from which `wandb sync` sends it later.
"""

from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from peft import PeftModel


def device() -> torch.device:
    """Return the device of this rank."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def unwrapped(model: Any) -> Any:
    """Return the model inside DeepSpeed's, DDP's and PEFT's wrappers; PEFT's adapters stay in its layers."""
    inner = extract_model_from_parallel(model)
    return inner.get_base_model() if isinstance(inner, PeftModel) else inner
