"""Read files of prompts with responses, one record in each row: JSON lines, JSON, parquet or Arrow.

    {"prompt": "Which colour is the cat?", "images": ["cats/1.png"], "responses": ["Black.", "White."]}

The prompt is in `prompt` (a text or turns) or `messages` (turns), in the forms that
`mmrm.models.portable.conversations` reads. The responses are in `responses`, or a single one is in
`response` or `completion`, or the two of a preference record are in `chosen` and `rejected`. In TRL's
forms these two may contain the prompt. Each response is a text or one assistant turn. Images are in the
turns, in `images` or in `image`: as paths below the image folder, data URIs, or structs {bytes, path}.
Other columns are allowed.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.images import image_size
from mmrm.data.limits import DEFAULTS, Limits, written_sizes
from mmrm.data.preference import EncodedImage
from mmrm.data.preparation.mixing import CACHE
from mmrm.data.regular_files import require_regular
from mmrm.data.sources.shared.conversation import response_text
from mmrm.data.sources.shared.file_source import (
    CONVERSION_ERRORS,
    MAX_MESSAGE_LENGTH,
    SourceRow,
    refuse_media_columns,
)
from mmrm.data.sources.trl import split_pair
from mmrm.data.storage.archives import Folder
from mmrm.data.storage.row_files import Rows, open_rows
from mmrm.eval.verifiers import Verifying
from mmrm.models.portable.conversations import ConversationError, read_conversation, refuse_markers

RESPONSES = ("responses", "response", "completion")


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt with its images and the responses to it, as read from one record."""

    turns: list[dict[str, Any]]
    """The turns of the prompt. Their contents are lists of parts; an image is {"type": "image"}."""
    references: tuple[bytes | Path, ...]
    """The images in the order of their parts: a path as the record names it, or the bytes of a file."""
    images: tuple[EncodedImage, ...]
    """The same images, with resolved paths."""
    responses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """An opened file of prompts with responses, whose records are read one by one."""

    path: Path
    rows: Rows
    images: Folder
    limits: Limits = DEFAULTS

    def row(self, number: int) -> SourceRow:
        """Return the row with this number; raise RecordError if it cannot be read."""
        return SourceRow(f"row {number}", self.rows.row(number), self.images)

    def answered(self, row: SourceRow) -> Answered:
        """Return the prompt and the responses of a row.

        Raises:
            RecordError: If the row cannot be judged. The message names the row.
        """
        try:
            return _answered(row, self.limits)
        except RecordError as error:
            # An ImageError names the row already.
            message = str(error) if isinstance(error, ImageError) else f"{row.identity}: {error}"
            raise RecordError(message[:MAX_MESSAGE_LENGTH]) from error
        except ConversationError as error:
            raise RecordError(f"{row.identity}: {error}"[:MAX_MESSAGE_LENGTH]) from error
        except CONVERSION_ERRORS as error:
            message = f"{row.identity}: it cannot be read as a prompt with responses ({type(error).__name__}: {error})"
            raise RecordError(message[:MAX_MESSAGE_LENGTH]) from error

    def refuse_contradiction(self, verifying: Verifying) -> None:
        """Raise UserError if `verifying` contradicts the verdicts or the rule that a record holds.

        Commands call this first, so that they do not judge for hours before they find such a record.
        Records that cannot be read are skipped, because the commands report them later.
        """
        for number in range(len(self.rows)):
            try:
                row = self.row(number)
                verifying.refuse_other_rule(row.columns)
                if isinstance(row.columns.get("right"), list):
                    verifying.right(row.columns, self.answered(row).responses)
            except RecordError:
                continue


def open_records(path: Path, image_root: Path | None, limits: Limits = DEFAULTS) -> RecordFile:
    """Open a file of prompts with responses.

    Args:
        path: The file.
        image_root: The folder that paths of images are relative to and may not leave. None is the
            folder of the file.
        limits: The limits on the size of a record.

    Raises:
        UserError: If the file or the folder does not exist, if the file is of another kind, or if it
            has no record.
    """
    if os.path.lexists(path):
        require_regular(path)
    root = image_root or path.parent
    if not path.is_file():
        raise UserError(f"{path}: there is no such file.")
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder.")
    rows = open_rows([path], CACHE)
    if not len(rows):
        raise UserError(f"{path}: the file holds no record.")
    return RecordFile(path, rows, Folder(root), limits)


def _answered(row: SourceRow, limits: Limits) -> Answered:
    """Return the prompt and the responses of a row; the message of an error does not name the row."""
    columns = row.columns
    refuse_media_columns(columns)
    given = [name for name in RESPONSES if columns.get(name) is not None]
    messages: Any = row.optional_value("messages", list)
    if messages is None:
        messages = row.optional_value("prompt", str | list)
    if given:
        name = given[0]
        value = row.value(name, list | str)
        if name == "responses" and isinstance(value, str):
            raise RecordError(
                "'responses' is one text; required is a list. A single response is named `response`."
            )
        values = value if name == "responses" and isinstance(value, list) else [value]
        responses = [response_text(text_or_turns) for text_or_turns in values]
    elif columns.get("chosen") is None or columns.get("rejected") is None:
        names = ", ".join(map(repr, sorted(columns)))
        raise RecordError(
            f"there are no responses; found are {names}; required is one of {', '.join(RESPONSES)}, or chosen and rejected."
        )
    elif messages is None:
        messages, *responses = split_pair(row)
    else:
        responses = [response_text(row.value(name, str | list)) for name in ("chosen", "rejected")]
    if messages is None:
        raise RecordError(
            f"there is neither 'prompt' nor 'messages'; found are {', '.join(map(repr, sorted(columns)))}."
        )
    images: Any = columns.get("images")
    if images is None:
        images = columns.get("image")
    if images is None:
        images = []
    for name, count in written_sizes(messages, responses, images).items():
        limits.refuse(name, count, f"start with `--max-{name} N`")
    listed_images = images if isinstance(images, list) else [images]
    turns, images_in_order = read_conversation(messages, listed_images)
    refuse_markers(responses)
    # `read_conversation` may also return opened images, which a file cannot hold.
    references = tuple(image for image in images_in_order if isinstance(image, bytes | Path))
    resolved: list[EncodedImage] = []
    for reference in references:
        resolved.append(row.image(reference if isinstance(reference, bytes) else str(reference)))
    for image in resolved:
        image_size(image, row.identity)  # raises ImageError if the file holds no image
    return Answered(turns, references, tuple(resolved), tuple(responses))
