"""Responses with images and videos: the forms in which preference files write them.

A response is written as a text, or as a turn of the assistant whose content is a text or a list of
parts. Its images are given in one of three ways.

    {"type": "image", "image": X} in its parts          the image itself
    {"type": "image"} in its parts, or <image> in its text, and the images in a column of their own,
        `chosen_images` or `rejected_images`
    the same, and the images in the column `images`, after those of the prompt: first the images of
        the chosen response, then those of the rejected one

X is a path in the image folder, a data URI, bytes, or {"bytes": …, "path": …}. In the third form, a
marker <image> in a text is the place of an image only if every response has one and the column
lists images. In all other cases it stays in the text, and the record is refused.

Videos are given in the same ways: as parts of the type "video", by the marker <video>, and in the
columns `videos`, `chosen_videos` and `rejected_videos`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from mmrm.data.encoded_video import Video
from mmrm.data.errors import RecordError
from mmrm.data.markers import IMAGE_MARKER, VIDEO_MARKER
from mmrm.data.preference import EncodedImage, Message, Response
from mmrm.data.sources.shared.conversation import (
    checked_for_markers,
    prompt_from_turns,
    turn_of_response,
)
from mmrm.data.sources.shared.file_source import SourceRow

Kind = Literal["image", "video"]
"""The type of a part that is no text."""
KEYS: dict[Kind, tuple[str, ...]] = {
    "image": ("image", "url", "path", "image_url"),
    "video": ("video", "url", "path", "video_url"),
}
"""Keys under which an image part or a video part may hold its file."""
MARKERS: dict[Kind, str] = {"image": IMAGE_MARKER, "video": VIDEO_MARKER}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an image or a video that is listed in a column of the row."""

    kind: Kind


Medium = EncodedImage | Video
WrittenContent = list[str | Medium | Place]
"""The content of a response in which some images and videos are not known yet."""


