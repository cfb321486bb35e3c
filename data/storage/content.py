"""Keys of stores, caches and journals: digests of content, never names.

`Preference.identity` and the ids of files name a record in messages. Two records may have the same
name: two generated sources with different seeds do, and so do two files of one name. Results are
therefore stored under a digest of everything that the record holds.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from mmrm.data.encoded_video import Video
from mmrm.data.preference import EncodedImage, Message, Preference, Response
from mmrm.data.storage.files import content_digest


def record_key(record: Preference) -> str:
    """Return a digest (64 hexadecimal digits) of a record's whole content except `identity`.

    Images are compared by their bytes, wherever they are stored.
    """
    # Records of versions without ranks and attributes have digests without them.
    labels: list[object] = []
    if not record.is_pair or record.attributes:
        labels = [list(record.ranks), sorted(record.attributes.items())]
    return shown_key(
        record.prompt,
        record.images,
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
    """Return a digest (64 hexadecimal digits) of a question, its images and its known answers.

    The answers that a policy (the model that is trained) gives to the question are stored under
    this digest. It depends on the known answers, because the policy's answers are verified by them.
    """
    truth = question.truth
    known_answers = None if truth is None else [list(truth.answers), truth.rule]
    return shown_key(question.prompt, question.images, (), known_answers)


def shown_key(
    prompt: Sequence[Message],
    images: Iterable[EncodedImage],
    responses: Sequence[Response],
    *other_values: Any,
) -> str:
    """Return a digest (64 hexadecimal digits) of a model's input, as a key for its result.

    Args:
        prompt: The messages of the prompt.
        images: The images of the prompt. They are compared by their bytes.
        responses: The responses to the prompt, with their images, which are compared by their
            bytes as well.
        *other_values: All other values on which the result depends. JSON must be able to hold them.
    """
    image_digests = list(map(_image_digest, images))
    shown_responses = list(map(response_content, responses))
    content = [list(prompt), image_digests, shown_responses, list(other_values)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def response_content(response: Response) -> str | list[str | dict[str, str]]:
    """Return the content of a response as a value of JSON, with a digest for each image or video.

    A response without images and videos is its text, as it was when responses were texts. Results that were
    stored then are still found.
    """
    if not response.images and not response.videos:
        return response.text
    content: list[str | dict[str, str]] = []
    for part in response.content:
        if isinstance(part, str):
            content.append(part)
        elif isinstance(part, Video):
            digest = _image_digest(part.content)
            content.append({"video": digest, "sampling": repr(part.sampling)})
        else:
            content.append({"image": _image_digest(part)})
    return content


def written_response(response: Response) -> str:
    """Return a response as one text, in which each image is a digest of its bytes.

    A response without images and videos is its text. Different responses have different texts, so that names,
    draws and digests of rows can be computed from them.
    """
    if not response.images and not response.videos:
        return response.text
    return json.dumps(response_content(response))


def _image_digest(image: EncodedImage) -> str:
    """Return a digest of an image's bytes, or a text with its path if it cannot be read."""
    try:
        return content_digest(image)
    except OSError:
        # Not an error here: encoding the image raises later, and no result is stored.
        return f"unreadable {image!r}"
