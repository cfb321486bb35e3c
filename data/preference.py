"""The one record of this project: a multimodal prompt and two responses, one of them preferred.

Everything that trains or is evaluated starts as a `Preference`. Images stay encoded (bytes or a path)
until a worker needs their pixels, so that a record is small and a data set can be memory-mapped.

What every record must be before a model sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np

from data.errors import RecordError

EncodedImage = bytes | Path
"""An image file that nobody has decoded yet: its bytes, or the path at which it lies."""


class TextPart(TypedDict):
    """A piece of text inside a message."""

    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    """The place of the next image of the record."""

    type: Literal["image"]


class Message(TypedDict):
    """One turn of a conversation, in the form that chat templates read."""

    role: Literal["system", "user", "assistant"]
    content: list[TextPart | ImagePart]


def text(role: Literal["system", "user", "assistant"], content: str) -> Message:
    """Return a message of one text part."""
    return {"role": role, "content": [{"type": "text", "text": content}]}


def placeholders(messages: Sequence[Message]) -> int:
    """Count the image parts of `messages`."""
    return sum(part["type"] == "image" for message in messages for part in message["content"])


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with `images` in the order of its image parts, and the two responses a person or a rule compared."""

    identity: str
    """Where the record came from, for messages to people: `source:row` or a file and line."""
    prompt: tuple[Message, ...]
    """System, user and earlier assistant turns; the last turn is the user's."""
    chosen: str
    rejected: str
    images: tuple[EncodedImage, ...] = ()
    margin: float | None = None
    """How much better `chosen` is, in the source's own unit; None where the source does not say."""
    chosen_critique: str | None = None
    rejected_critique: str | None = None
    rationale: str | None = None
    """Reasoning that compares the two responses; Response 1 is `chosen`."""
    source: str = ""
    category: str = ""


CONTROL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen's special tokens: as text inside a record they would be read as the end of a turn or as the place of an image."""


LARGEST = float(np.finfo(np.float32).max)
"""Of a margin: the loss is computed in float32."""


def validate(record: Preference) -> Preference:
    """Return `record` unchanged if it can be trained or evaluated on.

    Raises: RecordError naming the record, if the prompt is empty or does not end with the user's turn, if turns of
    user and assistant do not alternate, if image parts and images differ in number, if a response is empty, if text
    holds one of Qwen's control tokens, or if the margin is not a finite number in float32.
    """
    _check_turns(record.prompt, record.identity)
    if placeholders(record.prompt) != len(record.images):
        raise RecordError(
            f"{record.identity}: the prompt has {placeholders(record.prompt)} image parts for {len(record.images)} images. "
            "Each image needs exactly one place in the prompt."
        )
    for name, response in (("chosen", record.chosen), ("rejected", record.rejected)):
        if not response.strip():
            raise RecordError(f"{record.identity}: the {name} response is empty; both responses must hold text.")
    for name, content in _texts(record):
        _check_text(name, content, record.identity)
    if record.margin is not None and not abs(record.margin) <= LARGEST:
        raise RecordError(
            f"{record.identity}: the margin is {record.margin}; required is a finite number of at most {LARGEST:.4g}, or none."
        )
    return record


def _check_turns(prompt: Sequence[Message], identity: str) -> None:
    roles = [message["role"] for message in prompt]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not turns or turns[-1] != "user":
        raise RecordError(f"{identity}: the prompt's turns are {roles}; required is that the last one is the user's.")
    expected = ["user" if position % 2 == 0 else "assistant" for position in range(len(turns))]
    if turns != expected:
        raise RecordError(
            f"{identity}: the prompt's turns are {roles}; required are user and assistant in alternation, "
            "beginning and ending with the user, after at most one system turn."
        )
    for position, message in enumerate(prompt):
        parts = message["content"]
        if not any(part["type"] == "image" or part["text"].strip() for part in parts):
            raise RecordError(f"{identity}: turn {position} of the prompt ({message['role']}) is empty.")


def _texts(record: Preference) -> list[tuple[str, str | None]]:
    prompt = [part["text"] for message in record.prompt for part in message["content"] if part["type"] == "text"]
    return [
        *(("the prompt", content) for content in prompt),
        ("the chosen response", record.chosen),
        ("the rejected response", record.rejected),
        ("the chosen critique", record.chosen_critique),
        ("the rejected critique", record.rejected_critique),
        ("the rationale", record.rationale),
    ]


def _check_text(name: str, content: str | None, identity: str) -> None:
    if content is None or "<|" not in content:
        return
    for token in CONTROL_TOKENS:
        if token in content:
            raise RecordError(
                f"{identity}: {name} holds {token!r}, which the tokenizer would read as a control token, not as text. "
                "Remove it from the record."
            )
