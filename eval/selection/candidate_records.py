"""Files of prompts with responses, a record a row: JSON lines, a JSON list, parquet or Arrow.

    {"prompt": "Which colour is the cat?", "images": ["cats/1.png"], "responses": ["Black.", "White."]}

The prompt: `prompt` (a text or turns), or `messages` (turns), in the forms of
`mmrm.models.portable.conversations`. The responses: `responses`, or one as `response` or
`completion`, or the two of a preference record (`chosen` and `rejected`; in TRL's forms
they may hold the prompt); each a text or one assistant turn. Images: in the turns, or in `images` or `image`, as paths under the
image folder, data URIs, or structs {bytes, path}. Other columns are carried along.
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
from mmrm.data.sources.shared.conversation import response
from mmrm.data.sources.shared.file_source import (
    MESSAGE,
    ODD_VALUES,
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
    """A prompt with the responses to it."""

    turns: list[dict[str, Any]]
    """Contents are lists of parts; an image is the part {"type": "image"}."""
    references: tuple[bytes | Path, ...]
    """The images in the order of their parts: a path as the record names it, or the file itself."""
    images: tuple[EncodedImage, ...]
    """The same, paths resolved."""
    responses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of prompts with responses, read by row."""

    path: Path
    rows: Rows
    images: Folder
    limits: Limits = DEFAULTS

    def row(self, number: int) -> SourceRow:
        """Return a row; raise RecordError if it cannot be read."""
        return SourceRow(f"row {number}", self.rows.row(number), self.images)

    def answered(self, row: SourceRow) -> Answered:
        """Return what a row holds; raise RecordError, which names it, for what cannot be judged."""
        try:
            return _answered(row, self.limits)
        except RecordError as error:
            raise RecordError(
                (str(error) if isinstance(error, ImageError) else f"{row.identity}: {error}")[
                    :MESSAGE
                ]
            ) from error
        except ConversationError as error:
            raise RecordError(f"{row.identity}: {error}"[:MESSAGE]) from error
        except ODD_VALUES as error:
            said = f"{row.identity}: it cannot be read as a prompt with responses ({type(error).__name__}: {error})"
            raise RecordError(said[:MESSAGE]) from error

    def refuse_contradiction(self, verifying: Verifying) -> None:
        """Raise UserError if a record holds verdicts, or declares a rule, that `verifying` contradicts.

        For commands that judge for hours before they come to such a record. Records that cannot be
        read are left to them.
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
    """Open a file; paths of images are relative to `image_root`, else to the file's folder, and may not leave it.

    Raises: UserError for what is no such file, and for one without a record.
    """
    if os.path.lexists(path):
        require_regular(path)
    root = image_root or path.parent
    if not path.is_file() or not root.is_dir():
        missing = (
            f"{root}: there is no such folder."
            if path.is_file()
            else f"{path}: there is no such file."
        )
        raise UserError(missing)
    rows = open_rows([path], CACHE)
    if not len(rows):
        raise UserError(f"{path}: the file holds no record.")
    return RecordFile(path, rows, Folder(root), limits)


def _answered(row: SourceRow, limits: Limits) -> Answered:
    columns = row.columns
    refuse_media_columns(columns)
    given = [name for name in RESPONSES if columns.get(name) is not None]
    messages: Any = row.optional("messages", list)
    messages = row.optional("prompt", str | list) if messages is None else messages
    if given:
        held = row.value(given[0], list | str)
        listed = held if given[0] == "responses" and isinstance(held, list) else [held]
        if given[0] == "responses" and isinstance(held, str):
            raise RecordError(
                "'responses' is one text; required is a list. A single response is named `response`."
            )
        responses = [response(one) for one in listed]
    elif columns.get("chosen") is None or columns.get("rejected") is None:
        found = ", ".join(map(repr, sorted(columns)))
        raise RecordError(
            f"there are no responses; found are {found}; required is one of {', '.join(RESPONSES)}, or chosen and rejected."
        )
    elif messages is None:
        messages, *responses = split_pair(row)
    else:
        responses = [response(row.value(name, str | list)) for name in ("chosen", "rejected")]
    if messages is None:
        raise RecordError(
            f"there is neither 'prompt' nor 'messages'; found are {', '.join(map(repr, sorted(columns)))}."
        )
    images: Any = next(
        (columns[name] for name in ("images", "image") if columns.get(name) is not None), []
    )
    for name, count in written_sizes(messages, responses, images).items():
        limits.refuse(name, count, f"start with `--max-{name} N`")
    turns, pictures = read_conversation(messages, images if isinstance(images, list) else [images])
    refuse_markers(responses)
    references = tuple(
        one for one in pictures if isinstance(one, bytes | Path)
    )  # a file holds no opened image
    resolved = tuple(row.image(one if isinstance(one, bytes) else str(one)) for one in references)
    for image in resolved:
        image_size(image, row.identity)
    return Answered(turns, references, resolved, tuple(responses))
