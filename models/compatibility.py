"""A check that the installed transformers still offers what packed attention relies on.

It runs one tiny layer of each tower of the family in use, with an attention function that records
how it is called.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mmrm.models.config import TESTED_TRANSFORMERS
from mmrm.models.families.registry import FAMILIES
from mmrm.models.packing.attention import (
    TEXT,
    AttentionPlan,
    plan_or_mask,
    register,
    take_plans,
)
from mmrm.models.packing.positions import without_single_axis
from mmrm.models.packing.recurrent import RecurrentPlan
from mmrm.models.packing.segments import Segment, SegmentTree


@functools.cache
def check_transformers(model_type: str) -> None:
    """Check that transformers calls the attention functions of a family as packed rows need it.

    The result is kept, so a family is checked once in a process.

    Args:
        model_type: The family's `model_type` in config.json.

    Raises:
        RuntimeError: The language model does not pass an `AttentionPlan` to its attention function
            unchanged, or no `RecurrentPlan` to its recurrent layers, or a vision layer does not
            pass a whole row of patches in one call.
    """
    if not _plan_reaches_attention(model_type):
        raise _incompatible(
            model_type,
            "an attention mask of its own kind no longer reaches the attention function",
        )
    if not _plan_reaches_recurrent_layers(model_type):
        raise _incompatible(
            model_type, "a plan in place of a mask no longer reaches the recurrent layers"
        )
    if not _row_of_patches_is_one_call(model_type):
        raise _incompatible(
            model_type, "the vision tower no longer hands over all segments of a layer in one call"
        )


def _incompatible(model_type: str, change: str) -> RuntimeError:
    """Return the error for an installed version of transformers that cannot compute packed rows.

    Args:
        model_type: The family whose check failed.
        change: What no longer works, as the beginning of a sentence.
    """
    return RuntimeError(
        f"transformers {transformers.__version__}: {change} of {FAMILIES[model_type].title}, which "
        f"packed rows need. This project is tested with transformers {TESTED_TRANSFORMERS}; install "
        "one of these versions."
    )


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one call of an attention function."""

    mask: Any
    keywords: dict[str, Any]


def _attention_calls(
    model_class: Any,
    config: Any,
    attention_name: str,
    plan_classes: Mapping[type, type],
    *args: Tensor,
    **kwargs: Any,
) -> list[AttentionCall]:
    """Run a model once, and return how it called its attention function.

    The attention function is a probe. It records its arguments and returns the queries.

    Args:
        model_class: A class of transformers.
        config: The configuration from which a model of this class is created.
        attention_name: Name under which the probe is registered with transformers.
        plan_classes: The classes that modules of the model take on.
        args: Positional arguments of the model.
        kwargs: Keyword arguments of the model.
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
        return query.transpose(1, 2), None  # the shape that attention returns

    model = model_class(config)
    take_plans(model, plan_classes)
    ALL_ATTENTION_FUNCTIONS.register(attention_name, probe)
    AttentionMaskInterface.register(attention_name, plan_or_mask)
    config._attn_implementation = attention_name
    with torch.no_grad():
        model(*args, **kwargs)
    return calls


def _tiny_config(model_type: str) -> Any:
    """Return the configuration of a tiny model with one language layer and one vision layer.

    Keep these sizes: creating the model draws its weights from torch's global generator, so other
    sizes would change every random number that a training run draws later.
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
    family_text, family_vision = family.probe  # values that this family needs in addition
    return family.parts().config(
        text_config={**text, **family_text}, vision_config={**vision, **family_vision}
    )


def _plan_reaches_attention(model_type: str) -> bool:
    """Return True if every attention layer of the language model gets an `AttentionPlan` unchanged."""
    config = _tiny_config(model_type).text_config
    family = FAMILIES[model_type]
    text_model, _ = family.parts().stock
    arguments = _row_of_two_tokens(model_type)
    calls = _attention_calls(
        text_model, config, "probe_plan", family.parts().plan_classes, **arguments
    )
    plan = arguments["attention_mask"]
    num_expected = family.attention_layers(config)
    return len(calls) == num_expected and all(call.mask is plan for call in calls)


def _plan_reaches_recurrent_layers(model_type: str) -> bool:
    """Return True if every recurrent layer of the language model gets a `RecurrentPlan`.

    Transformers drops a plan on the way to these layers without an error, and the states of one
    conversation would run on into the next.
    """
    family = FAMILIES[model_type]
    parts = family.parts()
    config = _tiny_config(model_type).text_config
    num_recurrent = config.num_hidden_layers - family.attention_layers(config)
    if num_recurrent == 0:
        return True
    text_model, _ = parts.stock
    model = text_model(config)
    take_plans(model, parts.plan_classes)
    register()
    config._attn_implementation = TEXT["sdpa"]
    masks: list[Any] = []

    def keep_mask(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        masks.append(kwargs.get("attention_mask"))

    for module in model.modules():
        if module is not model and type(module) in parts.plan_classes.values():
            module.register_forward_pre_hook(keep_mask, with_kwargs=True)
    with torch.no_grad():
        model(**_row_of_two_tokens(model_type))
    return len(masks) == num_recurrent and all(isinstance(mask, RecurrentPlan) for mask in masks)


def _row_of_two_tokens(model_type: str) -> dict[str, Any]:
    """Return the arguments of the language model for a row of a prompt and a response."""
    prompt_and_response = SegmentTree((Segment(ids=(0,)), Segment(ids=(0,), parent=0)))
    image_token = 1  # does not occur, so there are no grids of images
    parts = FAMILIES[model_type].parts()
    position_ids, _ = parts.positions((0, 0), image_token, (), 1, ())
    return {
        "input_ids": torch.zeros(1, 2, dtype=torch.int64),
        "position_ids": without_single_axis(position_ids[:, None]),
        "use_cache": False,
        "attention_mask": AttentionPlan.from_trees([prompt_and_response]),
    }


def _row_of_patches_is_one_call(model_type: str) -> bool:
    """Return True if a vision layer calls its attention function once for a whole row of patches.

    The call has to name the ends of the runs, which are neighbouring patches that attend to each
    other: the frames of images, or windows in them. For a vision tower that does not attend in
    runs, such as InternVL's, nothing is required.
    """
    family = FAMILIES[model_type]
    if not family.images.attends_in_runs:
        return True
    config = _tiny_config(model_type).vision_config
    side = 12
    grids = torch.tensor([[1, side, side]])  # one frame, large enough for several windows
    _, numbers_per_patch = family.images.sizes(config)
    patches = torch.zeros(side * side, numbers_per_patch)
    image_arguments = {}
    for name, number in family.tower_plan(config, grids).per_image.items():
        image_arguments[name] = torch.tensor([number])  # of the only image
    _, vision_tower = family.parts().stock
    calls = _attention_calls(
        vision_tower, config, "probe_flash", {}, patches, grids, **image_arguments
    )
    if len(calls) != 1:
        return False
    return {"cu_seq_lens_q", "max_length_q"} <= calls[0].keywords.keys()
