"""Conversations in the forms that callers write, read into one form.

    "What is this?"                                                      one turn of the user
    [{"role": "user", "content": "What is this?"}]                       the same
    … "content": [{"type": "image", "image": X}, {"type": "text", …}]    transformers' form
    … "content": [{"type": "image_url", "image_url": {"url": X}}, …]     OpenAI's form
    … "content": [{"type": "image"}, …], and the images in a list        trl's form

In transformers' form, the image may also be under "url" or "path". X is an opened image (PIL), the
bytes of a file, a path, a data URI, or {"bytes": …, "path": …} as `datasets` stores images. If
images are given in a list and the conversation has no place for one, they are put before the first
text of the user. Nothing is fetched.

`<image>` in a text is the place of an image of the list, if there are as many markers as images;
`markers.py` decides.

This file is saved with every checkpoint that has a reward head, so it imports Pillow alone.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

# Relative, because this file is saved too.
from .markers import MarkerError, marker_in_prompt, marker_in_response, place_images

Picture = Image.Image | bytes | Path
"""An image: opened, encoded, or its path."""
ROLES = ("system", "user", "assistant")
PARTS = {
    "text": "text",
    "input_text": "text",
    "image": "image",
    "image_url": "image_url",
    "input_image": "image_url",
}
"""`type` of a part to the key that holds its content."""
IMAGE_KEYS = ("image", "image_url", "url", "path", "base64")
"""Keys under which an image part may hold its image, in the order in which they are looked up."""


class ConversationError(ValueError):
    """A conversation that cannot be scored; the message tells what is required."""


def read_conversation(
    messages: Any, images: Iterable[Any] = ()
) -> tuple[list[dict[str, Any]], list[Picture]]:
    """Return the turns in one form, and the images in the order of their places.

    In the returned turns, `content` is a list of parts, {"type": "text", "text": …} or
    {"type": "image"}.

    Args:
        messages: A text, or turns in one of the forms of the module's docstring.
        images: Images that are not inside `messages`, in the order of their places.

    Raises:
        ConversationError: The form is another; the turns are not of user and assistant in
            alternation, beginning (after at most one system turn) and ending with the user; the
            numbers of images and places differ; or a marker cannot be a place.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list | tuple):
        raise ConversationError(
            f"messages are a {type(messages).__name__}; required is a text or a list of turns"
        )
    listed_images = [picture(image) for image in images]
    placed_images: list[Picture | None] = []
    turns = [_turn(number, turn, placed_images) for number, turn in enumerate(messages)]
    _refuse_other_roles([turn["role"] for turn in turns])
    try:
        turns = place_images(turns, len(listed_images))
    except MarkerError as error:
        raise ConversationError(str(error)) from error
    for turn in turns:
        content = "".join(part["text"] for part in turn["content"] if part["type"] == "text")
        problem = marker_in_prompt(content)
        if problem:
            raise ConversationError(problem)

    if listed_images and not placed_images:
        return turns, listed_images
    num_empty_places = placed_images.count(None)
    if num_empty_places != len(listed_images):
        raise ConversationError(
            f"the turns have {num_empty_places} image parts without an image, and "
            f"{len(listed_images)} images are given beside them; required is one for each"
        )
    remaining_images = iter(listed_images)
    all_images = [next(remaining_images) if image is None else image for image in placed_images]
    return turns, all_images


def _refuse_other_roles(roles: list[str]) -> None:
    """Raise unless user and assistant alternate, beginning and ending with the user.

    One system turn may come first.
    """
    dialogue = roles[1:] if roles[:1] == ["system"] else roles
    if dialogue != ["user", "assistant"] * (len(dialogue) // 2) + ["user"]:
        raise ConversationError(
            f"the turns are {roles}; required are user and assistant in alternation, beginning and "
            "ending with the user, after at most one system turn. The responses are given beside "
            "the messages, not among them."
        )


def refuse_markers(responses: Iterable[str]) -> None:
    """Raise ConversationError if a response contains a marker of an image or of another medium."""
    for number, response in enumerate(responses):
        problem = marker_in_response(f"response {number}", response)
        if problem:
            raise ConversationError(problem)


def _turn(number: int, turn: Any, images: list[Picture | None]) -> dict[str, Any]:
    """Return a turn with a list of parts, and append its images to `images`.

    An image part without an image appends None.

    Args:
        number: Index of the turn, for messages.
        turn: The turn as the caller wrote it.
        images: Images of the conversation so far.
    """
    if not isinstance(turn, Mapping):
        raise _wrong_role(number, type(turn).__name__)
    role = turn.get("role")
    if role not in ROLES:
        raise _wrong_role(number, role)
    content = turn.get("content")
    if isinstance(content, str):
        return {"role": role, "content": [{"type": "text", "text": content}]}
    if not isinstance(content, list | tuple):
        raise ConversationError(
            f"turn {number} has content of type {type(content).__name__}; required is a text or a "
            "list of parts"
        )
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = _kind(number, part)
        if PARTS[kind] == "text":
            if not isinstance(part.get("text"), str):
                raise ConversationError(
                    f"turn {number} has a text part whose `text` is a "
                    f"{type(part.get('text')).__name__}; required is a text"
                )
            parts.append({"type": "text", "text": part["text"]})
            continue
        if role == "assistant":
            raise ConversationError(
                f"turn {number} is the assistant's and holds an image; images belong to the turns "
                "of the user"
            )
        value = _image_value(part)
        images.append(None if value is None else picture(value))
        parts.append({"type": "image"})
    return {"role": role, "content": parts}


def _wrong_role(number: int, role: Any) -> ConversationError:
    """Return the error for a turn with a role that there is not."""
    return ConversationError(
        f"turn {number} has the role {role!r}; required is one of {', '.join(ROLES)}"
    )


def _kind(number: int, part: Any) -> str:
    """Return the `type` of a part of turn `number`, which is a key of PARTS."""
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(kind, str) and kind in PARTS:
        return kind
    advice = ""
    if kind in ("video", "video_url"):
        advice = ": this model takes frames of a video as images"
    raise ConversationError(
        f"turn {number} has a part of type {kind!r}{advice}; required is one of {', '.join(PARTS)}"
    )


def _image_value(part: Mapping[str, Any]) -> Any:
    """Return the image of an image part as the caller wrote it; None if the part has none."""
    for key in IMAGE_KEYS:
        value = part.get(key)
        if value is not None:
            is_nested = part["type"] != "image" and isinstance(value, Mapping)
            return value.get("url") if is_nested else value
    return None


def picture(value: Any) -> Picture:
    """Return an image that is written in one of the forms of the module's docstring.

    Raises:
        ConversationError: The form is another.
    """
    if isinstance(value, Mapping):
        stored = value.get("bytes") or value.get("path")
        if isinstance(stored, bytes | str):
            value = stored
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
