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

    {"type": "video", "video": X}                                        transformers' form
    {"type": "video_url", "video_url": {"url": X}}                       vLLM's form
    {"type": "video"}, and the videos in a list                          trl's form

A video is written in the same ways as an image, except that X is never an opened video.

A response is a text or a list of parts in one of these forms, in which every image part holds its
image and every video part its video.

The marker `<image>` in a text is where an image of the list belongs, if there are as many markers
as images, and `<video>` is where a video belongs; `markers.py` decides.

This file is saved with every checkpoint that has a reward head, so it imports Pillow alone.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

# Relative, because this file is saved too.
from .markers import (
    REWRITE_ADVICE,
    MarkerError,
    marker_in_prompt,
    marker_in_response,
    place_images,
    place_videos,
    stray_marker,
)

Picture = Image.Image | bytes | Path
"""An image: opened, encoded, or its path."""
VideoFile = bytes | Path
"""A video: the bytes of its file, or its path."""
Response = str | Sequence[Mapping[str, Any]]
"""A response as a caller writes it: a text, or a list of parts."""
ROLES = ("system", "user", "assistant")
PARTS = {
    "text": "text",
    "input_text": "text",
    "image": "image",
    "image_url": "image_url",
    "input_image": "image_url",
    "video": "video",
    "video_url": "video_url",
    "input_video": "video_url",
}
"""`type` of a part of a turn to the key that usually holds its content."""
IMAGE_KEYS = ("image", "image_url", "url", "path", "base64")
"""Keys under which an image part may hold its image, in the order in which they are looked up."""
VIDEO_KEYS = ("video", "video_url", "url", "path", "base64")
"""Keys under which a video part may hold its video, in the order in which they are looked up."""


class ConversationError(ValueError):
    """Raised for a conversation that cannot be scored. The message says what is required."""


class ReadConversation(NamedTuple):
    """The turns of a conversation in one form, and its images and videos."""

    turns: list[dict[str, Any]]
    """Turns {role, content}. A content is a list of parts: {"type": "text", "text": …},
    {"type": "image"} or {"type": "video"}."""
    images: list[Picture]
    """The first image belongs to the first part of type "image", and so on."""
    videos: list[VideoFile]
    """The first video belongs to the first part of type "video", and so on."""


class ReadResponse(NamedTuple):
    """A response as a turn of the assistant, and its images and videos."""

    turn: dict[str, Any]
    """The turn, in the form of `ReadConversation.turns`."""
    images: list[Picture]
    videos: list[VideoFile]


class MediaOfParts(NamedTuple):
    """The images and videos of some parts; None for a part that does not hold its own."""

    images: list[Picture | None]
    videos: list[VideoFile | None]


