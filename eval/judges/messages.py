"""Conversion of users' messages, responses and images into a judge's `Candidates`."""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from PIL import Image

from mmrm.data.errors import RecordError
from mmrm.data.image_decoding import upright_rgb
from mmrm.data.preference import EncodedImage, Message, Response
from mmrm.eval.candidates import Candidates
from mmrm.models.portable.conversations import (
    ConversationError,
    Picture,
    read_conversation,
    read_response,
    refuse_markers,
)
from mmrm.models.portable.conversations import Response as WrittenResponse


def candidates_of(
    messages: Any,
    responses: Sequence[WrittenResponse | Response],
    images: Iterable[Any] = (),
    identity: str = "messages",
) -> Candidates:
    """Return a user's conversation and responses to it as `Candidates`, the input of a judge.

    The key of the candidates is a digest of their content.

    Args:
        messages: The conversation, a text or turns. `mmrm.models.portable.conversations` describes
            the forms of the turns and of the images.
        responses: The responses, at least one: a text, or a list of text parts and image parts,
            each of which holds its image. Responses that were read before are taken as they are.
        images: Images that are not inside `messages`, in order.
        identity: The name of the conversation in messages about it.

    Raises: RecordError if a value has another form; its message begins with `identity`.
    """
    fault = _fault_of(responses)
    if fault:
        raise RecordError(
            f"{identity}: responses: {fault}; required is a list of at least one response, each a "
            "text or a list of parts"
        )
    try:
        turns, pictures = read_conversation(messages, images)
        refuse_markers([response for response in responses if isinstance(response, str)])
        encoded = tuple(map(_encoded, pictures))
        converted = tuple(map(_response, range(len(responses)), responses))
    except ConversationError as error:
        raise RecordError(f"{identity}: {error}") from error
    shown_responses: list[object] = []
    all_images = list(encoded)
    for response in converted:
        shown_responses.append(response.parts if response.images else response.text)
        all_images += response.images
    content_hash = hashlib.sha256(json.dumps([turns, shown_responses]).encode())
    for image in all_images:
        if isinstance(image, bytes):
            content_hash.update(image)
        else:
            path_of_image = str(image)
            content_hash.update(path_of_image.encode(errors="surrogateescape"))
    prompt = cast(tuple[Message, ...], tuple(turns))
    return Candidates(content_hash.hexdigest(), encoded, prompt, converted, identity)


def _response(number: int, written: WrittenResponse | Response) -> Response:
    """Return a response with encoded images.

    Args:
        number: The index of the response, for messages.
        written: The response as the user wrote it.

    Raises: ConversationError if a part has another form, or an image part holds no image.
    """
    if isinstance(written, Response):
        return written
    if isinstance(written, str):
        return Response.of_text(written)
    turn, pictures = read_response(number, written)
    remaining_images = map(_encoded, pictures)
    content: list[str | EncodedImage] = []
    for part in turn["content"]:
        content.append(part["text"] if part["type"] == "text" else next(remaining_images))
    return Response(tuple(content))


def _fault_of(responses: Sequence[WrittenResponse | Response]) -> str:
    """Return the reason why a value is no list of responses, or "" if it is one.

    The parts of a response are not looked at.
    """
    if isinstance(responses, str):
        return "one text"
    if not responses:
        return "none"
    for response in responses:
        if not isinstance(response, str | list | tuple | Response):
            return f"a {type(response).__name__} among them"
    return ""


def _encoded(image: Picture) -> EncodedImage:
    """Return a PIL image as the bytes of a PNG file; bytes and paths are returned unchanged."""
    if not isinstance(image, Image.Image):
        return image
    buffer = io.BytesIO()
    upright_rgb(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