@dataclass(frozen=True, slots=True)
class WrittenResponse:
    """A response as a row has it."""

    name: str
    """The words for the response in messages, such as "the chosen response"."""
    value: Any
    """A text, or a list of one turn of the assistant."""
    images: tuple[EncodedImage, ...] | None = None
    """The images of a column of its own; None if there is no such column."""
    videos: tuple[Video, ...] | None = None
    """The videos of a column of its own; None if there is no such column."""

    def listed(self, kind: Kind) -> Sequence[Medium] | None:
        """Return the images or the videos of a column of its own; None without such a column."""
        return self.images if kind == "image" else self.videos


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A prompt with its images and videos, and the responses to it."""

    prompt: tuple[Message, ...]
    images: tuple[EncodedImage, ...]
    responses: tuple[Response, ...]
    videos: tuple[Video, ...] = ()


def written_pair(row: SourceRow, chosen: Any, rejected: Any) -> list[WrittenResponse]:
    """Return the two responses of a row, with the images and videos of the columns for each.

    Args:
        row: The row, whose columns `chosen_images`, `rejected_images`, `chosen_videos` and
            `rejected_videos` are read.
        chosen: The chosen response, a text or a list of one turn.
        rejected: The rejected response.
    """
    written = []
    for name, value in (("chosen", chosen), ("rejected", rejected)):
        listed_images = row.columns.get(f"{name}_images")
        listed_videos = row.columns.get(f"{name}_videos")
        images = None if listed_images is None else row.all_images(listed_images)
        videos = None if listed_videos is None else row.all_videos(listed_videos)
        written.append(WrittenResponse(f"the {name} response", value, images, videos))
    return written


def read_row(
    row: SourceRow,
    turns: Sequence[Any],
    written: Sequence[WrittenResponse],
    images: Sequence[EncodedImage],
    videos: Sequence[Video] = (),
) -> ReadRow:
    """Return the prompt and the responses of a row with the images and videos in their places.

    Args:
        row: The row, which finds the files of image and video parts.
        turns: The turns of the prompt.
        written: The responses.
        images: The images of the prompt. If no response has a column of images, those of the
            responses come after them, in order.
        videos: The videos of the prompt, and those of the responses by the same rule.

    Raises:
        RecordError: A turn or a response has another form, or the numbers of images, or of videos,
            and of places differ. It is a MarkerInTextError for a marker that is no place.
    """
    contents = [_written_content(row, response.value) for response in written]
    images_of_prompt, contents = _with_listed(written, contents, images, "image")
    videos_of_prompt, contents = _with_listed(written, contents, videos, "video")
    prompt = prompt_from_turns(turns, len(images_of_prompt), len(videos_of_prompt))
    responses: list[Response] = []
    for response, content in zip(written, contents, strict=True):
        responses.append(_response(response.name, content))
    return ReadRow(prompt, tuple(images_of_prompt), tuple(responses), tuple(videos_of_prompt))


def _with_listed(
    written: Sequence[WrittenResponse],
    contents: Sequence[WrittenContent],
    listed: Sequence[Any],
    kind: Kind,
) -> tuple[Sequence[Any], list[WrittenContent]]:
    """Return the images (or videos) of the prompt, and the contents with those of the responses.

    Args:
        written: The responses.
        contents: Their contents.
        listed: The images of the row's own column, those of the prompt first.
        kind: Whether images or videos are put into their places.

    Raises:
        RecordError: The numbers of a response's images and of its places differ.
    """
    has_own_columns = any(response.listed(kind) is not None for response in written)
    all_have_markers = all(_num_markers(content, kind) for content in contents)
    if has_own_columns or (listed and all_have_markers):
        contents = [_with_places(content, kind) for content in contents]

    num_of_prompt = len(listed)
    after_prompt: Iterator[Any] = iter(())
    if not has_own_columns:
        num_places = sum(_num_places(content, kind) for content in contents)
        num_of_prompt = max(0, len(listed) - num_places)
        after_prompt = iter(listed[num_of_prompt:])

    filled: list[WrittenContent] = []
    for response, content in zip(written, contents, strict=True):
        media: Sequence[Any] = response.listed(kind) or ()
        if not has_own_columns:
            media = tuple(islice(after_prompt, _num_places(content, kind)))
        filled.append(_with_media(response.name, content, media, kind))
    return listed[:num_of_prompt], filled


def read_response(row: SourceRow, name: str, value: Any) -> Response:
    """Return a response whose parts hold their images and videos.

    Args:
        row: The row, which finds the files.
        name: The words for the response in messages.
        value: A text, or a list of one turn of the assistant.

    Raises:
        RecordError: The response has another form, a part holds no image or video, or a text holds
            a marker.
    """
    content = _written_content(row, value)
    content = _with_media(name, content, (), "image")
    content = _with_media(name, content, (), "video")
    return _response(name, content)


def num_listed_images(row: SourceRow, value: Any) -> int:
    """Return the number of images of a response that a column of the row has to list.

    Args:
        row: The row, which finds the files of image and video parts.
        value: The response, a text or a list of one turn.
    """
    return _num_places(_with_places(_written_content(row, value), "image"), "image")


def num_listed_videos(row: SourceRow, value: Any) -> int:
    """Return the number of videos of a response that a column of the row has to list.

    The arguments are those of `num_listed_images`.
    """
    return _num_places(_with_places(_written_content(row, value), "video"), "video")


def _written_content(row: SourceRow, value: Any) -> WrittenContent:
    """Return the content of a response, with a Place for each part without its image or video.

    Args:
        row: The row, which finds the files of image and video parts.
        value: A text, or a list of one turn of the assistant.
    """
    if isinstance(value, str):
        return [value]
    content: WrittenContent = []
    for part in turn_of_response(value):
        if part["type"] == "text":
            content.append(part["text"])
            continue
        kind: Kind = "video" if part["type"] == "video" else "image"
        medium: Medium | Place = Place(kind)
        for key in KEYS[kind]:
            reference = part.get(key)
            if isinstance(reference, Mapping) and "url" in reference:
                reference = reference["url"]  # OpenAI's form
            if reference is not None:
                medium = row.image(reference) if kind == "image" else row.video(reference)
                break
        content.append(medium)
    return content


def _num_markers(content: WrittenContent, kind: Kind) -> int:
    """Return the number of <image>, or of <video>, in the texts of a response."""
    marker = MARKERS[kind]
    return sum(part.count(marker) for part in content if isinstance(part, str))


def _num_places(content: WrittenContent, kind: Kind) -> int:
    """Return the number of places of images, or of videos, that are listed in a column."""
    return sum(part == Place(kind) for part in content)


def _with_places(content: WrittenContent, kind: Kind) -> WrittenContent:
    """Return a content with a Place for each marker, without the line breaks around it."""
    marker = MARKERS[kind]
    placed: WrittenContent = []
    for part in content:
        if not isinstance(part, str) or marker not in part:
            placed.append(part)
            continue
        for number, piece in enumerate(part.split(marker)):
            if number > 0:  # there is a marker before every piece but the first
                placed.append(Place(kind))
            stripped = piece.strip("\n")
            if stripped:
                placed.append(stripped)
    return placed


def _with_media(
    name: str, content: WrittenContent, media: Sequence[Medium], kind: Kind
) -> WrittenContent:
    """Return a content with images, or videos, in its places.

    Args:
        name: The words for the response in messages.
        content: Its content.
        media: The images or videos that are listed for it.
        kind: Which of both.

    Raises:
        RecordError: There are more or fewer of them than places.
    """
    num_places = _num_places(content, kind)
    if num_places != len(media):
        raise RecordError(
            f"{name} has {num_places} places for the {len(media)} {kind}s that are listed for it; "
            f"required is one {kind} for each place. {kind.capitalize()}s of responses are listed "
            f"in columns of their own (chosen_{kind}s, rejected_{kind}s), or in {kind}s after those "
            "of the prompt. Correct the row, or remove it."
        )
    remaining_media = iter(media)
    return [next(remaining_media) if part == Place(kind) else part for part in content]


def _response(name: str, content: WrittenContent) -> Response:
    """Return a response whose content has no places left; refuse markers in its texts."""
    parts: list[str | Medium] = []
    for part in content:
        assert not isinstance(part, Place), "All places were filled."
        parts.append(checked_for_markers(part, name) if isinstance(part, str) else part)
    return Response(tuple(parts))
