"""Responses with images: the forms in which preference files write them.

A response is written as a text, or as a turn of the assistant whose content is a text or a list of
parts. Its images are given in one of three ways.

    {"type": "image", "image": X} in its parts          the image itself
    {"type": "image"} in its parts, or <image> in its text, and the images in a column of their own,
        `chosen_images` or `rejected_images`
    the same, and the images in the column `images`, after those of the prompt: first the images of
        the chosen response, then those of the rejected one

X is a path in the image folder, a data URI, bytes, or {"bytes": …, "path": …}. In the third form, a
marker <image> in a text is the place of an image only if every response has one. In all other cases
it stays in the text, and the record is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mmrm.data.errors import RecordError
from mmrm.data.markers import IMAGE_MARKER
from mmrm.data.preference import EncodedImage, Message, Response
from mmrm.data.sources.shared.conversation import (
    checked_for_markers,
    prompt_from_turns,
    turn_of_response,
)
from mmrm.data.sources.shared.file_source import SourceRow

IMAGE_KEYS = ("image", "url", "path", "image_url")
"""Keys under which an image part may hold its image."""


class Place:
    """The place of an image that is listed in a column of the row."""


PLACE = Place()
WrittenContent = list[str | EncodedImage | Place]
"""The content of a response in which some images are not known yet."""


@dataclass(frozen=True, slots=True)
class WrittenResponse:
    """A response as a row has it."""

    name: str
    """The words for the response in messages, such as "the chosen response"."""
    value: Any
    """A text, or a list of one turn of the assistant."""
    images: tuple[EncodedImage, ...] | None = None
    """The images of a column of its own; None if there is no such column."""


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A prompt with its images, and the responses to it."""

    prompt: tuple[Message, ...]
    images: tuple[EncodedImage, ...]
    responses: tuple[Response, ...]


def written_pair(row: SourceRow, chosen: Any, rejected: Any) -> list[WrittenResponse]:
    """Return the two responses of a row, with the images of the columns for each of them.

    Args:
        row: The row, whose columns `chosen_images` and `rejected_images` are read.
        chosen: The chosen response, a text or a list of one turn.
        rejected: The rejected response.
    """
    written = []
    for name, value in (("chosen", chosen), ("rejected", rejected)):
        listed = row.columns.get(f"{name}_images")
        images = None if listed is None else row.all_images(listed)
        written.append(WrittenResponse(f"the {name} response", value, images))
    return written


def read_row(
    row: SourceRow,
    turns: Sequence[Any],
    written: Sequence[WrittenResponse],
    images: Sequence[EncodedImage],
) -> ReadRow:
    """Return the prompt and the responses of a row with the images in their places.

    Args:
        row: The row, which finds the images of image parts.
        turns: The turns of the prompt.
        written: The responses.
        images: The images of the prompt. If no response has a column of images, those of the
            responses come after them, in order.

    Raises:
        RecordError: A turn or a response has another form, or the numbers of images and of places
            differ. It is a MarkerInTextError for a marker that is not the place of an image.
    """
    has_own_images = any(response.images is not None for response in written)
    contents = [_written_content(row, response.value) for response in written]
    all_have_markers = all(_num_markers(content) for content in contents)
    if has_own_images or all_have_markers:
        contents = list(map(_with_places, contents))

    images_of_prompt = tuple(images)
    images_after_prompt: Iterator[EncodedImage] = iter(())
    if not has_own_images:
        num_places = sum(map(_num_places, contents))
        num_of_prompt = max(0, len(images) - num_places)
        images_of_prompt = tuple(images[:num_of_prompt])
        images_after_prompt = iter(images[num_of_prompt:])

    prompt = prompt_from_turns(turns, len(images_of_prompt))
    responses: list[Response] = []
    for response, content in zip(written, contents, strict=True):
        listed_images = response.images or ()
        if not has_own_images:
            listed_images = tuple(islice(images_after_prompt, _num_places(content)))
        responses.append(_with_listed_images(response.name, content, listed_images))
    return ReadRow(prompt, images_of_prompt, tuple(responses))


def read_response(row: SourceRow, name: str, value: Any) -> Response:
    """Return a response whose parts hold their images.

    Args:
        row: The row, which finds the images.
        name: The words for the response in messages.
        value: A text, or a list of one turn of the assistant.

    Raises:
        RecordError: The response has another form, a part holds no image, or a text holds a marker.
    """
    return _with_listed_images(name, _written_content(row, value), ())


def num_listed_images(row: SourceRow, value: Any) -> int:
    """Return the number of images of a response that a column of the row has to list.

    Args:
        row: The row, which finds the images of image parts.
        value: The response, a text or a list of one turn.
    """
    return _num_places(_with_places(_written_content(row, value)))


def _written_content(row: SourceRow, value: Any) -> WrittenContent:
    """Return the content of a response, with PLACE for each image part without an image.

    Args:
        row: The row, which finds the images of image parts.
        value: A text, or a list of one turn of the assistant.
    """
    if isinstance(value, str):
        return [value]
    content: WrittenContent = []
    for part in turn_of_response(value):
        if part["type"] == "text":
            content.append(part["text"])
            continue
        image: EncodedImage | Place = PLACE
        for key in IMAGE_KEYS:
            reference = part.get(key)
            if isinstance(reference, Mapping) and "url" in reference:
                reference = reference["url"]  # OpenAI's form
            if reference is not None:
                image = row.image(reference)
                break
        content.append(image)
    return content


def _num_markers(content: WrittenContent) -> int:
    """Return the number of <image> in the texts of a response."""
    return sum(part.count(IMAGE_MARKER) for part in content if isinstance(part, str))


def _num_places(content: WrittenContent) -> int:
    """Return the number of places of images that are listed in a column."""
    return sum(isinstance(part, Place) for part in content)


def _with_places(content: WrittenContent) -> WrittenContent:
    """Return a content with PLACE for each <image>, without the line breaks around it."""
    placed: WrittenContent = []
    for part in content:
        if not isinstance(part, str) or IMAGE_MARKER not in part:
            placed.append(part)
            continue
        for number, piece in enumerate(part.split(IMAGE_MARKER)):
            if number > 0:  # there is a marker before every piece but the first
                placed.append(PLACE)
            stripped = piece.strip("\n")
            if stripped:
                placed.append(stripped)
    return placed


def _with_listed_images(
    name: str, content: WrittenContent, images: Sequence[EncodedImage]
) -> Response:
    """Return a response with images in its places.

    Args:
        name: The words for the response in messages.
        content: Its content.
        images: The images that are listed for it.

    Raises:
        RecordError: There are more or fewer images than places, or a text holds a marker.
    """
    num_places = _num_places(content)
    if num_places != len(images):
        raise RecordError(
            f"{name} has {num_places} places for the {len(images)} images that are listed for it; "
            "required is one image for each place. Images of responses are listed in columns of "
            "their own (chosen_images, rejected_images), or in images after those of the prompt. "
            "Correct the row, or remove it."
        )
    remaining_images = iter(images)
    parts: list[str | EncodedImage] = []
    for part in content:
        if isinstance(part, Place):
            parts.append(next(remaining_images))
        elif isinstance(part, str):
            parts.append(checked_for_markers(part, name))
        else:
            parts.append(part)
    return Response(tuple(parts))
