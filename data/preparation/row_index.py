"""The row index of a source: 40 bytes about each row, and the sizes of its images.

Filters, packing plans and data cards are computed from it. A row index does not depend on filters,
weights, caps or pixel limits, so that a change of those does not read the data again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import ImageError, LeftOut, MarkerInTextError, RecordError
from mmrm.data.images import ImageTokens, image_size
from mmrm.data.preference import Preference, texts, validate, visible
from mmrm.data.preparation.faults import count_faults
from mmrm.data.rationales import obstacle
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.files import content_digest, hash64

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
"""The reasons for which a row is not used; `reason` in ROW is an index into this table. The last
six come from the filters."""
SKIPPED = [REASONS.index("bad_record"), REASONS.index("bad_image")]
"""Reasons of records that cannot be used, to which `bad_records` of a recipe applies. All others
are rules of a source or of the recipe."""
EXAMPLES = 5
"""Number of different faults of skipped records that are kept of each block of rows."""
ROW = np.dtype(
    [
        ("reason", "u1"),
        ("flags", "u1"),
        ("images", "u2"),
        ("text_tokens", "u4"),  # prompt and both responses, estimated
        ("chosen", "u4"),  # characters
        ("rejected", "u4"),
        ("prompt_key", "u8"),  # equal for equal prompts on equal images
        # Equal for equal prompts with the same two responses, whichever is preferred.
        ("pair_key", "u8"),
        ("record_key", "u8"),  # equal for records that are equal in everything but their identity
    ]
)

# Bits of `flags`
IDENTICAL = 1
"""The two responses differ in white space only."""
MARKERS = 2
"""A text contains a LEFT_OVER_MARKER."""
REFUSAL = 4
"""A response contains a LANGUAGE_MODEL_REFUSAL."""
ORDER = 8
"""The chosen response comes first in alphabetical order. Records with equal `pair_key` and
different ORDER prefer different responses."""
RATIONALE = 16
"""The record has a rationale."""
KEEPS_ORDER = 32
"""The rationale cannot be rewritten for the other order of the responses."""
REJECTED_FIRST = 64
"""The rationale calls the rejected response Response 1."""

BYTES_PER_TOKEN = 4
"""Rule of thumb for English and code with Qwen's tokenizer; the packer counts exactly, later."""
LEFT_OVER_MARKER = re.compile(r"<(?:image|video|ImageHere|img)>|\[(?:IMAGE|IMG)\]")
"""Markers that data sets leave in texts for an image. `<image>` and `<video>` are refused before;
see data/markers.py."""
LANGUAGE_MODEL_REFUSAL = re.compile(
    r"\bas an? (?:AI )?(?:large )?(?:language model|text[- ]based (?:AI|assistant|model))"
    r"|\b(?:can(?:no|')t|unable to|not able to) (?:view|see|access|process|analy[sz]e|display) "
    r"(?:the |any |this )?(?:images?|pictures?|photos?)",
    re.IGNORECASE,
)
"""A language model's remark that it is one, or that it cannot see. A plain refusal ("I can't help
with that") does not match."""


@dataclass(frozen=True)
class RowIndex:
    """The index of all or of some rows of a source."""

    rows: npt.NDArray[np.void]
    """One ROW for each row, (rows,)."""
    sizes: npt.NDArray[np.uint32]
    """Height and width of all images of all rows, in their order, (images, 2)."""
    faults: dict[str, int]
    """Messages about skipped rows, each with the number of rows that have the same fault."""
    content: str = ""
    """Digest of all records of a source, 16 hexadecimal digits; empty for some rows."""
    folder: Path | None = None
    """The folder that the arrays are mapped from; None for arrays in memory."""

    @classmethod
    def open(cls, folder: Path) -> RowIndex:
        """Return the row index that `scan` wrote into a folder, memory-mapped."""
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        sizes = np.load(folder / "sizes.npy", mmap_mode="r")
        summary = json.loads((folder / "summary.json").read_text())
        return cls(rows, sizes, summary["faults"], summary["content"], folder)

    def __reduce__(self) -> Any:
        """Pickle the folder only, if there is one: another process maps the files itself."""
        if self.folder is None:
            return super().__reduce__()
        return RowIndex.open, (self.folder,)

    @property
    def skipped(self) -> int:
        """The number of rows that cannot be used."""
        return int(np.isin(self.rows["reason"], SKIPPED).sum())

    def image_tokens(self, count: ImageTokens) -> npt.NDArray[np.int64]:
        """Return the number of image tokens of each row, int64 of shape (rows,).

        Example: three rows with 1, 0 and 2 images, whose images have 10, 20 and 30 tokens, have 10,
        0 and 50 tokens.
        """
        tokens_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(count(self.sizes))])
        ends = np.cumsum(self.rows["images"], dtype=np.int64)
        starts = ends - self.rows["images"]
        return np.asarray(tokens_before[ends] - tokens_before[starts])


