"""The stock model on padded batches, built without any of our packing: what packed rows are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from models.encoder import Span
from tests.models import tiny

Case = tuple[list[Image], list[tuple[Span, ...]]]
"""A group as people write it: its pictures and its conversations."""


def padded_inputs(cases: Sequence[Case], side: str = "right", family: str = tiny.FAMILY) -> dict[str, Tensor]:
    """Give every conversation of `cases` a row of its own, with its own copy of the images."""
    tokenizer, processor = tiny.tokenizer(), tiny.image_processor(family=family)
    texts, images = [], []
    for pictures, conversations in cases:
        for conversation in conversations:
            text = "".join(span.text for span in conversation)
            for picture in pictures:
                images.append(processor(images=[picture], return_tensors="pt"))
                count = int(images[-1]["image_grid_thw"].prod()) // 4
                text = text.replace("<|image_pad|>", "<|placeholder|>" * count, 1)
            texts.append(text.replace("<|placeholder|>", "<|image_pad|>"))
    rows = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt", add_special_tokens=False)
    inputs = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}
    if images:
        inputs["pixel_values"] = torch.cat([image["pixel_values"] for image in images])
        inputs["image_grid_thw"] = torch.cat([image["image_grid_thw"] for image in images])
    return inputs


def backbone(weights: Any) -> Any:
    """Return a stock backbone with stock attention and a copy of `weights`, a loaded backbone."""
    model = type(weights)._from_config(tiny.config(weights.config.model_type), attn_implementation="sdpa")
    model.load_state_dict(weights.state_dict())
    return model.eval()


def hidden_states(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Last hidden states (B, T, H) of the stock model, with the token kinds it needs for M-RoPE."""
    kinds = (inputs["input_ids"] == model.config.image_token_id).int()
    states: Tensor = model(**inputs, mm_token_type_ids=kinds).last_hidden_state
    return states
