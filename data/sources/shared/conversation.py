"""Conversion of data sets' forms of a conversation into the turns of this project.

A turn of this project is {"role": …, "content": [parts]}, and a part is a text or an image.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from mmrm.data.errors import MarkerInTextError, RecordError
from mmrm.data.markers import (
    IMAGE_MARKER,
    MarkerError,
    StrayMarkerError,
    marker_in_response,
    place_images,
    stray_marker,
)
from mmrm.data.preference import CONTROL_TOKENS, ImagePart, Message, TextPart, num_image_parts, text
from mmrm.data.sources.shared.file_source import field
from mmrm.data.video import VIDEO_ADVICE, VIDEO_PART_TYPES

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
SHAREGPT_ROLES: dict[str, Role] = {**ROLES, "human": "user", "gpt": "assistant"}
MARKER = IMAGE_MARKER
"""The marker by which most data sets write the position of an image in a text."""


def messages(turns: Sequence[Any], images: int = 0) -> tuple[Message, ...]:
    """Return a prompt of turns {role, content}, with its images in their positions.

    Raises:
        RecordError: If a turn has another form, or as `marked` does.
    """
    return marked(parsed(turns), images)


def parsed(turns: Sequence[Any]) -> tuple[Message, ...]:
    """Return turns {role, content} with their content as parts. Markers in texts stay."""
    return tuple(_message(turn) for turn in turns)


def user_turn(prompt: str | list[Any]) -> list[Any]:
    """Return the turns of a prompt that is a text or a list of turns."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return prompt


def question(content: str, images: int) -> tuple[Message, ...]:
    """Return a prompt of one user turn, in which `<image>` is the position of an image.

    Without `<image>`, the images come before the text.
    """
    return marked([text("user", content)], images)


def marked(turns: Sequence[Message], images: int) -> tuple[Message, ...]:
    """Return the turns with image parts in place of `<image>`.

    If no turn holds a marker, the images come before the first user turn's text.

    Raises:
        RecordError: If a marker cannot be the position of an image.
    """
    try:
        return cast(tuple[Message, ...], tuple(place_images(turns, images)))
    except StrayMarkerError as error:
        raise MarkerInTextError(str(error)) from error
    except MarkerError as error:
        raise RecordError(str(error)) from error


def text_of(turn: Message) -> str:
    """Return the text of a turn."""
    return "".join(part["text"] for part in turn["content"] if part["type"] == "text")


def response(turns: Any) -> str:
    """Return the text of a response, which is a text or a list of one assistant turn.

    Raises:
        RecordError: If there are several turns, another role, an image part or a marker.
    """
    if isinstance(turns, str):
        return without_markers(turns, "a response")
    if not isinstance(turns, list):
        raise RecordError(
            f"a response is a {type(turns).__name__}; required is a text or exactly one "
            "assistant turn. Correct the row, or remove it."
        )
    if len(turns) != 1:
        raise RecordError(
            f"a response is {len(turns)} turns; required is a text or exactly one assistant turn. "
            "Correct the row, or remove it."
        )
    message = _message(turns[0])
    if message["role"] != "assistant":
        raise RecordError(
            f"a response is a turn of the {message['role']}; required is a turn of the assistant. "
            "Correct the row, or remove it."
        )
    num_images = num_image_parts([message])
    if num_images:
        raise RecordError(
            f"a response holds {num_images} image parts. Images in responses are not supported "
            "yet; required is text of the assistant. Leave the record out, or remove the images "
            "from its responses."
        )
    return without_markers(text_of(message), "a response")


def without_markers(content: str, name: str) -> str:
    """Return the text of a response unchanged.

    Raises:
        MarkerInTextError: If the text holds a marker. The message calls the response `name`.
    """
    if stray_marker(content) in CONTROL_TOKENS:
        return content  # `validate` refuses it, with the control tokens that are not markers
    problem = marker_in_response(name, content)
    if problem:
        raise MarkerInTextError(problem)
    return content


def split_prefix(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return the length of the common beginning of two conversations (turns) or texts (characters)."""
    shortest = min(len(chosen), len(rejected))
    for index in range(shortest):
        if chosen[index] != rejected[index]:
            return index
    return shortest


def implicit(chosen: Any, rejected: Any) -> tuple[Sequence[Any], str, str]:
    """Split two whole conversations into the turns that they share, and their two responses.

    The last turn always belongs to the response, so two equal conversations give equal responses.

    Raises:
        RecordError: If one is not a list of turns, or more than one turn differs.
    """
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(turns, list) or not turns:
            raise RecordError(
                f"{name!r} is {type(turns).__name__}; required is a list of turns that begins with "
                "the prompt. Correct the row, or remove it."
            )
    num_shared = min(split_prefix(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    chosen_response = response(chosen[num_shared:])
    rejected_response = response(rejected[num_shared:])
    return chosen[:num_shared], chosen_response, rejected_response


def sharegpt(turns: Any) -> list[Message]:
    """Return turns {from, value} as turns of text."""
    if not isinstance(turns, list):
        raise RecordError(
            f"the conversation is a {type(turns).__name__}; required is a list of turns {{from, "
            "value}. Correct the row, or remove it."
        )
    return [text(_role(turn, "from", SHAREGPT_ROLES), field(turn, "value", str)) for turn in turns]


def _message(turn: Any) -> Message:
    """Return a turn {role, content} with its content as parts."""
    role = _role(turn, "role", ROLES)
    content = turn.get("content")
    if isinstance(content, str):
        return text(role, content)
    if not isinstance(content, list):
        raise RecordError(
            f"the content of a turn is a {type(content).__name__}; required is a text or a list of "
            "parts. Correct the row, or remove it."
        )
    return {"role": role, "content": [_part(part) for part in content]}


def _part(part: Any) -> TextPart | ImagePart:
    """Return a part of a turn with the keys of its type alone.

    Arrow gives all structs of a list the same keys, so it reads an image part as
    {"type": "image", "text": None}.
    """
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "image":
        return {"type": "image"}
    if kind == "text":
        return {"type": "text", "text": field(part, "text", str)}
    advice = VIDEO_ADVICE if kind in VIDEO_PART_TYPES else "Correct the row, or remove it."
    raise RecordError(
        f"a part of a turn is of type {kind!r}; required is 'text' or 'image'. {advice}"
    )


def _role(turn: Any, key: str, roles: Mapping[str, Role]) -> Role:
    """Return the role under `key` of a turn, by the data set's name of it."""
    name = field(turn, key, str)
    if name not in roles:
        raise RecordError(
            f"a turn has the role {name!r}; required is one of {', '.join(roles)}. Correct the "
            "row, or remove it."
        )
    return roles[name]