def index_rows(source: Source, rows: Iterable[int], strict: bool = False) -> RowIndex:
    """Read and check some rows of a source; raise the first RecordError if `strict`."""
    entries: list[tuple[int, ...]] = []
    sizes: list[tuple[int, int]] = []
    faults: dict[str, int] = {}
    for row in rows:
        try:
            record = _usable_record(source, row)
            sizes_of_row = [image_size(image, record.identity) for image in record.images]
            entries.append(_entry(record))
            sizes += sizes_of_row
        except LeftOut as left_out:
            entries.append(_entry_left_out(left_out.reason))
        except RecordError as error:
            if strict:
                raise
            entries.append(_entry_left_out(_reason_of(error)))
            faults = count_faults([*faults.items(), (str(error), 1)], EXAMPLES)
    return RowIndex(np.array(entries, ROW), np.array(sizes, np.uint32).reshape(-1, 2), faults)


def _usable_record(source: Source, row: int) -> Preference:
    """Return a validated record; raise LeftOut if a response is empty."""
    record = source.record(row)
    has_responses = visible(record.chosen) and visible(record.rejected)
    if not has_responses and not record.is_question:
        raise LeftOut("empty", f"{record.identity}: a response is empty.")
    return validate(record)


def _reason_of(error: RecordError) -> str:
    """Return the member of REASONS for a record that cannot be used."""
    if isinstance(error, MarkerInTextError):
        return "markers"
    if isinstance(error, ImageError):
        return "bad_image"
    return "bad_record"


def prompt_key(record: Preference) -> int:
    """Return the 64-bit key of a prompt.

    It depends on the texts, regardless of case and white space, and on the contents of the images.
    It does not depend on the identity, which is a label: two sources may use the same ones.

    Raises: ImageError for an image file that cannot be read.
    """
    return _keys(record).prompt


def pair_key(record: Preference) -> int:
    """Return the 64-bit key of a prompt with its images and its two responses.

    It is equal whichever of the responses is preferred. An image counts by its encoded content,
    wherever the file is. This is the fingerprint that `filters.leave_out` lists, in 16 hexadecimal
    digits.

    Raises: ImageError for an image file that cannot be read.
    """
    return _keys(record).pair


def normalised(text: str) -> str:
    """Return `text` in lower case with single spaces, so that copies of a response are equal."""
    return " ".join(text.casefold().split())


def _entry(record: Preference) -> tuple[int, ...]:
    """Return the values of ROW for a usable record."""
    prompt_and_responses = (*texts(record.prompt), record.chosen, record.rejected)
    num_bytes = sum(len(text.encode(errors="surrogatepass")) for text in prompt_and_responses)
    keys = _keys(record)
    return (
        REASONS.index("kept"),
        _flags(record),
        len(record.images),
        num_bytes // BYTES_PER_TOKEN,
        len(record.chosen),
        len(record.rejected),
        keys.prompt,
        keys.pair,
        keys.record,
    )


def _entry_left_out(reason: str) -> tuple[int, ...]:
    """Return the entry of the row index, with the fields of ROW, for a record that is left out.

    `reason` is one of REASONS; all other fields are 0.
    """
    return (REASONS.index(reason), 0, 0, 0, 0, 0, 0, 0, 0)


def _flags(record: Preference) -> int:
    """Return the field `flags` of a record's entry in the row index, a sum of the bits above."""
    flags = 0
    responses = (record.chosen, record.rejected)
    is_identical = record.chosen.split() == record.rejected.split()
    if is_identical and not record.is_question:
        flags |= IDENTICAL
    if any(map(LEFT_OVER_MARKER.search, (*texts(record.prompt), *responses))):
        flags |= MARKERS
    if any(map(LANGUAGE_MODEL_REFUSAL.search, responses)):
        flags |= REFUSAL
    if normalised(record.chosen) < normalised(record.rejected):
        flags |= ORDER
    if record.rationale is not None:
        flags |= RATIONALE
        if obstacle(record.rationale) is not None:
            flags |= KEEPS_ORDER
        if record.first_in_rationale == "rejected":
            flags |= REJECTED_FIRST
    return flags


@dataclass(frozen=True, slots=True)
class _RecordKeys:
    """The three 64-bit keys of ROW; see there."""

    prompt: int
    pair: int
    record: int


def _keys(record: Preference) -> _RecordKeys:
    """Return the keys of a record; raise ImageError if an image file cannot be read."""
    try:
        images = [content_digest(image) for image in record.images]
    except OSError as error:
        raise ImageError(f"{record.identity}: an image cannot be read ({error}).") from error
    prompt = [*images, *map(normalised, texts(record.prompt))]
    responses = sorted((normalised(record.chosen), normalised(record.rejected)))
    everything: tuple[object, ...] = (
        images,
        record.prompt,
        record.chosen,
        record.rejected,
        record.margin,
        record.chosen_critique,
        record.rejected_critique,
        record.rationale,
        record.source,
        record.category,
    )
    # Fields that were added later count only if they are set: other records keep their keys.
    if record.truth is not None:
        everything = (*everything, record.truth)
    if record.first_in_rationale != "chosen":
        everything = (*everything, record.first_in_rationale)
    return _RecordKeys(
        prompt=hash64(repr(prompt)),
        pair=hash64(repr((prompt, responses))),
        record=hash64(repr(everything)),
    )
