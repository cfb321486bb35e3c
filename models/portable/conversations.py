"""From conversations as callers write them to tensors that the padded model reads; no convention is left to the caller.

    "What is this?"                                                           one turn of the user
    [{"role": "user", "content": "What is this?"}]                            the same
    … "content": [{"type": "image", "image": X}, {"type": "text", …}]         transformers' form; also under "url" or "path"
    … "content": [{"type": "image_url", "image_url": {"url": X}}, …]          OpenAI's form
    … "content": [{"type": "image"}, …], and the images beside                trl's form

X is an opened image (PIL), the bytes of a file, a path, a data URI, or {"bytes": …, "path": …} as `datasets` stores images.
Images beside a conversation without any place for one stand before the first text of the user. Nothing is fetched.

This file travels with every checkpoint that has a reward head, so it imports torch, transformers, Pillow and nothing else.
"""

from __future__ import annotations

import base64
import io
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, ProcessorMixin

from .decoding import upright_rgb  # relative, because these files travel too
from .images import images_of

Picture = Image.Image | bytes | Path
"""An image, opened or encoded, or where it lies."""
ROLES = ("system", "user", "assistant")
PARTS = {"text": "text", "input_text": "text", "image": "image", "image_url": "image_url", "input_image": "image_url"}
"""`type` of a part to the key that holds its content."""
BROKEN = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError, struct.error, zlib.error)
"""What Pillow's readers raise on a damaged file, each its own."""


class ConversationError(ValueError):
    """A conversation that cannot be scored: what was found, and what is required."""


def read_conversation(messages: Any, images: Iterable[Any] = ()) -> tuple[list[dict[str, Any]], list[Picture]]:
    """Return the turns, with a part {"type": "image"} for each image, and the images in the order of these parts.

    Raises: ConversationError for another form, other turns than user and assistant in alternation that begin (after at most
    one system turn) and end with the user, or another number of images than of places.
    """
    written = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not isinstance(written, list | tuple):
        raise ConversationError(f"messages are a {type(messages).__name__}; required is a text or a list of turns")
    given = [picture(one) for one in images]
    found: list[Picture | None] = []
    turns = [_turn(number, turn, found) for number, turn in enumerate(written)]
    roles = [turn["role"] for turn in turns]
    asked = roles[1:] if roles[:1] == ["system"] else roles
    if asked != ["user", "assistant"] * (len(asked) // 2) + ["user"]:
        raise ConversationError(
            f"the turns are {roles}; required are user and assistant in alternation, beginning and ending with the user, "
            "after at most one system turn. The responses are given beside the messages, not among them."
        )
    if given and not found:
        first = turns[roles.index("user")]
        first["content"] = [{"type": "image"} for _ in given] + first["content"]
        return turns, given
    if found.count(None) != len(given):
        raise ConversationError(
            f"the turns have {found.count(None)} image parts without an image, and {len(given)} images are given beside them; "
            "required is one for each"
        )
    rest = iter(given)
    return turns, [next(rest) if one is None else one for one in found]


def _turn(number: int, turn: Any, images: list[Picture | None]) -> dict[str, Any]:
    """Return a turn with parts; its images are added to `images`, None where a part has none."""
    if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
        shown = turn.get("role") if isinstance(turn, Mapping) else type(turn).__name__
        raise ConversationError(f"turn {number} has the role {shown!r}; required is one of {', '.join(ROLES)}")
    content, role = turn.get("content"), turn["role"]
    if isinstance(content, str):
        return {"role": role, "content": [{"type": "text", "text": content}]}
    if not isinstance(content, list | tuple):
        raise ConversationError(
            f"turn {number} has content of type {type(content).__name__}; required is a text or a list of parts"
        )
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(kind, str) or kind not in PARTS:
            video = ": this model takes frames of a video as images" if kind in ("video", "video_url") else ""
            raise ConversationError(f"turn {number} has a part of type {kind!r}{video}; required is one of {', '.join(PARTS)}")
        if PARTS[kind] == "text":
            if not isinstance(part.get("text"), str):
                raise ConversationError(f"turn {number} has a text part whose `text` is a {type(part.get('text')).__name__}")
            parts.append({"type": "text", "text": part["text"]})
            continue
        if role == "assistant":
            raise ConversationError(
                f"turn {number} is the assistant's and holds an image; images belong to the turns of the user"
            )
        held = next((part[key] for key in ("image", "image_url", "url", "path", "base64") if part.get(key) is not None), None)
        held = held.get("url") if kind != "image" and isinstance(held, Mapping) else held
        images.append(None if held is None else picture(held))
        parts.append({"type": "image"})
    return {"role": role, "content": parts}


def picture(value: Any) -> Picture:
    """Return an image in one of the forms above; raises ConversationError for another."""
    if isinstance(value, Mapping) and isinstance(value.get("bytes") or value.get("path"), bytes | str):
        value = value.get("bytes") or value["path"]
    if isinstance(value, Image.Image | bytes | Path):
        return value
    if not isinstance(value, str):
        raise ConversationError(f"an image is a {type(value).__name__}; required is a PIL image, bytes, a path or a data URI")
    if value.startswith("data:"):
        form = re.match(r"data:image/[\w.+-]+;base64,", value)
        if not form:
            raise ConversationError(f"an image is written as {value[:40]!r}…; required is data:image/<format>;base64,<data>")
        try:
            return base64.b64decode(value[form.end() :], validate=True)
        except ValueError as error:
            raise ConversationError(f"an image's data URI holds broken base64 ({error})") from error
    if re.match(r"https?://", value):
        raise ConversationError(f"an image is the address {value[:60]!r}; nothing is fetched: give its bytes or a data URI")
    return Path(value.removeprefix("file://"))


def upright(image: Picture) -> Image.Image:
    """Return an image as training saw it; raises what Pillow raises on a damaged file."""
    if isinstance(image, Image.Image):
        return upright_rgb(image)
    with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
        return upright_rgb(opened)


class RewardProcessor(ProcessorMixin):  # type: ignore[misc]
    """Tokenizer and image processor of a reward model; `AutoProcessor.from_pretrained(…, trust_remote_code=True)` gives it.

    Images go through the PIL processor, as in training, which needs no torchvision.
    """

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, **kwargs: Any) -> None:
        super().__init__(image_processor, tokenizer, chat_template=tokenizer.chat_template)

    @classmethod
    def from_pretrained(cls, path: Any, **kwargs: Any) -> Any:
        """Load both parts from a checkpoint folder or hub id."""
        kept = {name: kwargs[name] for name in ("revision", "token", "cache_dir", "local_files_only") if name in kwargs}
        images = images_of(PreTrainedConfig.get_config_dict(path, **kept)[0]["model_type"])
        return cls(images.processor.from_pretrained(path, **kept), AutoTokenizer.from_pretrained(path, **kept))


