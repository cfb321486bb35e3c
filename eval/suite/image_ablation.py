"""Ablations of the images: what remains of a judge's score if it sees no image, or another one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mmrm.data.errors import UserError
from mmrm.data.images import grey_like
from mmrm.data.preference import EncodedImage, ImagePart, Message, TextPart
from mmrm.data.storage.files import content_digest
from mmrm.eval.candidates import Example
from mmrm.eval.protocol import Images

ImageDigests = tuple[str, ...]
"""Digests of the images of one row."""


def with_ablated_images(
    examples: Sequence[Example], images: Images, seed: int = 0
) -> list[Example]:
    """Return the examples with the images that a judge is shown under an ablation. Keys are unchanged.

    Args:
        examples: The rows of a benchmark.
        images: `real` changes nothing. `none` removes the images from the prompt. `grey` replaces each
            image by a grey one of the same size. `shuffled` gives each row the images of another row.
        seed: The seed of the shuffling.

    Raises:
        UserError: If there are no two different images to shuffle.
    """
    if images == "none":
        return [_without_image_parts(example) for example in examples]
    if images == "grey":
        return [_with_grey_images(example) for example in examples]
    if images == "shuffled":
        return _shuffled(examples, seed)
    return list(examples)


def _without_image_parts(example: Example) -> Example:
    """Return the example without images."""
    prompt: list[Message] = []
    for message in example.prompt:
        parts: list[TextPart | ImagePart] = [
            part for part in message["content"] if part["type"] != "image"
        ]
        prompt.append({**message, "content": parts})
    return replace(example, images=(), prompt=tuple(prompt))


def _with_grey_images(example: Example) -> Example:
    """Return the example with grey images of the same sizes."""
    images = tuple(grey_like(image, example.identity) for image in example.images)
    return replace(example, images=images)


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    """Return the examples, each with the images of another row. Rows without images are unchanged."""
    digests_by_row = [tuple(map(content_digest, example.images)) for example in examples]
    partners = _partners(filter(None, digests_by_row), seed)
    image_by_digest: dict[str, EncodedImage] = {}
    for digests, example in zip(digests_by_row, examples, strict=True):
        image_by_digest.update(zip(digests, example.images, strict=True))
    shuffled: list[Example] = []
    for digests, example in zip(digests_by_row, examples, strict=True):
        if digests:
            images = tuple(image_by_digest[digest] for digest in partners[digests])
            shuffled.append(replace(example, images=images))
        else:
            shuffled.append(example)
    return shuffled


def _partners(rows: Iterable[ImageDigests], seed: int) -> dict[ImageDigests, ImageDigests]:
    """Return for each different tuple of images another tuple of the same length.

    The tuples of one length are put into a random cycle, and each gets the next one. A tuple that is
    the only one of its length gets images of several other rows.
    """
    different = sorted(set(rows))
    random.Random(seed).shuffle(different)
    cycle_by_length: dict[int, list[ImageDigests]] = {}
    for digests in different:
        cycle_by_length.setdefault(len(digests), []).append(digests)
    partners: dict[ImageDigests, ImageDigests] = {}
    for cycle in cycle_by_length.values():
        partners.update(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    for digests, partner in list(partners.items()):
        if digests == partner:
            partners[digests] = _other_images(digests, different)
    return partners


def _other_images(digests: ImageDigests, rows: Sequence[ImageDigests]) -> ImageDigests:
    """Return as many images of other rows, which differ from these; raise UserError if there are none."""
    pool = [digest for other in rows if other != digests for digest in other]
    for start in range(len(pool)):
        images = tuple(pool[(start + offset) % len(pool)] for offset in range(len(digests)))
        if images != digests:
            return images
    raise UserError(
        "all rows with images show the same image; shuffling needs at least two different ones."
    )
