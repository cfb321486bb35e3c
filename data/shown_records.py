"""Records as pages show them: their images as data URIs, their videos as film strips."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from mmrm.data.display.html import TINY, thumbnail
from mmrm.data.film_strip import film_strip
from mmrm.data.images import decode
from mmrm.data.preference import EncodedImage, Preference

THUMBNAIL = 360
"""Longest side in pixels of an image on the page."""


class ShownImage(NamedTuple):
    """An image on the page."""

    is_enlarged: bool
    """True if the page enlarges the image because it is small."""
    address: str
    """The image as a data URI."""


class ShownResponse(NamedTuple):
    """A response of a sample on the page."""

    name: str
    """"Chosen" or "Rejected" in a pair, otherwise the rank of the response."""
    text: str
    images: list[ShownImage]
    videos: list[str]
    """A film strip of each video, as a data URI."""
    critique: str | None
    attributes: str
    """The response's attributes with their numbers; empty if the record has none."""
    is_best: bool
    """True if no other response has a better rank."""


def shown_images(images: Sequence[EncodedImage], identity: str) -> list[ShownImage]:
    """Return images as the page shows them.

    Args:
        images: The images of a prompt or of a response.
        identity: The name of their record, for messages.

    Raises:
        ImageError: An image cannot be decoded.
    """
    shown = []
    for image in images:
        decoded = decode(image, identity)
        is_enlarged = max(decoded.size) <= TINY
        shown.append(ShownImage(is_enlarged, thumbnail(decoded, THUMBNAIL)))
    return shown


def shown_responses(record: Preference) -> list[ShownResponse]:
    """Return the responses of a record as the page shows them, the best one first.

    Raises:
        ImageError: An image or a video of a response cannot be decoded.
    """
    names = ["Chosen", "Rejected"]
    if not record.is_pair:
        names = [f"Rank {rank}" for rank in record.ranks]
    responses = []
    for index, (name, response) in enumerate(zip(names, record.responses, strict=True)):
        images = shown_images(response.images, record.identity)
        videos = [film_strip(video, record.identity) for video in response.videos]
        attributes = []
        for attribute, values in record.attributes.items():
            number = "unknown" if math.isnan(values[index]) else f"{values[index]:g}"
            attributes.append(f"{attribute} {number}")
        critique = None
        if index == 0:
            critique = record.chosen_critique
        elif index == len(names) - 1:
            critique = record.rejected_critique
        is_best = record.ranks[index] == 0
        shown = ShownResponse(
            name=name,
            text=response.text,
            images=images,
            videos=videos,
            critique=critique,
            attributes=", ".join(attributes),
            is_best=is_best,
        )
        responses.append(shown)
    return responses