def padded_batch(
    config: Any, processor: Any, messages: Any, responses: Sequence[str], images: Iterable[Any] = ()
) -> dict[str, Tensor]:
    """Return one padded row for each response to a prompt: what `ScalarRewardModel.forward` takes, on the CPU.

    `processor` has a `tokenizer` and an `image_processor`. Raises ConversationError for what cannot be scored, an image that
    cannot be read and a control token of the tokenizer in a text among it.
    """
    turns, pictures = read_conversation(messages, images)
    if config.system_prompt is not None and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": [{"type": "text", "text": config.system_prompt}]})
    tokenizer, image_processor = processor.tokenizer, processor.image_processor
    texts = ["".join(part["text"] for part in turn["content"] if part["type"] == "text") for turn in turns]
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    for content in (*texts, *responses):
        for token in special:
            if token in content:
                raise ConversationError(f"a text contains {token!r}, which the tokenizer reads as a control token: remove it")
    vision: dict[str, Tensor] = {}
    pads: list[int] = []
    if pictures:
        try:
            opened = [upright(one) for one in pictures]
        except BROKEN as error:
            raise ConversationError(f"an image cannot be read: {error}") from error
        made, images_here = image_processor(images=opened, return_tensors="pt"), images_of(config.model_type)
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


def _row(
    config: Any, tokenizer: Any, begun: str, turns: list[dict[str, Any]], response: str, pads: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the ids of a whole conversation, and 1 for each token of the response; image tokens as many as `pads` says.

    They stand between marks, which some families' chat templates do not write.
    """
    answer = {"role": "assistant", "content": [{"type": "text", "text": response}]}
    whole = tokenizer.apply_chat_template([*turns, answer], tokenize=False)
    if not whole.startswith(begun + response):
        raise ConversationError("the chat template rewrites earlier turns or the response; use the checkpoint's own template")
    if config.reward_head["read"] != "last_token":
        whole = whole.rstrip("\n")
    found = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    if found["input_ids"].count(config.image_token_id) != len(pads):
        raise ConversationError(f"{len(pads)} images, but another number of image places in the text of the conversation")
    counts, marks = iter(pads), tokenizer.convert_tokens_to_ids(list(images_of(config.model_type).marks))
    ids: list[int] = []
    own: list[int] = []
    for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
        new = [*marks[:1], *[token] * next(counts), *marks[1:]] if token == config.image_token_id else [token]
        ids += new
        own += [int(end > len(begun) and start < len(begun) + len(response))] * len(new)
    return ids, own
