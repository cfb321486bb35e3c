"""What every score should stand beside: judges that ignore the content, and examples without their picture."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from data.errors import UserError
from data.images import grey_like
from data.preference import EncodedImage, Message
from data.storage.files import content_digest
from eval.protocol import Example, Images, Verdict, draw

Seen = tuple[str, ...]
"""Digests of the images of one row."""


def _longest(example: Example, seed: int) -> tuple[float, float]:
    return len(example.responses[0]), len(example.responses[1])


def _shortest(example: Example, seed: int) -> tuple[float, float]:
    return -len(example.responses[0]), -len(example.responses[1])


def _first(example: Example, seed: int) -> tuple[float, float]:
    return 1.0, 0.0


def _random(example: Example, seed: int) -> tuple[float, float]:
    chosen = draw(seed, example.key, "random baseline")
    return (1.0, 0.0) if chosen == 0 else (0.0, 1.0)


BASELINES: dict[str, Callable[[Example, int], tuple[float, float]]] = {
    "longest": _longest,
    "shortest": _shortest,
    "first": _first,
    "random": _random,
}
"""Name to scores: more characters, fewer characters, the response listed first, a coin."""


def baseline(name: str, examples: Sequence[Example], seed: int = 0) -> list[Verdict]:
    """Return the verdicts of one of `BASELINES`; equal lengths are a tie."""
    score = BASELINES[name]
    return [Verdict(scores=score(example, seed)) for example in examples]


def ablate(examples: Sequence[Example], images: Images, seed: int = 0) -> list[Example]:
    """Return the examples as a judge sees them under an ablation of the images; keys stay, they name the row.

    `none` takes image parts out of the prompt, `grey` keeps the size and loses the content, `shuffled` gives each row
    the images of another row that shows something else.
    Raises: UserError if there are no two different pictures to shuffle.
    """
    if images == "none":
        return [replace(example, images=(), prompt=_without_images(example.prompt)) for example in examples]
    if images == "grey":
        return [
            replace(example, images=tuple(grey_like(image, example.identity) for image in example.images)) for example in examples
        ]
    if images == "shuffled":
        return _shuffled(examples, seed)
    return list(examples)


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    seen = [_seen(example.images) for example in examples]
    partner = _partners([picture for picture in seen if picture], seed)
    image: dict[str, EncodedImage] = {}
    for picture, example in zip(seen, examples, strict=True):
        image.update(zip(picture, example.images, strict=True))
    return [
        replace(example, images=tuple(image[digest] for digest in partner[picture])) if picture else example
        for picture, example in zip(seen, examples, strict=True)
    ]


def _without_images(prompt: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(
        {"role": message["role"], "content": [part for part in message["content"] if part["type"] != "image"]}
        for message in prompt
    )


def _seen(images: Sequence[EncodedImage]) -> Seen:
    """Return a digest of each image's file, so that rows which share a picture are not given it again."""
    return tuple(map(content_digest, images))


def _partners(pictures: Sequence[Seen], seed: int) -> dict[Seen, Seen]:
    """Return something else to show, of as many images, for each different picture.

    Pictures of as many images form one random cycle, which has no fixed point.
    """
    different = sorted(set(pictures))
    random.Random(seed).shuffle(different)
    by_count: dict[int, list[Seen]] = {}
    for picture in different:
        by_count.setdefault(len(picture), []).append(picture)
    return {
        picture: group[(place + 1) % len(group)] if len(group) > 1 else _from_all(picture, different)
        for group in by_count.values()
        for place, picture in enumerate(group)
    }


def _from_all(picture: Seen, different: Sequence[Seen]) -> Seen:
    """Return images of other rows for the only picture of its size."""
    pool = [digest for other in different if other != picture for digest in other]
    for start in range(len(pool)):
        found = tuple(pool[(start + place) % len(pool)] for place in range(len(picture)))
        if found != picture:
            return found
    raise UserError("all rows with images show the same picture; shuffling needs at least two different ones.")
