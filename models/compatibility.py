"""Checks, on two layers of a few numbers, that the installed transformers offers what packed attention stands on."""

import functools
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import Qwen2_5_VLConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
    Qwen2_5_VLTextModel,
)

EXPECTED = "5.17 to 5.23"


@functools.cache
def check_transformers() -> None:
    """Raise RuntimeError unless a plan reaches the text attention untouched and a layer hands its windows over in one call."""
    hooks = (
        ("an attention mask of its own kind no longer reaches the attention function", _plan_passes),
        ("the vision tower no longer hands over all windows of a layer in one call", _windows_pass),
    )
    for lost, passes in hooks:
        if not passes():
            raise RuntimeError(
                f"transformers {transformers.__version__}: {lost}, which packed rows need. "
                f"This project is tested with transformers {EXPECTED}; install one of those."
            )


def _calls(kind: Any, config: Any, name: str, **inputs: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Return the mask and the keywords with which a model calls an attention function that is registered as `name`."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def probe(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **keywords: Any
    ) -> tuple[Tensor, None]:
        calls.append((attention_mask, keywords))
        return query.transpose(1, 2), None

    model = kind(config)
    ALL_ATTENTION_FUNCTIONS.register(name, probe)
    config._attn_implementation = name
    with torch.no_grad():
        model(**inputs)
    return calls


def _config() -> Qwen2_5_VLConfig:
    """Return the two layers; their weights are drawn from the global generator, so other sizes would change what a run draws."""
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    text = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 4,
        "rope_parameters": rope,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    vision = {"hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 1, "out_hidden_size": 8}
    return Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "fullatt_block_indexes": []})


def _plan_passes() -> bool:
    plan = object()
    ids, places = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(3, 1, 2, dtype=torch.int64)
    inputs = {"input_ids": ids, "position_ids": places, "attention_mask": {"full_attention": plan}, "use_cache": False}
    return [mask for mask, _ in _calls(Qwen2_5_VLTextModel, _config().text_config, "probe_plan", **inputs)] == [plan]


def _windows_pass() -> bool:
    inputs = {"hidden_states": torch.zeros(4 * 36, 1176), "grid_thw": torch.tensor([[1, 12, 12]])}
    calls = _calls(Qwen2_5_VisionTransformerPretrainedModel, _config().vision_config, "probe_flash", **inputs)
    return len(calls) == 1 and {"cu_seq_lens_q", "max_length_q"} <= calls[0][1].keys()
