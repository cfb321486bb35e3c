"""A check that the installed transformers still offers what packed attention relies on.

It runs one tiny layer of each tower of the family in use, with an attention function that records
how it is called.
"""

import functools
from dataclasses import dataclass
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
"""Versions of transformers that this project is tested with."""


@functools.cache
def check_transformers(model_type: str) -> None:
    """Check both towers of a family.

    Raises:
        RuntimeError: A plan does not reach the text attention unchanged, or a vision layer does not
            pass all its runs in one call.
    """
    if not _plan_passes(model_type):
        raise _incompatible(
            model_type,
            "an attention mask of its own kind no longer reaches the attention function",
        )
    if not _runs_pass(model_type):
        raise _incompatible(
            model_type, "the vision tower no longer hands over all segments of a layer in one call"
        )


def _incompatible(model_type: str, change: str) -> RuntimeError:
    """Return the error for a version of transformers with this change."""
    return RuntimeError(
        f"transformers {transformers.__version__}: {change} of {FAMILIES[model_type].title}, which "
        f"packed rows need. This project is tested with transformers {EXPECTED}; install one of "
        "these versions."
    )


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one call of an attention function."""

    mask: Any
    keywords: dict[str, Any]


def _attention_calls(
    model_class: Any, config: Any, name: str, *images: Tensor, **inputs: Any
) -> list[AttentionCall]:
    """Run a model with an attention function that does nothing, and return the calls of it.

    Args:
        model_class: A class of transformers.
        config: Its configuration.
        name: Name under which the attention function is registered.
        images: Positional arguments of the model.
        inputs: Keyword arguments of the model.
    """
    calls: list[AttentionCall] = []

    def probe(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **keywords: Any,
    ) -> tuple[Tensor, None]:
        calls.append(AttentionCall(attention_mask, keywords))
        return query.transpose(1, 2), None

    model = model_class(config)
    ALL_ATTENTION_FUNCTIONS.register(name, probe)
    AttentionMaskInterface.register(name, plan_or_mask)
    config._attn_implementation = name
    with torch.no_grad():
        model(*images, **inputs)
    return calls


def _config(model_type: str) -> Any:
    """Return the configuration of a model with one layer in each tower.

    Its weights are drawn from the global generator, so other sizes would change what a run draws
    later.
    """
    text = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 4,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [1, 1, 2],
            "rope_theta": 1e4,
        },
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    vision = {"hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 1}
    family = FAMILIES[model_type]
    more_text, more_vision = family.probe
    return family.parts().config(
        text_config={**text, **more_text}, vision_config={**vision, **more_vision}
    )


def _plan_passes(model_type: str) -> bool:
    """Return True if every layer of the language model receives a plan unchanged."""
    plan = AttentionPlan.of([[1, 1]])
    config = _config(model_type).text_config
    parts = FAMILIES[model_type].parts()
    text_model, _ = parts.stock
    position_ids, _ = parts.positions((0, 0), 1, (), 1)
    calls = _attention_calls(
        text_model,
        config,
        "probe_plan",
        input_ids=torch.zeros(1, 2, dtype=torch.int64),
        position_ids=without_single_axis(position_ids[:, None]),
        use_cache=False,
        attention_mask=plan,
    )
    return len(calls) == config.num_hidden_layers and all(call.mask is plan for call in calls)


def _runs_pass(model_type: str) -> bool:
    """Return True if the vision layer receives all runs of patches in one call."""
    family = FAMILIES[model_type]
    if not family.images.planned:
        return True
    config = _config(model_type).vision_config
    grids = torch.tensor([[1, 12, 12]])
    _, numbers_per_patch = family.images.sizes(config)
    patches = torch.zeros(12 * 12, numbers_per_patch)
    per_image = {}
    for name, number in family.tower_plan(config, grids).per_image.items():
        per_image[name] = torch.tensor([number])
    _, vision_tower = family.parts().stock
    calls = _attention_calls(vision_tower, config, "probe_flash", patches, grids, **per_image)
    if len(calls) != 1:
        return False
    return {"cu_seq_lens_q", "max_length_q"} <= calls[0].keywords.keys()