def read_conversation(
    messages: Any,
    images: Iterable[Any] = (),
    videos: Iterable[Any] = (),
    *,
    media_in_answers: bool = False,
) -> ReadConversation:
    """Return the turns of a conversation in one form, and its images and videos in order.

    Args:
        messages: A text, or turns in one of the forms of the module's docstring.
        images: Images that are not inside `messages`, in the order in which they belong there.
        videos: Videos that are not inside `messages`, in the order in which they belong there.
        media_in_answers: The assistant's turns may hold images and videos.

    Raises:
        ConversationError: The form is another; the turns are not of user and assistant in
            alternation, beginning (after at most one system turn) and ending with the user; there
            are more or fewer images or videos than `messages` has room for; or a marker is
            ambiguous.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list | tuple):
        raise ConversationError(
            f"messages are a {type(messages).__name__}; required is a text or a list of turns"
        )
    listed_images = [picture(image) for image in images]
    listed_videos = [video_file(video) for video in videos]
    media = MediaOfParts([], [])
    turns = [_turn(number, turn, media) for number, turn in enumerate(messages)]
    _refuse_other_roles([turn["role"] for turn in turns])
    if not media_in_answers:
        _refuse_media_in_answers(turns)
    try:
        turns = place_images(turns, len(listed_images))
        if listed_videos:
            turns = place_videos(turns, len(listed_videos))
    except MarkerError as error:
        raise ConversationError(str(error)) from error
    for turn in turns:
        problem = marker_in_prompt(joined_text(turn["content"]))
        if problem:
            raise ConversationError(problem)
    return ReadConversation(
        turns,
        _in_order("image", media.images, listed_images),
        _in_order("video", media.videos, listed_videos),
    )


def _in_order(kind: str, media_of_parts: list[Any], listed: list[Any]) -> list[Any]:
    """Return the images, or the videos, of a conversation in the order of their parts.

    Args:
        kind: "image" or "video".
        media_of_parts: The image or video of each part that the caller wrote; None if it is to be
            taken from the list.
        listed: The images or videos beside the turns.

    Raises:
        ConversationError: There are more or fewer in the list than parts for them.
    """
    if listed and not media_of_parts:
        return listed  # `place_images` or `place_videos` added the parts
    num_empty_parts = media_of_parts.count(None)
    if num_empty_parts != len(listed):
        article = "an" if kind == "image" else "a"
        raise ConversationError(
            f"the turns have {num_empty_parts} {kind} parts without {article} {kind}, and "
            f"{len(listed)} {kind}s are given beside them; required is one for each"
        )
    remaining = iter(listed)
    return [next(remaining) if medium is None else medium for medium in media_of_parts]


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


def _refuse_media_in_answers(turns: list[dict[str, Any]]) -> None:
    """Raise ConversationError if a turn of the assistant holds an image or a video."""
    for number, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        for part in turn["content"]:
            if part["type"] != "text":
                article = "an" if part["type"] == "image" else "a"
                raise ConversationError(
                    f"turn {number} is the assistant's and holds {article} {part['type']}; "
                    f"{part['type']}s belong to the turns of the user"
                )


def read_response(number: int, response: Response) -> ReadResponse:
    """Return a response as a turn in the form of `read_conversation`, with its images and videos.

    Args:
        number: Index of the response, for messages.
        response: A text or a list of parts in one of the forms of the module's docstring.

    Raises:
        ConversationError: The form is another, an image or video part holds no image or video, or
            a text holds a marker of an image or of another medium.
    """
    name = f"response {number}"
    media = MediaOfParts([], [])
    parts = _parts(name, response, media)
    images = [image for image in media.images if image is not None]
    if len(images) < len(media.images):
        raise ConversationError(
            f"{name} has {len(media.images)} image parts and {len(images)} images; required is "
            "an image inside each image part of a response"
        )
    videos = [video for video in media.videos if video is not None]
    if len(videos) < len(media.videos):
        raise ConversationError(
            f"{name} has {len(media.videos)} video parts and {len(videos)} videos; required is "
            "a video inside each video part of a response"
        )
    marker = stray_marker(joined_text(parts))
    if marker is not None:
        raise ConversationError(
            f"{name} holds {marker!r} as text, which is not the place of an image. Write an image "
            f"of a response as an image part, and remove other markers. {REWRITE_ADVICE}"
        )
    return ReadResponse({"role": "assistant", "content": parts}, images, videos)


def joined_text(parts: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a turn's parts, joined as chat templates join it."""
    return "".join(part["text"] for part in parts if part["type"] == "text")


def text_of_image(tokenizer: Any) -> str:
    """Return the text that the chat template writes for an image in a turn of the user.

    It is empty if the template leaves images out.
    """
    image = {"type": "image"}
    following_text = {"type": "text", "text": "-"}
    rendered: list[str] = []
    for content in ([image, following_text], [following_text]):
        turn = {"role": "user", "content": content}
        rendered.append(tokenizer.apply_chat_template([turn], tokenize=False))
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


def _turn(number: int, turn: Any, media: MediaOfParts) -> dict[str, Any]:
    """Return a turn as `read_conversation` returns it, and append its images and videos to lists.

    Args:
        number: Index of the turn, for messages.
        turn: The turn as the caller wrote it.
        media: The lists.

    Raises:
        ConversationError: The turn has another form.
    """
    if not isinstance(turn, Mapping):
        raise _wrong_role(number, type(turn).__name__)
    role = turn.get("role")
    if role not in ROLES:
        raise _wrong_role(number, role)
    parts = _parts(f"turn {number}", turn.get("content"), media)
    return {"role": role, "content": parts}


