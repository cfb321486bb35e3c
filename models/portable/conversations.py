"""The forms in which callers may write a conversation, and functions that read them into one form.

    "What is this?"                                                      one turn of the user
    [{"role": "user", "content": "What is this?"}]                       the same
    … "content": [{"type": "image", "image": X}, {"type": "text", …}]    transformers' form
    … "content": [{"type": "image_url", "image_url": {"url": X}}, …]     OpenAI's form
    … "content": [{"type": "image"}, …], and the images in a list        trl's form

In transformers' form, the image may also be under "url" or "path". X is an opened image (PIL), the
bytes of a file, a path, a data URI, or {"bytes": …, "path": …} as `datasets` stores images. If
images are given in a list and the conversation does not say where they are, they are put before the
first text of the user. Nothing is fetched.

A response is a text or a list of parts in one of these forms, in which every image part holds its
image.

The marker `<image>` in a text is where an image of the list belongs, if there are as many markers
as images; `markers.py` decides.

This file is saved with every checkpoint that has a reward head, so it imports Pillow alone.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

# Relative, because this file is saved too.
from .markers import (
    REWRITE_ADVICE,
    MarkerError,
    marker_in_prompt,
    marker_in_response,
    place_images,
    stray_marker,
)

Picture = Image.Image | bytes | Path
"""An image: opened, encoded, or its path."""
Response = str | Sequence[Mapping[str, Any]]
"""A response as a caller writes it: a text, or a list of parts."""
ROLES = ("system", "user", "assistant")
PARTS = {
    "text": "text",
    "input_text": "text",
    "image": "image",
    "image_url": "image_url",
    "input_image": "image_url",
}
"""`type` of a part of a turn to the key that usually holds its content."""
IMAGE_KEYS = ("image", "image_url", "url", "path", "base64")
"""Keys under which an image part may hold its image, in the order in which they are looked up."""


class ConversationError(ValueError):
    """Raised for a conversation that cannot be scored. The message says what is required."""


def read_conversation(
    messages: Any, images: Iterable[Any] = (), *, images_in_answers: bool = False
) -> tuple[list[dict[str, Any]], list[Picture]]:
    """Return the turns of a conversation in one form, and its images in order.

    In the returned turns, `content` is a list of parts, {"type": "text", "text": …} or
    {"type": "image"}. The first image belongs to the first part of type "image", and so on.

    Args:
        messages: A text, or turns in one of the forms of the module's docstring.
        images: Images that are not inside `messages`, in the order in which they belong there.
        images_in_answers: The assistant's turns may hold images.

    Raises:
        ConversationError: The form is another; the turns are not of user and assistant in
            alternation, beginning (after at most one system turn) and ending with the user; there
            are more or fewer images than `messages` has room for; or a marker of an image is
            ambiguous.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list | tuple):
        raise ConversationError(
            f"messages are a {type(messages).__name__}; required is a text or a list of turns"
        )
    listed_images = [picture(image) for image in images]
    # The image of each image part of the turns; None if it is to be taken from the list.
    images_of_parts: list[Picture | None] = []
    turns = [_turn(number, turn, images_of_parts) for number, turn in enumerate(messages)]
    _refuse_other_roles([turn["role"] for turn in turns])
    if not images_in_answers:
        _refuse_images_in_answers(turns)
    try:
        turns = place_images(turns, len(listed_images))
    except MarkerError as error:
        raise ConversationError(str(error)) from error
    for turn in turns:
        problem = marker_in_prompt(joined_text(turn["content"]))
        if problem:
            raise ConversationError(problem)

    if listed_images and not images_of_parts:
        return turns, listed_images  # `place_images` added the image parts
    num_empty_parts = images_of_parts.count(None)
    if num_empty_parts != len(listed_images):
        raise ConversationError(
            f"the turns have {num_empty_parts} image parts without an image, and "
            f"{len(listed_images)} images are given beside them; required is one for each"
        )
    remaining_images = iter(listed_images)
    all_images = [next(remaining_images) if image is None else image for image in images_of_parts]
    return turns, all_images


