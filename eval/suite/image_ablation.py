"""Benchmarks judged: the rows as a judge sees them, its verdicts, and the result with everything a score should stand beside.

A result holds figures with intervals, judges that ignore the content, a diagnosis, and the same verdicts under published rules.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mmrm.data.errors import UserError
from mmrm.data.images import grey_like
from mmrm.data.preference import EncodedImage, Message
from mmrm.data.storage.files import content_digest
from mmrm.eval.candidates import Example
from mmrm.eval.protocol import Images

Seen = tuple[str, ...]
"""Digests of the images of one row."""


def ablate(examples: Sequence[Example], images: Images, seed: int = 0) -> list[Example]:
    """Return the examples as a judge sees them under an ablation of the images; keys stay, they name the row.

    `none` takes image parts out of the prompt, `grey` keeps the size and loses the content, `shuffled` gives each row
    the images of another row that shows something else.
    Raises: UserError if there are no two different images to shuffle.
    """
    if images == "none":
        return [
            replace(example, images=(), prompt=tuple(map(_without_images, example.prompt)))
            for example in examples
        ]
    if images == "grey":
        return [
            replace(one, images=tuple(grey_like(image, one.identity) for image in one.images))
            for one in examples
        ]
    if images == "shuffled":
        return _shuffled(examples, seed)
    return list(examples)


def _without_images(message: Message) -> Message:
    return {**message, "content": [part for part in message["content"] if part["type"] != "image"]}


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    seen = [tuple(map(content_digest, example.images)) for example in examples]
    partner = _partners(filter(None, seen), seed)
    image: dict[str, EncodedImage] = {}
    for shown, example in zip(seen, examples, strict=True):
        image.update(zip(shown, example.images, strict=True))
    return [
        replace(example, images=tuple(image[digest] for digest in partner[shown]))
        if shown
        else example
        for shown, example in zip(seen, examples, strict=True)
    ]


def _partners(seen: Iterable[Seen], seed: int) -> dict[Seen, Seen]:
    """Return something else to show, of as many images, for each different tuple of images.

    Those of as many images form one random cycle, which has no fixed point. The only one of its length gets images of
    other rows.
    """
    different = sorted(set(seen))
    random.Random(seed).shuffle(different)
    by_count: dict[int, list[Seen]] = {}
    for shown in different:
        by_count.setdefault(len(shown), []).append(shown)
    partners = {
        shown: other
        for cycle in by_count.values()
        for shown, other in zip(cycle, cycle[1:] + cycle[:1], strict=True)
    }
    for shown in [shown for shown, other in partners.items() if shown == other]:
        pool = [digest for other in different if other != shown for digest in other]
        turned = (
            tuple(pool[(start + place) % len(pool)] for place in range(len(shown)))
            for start in range(len(pool))
        )
        found = next((images for images in turned if images != shown), None)
        if found is None:
            raise UserError(
                "all rows with images show the same image; shuffling needs at least two different ones."
            )
        partners[shown] = found
    return partners
