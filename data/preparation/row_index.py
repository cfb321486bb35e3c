"""What the preparation notes about each row: 40 bytes and its images' sizes, from which filters, plans and cards are computed.

The facts do not depend on filters, weights, caps or pixel limits, so that changing those never reads the data again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data.errors import ImageError, LeftOut, RecordError
from data.images import image_size, image_tokens, resized_all
from data.preference import Preference, validate
from data.sources.shared.base import Source
from data.storage.files import content_digest, hash64

REASONS = (
    "kept",
    "bad_record",
    "bad_image",
    "tie",
    "small_gap",
    "no_pair",
    "not_asked_for",
    "empty",
    "identical",
    "markers",
    "refusal",
    "length_gap",
    "too_long",
    "overlap",
)
"""Why a row is not used; `reason` in ROW is an index into this table. The last six come from the filters."""
BAD = ("bad_record", "bad_image")
"""The reasons that the policy on bad records is about; all others are rules of a source or of the recipe."""
ROW = np.dtype(
    [
        ("reason", "u1"),
        ("flags", "u1"),
        ("images", "u2"),
        ("text_tokens", "u4"),  # prompt and both responses, estimated
        ("chosen", "u4"),  # characters
        ("rejected", "u4"),
        ("prompt_key", "u8"),  # equal for equal prompts on equal images
        ("pair_key", "u8"),  # equal for equal prompts with the same two responses, whichever is preferred
        ("record_key", "u8"),  # equal for equal records, to the letter and with all that they carry
    ]
)
IDENTICAL, MARKERS, REFUSAL, ORDER = 1, 2, 4, 8
"""Bits of `flags`; ORDER tells which of the two responses of a `pair_key` was chosen."""
BYTES_PER_TOKEN = 4
"""Rule of thumb for English and code with Qwen's tokenizer; the packer counts exactly, later."""
LEFT_OVER_MARKER = re.compile(r"<(?:image|video|ImageHere|img)>|\[(?:IMAGE|IMG)\]")
LANGUAGE_MODEL_REFUSAL = re.compile(
    r"\bas an? (?:AI )?(?:large )?(?:language model|text[- ]based (?:AI|assistant|model))"
    r"|\b(?:can(?:no|')t|unable to|not able to) (?:view|see|access|process|analy[sz]e|display) "
    r"(?:the |any |this )?(?:images?|pictures?|photos?)",
    re.IGNORECASE,
)
"""A language model's remark that it is one or cannot see; a plain refusal ("I can't help with that") is left alone."""


@dataclass(frozen=True)
class RowIndex:
    """The facts about all rows of a source: (rows,) of ROW, and (height, width) of all images in the order of the rows."""

    rows: npt.NDArray[np.void]
    sizes: npt.NDArray[np.uint32]

    def image_tokens(self, min_pixels: int, max_pixels: int) -> npt.NDArray[np.int64]:
        """Return the number of image tokens of each row, int64 of shape (rows,)."""
        sides = resized_all(self.sizes, min_pixels, max_pixels) // 28
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(sides[:, 0] * sides[:, 1])])
        ends = np.cumsum(self.rows["images"], dtype=np.int64)
        return np.asarray(total[ends] - total[ends - self.rows["images"]])


class RowFacts(NamedTuple):
    """What was found in one row."""

    row: tuple[Any, ...]
    """A value of ROW."""
    sizes: Sequence[tuple[int, int]] = ()
    error: RecordError | None = None
    """Why the record is bad; None also where a rule leaves it out."""


def facts_of(source: Source, index: int) -> RowFacts:
    """Read and check record `index` of a source."""
    try:
        record = source.record(index)
        if not record.chosen.strip() or not record.rejected.strip():
            return RowFacts(_nothing("empty"))
        return _facts(validate(record))
    except LeftOut as left_out:
        return RowFacts(_nothing(left_out.reason))
    except ImageError as error:
        return RowFacts(_nothing("bad_image"), error=error)
    except RecordError as error:
        return RowFacts(_nothing("bad_record"), error=error)


def pair_key(record: Preference) -> int:
    """Return the 64-bit key of a prompt (with its images) and its two responses, equal whichever of them is preferred.

    An image counts by its encoded content: wherever it lies, and no other. This is the fingerprint that
    `filters.leave_out` lists, in 16 hexadecimal digits.

    Raises: ImageError for an image file that cannot be read.
    """
    return _keys(record)[1]


def normalised(text: str) -> str:
    """Return `text` in lower case with single spaces: what two copies of a response have in common."""
    return " ".join(text.casefold().split())


def _nothing(reason: str) -> tuple[Any, ...]:
    return (REASONS.index(reason), 0, 0, 0, 0, 0, 0, 0, 0)


def _facts(record: Preference) -> RowFacts:
    sizes = [image_size(image, record.identity) for image in record.images]
    for height, width in sizes:
        check_shape(height, width, record.identity)
    texts = (*_prompt_texts(record), record.chosen, record.rejected)
    tokens = sum(len(text.encode(errors="surrogatepass")) for text in texts) // BYTES_PER_TOKEN
    row = (
        REASONS.index("kept"),
        _flags(record),
        len(sizes),
        tokens,
        len(record.chosen),
        len(record.rejected),
        *_keys(record),
    )
    return RowFacts(row, sizes)


def check_shape(height: int, width: int, identity: str) -> None:
    """Raise ImageError naming the record for a shape that the backbone's image processor refuses."""
    try:
        image_tokens(height, width)
    except ValueError as error:
        raise ImageError(f"{identity}: {error}.") from error


def _flags(record: Preference) -> int:
    chosen, rejected = normalised(record.chosen), normalised(record.rejected)
    responses = (record.chosen, record.rejected)
    return (
        IDENTICAL * (record.chosen.split() == record.rejected.split())
        | MARKERS * any(LEFT_OVER_MARKER.search(text) is not None for text in (*_prompt_texts(record), *responses))
        | REFUSAL * any(LANGUAGE_MODEL_REFUSAL.search(text) is not None for text in responses)
        | ORDER * (chosen < rejected)
    )


def _keys(record: Preference) -> tuple[int, int, int]:
    try:
        images = list(map(content_digest, record.images))
    except OSError as error:
        raise ImageError(f"{record.identity}: an image cannot be read ({error}).") from error
    prompt = [*images, *map(normalised, _prompt_texts(record))]
    responses = sorted((normalised(record.chosen), normalised(record.rejected)))
    carried = (record.margin, record.chosen_critique, record.rejected_critique, record.rationale, record.source, record.category)
    whole = (images, record.prompt, record.chosen, record.rejected, *carried)
    return hash64(repr(prompt)), hash64(repr((prompt, responses))), hash64(repr(whole))


def _prompt_texts(record: Preference) -> list[str]:
    return [part["text"] for message in record.prompt for part in message["content"] if part["type"] == "text"]