def _refuse_other_roles(roles: list[str]) -> None:
    """Raise ConversationError unless user and assistant alternate in `roles`, the turns' roles.

    The first and the last turn must be the user's. One system turn may come before them.
    """
    dialogue = roles[1:] if roles[:1] == ["system"] else roles
    if dialogue != ["user", "assistant"] * (len(dialogue) // 2) + ["user"]:
        raise ConversationError(
            f"the turns are {roles}; required are user and assistant in alternation, beginning and "
            "ending with the user, after at most one system turn. The responses are given beside "
            "the messages, not among them."
        )


def _refuse_images_in_answers(turns: list[dict[str, Any]]) -> None:
    """Raise ConversationError if a turn of the assistant holds an image."""
    for number, turn in enumerate(turns):
        has_image = any(part["type"] == "image" for part in turn["content"])
        if turn["role"] == "assistant" and has_image:
            raise ConversationError(
                f"turn {number} is the assistant's and holds an image; images belong to the turns "
                "of the user"
            )


def read_response(number: int, response: Response) -> tuple[dict[str, Any], list[Picture]]:
    """Return a response as a turn in the form of `read_conversation`, and its images in order.

    Args:
        number: Index of the response, for messages.
        response: A text or a list of parts in one of the forms of the module's docstring.

    Raises:
        ConversationError: The form is another, an image part holds no image, or a text holds a
            marker of an image or of another medium.
    """
    name = f"response {number}"
    images_of_parts: list[Picture | None] = []
    parts = _parts(name, response, images_of_parts)
    images = [image for image in images_of_parts if image is not None]
    if len(images) < len(images_of_parts):
        raise ConversationError(
            f"{name} has {len(images_of_parts)} image parts and {len(images)} images; required is "
            "an image inside each image part of a response"
        )
    marker = stray_marker(joined_text(parts))
    if marker is not None:
        raise ConversationError(
            f"{name} holds {marker!r} as text, which is not the place of an image. Write an image "
            f"of a response as an image part, and remove other markers. {REWRITE_ADVICE}"
        )
    return {"role": "assistant", "content": parts}, images


def joined_text(parts: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a turn's parts, joined as chat templates join it."""
    return "".join(part["text"] for part in parts if part["type"] == "text")


def apply_template(
    tokenizer: Any, turns: Sequence[Mapping[str, Any]], *, open_turn: bool = False
) -> str:
    """Return turns as the chat template renders them, with an empty block of thoughts if any.

    Some templates write a block of thoughts at the beginning of an answer. With `enable_thinking`
    false, the block is empty and the same before an answer that is given and before one that is
    still to be written. Templates without such a block ignore the variable.

    Args:
        tokenizer: The tokenizer with the chat template.
        turns: The turns.
        open_turn: The text that the template writes before an answer is added at the end.
    """
    rendered: str = tokenizer.apply_chat_template(
        list(turns), tokenize=False, add_generation_prompt=open_turn, enable_thinking=False
    )
    return rendered


def trims_answers(tokenizer: Any) -> bool:
    """Return True if the chat template removes white space around the text of an answer."""
    answer = "  answer  "
    turns = []
    for role, text in (("user", "-"), ("assistant", answer)):
        turns.append({"role": role, "content": [{"type": "text", "text": text}]})
    return answer not in apply_template(tokenizer, turns)


def text_of_image(tokenizer: Any) -> str:
    """Return the text that the chat template writes for an image in a turn of the user.

    It is empty if the template leaves images out.
    """
    image = {"type": "image"}
    following_text = {"type": "text", "text": "-"}
    rendered: list[str] = []
    for content in ([image, following_text], [following_text]):
        turn = {"role": "user", "content": content}
        rendered.append(apply_template(tokenizer, [turn]))
    with_image, without_image = rendered
    start = 0
    while start < len(without_image) and with_image[start] == without_image[start]:
        start += 1
    return with_image[start : start + len(with_image) - len(without_image)]


def with_written_images(parts: Iterable[Mapping[str, Any]], image_text: str) -> str:
    """Return the parts of an assistant's turn as one text, in which its images are written out.

    Some chat templates leave out an image in a turn of the assistant.

    Args:
        parts: The parts of the turn.
        image_text: The text for an image; see `text_of_image`.
    """
    pieces = [image_text if part["type"] == "image" else part["text"] for part in parts]
    return "".join(pieces)


def refuse_markers(responses: Iterable[str]) -> None:
    """Raise ConversationError if a response contains a marker of an image or of another medium."""
    for number, response in enumerate(responses):
        problem = marker_in_response(f"response {number}", response)
        if problem:
            raise ConversationError(problem)


def _turn(number: int, turn: Any, images_of_parts: list[Picture | None]) -> dict[str, Any]:
    """Return a turn as `read_conversation` returns it, and append its images to a list.

    Args:
        number: Index of the turn, for messages.
        turn: The turn as the caller wrote it.
        images_of_parts: The list. For an image part without an image, None is appended.

    Raises:
        ConversationError: The turn has another form.
    """
    if not isinstance(turn, Mapping):
        raise _wrong_role(number, type(turn).__name__)
    role = turn.get("role")
    if role not in ROLES:
        raise _wrong_role(number, role)
    parts = _parts(f"turn {number}", turn.get("content"), images_of_parts)
    return {"role": role, "content": parts}


def _parts(name: str, content: Any, images_of_parts: list[Picture | None]) -> list[dict[str, Any]]:
    """Return the content of a turn as a list of parts, and append its images to a list.

    Args:
        name: The name of the turn or response, for messages.
        content: The content as the caller wrote it.
        images_of_parts: The list. For an image part without an image, None is appended.

    Raises:
        ConversationError: The content has another form.
    """
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list | tuple):
        raise ConversationError(
            f"{name} has content of type {type(content).__name__}; required is a text or a list of "
            "parts"
        )
    parts: list[dict[str, Any]] = []
    for part in content:
        if PARTS[_part_type(name, part)] == "text":
            if not isinstance(part.get("text"), str):
                raise ConversationError(
                    f"{name} has a text part whose `text` is a "
                    f"{type(part.get('text')).__name__}; required is a text"
                )
            parts.append({"type": "text", "text": part["text"]})
        else:
            value = _image_value(part)
            images_of_parts.append(None if value is None else picture(value))
            parts.append({"type": "image"})
    return parts


def _wrong_role(number: int, role: Any) -> ConversationError:
    """Return the error for turn `number`, whose role is not one of ROLES."""
    return ConversationError(
        f"turn {number} has the role {role!r}; required is one of {', '.join(ROLES)}"
    )


def _part_type(name: str, part: Any) -> str:
    """Return the `type` of a part of the turn or response `name`.

    Raises:
        ConversationError: The part is no dictionary, or has another type than those in PARTS.
    """
    part_type = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(part_type, str) and part_type in PARTS:
        return part_type
    advice = ""
    if part_type in ("video", "video_url"):
        advice = ": this model takes frames of a video as images"
    raise ConversationError(
        f"{name} has a part of type {part_type!r}{advice}; required is one of {', '.join(PARTS)}"
    )


def _image_value(part: Mapping[str, Any]) -> Any:
    """Return the image of an image part as the caller wrote it; None if the part has none."""
    for key in IMAGE_KEYS:
        value = part.get(key)
        if value is not None:
            # OpenAI's form: {"type": "image_url", "image_url": {"url": …}}.
            is_nested = part["type"] != "image" and isinstance(value, Mapping)
            return value.get("url") if is_nested else value
    return None


def picture(value: Any) -> Picture:
    """Return an image that a caller wrote, as an opened image, the bytes of a file, or its path.

    `value` has one of the forms in the module's docstring. A path is not opened.

    Raises:
        ConversationError: The form is another.
    """
    if isinstance(value, Mapping):
        content_or_path = value.get("bytes") or value.get("path")
        if isinstance(content_or_path, bytes | str):
            value = content_or_path
    if isinstance(value, Image.Image | bytes | Path):
        return value
    if not isinstance(value, str):
        raise ConversationError(
            f"an image is a {type(value).__name__}; required is a PIL image, bytes, a path or a "
            "data URI"
        )
    if value.startswith("data:"):
        header = re.match(r"data:image/[\w.+-]+;base64,", value)
        if not header:
            raise ConversationError(
                f"an image is written as {value[:40]!r}…; required is "
                "data:image/<format>;base64,<data>"
            )
        try:
            return base64.b64decode(value[header.end() :], validate=True)
        except ValueError as error:
            raise ConversationError(f"an image's data URI holds broken base64 ({error})") from error
    if re.match(r"https?://", value):
        raise ConversationError(
            f"an image is the address {value[:60]!r}; nothing is fetched: give its bytes or a data "
            "URI"
        )
    return Path(value.removeprefix("file://"))
