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
    """Return responses to a conversation in one of the forms that `mmrm.models.portable.conversations` describes.

    Raises: RecordError, which names `identity`.
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
    content = hashlib.sha256(json.dumps([turns, list(responses)]).encode())
    for image in encoded:
        content.update(
            image if isinstance(image, bytes) else str(image).encode(errors="surrogateescape")
        )
    prompt = cast(tuple[Message, ...], tuple(turns))
    return Candidates(content.hexdigest(), encoded, prompt, tuple(responses), identity)


def _fault_of(responses: Sequence[str]) -> str:
    """Return a description of a value that is no list of texts; empty if it is a list of texts."""
    if isinstance(responses, str):
        return "one text"
    if not responses:
        return "none"
    for response in responses:
        if not isinstance(response, str):
            return f"a {type(response).__name__} among them"
    return ""


def _encoded(image: Picture) -> EncodedImage:
    if not isinstance(image, Image.Image):
        return image
    buffer = io.BytesIO()
    upright_rgb(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
