"""Conversations in the forms that callers write, read into one.

    "What is this?"                                                           one turn of the user
    [{"role": "user", "content": "What is this?"}]                            the same
    … "content": [{"type": "image", "image": X}, {"type": "text", …}]         transformers' form; also under "url" or "path"
    … "content": [{"type": "image_url", "image_url": {"url": X}}, …]          OpenAI's form
    … "content": [{"type": "image"}, …], and the images beside                trl's form

X is an opened image (PIL), the bytes of a file, a path, a data URI, or {"bytes": …, "path": …} as `datasets` stores images.
Images beside a conversation without any place for one stand before the first text of the user. Nothing is fetched.

`<image>` in a text is the place of an image given beside, if there are as many markers as images;
`markers.py` decides.

This file travels with every checkpoint that has a reward head, so it imports Pillow and nothing else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from .markers import (
    MarkerError,
    marker_in_prompt,
    marker_in_response,
    place_images,
)  # relative, because it travels too

Picture = Image.Image | bytes | Path
"""An image, opened or encoded, or where it lies."""
ROLES = ("system", "user", "assistant")
PARTS = {
    "text": "text",
    "input_text": "text",
    "image": "image",
    "image_url": "image_url",
    "input_image": "image_url",
}
"""`type` of a part to the key that holds its content."""


class ConversationError(ValueError):
    """A conversation that cannot be scored: what was found, and what is required."""


def read_conversation(
    messages: Any, images: Iterable[Any] = ()
) -> tuple[list[dict[str, Any]], list[Picture]]:
    """Return the turns, with a part {"type": "image"} for each image, and the images in the order of these parts.

    Raises: ConversationError for another form, other turns than user and assistant in alternation
    that begin (after at most one system turn) and end with the user, another number of images than
    of places, or a marker that cannot be a place.
    """
    written = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not isinstance(written, list | tuple):
        raise ConversationError(
            f"messages are a {type(messages).__name__}; required is a text or a list of turns"
        )
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
    try:
        turns = place_images(turns, len(given))
    except MarkerError as error:
        raise ConversationError(str(error)) from error
    for turn in turns:
        content = "".join(part["text"] for part in turn["content"] if part["type"] == "text")
        if problem := marker_in_prompt(content):
            raise ConversationError(problem)
    if given and not found:
        return turns, given
    if found.count(None) != len(given):
        raise ConversationError(
            f"the turns have {found.count(None)} image parts without an image, and {len(given)} images are given beside them; "
            "required is one for each"
        )
    rest = iter(given)
    return turns, [next(rest) if one is None else one for one in found]


def refuse_markers(responses: Iterable[str]) -> None:
    """Raise ConversationError if a response holds a marker of an image or of another medium."""
    for number, response in enumerate(responses):
        if problem := marker_in_response(f"response {number}", response):
            raise ConversationError(problem)


def _turn(number: int, turn: Any, images: list[Picture | None]) -> dict[str, Any]:
    """Return a turn with parts; its images are added to `images`, None where a part has none."""
    if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
        shown = turn.get("role") if isinstance(turn, Mapping) else type(turn).__name__
        raise ConversationError(
            f"turn {number} has the role {shown!r}; required is one of {', '.join(ROLES)}"
        )
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
            video = (
                ": this model takes frames of a video as images"
                if kind in ("video", "video_url")
                else ""
            )
            raise ConversationError(
                f"turn {number} has a part of type {kind!r}{video}; required is one of {', '.join(PARTS)}"
            )
        if PARTS[kind] == "text":
            if not isinstance(part.get("text"), str):
                raise ConversationError(
                    f"turn {number} has a text part whose `text` is a {type(part.get('text')).__name__}"
                )
            parts.append({"type": "text", "text": part["text"]})
            continue
        if role == "assistant":
            raise ConversationError(
                f"turn {number} is the assistant's and holds an image; images belong to the turns of the user"
            )
        held = next(
            (
                part[key]
                for key in ("image", "image_url", "url", "path", "base64")
                if part.get(key) is not None
            ),
            None,
        )
        held = held.get("url") if kind != "image" and isinstance(held, Mapping) else held
        images.append(None if held is None else picture(held))
        parts.append({"type": "image"})
    return {"role": role, "content": parts}


def picture(value: Any) -> Picture:
    """Return an image in one of the forms above; raises ConversationError for another."""
    if isinstance(value, Mapping) and isinstance(
        value.get("bytes") or value.get("path"), bytes | str
    ):
        value = value.get("bytes") or value["path"]
    if isinstance(value, Image.Image | bytes | Path):
        return value
    if not isinstance(value, str):
        raise ConversationError(
            f"an image is a {type(value).__name__}; required is a PIL image, bytes, a path or a data URI"
        )
    if value.startswith("data:"):
        form = re.match(r"data:image/[\w.+-]+;base64,", value)
        if not form:
            raise ConversationError(
                f"an image is written as {value[:40]!r}…; required is data:image/<format>;base64,<data>"
            )
        try:
            return base64.b64decode(value[form.end() :], validate=True)
        except ValueError as error:
            raise ConversationError(f"an image's data URI holds broken base64 ({error})") from error
    if re.match(r"https?://", value):
        raise ConversationError(
            f"an image is the address {value[:60]!r}; nothing is fetched: give its bytes or a data URI"
        )
    return Path(value.removeprefix("file://"))
