"""From the many ways to write a conversation to the one of this project."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from mmrm.data.errors import MarkerInTextError, RecordError
from mmrm.data.markers import (
    PLACE,
    MarkerError,
    StrayMarkerError,
    marker_in_response,
    place_images,
    stray_marker,
)
from mmrm.data.preference import CONTROL_TOKENS, ImagePart, Message, TextPart, placeholders, text
from mmrm.data.sources.shared.file_source import field
from mmrm.data.video import ADVICE, PARTS

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
SHAREGPT_ROLES: dict[str, Role] = {**ROLES, "human": "user", "gpt": "assistant"}
MARKER = PLACE
"""How most data sets write the place of an image inside a text."""


def messages(turns: Sequence[Any], images: int = 0) -> tuple[Message, ...]:
    """Return a prompt with its images in their places, from turns of {role, content}.

    Raises: RecordError for turns of another form, and as `marked` does.
    """
    return marked(parsed(turns), images)


def parsed(turns: Sequence[Any]) -> tuple[Message, ...]:
    """Return turns of {role, content} with content as parts; markers in their texts stay."""
    return tuple(map(_message, turns))


def user_turn(prompt: str | list[Any]) -> list[Any]:
    """Return a prompt that is a text or a list of turns as turns."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def question(content: str, images: int) -> tuple[Message, ...]:
    """Return a prompt of one user turn; each `<image>` is the place of an image, and without any they stand in front."""
    return marked([text("user", content)], images)


def marked(turns: Sequence[Message], images: int) -> tuple[Message, ...]:
    """Return turns with image parts in the place of `<image>`, or in front if no turn holds one.

    Raises: RecordError for a marker that cannot be the place of an image.
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
    """Return the text of a response: a text, or one assistant turn.

    Raises: RecordError for several turns, another role, or an image, also one that a marker stands
    for.
    """
    if isinstance(turns, str):
        return without_markers(turns, "a response")
    if not isinstance(turns, list) or len(turns) != 1:
        found = f"{len(turns)} turns" if isinstance(turns, list) else f"a {type(turns).__name__}"
        raise RecordError(
            f"a response is {found}; required is a text or exactly one assistant turn."
        )
    message = _message(turns[0])
    if message["role"] != "assistant":
        raise RecordError(
            f"a response is a turn of the {message['role']}; required is text of the assistant."
        )
    if num_images := placeholders([message]):
        raise RecordError(
            f"a response holds {num_images} image parts. Images in responses are not supported yet; "
            "required is text of the assistant. Leave the record out, or remove the images from its "
            "responses."
        )
    return without_markers(text_of(message), "a response")


def without_markers(content: str, name: str) -> str:
    """Return a response's text unchanged; raise MarkerInTextError if it holds a marker."""
    if stray_marker(content) in CONTROL_TOKENS:
        return content  # `validate` refuses it, with the control tokens that are no markers
    if problem := marker_in_response(name, content):
        raise MarkerInTextError(problem)
    return content


def split_prefix(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return how many turns (or characters) two conversations (or texts) share at their beginning."""
    pairs = zip(chosen, rejected, strict=False)
    return next(
        (position for position, (one, other) in enumerate(pairs) if one != other),
        min(len(chosen), len(rejected)),
    )


def implicit(chosen: Any, rejected: Any) -> tuple[Sequence[Any], str, str]:
    """Split two whole conversations into the turns they share, and their two responses.

    The last turn always belongs to the response, so that two equal conversations are a pair of equal responses.
    """
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(turns, list) or not turns:
            raise RecordError(
                f"{name!r} is {type(turns).__name__}; required is a list of turns that begins with the prompt."
            )
    shared = min(split_prefix(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    return chosen[:shared], response(chosen[shared:]), response(rejected[shared:])


def sharegpt(turns: Any) -> list[Message]:
    """Return turns of {from, value} as messages of text."""
    if not isinstance(turns, list):
        raise RecordError(
            f"the conversation is a {type(turns).__name__}; required is a list of turns."
        )
    return [text(_role(turn, "from", SHAREGPT_ROLES), field(turn, "value", str)) for turn in turns]


def _message(turn: Any) -> Message:
    """Return a turn of {role, content}.

    Arrow fills up structs, so that an image part comes back as {"type": "image", "text": None}: other keys are dropped.
    """
    role = _role(turn, "role", ROLES)
    content = turn.get("content")
    if isinstance(content, str):
        return text(role, content)
    if not isinstance(content, list):
        raise RecordError(
            f"the content of a turn is a {type(content).__name__}; required is a text or a list of parts."
        )
    parts: list[TextPart | ImagePart] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("image", "text"):
            advice = f" {ADVICE}" if kind in PARTS else ""
            raise RecordError(
                f"a part of a turn is of type {kind!r}; required is 'text' or 'image'.{advice}"
            )
        parts.append(
            {"type": "image"}
            if kind == "image"
            else {"type": "text", "text": field(part, "text", str)}
        )
    return {"role": role, "content": parts}


def _role(turn: Any, key: str, roles: Mapping[str, Role]) -> Role:
    """Return the role that a turn names under `key`."""
    found = field(turn, key, str)
    if found not in roles:
        raise RecordError(f"a turn has the role {found!r}; required is one of {', '.join(roles)}.")
    return roles[found]
