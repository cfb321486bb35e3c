"""Read files of prompts with responses, one record in each row: JSON lines, JSON, parquet or Arrow.

    {"prompt": "Which colour is the cat?", "images": ["cat.png"], "responses": ["Black.", "White."]}

The prompt is in `prompt` (a text or turns) or `messages` (turns), in the forms that
`mmrm.models.portable.conversations` reads. The responses are in `responses`, or a single one is in
`response` or `completion`, or the two of a preference record are in `chosen` and `rejected`. In
TRL's forms these two may contain the prompt. Each response is a text or one assistant turn. Images
are in the turns, in `images` or in `image`: as paths below the image folder, data URIs, or structs
{bytes, path}. Videos are in the turns, in `videos` or in `video`, in the same ways. Other columns
are allowed.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.data.encoded_video import Video, video_size
from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.images import image_size
from mmrm.data.limits import DEFAULTS, Limits, written_sizes
from mmrm.data.package import data_cache
from mmrm.data.preference import EncodedImage, Response
from mmrm.data.regular_files import require_regular
from mmrm.data.sources.shared.file_source import (
    CONVERSION_ERRORS,
    MAX_MESSAGE_LENGTH,
    SourceRow,
    refuse_media_columns,
    refuse_response_images,
)
from mmrm.data.sources.shared.responses import read_response
from mmrm.data.sources.trl import split_pair
from mmrm.data.storage.archives import Folder
from mmrm.data.storage.row_files import Row, Rows, open_rows
from mmrm.eval.verifiers import ResponseVerifier
from mmrm.models.portable.conversations import ConversationError, read_conversation, refuse_markers

RESPONSE_COLUMNS = ("responses", "response", "completion")
"""The columns that hold responses; the first of them that a record has is read."""
IMAGE_ROOT_ADVICE = "If the images are elsewhere, name their folder: --image-root FOLDER."
"""The way out in the message about an image that is not there."""


@dataclass(frozen=True, slots=True)
class AnsweredPrompt:
    """A prompt with its images and videos and the responses to it, read from a record of a file."""

    turns: list[dict[str, Any]]
    """The turns of the prompt. Their contents are lists of parts; an image is {"type": "image"},
    and a video is {"type": "video"}."""
    references: tuple[bytes | Path, ...]
    """The images in the order of their parts: a path as the record names it, or the bytes of a
    file."""
    images: tuple[EncodedImage, ...]
    """The same images, with resolved paths."""
    video_references: tuple[bytes | Path, ...]
    """The videos in the order of their parts: a path as the record names it, or the bytes of a
    file."""
    videos: tuple[Video, ...]
    """The same videos, with resolved paths."""
    responses: tuple[Response, ...]
    """The responses. Paths of their images and videos are resolved."""
    written_responses: tuple[Any, ...]
    """The same responses as the record has them: texts, or lists of parts that hold their images
    and videos."""

    @property
    def prompt_text(self) -> str:
        """The texts of the prompt, with a space between two of them."""
        prompt_texts = []
        for turn in self.turns:
            prompt_texts += [part["text"] for part in turn["content"] if part["type"] == "text"]
        return " ".join(prompt_texts)

    @property
    def response_texts(self) -> list[str]:
        """The text of each response, which verifiers read."""
        return [response.text for response in self.responses]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """An opened file whose records are prompts with responses. They are read one by one."""

    path: Path
    rows: Rows
    images: Folder
    limits: Limits = DEFAULTS

    def row(self, number: int) -> SourceRow:
        """Return the row with this number, counted from 0.

        Raises:
            RecordError: If the row cannot be read.
        """
        return SourceRow(f"row {number}", self.rows.row(number), self.images)

    def answered_prompt(self, row: SourceRow) -> AnsweredPrompt:
        """Return the prompt and the responses of a row.

        Raises:
            RecordError: If the row cannot be judged. The message names the row.
        """
        try:
            return _read_answered_prompt(row, self.limits)
        except RecordError as error:
            # An ImageError names the row already.
            message = str(error) if isinstance(error, ImageError) else f"{row.identity}: {error}"
            raise RecordError(message[:MAX_MESSAGE_LENGTH]) from error
        except ConversationError as error:
            raise RecordError(f"{row.identity}: {error}"[:MAX_MESSAGE_LENGTH]) from error
        except CONVERSION_ERRORS as error:
            message = (
                f"{row.identity}: it cannot be read as a prompt with responses "
                f"({type(error).__name__}: {error})"
            )
            raise RecordError(message[:MAX_MESSAGE_LENGTH]) from error

    def refuse_contradiction(self, verifier: ResponseVerifier) -> None:
        """Raise UserError if a record of the file contradicts a verifier.

        A record may have verdicts in its column `right`, and name a rule in its column `verifier`.
        Commands call this first, so that they do not judge for hours before they find such a
        record. Records that cannot be read are skipped, because the commands report them later.
        """
        for number in range(len(self.rows)):
            try:
                row = self.row(number)
                verifier.refuse_other_rule(row.columns)
                has_verdicts = isinstance(row.columns.get("right"), list)
                if has_verdicts:
                    verifier.right(row.columns, self.answered_prompt(row).response_texts)
            except RecordError:
                continue


def open_records(path: Path, image_root: Path | None, limits: Limits = DEFAULTS) -> RecordFile:
    """Open a file of prompts with responses.

    Args:
        path: The file.
        image_root: The folder that paths of images are relative to and may not leave. None is the
            folder of the file.
        limits: The limits on the size of a record. A larger record is refused when it is read.

    Raises:
        UserError: If the file or the folder does not exist, if the file is not JSON lines, JSON,
            parquet or Arrow, or if it has no record.
    """
    if os.path.lexists(path):
        require_regular(path)
    root = image_root or path.parent
    if not path.is_file():
        raise UserError(f"{path}: there is no such file.")
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder.")
    rows = open_rows([path], data_cache())
    if not len(rows):
        raise UserError(f"{path}: the file holds no record.")
    return RecordFile(path, rows, Folder(root, IMAGE_ROOT_ADVICE), limits)


def _read_answered_prompt(row: SourceRow, limits: Limits) -> AnsweredPrompt:
    """Return the prompt and the responses of a row.

    Raises:
        RecordError: If the row cannot be judged. The message does not name the row; the caller adds
            its name.
        ConversationError: If the turns, the images or the videos of the prompt cannot be read.
    """
    columns = row.columns
    refuse_media_columns(columns)
    refuse_response_images(columns)
    column_names = ", ".join(map(repr, sorted(columns)))
    messages: Any = row.optional_value("messages", list)
    if messages is None:
        messages = row.optional_value("prompt", str | list)
    filled_columns = [name for name in RESPONSE_COLUMNS if columns.get(name) is not None]
    has_pair = columns.get("chosen") is not None and columns.get("rejected") is not None
    if filled_columns:
        column = filled_columns[0]
        value = row.value(column, list | str)
        if column == "responses" and isinstance(value, str):
            raise RecordError(
                "'responses' is one text; required is a list. A single response is named "
                "`response`."
            )
        # A list in another column than `responses` holds the turns or parts of a single response.
        written: list[Any] = list(value) if column == "responses" else [value]
    elif not has_pair:
        raise RecordError(
            f"there are no responses; found are {column_names}; required is one of "
            f"{', '.join(RESPONSE_COLUMNS)}, or chosen and rejected."
        )
    elif columns.get("messages") is None:
        # TRL's preference records, in which both responses may begin with the prompt.
        messages, *written = split_pair(row)
    else:
        written = [row.value(name, str | list) for name in ("chosen", "rejected")]
    if messages is None:
        raise RecordError(f"there is neither 'prompt' nor 'messages'; found are {column_names}.")
    images = _listed(columns, "images", "image")
    videos = _listed(columns, "videos", "video")
    responses = []
    for number, value in enumerate(written):
        responses.append(read_response(row, f"response {number}", _as_turns(value)))
    response_texts = [response.text for response in responses]
    refuse_markers(response_texts)  # those that are control tokens of a model as well
    sizes = written_sizes(messages, response_texts, images, videos)
    for response in responses:
        sizes["images"] += len(response.images)
        sizes["videos"] += len(response.videos)
        if response.images or response.videos:
            sizes["parts"] += len(response.content)
    for name, count in sizes.items():
        limits.refuse_beyond(name, count, f"start with `--max-{name} N`")
    conversation = read_conversation(messages, images, videos)
    # `read_conversation` may also return opened images, which a file cannot hold.
    references = tuple(image for image in conversation.images if isinstance(image, bytes | Path))
    # A path is relative to the image folder, and `row.image` returns the complete path.
    resolved_images = [row.image(_path_as_text(reference)) for reference in references]
    resolved_videos = [row.video(_path_as_text(reference)) for reference in conversation.videos]
    images_of_responses = [image for response in responses for image in response.images]
    for image in (*resolved_images, *images_of_responses):
        image_size(image, row.identity)  # raises ImageError if the file holds no image
    videos_of_responses = [video for response in responses for video in response.videos]
    for video in (*resolved_videos, *videos_of_responses):
        video_size(video, row.identity)  # raises ImageError if the file holds no video
    return AnsweredPrompt(
        turns=conversation.turns,
        references=references,
        images=tuple(resolved_images),
        video_references=tuple(conversation.videos),
        videos=tuple(resolved_videos),
        responses=tuple(responses),
        written_responses=tuple(map(_as_text_or_parts, written)),
    )


def _listed(columns: Row, *names: str) -> list[Any]:
    """Return the value of the first column that a row has, as a list; empty if it has none.

    Args:
        columns: The columns of the row.
        names: The names of the columns, such as "images" and "image".
    """
    for name in names:
        value: Any = columns.get(name)
        if value is not None:
            return value if isinstance(value, list) else [value]
    return []


def _path_as_text(reference: bytes | Path) -> bytes | str:
    """Return the path of a file as a text; the bytes of a file unchanged."""
    return reference if isinstance(reference, bytes) else str(reference)


def _as_turns(value: Any) -> Any:
    """Return a response as a text or a list of turns.

    A list of parts becomes the content of one turn of the assistant. Other values are returned
    unchanged.
    """
    is_list_of_parts = isinstance(value, list) and all(
        isinstance(part, dict) and "type" in part for part in value
    )
    if value and is_list_of_parts:
        return [{"role": "assistant", "content": value}]
    return value


def _as_text_or_parts(value: Any) -> Any:
    """Return a response that was read without errors as a text, or as a list of parts."""
    if isinstance(value, str):
        return value
    [turn] = _as_turns(value)
    content = turn["content"]
    if isinstance(content, str):
        return content
    if all(part["type"] == "text" for part in content):
        return "".join(part["text"] for part in content)
    parts: list[dict[str, Any]] = []
    for part in content:
        # Arrow gives all structs of a list the same keys, with None for those of other types.
        parts.append({key: item for key, item in part.items() if item is not None})
    return parts
