"""From conversations to tensors that the padded model reads; no convention is left to the caller.

This file travels with every checkpoint that has a reward head, so it imports torch, transformers, Pillow and nothing else.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, ProcessorMixin

from .conversations import (
    ConversationError,
    Picture,
    read_conversation,
    refuse_markers,
)  # relative, because these files travel too
from .decoding import upright_rgb
from .images import images_of

BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)
"""What Pillow's readers raise on a damaged file, each its own."""


class RewardProcessor(ProcessorMixin):  # type: ignore[misc]
    """Tokenizer and image processor of a reward model; `AutoProcessor.from_pretrained(…, trust_remote_code=True)` gives it.

    Images go through the PIL processor, as in training, which needs no torchvision.
    """

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, **kwargs: Any) -> None:
        super().__init__(image_processor, tokenizer, chat_template=tokenizer.chat_template)

    @classmethod
    def from_pretrained(cls, path: Any, **kwargs: Any) -> Any:
        """Load both parts from a checkpoint folder or hub id."""
        kept = {
            name: kwargs[name]
            for name in ("revision", "token", "cache_dir", "local_files_only")
            if name in kwargs
        }
        images = images_of(PreTrainedConfig.get_config_dict(path, **kept)[0]["model_type"])
        return cls(
            images.processor.from_pretrained(path, **kept),
            AutoTokenizer.from_pretrained(path, **kept),
        )


def padded_batch(
    config: Any, processor: Any, messages: Any, responses: Sequence[str], images: Iterable[Any] = ()
) -> dict[str, Tensor]:
    """Return one padded row for each response to a prompt: what `ScalarRewardModel.forward` takes, on the CPU.

    `processor` has a `tokenizer` and an `image_processor`. Raises ConversationError for what cannot be scored, an image that
    cannot be read and a control token of the tokenizer in a text among it.
    """
    turns, pictures = read_conversation(messages, images)
    refuse_markers(responses)
    if config.system_prompt is not None and turns[0]["role"] != "system":
        turns.insert(
            0, {"role": "system", "content": [{"type": "text", "text": config.system_prompt}]}
        )
    tokenizer, image_processor = processor.tokenizer, processor.image_processor
    texts = [
        "".join(part["text"] for part in turn["content"] if part["type"] == "text")
        for turn in turns
    ]
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    for content in (*texts, *responses):
        for token in special:
            if token in content:
                raise ConversationError(
                    f"a text contains {token!r}, which the tokenizer reads as a control token: remove it"
                )
    vision: dict[str, Tensor] = {}
    pads: list[int] = []
    if pictures:
        try:
            opened = [upright(one) for one in pictures]
        except BROKEN as error:
            raise ConversationError(f"an image cannot be read: {error}") from error
        made, images_here = (
            image_processor(images=opened, return_tensors="pt"),
            images_of(config.model_type),
        )
        vision, pads = images_here.inputs(made), images_here.tokens(config, made)
    begun = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    rows = [_row(config, tokenizer, begun, turns, response, pads) for response in responses]
    length = max(len(ids) for ids, _ in rows)
    ids, real, own = (torch.zeros(len(rows), length, dtype=torch.long) for _ in range(3))
    for row, (tokens, response_tokens) in enumerate(rows):
        ids[row, : len(tokens)], real[row, : len(tokens)] = torch.tensor(tokens), 1
        own[row, : len(tokens)] = torch.tensor(response_tokens)
    repeated = {name: torch.cat([value] * len(rows)) for name, value in vision.items()}
    return {"input_ids": ids, "attention_mask": real, "response_mask": own, **repeated}


def upright(image: Picture) -> Image.Image:
    """Return an image as training saw it; raises what Pillow raises on a damaged file."""
    if isinstance(image, Image.Image):
        return upright_rgb(image)
    if isinstance(image, Path) and not image.is_file():
        raise OSError(f"{image} is no regular file")  # reading a FIFO or a device may never end
    with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
        return upright_rgb(opened)


def _row(
    config: Any,
    tokenizer: Any,
    begun: str,
    turns: list[dict[str, Any]],
    response: str,
    pads: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Return the ids of a whole conversation, and 1 for each token of the response; image tokens as many as `pads` says.

    They stand between marks, which some families' chat templates do not write.
    """
    answer = {"role": "assistant", "content": [{"type": "text", "text": response}]}
    whole = tokenizer.apply_chat_template([*turns, answer], tokenize=False)
    if not whole.startswith(begun + response):
        raise ConversationError(
            "the chat template rewrites earlier turns or the response; use the checkpoint's own template"
        )
    if config.reward_head["read"] != "last_token":
        whole = whole.rstrip("\n")
    found = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    if found["input_ids"].count(config.image_token_id) != len(pads):
        raise ConversationError(
            f"{len(pads)} images, but another number of image places in the text of the conversation"
        )
    counts, marks = (
        iter(pads),
        tokenizer.convert_tokens_to_ids(list(images_of(config.model_type).marks)),
    )
    ids: list[int] = []
    own: list[int] = []
    for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
        new = (
            [*marks[:1], *[token] * next(counts), *marks[1:]]
            if token == config.image_token_id
            else [token]
        )
        ids += new
        own += [int(end > len(begun) and start < len(begun) + len(response))] * len(new)
    return ids, own
