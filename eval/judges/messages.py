"""Any number of responses to one prompt, scored or compared in pairs, and brought into an order.

A reward model and a critic score each response. A judge that compares holds a tournament: every two responses meet twice, each
shown first once, which is N (N - 1) judgements; a response's score is the share of its judgements that name it, one that cannot
be read counting half for both.
"""

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
    wrong = [type(one).__name__ for one in responses if not isinstance(one, str)]
    if isinstance(responses, str) or wrong or not responses:
        found = (
            "one text"
            if isinstance(responses, str)
            else f"a {wrong[0]} among them"
            if wrong
            else "none"
        )
        raise RecordError(
            f"{identity}: responses: {found}; required is a list of at least one text"
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


def _encoded(image: Picture) -> EncodedImage:
    if not isinstance(image, Image.Image):
        return image
    buffer = io.BytesIO()
    upright_rgb(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
