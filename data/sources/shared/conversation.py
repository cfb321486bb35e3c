"""From the many ways to write a conversation to the one of this project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from data.errors import RecordError
from data.preference import ImagePart, Message, TextPart, placeholders, text
from data.storage.rows import Row, field

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
SHAREGPT_ROLES: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}
MARKER = "<image>"
"""How most data sets write the place of an image inside a text."""


def messages(turns: Sequence[Any], images: int, record: str) -> tuple[Message, ...]:
    """Return turns of {role, content} with content as text or as parts; a prompt without image parts gets them first.

    Arrow fills up structs, so that an image part comes back as {"type": "image", "text": None}: other keys are dropped.
    """
    found = tuple(_message(turn, record) for turn in turns)
    return with_images(found, images) if placeholders(found) == 0 else found


def with_images(prompt: tuple[Message, ...], images: int) -> tuple[Message, ...]:
    """Return `prompt` with `images` image parts before the first text of the user (TRL's rule)."""
    first = next((position for position, message in enumerate(prompt) if message["role"] == "user"), None)
    if images == 0 or first is None:
        return prompt
    places: list[TextPart | ImagePart] = [{"type": "image"} for _ in range(images)]
    opened: Message = {"role": "user", "content": [*places, *prompt[first]["content"]]}
    return (*prompt[:first], opened, *prompt[first + 1 :])


def question(content: str, images: int, record: str) -> Message:
    """Return a user turn; each `<image>` in `content` is the place of an image, and without any they stand in front.

    Raises: RecordError if there are some markers, but not as many as images.
    """
    return marked([text("user", content)], images, record)[0]


def marked(turns: Sequence[Message], images: int, record: str) -> tuple[Message, ...]:
    """Return turns of text with image parts in the place of `<image>`, or in front if no turn holds one.

    Raises: RecordError if there are some markers, but not as many as images.
    """
    found = sum(part["text"].count(MARKER) for turn in turns for part in turn["content"] if part["type"] == "text")
    if found == 0:
        return with_images(tuple(turns), images)
    if found != images:
        raise RecordError(
            f"{record}: the prompt holds {MARKER} {found} times for {images} images; required is one for each, or none."
        )
    return tuple(_placed(turn) for turn in turns)


def response(turns: Any, record: str) -> str:
    """Return the text of a response: a text, or one assistant turn.

    Raises: RecordError for several turns, another role, or an image.
    """
    if isinstance(turns, str):
        return turns
    if not isinstance(turns, list) or len(turns) != 1:
        found = f"{len(turns)} turns" if isinstance(turns, list) else f"a {type(turns).__name__}"
        raise RecordError(f"{record}: a response is {found}; required is a text or exactly one assistant turn.")
    message = _message(turns[0], record)
    if message["role"] != "assistant" or placeholders([message]):
        found = f"a turn of the {message['role']} with {placeholders([message])} images"
        raise RecordError(f"{record}: a response is {found}; required is text of the assistant.")
    return "".join(part["text"] for part in message["content"] if part["type"] == "text")


def split_prefix(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return how many turns (or characters) two conversations (or texts) share at their beginning."""
    pairs = zip(chosen, rejected, strict=False)
    return next((position for position, (one, other) in enumerate(pairs) if one != other), min(len(chosen), len(rejected)))


def implicit(chosen: Any, rejected: Any, record: str) -> tuple[Sequence[Any], str, str]:
    """Split two whole conversations into the turns they share, and their two responses.

    The last turn always belongs to the response, so that two equal conversations are a pair of equal responses.
    """
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(turns, list) or not turns:
            raise RecordError(
                f"{record}: {name!r} is {type(turns).__name__}; required is a list of turns that begins with the prompt."
            )
    shared = min(split_prefix(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    return chosen[:shared], response(chosen[shared:], record), response(rejected[shared:], record)


def sharegpt(turns: Any, record: str) -> list[Message]:
    """Return turns of {from, value} as messages of text."""
    if not isinstance(turns, list):
        raise RecordError(f"{record}: the conversation is a {type(turns).__name__}; required is a list of turns.")
    return [sharegpt_turn(turn, record) for turn in turns]


def sharegpt_turn(turn: Any, record: str) -> Message:
    """Return one turn of {from, value} as a message of text."""
    if not isinstance(turn, dict):
        raise RecordError(f"{record}: a turn is a {type(turn).__name__}; required is an object with 'from' and 'value'.")
    role = field(turn, "from", str, record)
    if role not in SHAREGPT_ROLES:
        raise RecordError(f"{record}: a turn is from {role!r}; required is one of {', '.join(SHAREGPT_ROLES)}.")
    return text(SHAREGPT_ROLES[role], field(turn, "value", str, record))


def _message(turn: Any, record: str) -> Message:
    if not isinstance(turn, dict):
        raise RecordError(f"{record}: a turn is a {type(turn).__name__}; required is an object with 'role' and 'content'.")
    role = field(turn, "role", str, record)
    if role not in ROLES:
        raise RecordError(f"{record}: a turn has the role {role!r}; required is one of {', '.join(ROLES)}.")
    content = turn.get("content")
    if isinstance(content, str):
        return text(ROLES[role], content)
    if not isinstance(content, list):
        raise RecordError(
            f"{record}: the content of a turn is a {type(content).__name__}; required is a text or a list of parts."
        )
    return {"role": ROLES[role], "content": [_part(part, record) for part in content]}


def _part(part: Row, record: str) -> TextPart | ImagePart:
    kind = part.get("type") if isinstance(part, dict) else part
    if kind == "image":
        return {"type": "image"}
    if kind == "text":
        return {"type": "text", "text": field(part, "text", str, record)}
    raise RecordError(f"{record}: a part of a turn is of type {kind!r}; required is 'text' or 'image'.")


def _placed(turn: Message) -> Message:
    """Cut the text of `turn` at its markers; line breaks around a marker belong to it."""
    parts: list[TextPart | ImagePart] = []
    for part in turn["content"]:
        pieces = part["text"].split(MARKER) if part["type"] == "text" else []
        for number, piece in enumerate(pieces):
            if number:
                parts.append({"type": "image"})
            stripped = piece.strip("\n") if len(pieces) > 1 else piece
            if stripped:
                parts.append({"type": "text", "text": stripped})
    return {"role": turn["role"], "content": parts}
