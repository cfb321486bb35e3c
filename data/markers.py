"""Markers in texts: `<image>` marks the place of an image, and any other marker is refused.

Data sources, scoring, the server and released checkpoints all use `place_images` and
`stray_marker`, so that a text has the same meaning in all of them. Official benchmarks follow the
rule of their own script instead.

This file travels with every checkpoint that has a reward head, so it imports the standard library
only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

PLACE = "<image>"
"""The marker that data sets write into a text where an image belongs."""
MARKERS = re.compile(
    r"<(?:image|video|audio)>"
    r"|<\|(?:image|img|video|audio|vision)\w*\|>"  # Qwen, Phi, MiniCPM
    r"|<(?:IMG_CONTEXT|image_soft_token|start_of_image|end_of_image)>"  # InternVL, Gemma
)
"""Markers of images, videos and sounds that data sets and chat templates write."""
REWRITE = "If the text is about the marker itself, write it differently, for example `< image >`."


class MarkerError(ValueError):
    """A marker that cannot be the place of an image; the message says what to do."""


class StrayMarkerError(MarkerError):
    """A marker in a text without images, so that it cannot be the place of one."""


def stray_marker(text: str) -> str | None:
    """Return the first marker in `text`, or None if there is none."""
    match = MARKERS.search(text)
    return None if match is None else match[0]


def marker_in_response(name: str, text: str) -> str | None:
    """Return the reason for which a response, critique or rationale cannot be used.

    The result is None if the text holds no marker.

    Args:
        name: The name of the text in the message, such as "the chosen response".
        text: The text. It never has images, so that no marker in it can be the place of one.
    """
    marker = stray_marker(text)
    if marker is None:
        return None
    return (
        f"{name} holds {marker!r}. Images in responses are not supported yet, and neither are "
        f"other media. Remove the marker, or leave the record out. {REWRITE}"
    )


def marker_in_prompt(text: str) -> str | None:
    """Return the reason for which a turn's text cannot be used after `place_images`.

    The result is None if the text holds no marker.
    """
    marker = stray_marker(text)
    if marker is None:
        return None
    return (
        f"the prompt holds {marker!r} as text. Only {PLACE} can be the place of an image, with as "
        "many images as markers and no image parts. Give frames of a video as images, and remove "
        f"other markers. {REWRITE}"
    )


def place_images(turns: Sequence[Mapping[str, Any]], num_images: int) -> list[dict[str, Any]]:
    """Return a prompt's turns with an image part for each image.

    Turns that hold image parts already are returned unchanged. Otherwise each `<image>` becomes an
    image part, together with the line breaks around it. Without a marker the image parts are put
    before the first text of the user.

    Args:
        turns: Turns {role, content} whose content is a list of parts {type: text | image}.
        num_images: The images that have no part of their own.

    Raises:
        StrayMarkerError: There are both image parts and markers, or markers and no images.
        MarkerError: The numbers of markers and of images differ, or there is a marker in a turn of
        the assistant.
    """
    num_markers = sum(_text(turn).count(PLACE) for turn in turns)
    num_parts = sum(part["type"] == "image" for turn in turns for part in turn["content"])
    placed = [dict(turn) for turn in turns]
    if num_markers:
        _refuse_misplaced(turns, num_markers, num_parts, num_images)
        placed = [_split_at_markers(turn) for turn in turns]
    elif num_images and not num_parts:
        placed = _with_images_in_front(turns, num_images)
    return placed


def _refuse_misplaced(
    turns: Sequence[Mapping[str, Any]], num_markers: int, num_parts: int, num_images: int
) -> None:
    """Raise MarkerError unless the markers of `turns` are the places of its images."""
    if num_parts:
        raise StrayMarkerError(
            f"the prompt holds {PLACE} {num_markers} times in its texts and {num_parts} image "
            "parts. Image parts are the places of the images already, so that a marker cannot be "
            f"one. Remove the markers. {REWRITE}"
        )
    if num_markers != num_images:
        kind = MarkerError if num_images else StrayMarkerError
        raise kind(
            f"the prompt holds {PLACE} {num_markers} times for {num_images} images; required is "
            "one for each, or none. Add the missing images, or remove the markers that have none. "
            f"{REWRITE}"
        )
    if any(turn["role"] == "assistant" and PLACE in _text(turn) for turn in turns):
        raise MarkerError(
            f"a turn of the assistant in the prompt holds {PLACE}; images belong to the turns of "
            f"the user. Move the marker to a turn of the user. {REWRITE}"
        )


def _text(turn: Mapping[str, Any]) -> str:
    """Return the text of a turn; its parts are joined, as chat templates join them."""
    return "".join(part["text"] for part in turn["content"] if part["type"] == "text")


def _split_at_markers(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn with an image part for each marker and the line breaks around it."""
    parts: list[dict[str, Any]] = []
    for part in turn["content"]:
        if part["type"] != "text" or PLACE not in part["text"]:
            parts.append(dict(part))
            continue
        for number, piece in enumerate(part["text"].split(PLACE)):
            if number > 0:
                parts.append({"type": "image"})
            stripped = piece.strip("\n")
            if stripped:
                parts.append({"type": "text", "text": stripped})
    return {"role": turn["role"], "content": parts}


def _with_images_in_front(
    turns: Sequence[Mapping[str, Any]], num_images: int
) -> list[dict[str, Any]]:
    """Return turns with image parts before the first text of the user, which is TRL's rule."""
    placed = [dict(turn) for turn in turns]
    for turn in placed:
        if turn["role"] == "user":
            images = [{"type": "image"} for _ in range(num_images)]
            turn["content"] = [*images, *turn["content"]]
            break
    return placed
