"""Conversion of data sets' forms of a conversation into the turns of this project.

A turn of this project is {"role": …, "content": [parts]}, and a part is a text, an image or a
video.
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
    place_videos,
    stray_marker,
)
from mmrm.data.preference import CONTROL_TOKENS, Message, Part, text
from mmrm.data.sources.shared.file_source import field

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
SHAREGPT_ROLES: dict[str, Role] = {**ROLES, "human": "user", "gpt": "assistant"}
MARKER = IMAGE_MARKER
"""The marker by which most data sets write the position of an image in a text."""


def prompt_from_turns(
    turns: Sequence[Any], num_images: int = 0, num_videos: int = 0
) -> tuple[Message, ...]:
    """Return the prompt made of turns {role, content}, with a part for each image and video.

    Raises:
        RecordError: If a turn has another form, or an `<image>` or `<video>` marker in a text
            cannot be a position.
    """
    prompt = with_image_parts(parsed_turns(turns), num_images)
    return with_video_parts(prompt, num_videos) if num_videos else prompt


def parsed_turns(turns: Sequence[Any]) -> tuple[Message, ...]:
    """Return turns {role, content} with each content as a list of parts.

    `<image>` markers in texts are not replaced; `with_image_parts` does that.

    Raises:
        RecordError: If a turn has another form.
    """
    return tuple(_message(turn) for turn in turns)


def as_turns(prompt: str | list[Any]) -> list[Any]:
    """Return a prompt as a list of turns: a text becomes one user turn, a list is returned."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return prompt


def prompt_from_question(content: str, num_images: int, num_videos: int = 0) -> tuple[Message, ...]:
    """Return a prompt of one user turn, with a part in place of each `<image>` and each `<video>`.

    If the text holds no `<image>`, the images come before it. The same holds for videos.

    Raises:
        RecordError: If a marker cannot be the position of an image or a video.
    """
    return prompt_from_turns([text("user", content)], num_images, num_videos)


def with_image_parts(turns: Sequence[Message], num_images: int) -> tuple[Message, ...]:
    """Return the turns with image parts in place of `<image>`.

    If no turn holds a marker, the images come before the first user turn's text.

    Raises:
        RecordError: If a marker cannot be the position of an image. It is a MarkerInTextError if
            there are no images at all.
    """
    try:
        return cast(tuple[Message, ...], tuple(place_images(turns, num_images)))
    except StrayMarkerError as error:
        raise MarkerInTextError(str(error)) from error
    except MarkerError as error:
        raise RecordError(str(error)) from error


def with_video_parts(turns: Sequence[Message], num_videos: int) -> tuple[Message, ...]:
    """Return the turns with video parts in place of `<video>`.

    If no turn holds a marker, the videos come before the first user turn's text.

    Raises:
        RecordError: If a marker cannot be the position of a video. It is a MarkerInTextError if
            there are both markers and video parts.
    """
    try:
        return cast(tuple[Message, ...], tuple(place_videos(turns, num_videos)))
    except StrayMarkerError as error:
        raise MarkerInTextError(str(error)) from error
    except MarkerError as error:
        raise RecordError(str(error)) from error


def turn_text(turn: Message) -> str:
    """Return the text parts of a turn as one text, without its images."""
    return "".join(part["text"] for part in turn["content"] if part["type"] == "text")


def response_text(turns: Any) -> str:
    """Return the text of a response that is given as a text or as a list of one assistant turn.

    This is for data sets whose responses have no images; `mmrm.data.sources.shared.responses` reads
    responses with images.

    Raises:
        RecordError: If there are several turns, the turn is not the assistant's, or it holds an
            image part or a marker such as `<image>`.
    """
    if isinstance(turns, str):
        return checked_for_markers(turns, "a response")
    parts = turn_of_response(turns)
    num_media = sum(part["type"] != "text" for part in parts)
    if num_media:
        raise RecordError(
            f"a response holds {num_media} images or videos, and responses of this data set are "
            "texts. Leave the record out, or give it in the format of ms-swift, TRL or this project."
        )
    return checked_for_markers("".join(part["text"] for part in parts), "a response")


