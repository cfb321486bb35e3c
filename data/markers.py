"""Markers in texts: `<image>` and `<video>` mark positions, and any other marker is refused.

Data sources, scoring, the server and released checkpoints all use `place_images`, `place_videos`
and `stray_marker`, so that a text has the same meaning in all of them. Official benchmarks follow the
rule of their own script instead.

This file travels with every checkpoint that has a reward head, so it imports the standard library
only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

IMAGE_MARKER = "<image>"
"""The marker that data sets write into a text at the position of an image."""
VIDEO_MARKER = "<video>"
"""The marker that data sets write into a text at the position of a video."""
MARKERS = re.compile(
    r"<(?:image|video|audio)>"
    r"|<\|(?:image|img|video|audio|vision)\w*\|>"  # Qwen, Phi, MiniCPM
    r"|<(?:IMG_CONTEXT|image_soft_token|start_of_image|end_of_image)>"  # InternVL, Gemma
)
"""Markers of images, videos and sounds that data sets and chat templates write."""
REWRITE_ADVICE = (
    "If the text is about the marker itself, write it differently, for example `< image >`."
)


class MarkerError(ValueError):
    """A marker that cannot be the position of an image; the message contains the advice."""


class StrayMarkerError(MarkerError):
    """A marker in a prompt that has no images, or whose images have image parts already."""


def stray_marker(text: str) -> str | None:
    """Return the first marker of an image, video or sound in `text`, or None if there is none."""
    match = MARKERS.search(text)
    return None if match is None else match[0]


def marker_in_response(name: str, text: str) -> str | None:
    """Return an error message if a response, critique or rationale holds a marker, else None.

    Args:
        name: The name of the text in the message, such as "the chosen response".
        text: The text. Markers that are positions of images must have been replaced before.
    """
    marker = stray_marker(text)
    if marker is None:
        return None
    return (
        f"{name} holds {marker!r} as text, and no image belongs there. Write an image of a response "
        "as an image part, or with the columns that the format has for it; remove other markers. "
        f"{REWRITE_ADVICE}"
    )


def marker_in_prompt(text: str) -> str | None:
    """Return an error message if a text of a prompt holds a marker such as `<image>`, else None.

    Markers that are positions must have been replaced by `place_images` and `place_videos` before.
    """
    marker = stray_marker(text)
    if marker is None:
        return None
    return (
        f"the prompt holds {marker!r} as text. {IMAGE_MARKER} can be the place of an image and "
        f"{VIDEO_MARKER} that of a video, with as many of them as markers and no image or video "
        f"parts. Add what is missing, and remove other markers. {REWRITE_ADVICE}"
    )


def place_images(turns: Sequence[Mapping[str, Any]], num_images: int) -> list[dict[str, Any]]:
    """Return a prompt's turns with an image part for each image.

    If the turns hold image parts already, they are returned unchanged. Otherwise each `<image>` is
    replaced, together with the line breaks around it, by an image part. If there is no `<image>`
    either, the image parts are put before the first text of the user.

    Args:
        turns: Turns {role, content} whose content is a list of parts {type: text | image | video}.
        num_images: The number of images that have no image part in `turns`.

    Raises:
        StrayMarkerError: There are both image parts and markers, or markers and no images.
        MarkerError: The numbers of markers and of images differ, or there is a marker in a turn of
        the assistant.
    """
    return _place(turns, num_images, "image", IMAGE_MARKER)


def place_videos(turns: Sequence[Mapping[str, Any]], num_videos: int) -> list[dict[str, Any]]:
    """Return a prompt's turns with a video part for each video, by the rules of `place_images`.

    The marker is `<video>`.
    """
    return _place(turns, num_videos, "video", VIDEO_MARKER)


def _place(
    turns: Sequence[Mapping[str, Any]], count: int, kind: str, marker: str
) -> list[dict[str, Any]]:
    """Return a prompt's turns with a part for each image, or for each video.

    Args:
        turns: Turns {role, content}.
        count: The number of images or videos that have no part in `turns`.
        kind: The type of the parts, "image" or "video".
        marker: The marker of their positions.
    """
    num_markers = sum(_text(turn).count(marker) for turn in turns)
    num_parts = sum(part["type"] == kind for turn in turns for part in turn["content"])
    if num_markers:
        _refuse_misplaced(turns, num_markers, num_parts, count, kind, marker)
        return [_split_at_markers(turn, kind, marker) for turn in turns]
    if count and not num_parts:
        return _with_parts_in_front(turns, count, kind)
    return [dict(turn) for turn in turns]


def _refuse_misplaced(
    turns: Sequence[Mapping[str, Any]],
    num_markers: int,
    num_parts: int,
    count: int,
    kind: str,
    marker: str,
) -> None:
    """Raise MarkerError if the markers in `turns` cannot be replaced by the images or videos.

    Args:
        turns: The turns of a prompt.
        num_markers: The number of markers in their texts.
        num_parts: The number of their image or video parts.
        count: The number of images or videos that have no part in `turns`.
        kind: "image" or "video".
        marker: The marker.
    """
    if num_parts:
        raise StrayMarkerError(
            f"the prompt holds {marker} {num_markers} times in its texts and {num_parts} {kind} "
            f"parts. {kind.capitalize()} parts are the places of the {kind}s already, so that a "
            f"marker cannot be one. Remove the markers. {REWRITE_ADVICE}"
        )
    if num_markers != count:
        error_class = MarkerError if count else StrayMarkerError
        raise error_class(
            f"the prompt holds {marker} {num_markers} times for {count} {kind}s; required is one "
            f"for each, or none. Add the missing {kind}s, or remove the markers that have none. "
            f"{REWRITE_ADVICE}"
        )
    if any(turn["role"] == "assistant" and marker in _text(turn) for turn in turns):
        raise MarkerError(
            f"a turn of the assistant in the prompt holds {marker}; {kind}s belong to the turns of "
            f"the user. Move the marker to a turn of the user. {REWRITE_ADVICE}"
        )


def _text(turn: Mapping[str, Any]) -> str:
    """Return the text of a turn: its text parts, joined as chat templates join them."""
    return "".join(part["text"] for part in turn["content"] if part["type"] == "text")


def _split_at_markers(turn: Mapping[str, Any], kind: str, marker: str) -> dict[str, Any]:
    """Return a turn in which each marker, with the line breaks around it, is a part of type `kind`."""
    parts: list[dict[str, Any]] = []
    for part in turn["content"]:
        if part["type"] != "text" or marker not in part["text"]:
            parts.append(dict(part))
            continue
        for index, piece in enumerate(part["text"].split(marker)):
            if index > 0:  # there is a marker before every piece but the first
                parts.append({"type": kind})
            stripped = piece.strip("\n")
            if stripped:
                parts.append({"type": "text", "text": stripped})
    return {"role": turn["role"], "content": parts}


def _with_parts_in_front(
    turns: Sequence[Mapping[str, Any]], count: int, kind: str
) -> list[dict[str, Any]]:
    """Return turns with `count` parts of type `kind` before the first text of the user.

    TRL's rule for images is the same.
    """
    changed_turns = [dict(turn) for turn in turns]
    for turn in changed_turns:
        if turn["role"] == "user":
            new_parts = [{"type": kind} for _ in range(count)]
            turn["content"] = [*new_parts, *turn["content"]]
            break
    return changed_turns