def _parts(name: str, content: Any, media: MediaOfParts) -> list[dict[str, Any]]:
    """Return the content of a turn as a list of parts, and append its images and videos to lists.

    Args:
        name: The name of the turn or response, for messages.
        content: The content as the caller wrote it.
        media: The lists. For a part without its image or video, None is appended.

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
        key = PARTS[_part_type(name, part)]
        if key == "text":
            if not isinstance(part.get("text"), str):
                raise ConversationError(
                    f"{name} has a text part whose `text` is a "
                    f"{type(part.get('text')).__name__}; required is a text"
                )
            parts.append({"type": "text", "text": part["text"]})
        elif key in VIDEO_KEYS:
            value = _value(part, "video", VIDEO_KEYS)
            media.videos.append(None if value is None else video_file(value))
            parts.append({"type": "video"})
        else:
            value = _value(part, "image", IMAGE_KEYS)
            media.images.append(None if value is None else picture(value))
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
    raise ConversationError(
        f"{name} has a part of type {part_type!r}; required is one of {', '.join(PARTS)}"
    )


def _value(part: Mapping[str, Any], kind: str, keys: Sequence[str]) -> Any:
    """Return the image or video of a part as the caller wrote it; None if the part has none.

    Args:
        part: An image part or a video part.
        kind: "image" or "video".
        keys: The keys that are looked up, in order.
    """
    for key in keys:
        value = part.get(key)
        if value is not None:
            # OpenAI's form: {"type": "image_url", "image_url": {"url": …}}.
            is_nested = part["type"] != kind and isinstance(value, Mapping)
            return value.get("url") if is_nested else value
    return None


def picture(value: Any) -> Picture:
    """Return an image that a caller wrote, as an opened image, the bytes of a file, or its path.

    `value` has one of the forms in the module's docstring. A path is not opened.

    Raises:
        ConversationError: The form is another.
    """
    value = _stored_content(value)
    if isinstance(value, Image.Image | bytes | Path):
        return value
    if not isinstance(value, str):
        raise ConversationError(
            f"an image is a {type(value).__name__}; required is a PIL image, bytes, a path or a "
            "data URI"
        )
    return _content_or_path(
        value, "an image", r"data:image/[\w.+-]+;base64,", "data:image/<format>;base64,<data>"
    )


def video_file(value: Any) -> VideoFile:
    """Return a video that a caller wrote, as the bytes of a file or its path.

    `value` has one of the forms in the module's docstring. A path is not opened.

    Raises:
        ConversationError: The form is another.
    """
    value = _stored_content(value)
    if isinstance(value, bytes | Path):
        return value
    if not isinstance(value, str):
        raise ConversationError(
            f"a video is a {type(value).__name__}; required is the bytes of a video file, a path "
            "or a data URI. Give separate frames as images."
        )
    return _content_or_path(
        value,
        "a video",
        r"data:(?:video/[\w.+-]+|application/octet-stream);base64,",
        "data:video/<format>;base64,<data>",
    )


def _stored_content(value: Any) -> Any:
    """Return the bytes or the path in {"bytes": …, "path": …}; other values unchanged."""
    if isinstance(value, Mapping):
        content_or_path = value.get("bytes") or value.get("path")
        if isinstance(content_or_path, bytes | str):
            return content_or_path
    return value


def _content_or_path(value: str, name: str, header_pattern: str, form: str) -> bytes | Path:
    """Return the bytes in a data URI, or the path that a text is.

    Args:
        value: The text.
        name: "an image" or "a video", for messages.
        header_pattern: Regular expression for the beginning of a data URI up to its data.
        form: The required form of a data URI, for messages.

    Raises:
        ConversationError: The data URI has another form, or the text is the address of a file on
            the web.
    """
    if value.startswith("data:"):
        header = re.match(header_pattern, value)
        if not header:
            raise ConversationError(f"{name} is written as {value[:40]!r}…; required is {form}")
        try:
            return base64.b64decode(value[header.end() :], validate=True)
        except ValueError as error:
            raise ConversationError(f"{name}'s data URI holds broken base64 ({error})") from error
    if re.match(r"https?://", value):
        raise ConversationError(
            f"{name} is the address {value[:60]!r}; nothing is fetched: give its bytes or a data "
            "URI"
        )
    return Path(value.removeprefix("file://"))