def turn_of_response(turns: Any) -> list[dict[str, Any]]:
    """Return the parts of a response that is given as a list of one assistant turn.

    A text part is {"type": "text", "text": …}. An image part or a video part has the keys that the
    row has.

    Raises:
        RecordError: If there are several turns, the turn is not the assistant's, or a part is no
            text, image or video.
    """
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
    content = turns[0]["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        # Arrow gives all structs of a list the same keys, with None for those of other types.
        parts.append({key: value for key, value in part.items() if value is not None})
    return parts


def checked_for_markers(content: str, name: str) -> str:
    """Return the text of a response unchanged, if it holds no image or video marker.

    Args:
        content: The text of the response.
        name: The words for the response in an error message, such as "the chosen response".

    Raises:
        MarkerInTextError: If the text holds a marker.
    """
    if stray_marker(content) in CONTROL_TOKENS:
        # This marker is a control token of the model. `validate` refuses all control tokens later.
        return content
    problem = marker_in_response(name, content)
    if problem:
        raise MarkerInTextError(problem)
    return content


def common_prefix_length(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return the number of equal first turns of two conversations, or characters of two texts."""
    shortest = min(len(chosen), len(rejected))
    for index in range(shortest):
        if chosen[index] != rejected[index]:
            return index
    return shortest


def split_conversations(chosen: Any, rejected: Any) -> tuple[Sequence[Any], str, str]:
    """Return the turns that both conversations begin with, and the two responses as texts.

    The chosen response comes before the rejected one.

    The arguments and errors are those of `split_turns`, and of `response_text`.
    """
    shared_turns, chosen_turns, rejected_turns = split_turns(chosen, rejected)
    return shared_turns, response_text(chosen_turns), response_text(rejected_turns)


def split_turns(chosen: Any, rejected: Any) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return the turns that both conversations begin with, and the turns of each after them.

    The turns of the chosen conversation come before those of the rejected one.

    The last turn of a conversation is its response, so two equal conversations have equal
    responses.

    Args:
        chosen: The whole conversation that ends with the chosen response, as turns {role, content}.
        rejected: The whole conversation that ends with the rejected response.

    Raises:
        RecordError: If one of them is not a list of turns, or they differ in more than the last
            turn.
    """
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(turns, list) or not turns:
            raise RecordError(
                f"{name!r} is {type(turns).__name__}; required is a list of turns that begins with "
                "the prompt. Correct the row, or remove it."
            )
    num_shared = min(common_prefix_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    return chosen[:num_shared], chosen[num_shared:], rejected[num_shared:]


def turns_from_sharegpt(turns: Any) -> list[Message]:
    """Return a list of turns {from, value}, as ShareGPT has them, as turns {role, content}.

    Markers such as `<image>` stay in the texts.

    Raises:
        RecordError: If `turns` is not a list, or a turn has another form.
    """
    if not isinstance(turns, list):
        raise RecordError(
            f"the conversation is a {type(turns).__name__}; required is a list of turns {{from, "
            "value}. Correct the row, or remove it."
        )
    return [text(_role(turn, "from", SHAREGPT_ROLES), field(turn, "value", str)) for turn in turns]


def _message(turn: Any) -> Message:
    """Return a turn {role, content} with its content as a list of parts."""
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


def _part(part: Any) -> Part:
    """Return a text, image or video part of a turn, without keys of the other types.

    Arrow gives all structs of a list the same keys. So an image part that was stored next to text
    parts is read as {"type": "image", "text": None}.
    """
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "image":
        return {"type": "image"}
    if kind == "text":
        return {"type": "text", "text": field(part, "text", str)}
    if kind == "video":
        return {"type": "video"}
    raise RecordError(
        f"a part of a turn is of type {kind!r}; required is 'text', 'image' or 'video'. Correct the "
        "row, or remove it."
    )


def _role(turn: Any, key: str, roles: Mapping[str, Role]) -> Role:
    """Return the role of a turn.

    Args:
        turn: The turn, an object with `key`.
        key: The key that holds the data set's name of the role.
        roles: The role for each name that the data set may use.
    """
    name = field(turn, key, str)
    if name not in roles:
        raise RecordError(
            f"a turn has the role {name!r}; required is one of {', '.join(roles)}. Correct the "
            "row, or remove it."
        )
    return roles[name]
