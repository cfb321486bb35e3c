"""Checks, on two layers of a few numbers, that the installed transformers offers what packed attention of a family stands on."""

import functools
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mmrm.models.families.registry import FAMILIES
from mmrm.models.packing.attention import AttentionPlan, plan_or_mask
from mmrm.models.packing.positions import without_single_axis

EXPECTED = "5.17 to 5.23"


@functools.cache
def check_transformers(model_type: str) -> None:
    """Raise RuntimeError unless a plan reaches the text attention untouched and a layer hands its segments over in one call."""
    hooks = (
        (
            "an attention mask of its own kind no longer reaches the attention function",
            _plan_passes,
        ),
        (
            "the vision tower no longer hands over all segments of a layer in one call",
            _segments_pass,
        ),
    )
    for lost, passes in hooks:
        if not passes(model_type):
            raise RuntimeError(
                f"transformers {transformers.__version__}: {lost} of {FAMILIES[model_type].title}, which packed rows need. "
                f"This project is tested with transformers {EXPECTED}; install one of those."
            )


def _calls(
    kind: Any, config: Any, name: str, *images: Tensor, **inputs: Any
) -> list[tuple[Any, dict[str, Any]]]:
    """Return the mask and the keywords with which a model calls an attention function that is registered as `name`."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def probe(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **keywords: Any,
    ) -> tuple[Tensor, None]:
        calls.append((attention_mask, keywords))
        return query.transpose(1, 2), None

    model = kind(config)
    ALL_ATTENTION_FUNCTIONS.register(name, probe)
    AttentionMaskInterface.register(name, plan_or_mask)
    config._attn_implementation = name
    with torch.no_grad():
        model(*images, **inputs)
    return calls


def _config(model_type: str) -> Any:
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
    vision = {"hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 1}
    family = FAMILIES[model_type]
    also_text, also_vision = family.probe
    return family.parts().config(
        text_config={**text, **also_text}, vision_config={**vision, **also_vision}
    )


def _plan_passes(model_type: str) -> bool:
    plan, config, family = (
        AttentionPlan.of([[1, 1]]),
        _config(model_type).text_config,
        FAMILIES[model_type].parts(),
    )
    places, _ = family.positions((0, 0), 1, (), 1)
    inputs = {
        "input_ids": torch.zeros(1, 2, dtype=torch.int64),
        "position_ids": without_single_axis(places[:, None]),
        "use_cache": False,
    }
    found = [
        mask
        for mask, _ in _calls(family.stock[0], config, "probe_plan", **inputs, attention_mask=plan)
    ]
    return len(found) == config.num_hidden_layers and all(mask is plan for mask in found)


def _segments_pass(model_type: str) -> bool:
    if not FAMILIES[model_type].images.planned:
        return True
    family, config, grids = (
        FAMILIES[model_type],
        _config(model_type).vision_config,
        torch.tensor([[1, 12, 12]]),
    )
    patches = torch.zeros(4 * 36, family.images.sizes(config)[1])
    each = {
        name: torch.tensor([number])
        for name, number in family.tower_plan(config, grids).per_image.items()
    }
    calls = _calls(family.parts().stock[1], config, "probe_flash", patches, grids, **each)
    return len(calls) == 1 and {"cu_seq_lens_q", "max_length_q"} <= calls[0][1].keys()
