"""Keys of stores, caches and journals: digests of content, never names.

`Preference.identity` and the ids of files name a record in messages. Two records may have the same
name: two generated sources with different seeds do, and so do two files of one name. Results are
therefore stored under a digest of everything that the record holds.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mmrm.data.encoded_video import Video
from mmrm.data.preference import EncodedImage, Message, Preference, Response
from mmrm.data.storage.files import content_digest


def record_key(record: Preference) -> str:
    """Return a digest (64 hexadecimal digits) of a record's whole content except `identity`.

    Images and videos are compared by their bytes, wherever they are stored.
    """
    # Records of versions without ranks, attributes and difficulties have digests without them.
    labels: list[object] = []
    if not record.is_pair or record.attributes:
        labels = [list(record.ranks), sorted(record.attributes.items())]
    if record.difficulty is not None:
        labels.append({"difficulty": record.difficulty})
    return shown_key(
        record.prompt,
        (*record.images, *record.videos),
        record.responses,
        record.margin,
        record.chosen_critique,
        record.rejected_critique,
        record.rationale,
        record.source,
        record.category,
        record.truth,
        *labels,
    )


def question_key(question: Preference) -> str:
    """Return a digest (64 hexadecimal digits) of a question, its images, its videos and its known answers.

    The answers that a policy (the model that is trained) gives to the question are stored under
    this digest. It depends on the known answers, because the policy's answers are verified by them.
    """
    truth = question.truth
    known_answers = None if truth is None else [list(truth.answers), truth.rule]
    media = (*question.images, *question.videos)
    return shown_key(question.prompt, media, (), known_answers)


def shown_key(
    prompt: Sequence[Message],
    media: Iterable[EncodedImage | Video],
    responses: Sequence[Response],
    *other_values: Any,
) -> str:
    """Return a digest (64 hexadecimal digits) of a model's input, as a key for its result.

    Args:
        prompt: The messages of the prompt.
        media: The images of the prompt, and after them its videos. They are compared by their
            bytes.
        responses: The responses to the prompt, with their images and videos, which are compared by
            their bytes as well.
        *other_values: All other values on which the result depends. JSON must be able to hold them.
    """
    digests: list[str | dict[str, str]] = []
    for medium in media:
        if isinstance(medium, Video):
            digests.append({"video": _file_digest(medium.content)})
        else:
            digests.append(_file_digest(medium))
    shown_responses = list(map(response_content, responses))
    content = [list(prompt), digests, shown_responses, list(other_values)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def response_content(response: Response) -> str | list[str | dict[str, str]]:
    """Return the content of a response as a value of JSON, with a digest for each image or video.

    A response without images and videos is its text, as it was when responses were texts. Results
    that were stored then are still found.
    """
    if not response.images and not response.videos:
        return response.text
    content: list[str | dict[str, str]] = []
    for part in response.content:
        if isinstance(part, str):
            content.append(part)
        elif isinstance(part, Video):
            content.append({"video": _file_digest(part.content)})
        else:
            content.append({"image": _file_digest(part)})
    return content


def written_response(response: Response) -> str:
    """Return a response as one text, in which each image and video is a digest of its bytes.

    A response without images and videos is its text. Different responses have different texts, so
    that names, draws and digests of rows can be computed from them.
    """
    if not response.images and not response.videos:
        return response.text
    return json.dumps(response_content(response))


def _file_digest(content: bytes | Path) -> str:
    """Return a digest of the bytes of an image or a video, or its path if it cannot be read.

    Args:
        content: The bytes of the file, or its path.
    """
    try:
        return content_digest(content)
    except OSError:
        # Not an error here: encoding the file raises later, and no result is stored.
        return f"unreadable {content!r}"
