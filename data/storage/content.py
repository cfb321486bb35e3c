"""Keys of stores, caches and journals: digests of content, never names.

`Preference.identity` and the ids of files name a record in messages. Two records may have the same
name: two generated sources with different seeds do, and so do two files of one name. Results are
therefore stored under a digest of everything that the record holds.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from mmrm.data.preference import EncodedImage, Message, Preference
from mmrm.data.storage.files import content_digest


def record_key(record: Preference) -> str:
    """Return a digest (64 hexadecimal digits) of the whole content of a record except its identity.

    Images are compared by their bytes, wherever they are stored.
    """
    return shown_key(
        record.prompt,
        record.images,
        (record.chosen, record.rejected),
        record.margin,
        record.chosen_critique,
        record.rejected_critique,
        record.rationale,
        record.source,
        record.category,
        record.truth,
    )


def question_key(question: Preference) -> str:
    """Return a digest (64 hexadecimal digits) of a question, its images and its known answers.

    Answers of a policy are stored under this digest. The known answers are a part of it, because
    the answers of the policy are verified by them.
    """
    truth = question.truth
    known_answers = None if truth is None else [list(truth.answers), truth.rule]
    return shown_key(question.prompt, question.images, (), known_answers)


def shown_key(
    prompt: Sequence[Message],
    images: Iterable[EncodedImage],
    responses: Sequence[str],
    *more: Any,
) -> str:
    """Return a digest (64 hexadecimal digits) of a prompt, its images and its responses.

    Args:
        prompt: The messages of the prompt.
        images: The images. They are compared by their bytes.
        responses: The responses to the prompt.
        *more: All other values on which the result depends that is stored under the digest. Each
            has to be a value that JSON can hold.
    """
    content = [list(prompt), list(map(_image_digest, images)), list(responses), list(more)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _image_digest(image: EncodedImage) -> str:
    """Return a digest of an image's bytes, or a text with its path if it cannot be read.

    Encoding an unreadable image raises, so that no result is stored under such a key.
    """
    try:
        return content_digest(image)
    except OSError:
        return f"unreadable {image!r}"
