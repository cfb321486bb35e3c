"""The one record of this project: a multimodal prompt and two responses, one of them preferred.

Everything that trains or is evaluated starts as a `Preference`. Images stay encoded (bytes or a path)
until a worker needs their pixels, so that a record is small and a data set can be memory-mapped.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

import numpy as np

from mmrm.data.errors import MarkerInTextError, RecordError
from mmrm.data.markers import marker_in_prompt, marker_in_response, stray_marker
from mmrm.data.video import ADVICE, TOKEN

EncodedImage = bytes | Path
"""An image file that is not decoded yet: its bytes or its path."""


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


def text(role: Literal["system", "user", "assistant"], content: str, images: int = 0) -> Message:
    """Return a message of `images` image parts and one text part."""
    places: list[TextPart | ImagePart] = [{"type": "image"} for _ in range(images)]
    return {"role": role, "content": [*places, {"type": "text", "text": content}]}


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the text parts of `messages`."""
    return [
        part["text"]
        for message in messages
        for part in message["content"]
        if part["type"] == "text"
    ]


def placeholders(messages: Sequence[Message]) -> int:
    """Count the image parts of `messages`."""
    return sum(part["type"] == "image" for message in messages for part in message["content"])


Rule = Literal["exact", "multiple_choice", "numeric"]
"""How a response is compared with a known answer; the rules themselves are in eval/verifiers.py."""


class Truth(NamedTuple):
    """What a right response to a prompt states."""

    rule: Rule
    answers: tuple[str, ...]
    """A response that states one of them is right."""


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
    """Reasoning that compares the two responses; Response 1 is the one that `first_in_rationale`
    names."""
    first_in_rationale: Literal["chosen", "rejected"] = "chosen"
    """`rejected` only for a rationale that cannot be rewritten for the other order; see
    data/rationales.py."""
    source: str = ""
    category: str = ""
    truth: Truth | None = None
    """The known answer; None where the source has none. With it, a record without responses is a question for a policy."""

    @property
    def is_question(self) -> bool:
        """Whether the record is a prompt with a known answer and no responses."""
        return self.truth is not None and not self.chosen and not self.rejected


CONTROL_TOKENS = (
    TOKEN,
    "<|endoftext|>",
    *("<|im_start|>", "<|im_end|>"),
    *(
        "<|object_ref_start|>",
        "<|object_ref_end|>",
        "<|box_start|>",
        "<|box_end|>",
        "<|quad_start|>",
        "<|quad_end|>",
    ),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>"),
)
"""Qwen2.5-VL's special tokens, the one for videos first: as text inside a record they would be read as the end of a turn or as
the place of an image."""
FILLERS = "\u115f\u1160\u3164\uffa0\u2800"
"""Letters and symbols by their category that leave no ink: Hangul fillers and the Braille blank."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest margin: the loss is computed in float32."""


def control_token(content: str, tokens: Sequence[str] = CONTROL_TOKENS) -> str | None:
    """Return the first of `tokens` in `content`."""
    return next((token for token in tokens if token in content), None)


def forged(record: Preference, tokens: Sequence[str] = CONTROL_TOKENS) -> Iterator[str]:
    """Yield which text of a record holds one of `tokens`; the parts of a turn are joined, as the chat template does."""
    prompt = (("the prompt", "".join(texts([message]))) for message in record.prompt)
    for name, content in (*prompt, *_responses_and_notes(record).items()):
        if token := control_token(content, tokens):
            yield (
                f"{name} holds {token!r}, which the tokenizer would read as a control token, not as text. "
                f"Remove it from the record.{f' {ADVICE}' if token == TOKEN else ''}"
            )


def visible(content: str) -> bool:
    """Say whether a character of `content` leaves ink: no control, format, separator, mark or unassigned one, no blank."""
    return any(unicodedata.category(one)[0] not in "CZM" and one not in FILLERS for one in content)


def validate(record: Preference, tokens: Sequence[str] = CONTROL_TOKENS) -> Preference:
    """Return `record` unchanged if it can be trained or evaluated on; raise RecordError with its name if not.

    `tokens` may not be in its texts; a benchmark asks for none, and keeps such a row as unavailable.
    """
    for fault in (*_faults(record), *forged(record, tokens)):
        raise RecordError(f"{record.identity}: {fault}")
    for fault in _stray_markers(record):
        raise MarkerInTextError(f"{record.identity}: {fault}")
    return record


def _stray_markers(record: Preference) -> Iterator[str]:
    """Yield what is wrong with texts that hold a marker of an image or of another medium.

    Control tokens are left to `forged`, whose callers decide what a text with one means.
    """
    for message in record.prompt:
        content = "".join(texts([message]))
        if stray_marker(content) not in CONTROL_TOKENS and (problem := marker_in_prompt(content)):
            yield problem
    for name, content in _responses_and_notes(record).items():
        if stray_marker(content) not in CONTROL_TOKENS and (
            problem := marker_in_response(name, content)
        ):
            yield problem


def _responses_and_notes(record: Preference) -> dict[str, str]:
    """Return the texts of a record except its prompt, by what they are."""
    content_by_name = {
        "the chosen response": record.chosen,
        "the rejected response": record.rejected,
        "the chosen critique": record.chosen_critique,
        "the rejected critique": record.rejected_critique,
        "the rationale": record.rationale,
    }
    return {name: content for name, content in content_by_name.items() if content is not None}


def _faults(record: Preference) -> Iterator[str]:
    """Yield what is wrong: with the turns, the number of images, the texts, the margin."""
    roles = [message["role"] for message in record.prompt]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if turns != ["user", "assistant"] * (len(turns) // 2) + ["user"]:
        yield (
            f"the prompt's turns are {roles}; required are user and assistant in alternation, "
            "beginning and ending with the user, after at most one system turn."
        )
    for position, message in enumerate(record.prompt):
        images = placeholders([message])
        if not images and not any(map(visible, texts([message]))):
            yield f"turn {position} of the prompt ({message['role']}) is empty."
        if images and message["role"] == "assistant":
            yield f"turn {position} of the prompt (assistant) holds an image; images belong to the turns of the user."
    if (places := placeholders(record.prompt)) != len(record.images):
        yield (
            f"the prompt has {places} image parts for {len(record.images)} images. "
            "Each image needs exactly one place in the prompt."
        )
    for name, response in (
        ("the chosen response", record.chosen),
        ("the rejected response", record.rejected),
    ):
        if not visible(response) and not record.is_question:
            yield f"{name} is empty; both responses must hold text that can be seen."
    if record.margin is not None and not abs(record.margin) <= LARGEST:
        yield f"the margin is {record.margin}; required is a finite number of at most {LARGEST:.4g}, or none."
