"""Conversion of users' messages, responses and images into a judge's `Candidates`."""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from PIL import Image

from mmrm.data.errors import RecordError
from mmrm.data.image_decoding import upright_rgb
from mmrm.data.preference import EncodedImage, Message
from mmrm.eval.candidates import Candidates
from mmrm.models.portable.conversations import (
    ConversationError,
    Picture,
    read_conversation,
    refuse_markers,
)


def candidates_of(
    messages: Any, responses: Sequence[str], images: Iterable[Any] = (), identity: str = "messages"
) -> Candidates:
    """Return a user's conversation and responses to it as `Candidates`, the input of a judge.

    The key of the candidates is a digest of their content.

    Args:
        messages: The conversation, a text or turns. `mmrm.models.portable.conversations` describes
            the forms of the turns and of the images.
        responses: The responses, at least one text.
        images: Images that are not inside `messages`, in order.
        identity: The name of the conversation in messages about it.

    Raises: RecordError if a value has another form; its message begins with `identity`.
    """
    fault = _fault_of(responses)
    if fault:
        raise RecordError(
            f"{identity}: responses: {fault}; required is a list of at least one text"
        )
    try:
        turns, pictures = read_conversation(messages, images)
        refuse_markers(responses)
        encoded = tuple(map(_encoded, pictures))
    except ConversationError as error:
        raise RecordError(f"{identity}: {error}") from error
    content_hash = hashlib.sha256(json.dumps([turns, list(responses)]).encode())
    for image in encoded:
        if isinstance(image, bytes):
            content_hash.update(image)
        else:
            path_of_image = str(image)
            content_hash.update(path_of_image.encode(errors="surrogateescape"))
    prompt = cast(tuple[Message, ...], tuple(turns))
    return Candidates(content_hash.hexdigest(), encoded, prompt, tuple(responses), identity)


def _fault_of(responses: Sequence[str]) -> str:
    """Return the reason why a value is no list of texts, or "" if it is one."""
    if isinstance(responses, str):
        return "one text"
    if not responses:
        return "none"
    for response in responses:
        if not isinstance(response, str):
            return f"a {type(response).__name__} among them"
    return ""


def _encoded(image: Picture) -> EncodedImage:
    """Return a PIL image as the bytes of a PNG file; bytes and paths are returned unchanged."""
    if not isinstance(image, Image.Image):
        return image
    buffer = io.BytesIO()
    upright_rgb(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
