"""Conversion of users' messages, responses, images and videos into a judge's `Candidates`."""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from PIL import Image

from mmrm.data.encoded_video import Video
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
    videos: Iterable[Any] = (),
) -> Candidates:
    """Return a user's conversation and responses to it as `Candidates`, the input of a judge.

    The key of the candidates is a digest of their content.

    Args:
        messages: The conversation, a text or turns. `mmrm.models.portable.conversations` describes
            the forms of the turns, of the images and of the videos.
        responses: The responses, at least one: a text, or a list of text, image and video parts,
            each of which holds its image or video. Responses that were read before are taken as
            they are.
        images: Images that are not inside `messages`, in order.
        identity: The name of the conversation in messages about it.
        videos: Videos that are not inside `messages`, in order.

    Raises: RecordError if a value has another form; its message begins with `identity`.
    """
    fault = _fault_of(responses)
    if fault:
        raise RecordError(
            f"{identity}: responses: {fault}; required is a list of at least one response, each a "
            "text or a list of parts"
        )
    try:
        turns, pictures, video_files = read_conversation(messages, images, videos)
        refuse_markers([response for response in responses if isinstance(response, str)])
        encoded = tuple(map(_encoded, pictures))
        encoded_videos = tuple(map(Video, video_files))
        converted = tuple(map(_response, range(len(responses)), responses))
    except ConversationError as error:
        raise RecordError(f"{identity}: {error}") from error
    shown_responses: list[object] = []
    all_images = list(encoded)
    all_videos = list(encoded_videos)
    for response in converted:
        has_media = bool(response.images or response.videos)
        shown_responses.append(response.parts if has_media else response.text)
        all_images += response.images
        all_videos += response.videos
    content_hash = hashlib.sha256(json.dumps([turns, shown_responses]).encode())
    for file in (*all_images, *(video.content for video in all_videos)):
        if isinstance(file, bytes):
            content_hash.update(file)
        else:
            path = str(file)
            content_hash.update(path.encode(errors="surrogateescape"))
    prompt = cast(tuple[Message, ...], tuple(turns))
    return Candidates(
        content_hash.hexdigest(), encoded, prompt, converted, identity, videos=encoded_videos
    )


def _response(number: int, written: WrittenResponse | Response) -> Response:
    """Return a response with encoded images and videos.

    Args:
        number: The index of the response, for messages.
        written: The response as the user wrote it.

    Raises: ConversationError if a part has another form, or an image or video part holds no
    image or video.
    """
    if isinstance(written, Response):
        return written
    if isinstance(written, str):
        return Response.of_text(written)
    turn, pictures, video_files = read_response(number, written)
    remaining_images = map(_encoded, pictures)
    remaining_videos = map(Video, video_files)
    content: list[str | EncodedImage | Video] = []
    for part in turn["content"]:
        if part["type"] == "text":
            content.append(part["text"])
        elif part["type"] == "image":
            content.append(next(remaining_images))
        else:
            content.append(next(remaining_videos))
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
