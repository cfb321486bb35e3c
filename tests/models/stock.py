"""The stock model on padded batches, built without any of our packing: what packed rows are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from mmrm.models.encoder import Span
from mmrm.models.families.registry import FAMILIES
from mmrm.models.packing import positions
from tests.models import tiny

Case = tuple[list[Image], list[tuple[Span, ...]]]
"""Pictures, and conversations about all of them."""


def padded_inputs(
    cases: Sequence[Case], side: str = "right", family: str = tiny.FAMILY
) -> dict[str, Tensor]:
    """Give every conversation of `cases` a row of its own, with its own copy of the images."""
    tokenizer, processor = tiny.tokenizer(family), tiny.image_processor(family=family)
    texts, images = [], []
    for pictures, conversations in cases:
        for conversation in tiny.written_for(family, conversations):
            text = "".join(span.text for span in conversation)
            for picture in pictures:
                images.append(processor(images=[picture], return_tensors="pt"))
                if family == "internvl":  # as its processor writes it, 4 tokens a tile
                    count = 4 * int(images[-1].pop("num_patches"))
                    text = text.replace(
                        "<IMG_CONTEXT>", f"<img>{'<|placeholder|>' * count}</img>", 1
                    )
                else:
                    merge = FAMILIES[family].images.sizes(tiny.config(family).vision_config)[0]
                    count = int(images[-1]["image_grid_thw"].prod()) // merge**2
                    text = text.replace(FAMILIES[family].marks[1], "<|placeholder|>" * count, 1)
            texts.append(text.replace("<|placeholder|>", FAMILIES[family].marks[1]))
    rows = tokenizer(
        texts, padding=True, padding_side=side, return_tensors="pt", add_special_tokens=False
    )
    inputs = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}
    for name in images[0] if images else ():
        inputs[name] = torch.cat([image[name] for image in images])
    return inputs


def backbone(weights: Any) -> Any:
    """Return a stock backbone with stock attention and a copy of `weights`, a loaded backbone."""
    model = type(weights)._from_config(
        tiny.config(weights.config.model_type), attn_implementation="sdpa", dtype=weights.dtype
    )
    model.load_state_dict(weights.state_dict())
    return model.eval()


def hidden_states(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Last hidden states (B, T, H) of the stock model, with the token kinds it needs for M-RoPE."""
    states: Tensor = model(**inputs, **kinds(model.config, inputs["input_ids"])).last_hidden_state
    return states


def kinds(config: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return which tokens are an image's, of a family that counts these otherwise."""
    in_order = FAMILIES[config.model_type].parts().positions is positions.sequential
    return {} if in_order else {"mm_token_type_ids": (ids == config.image_token_id).int()}


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of each parameter, zeros if the parameter took no part in the loss."""
    gradients: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        gradients[name] = torch.zeros_like(parameter) if gradient is None else gradient
    return gradients
