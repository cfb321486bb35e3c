"""What the preparation notes about each row: 40 bytes and its images' sizes, from which filters, plans and cards are computed.

A row index does not depend on filters, weights, caps or pixel limits, so that changing those never reads the data again.
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
"""Why a row is not used; `reason` in ROW is an index into this table. The last six come from the filters."""
SKIPPED = [REASONS.index("bad_record"), REASONS.index("bad_image")]
"""The reasons that the policy on records that cannot be used is about; all others are rules of a source or of the recipe."""
EXAMPLES = 5
"""Different faults of skipped records that are kept of each block of rows."""
ROW = np.dtype(
    [
        ("reason", "u1"),
        ("flags", "u1"),
        ("images", "u2"),
        ("text_tokens", "u4"),  # prompt and both responses, estimated
        ("chosen", "u4"),  # characters
        ("rejected", "u4"),
        ("prompt_key", "u8"),  # equal for equal prompts on equal images
        (
            "pair_key",
            "u8",
        ),  # equal for equal prompts with the same two responses, whichever is preferred
        ("record_key", "u8"),  # equal for equal records, to the letter and with all that they carry
    ]
)
IDENTICAL, MARKERS, REFUSAL, ORDER = 1, 2, 4, 8
"""Bits of `flags`; ORDER tells which of the two responses of a `pair_key` was chosen."""
RATIONALE, KEEPS_ORDER, REJECTED_FIRST = 16, 32, 64
"""More bits of `flags`: the record has a rationale; it cannot be rewritten for the other order of
the responses; the response that it calls Response 1 is the rejected one."""
BYTES_PER_TOKEN = 4
"""Rule of thumb for English and code with Qwen's tokenizer; the packer counts exactly, later."""
LEFT_OVER_MARKER = re.compile(r"<(?:image|video|ImageHere|img)>|\[(?:IMAGE|IMG)\]")
"""What data sets leave in texts for an image. Of these `<image>` and `<video>` are refused before;
see data/markers.py."""
LANGUAGE_MODEL_REFUSAL = re.compile(
    r"\bas an? (?:AI )?(?:large )?(?:language model|text[- ]based (?:AI|assistant|model))"
    r"|\b(?:can(?:no|')t|unable to|not able to) (?:view|see|access|process|analy[sz]e|display) "
    r"(?:the |any |this )?(?:images?|pictures?|photos?)",
    re.IGNORECASE,
)
"""A language model's remark that it is one or cannot see; a plain refusal ("I can't help with that") is left alone."""


@dataclass(frozen=True)
class RowIndex:
    """What is known of rows: (rows,) of ROW, and (height, width) of all their images in the same order."""

    rows: npt.NDArray[np.void]
    sizes: npt.NDArray[np.uint32]
    faults: dict[str, int]
    """Messages about skipped rows, each with how many rows have the same fault."""
    content: str = ""
    """Of a whole source: changes with the records, and only with them; 16 hexadecimal digits."""
    folder: Path | None = None
    """Where the arrays are mapped from; None for arrays in memory."""

    @classmethod
    def open(cls, folder: Path) -> RowIndex:
        """Return the row index of a source that was read through, memory-mapped."""
        rows, sizes = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("rows", "sizes"))
        return cls(rows, sizes, **json.loads((folder / "summary.json").read_text()), folder=folder)

    def __reduce__(self) -> Any:
        """Pickle small: another process maps the files itself."""
        return super().__reduce__() if self.folder is None else (RowIndex.open, (self.folder,))

    @property
    def skipped(self) -> int:
        """The number of rows that cannot be used."""
        return int(np.isin(self.rows["reason"], SKIPPED).sum())

    def image_tokens(self, count: ImageTokens) -> npt.NDArray[np.int64]:
        """Return the number of image tokens of each row, int64 of shape (rows,)."""
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(count(self.sizes))])
        ends = np.cumsum(self.rows["images"], dtype=np.int64)
        return np.asarray(total[ends] - total[ends - self.rows["images"]])


def index_rows(source: Source, rows: Iterable[int], strict: bool = False) -> RowIndex:
    """Read and check some rows of a source; raise the first RecordError if `strict`."""
    found: list[tuple[int, ...]] = []
    sizes: list[tuple[int, int]] = []
    faults: dict[str, int] = {}
    for row in rows:
        try:
            record = source.record(row)
            if record.is_question or (visible(record.chosen) and visible(record.rejected)):
                entry, its_sizes = _entry(validate(record))
                found.append(entry)
                sizes += its_sizes
                continue
            reason = "empty"
        except LeftOut as left_out:
            reason = left_out.reason
        except MarkerInTextError as error:
            if strict:
                raise
            reason = "markers"
            faults = count_faults([*faults.items(), (str(error), 1)], EXAMPLES)
        except RecordError as error:
            if strict:
                raise
            reason = "bad_image" if isinstance(error, ImageError) else "bad_record"
            faults = count_faults([*faults.items(), (str(error), 1)], EXAMPLES)
        found.append((REASONS.index(reason), *[0] * 8))
    return RowIndex(np.array(found, ROW), np.array(sizes, np.uint32).reshape(-1, 2), faults)


def prompt_key(record: Preference) -> int:
    """Return the 64-bit key of a prompt: its texts, regardless of case and white space, and the contents of its images.

    Identities are labels and no keys: two sources may use the same ones.

    Raises: ImageError for an image file that cannot be read.
    """
    return _keys(record)[0]


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


def _entry(record: Preference) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Return a value of ROW and the sizes of the images."""
    sizes = [image_size(image, record.identity) for image in record.images]
    responses = (record.chosen, record.rejected)
    written = (*texts(record.prompt), *responses)
    flags = (
        IDENTICAL * (record.chosen.split() == record.rejected.split() and not record.is_question)
        | MARKERS * any(map(LEFT_OVER_MARKER.search, written))
        | REFUSAL * any(map(LANGUAGE_MODEL_REFUSAL.search, responses))
        | ORDER * (normalised(record.chosen) < normalised(record.rejected))
    )
    if record.rationale is not None:
        flags |= RATIONALE
        flags |= KEEPS_ORDER * (obstacle(record.rationale) is not None)
        flags |= REJECTED_FIRST * (record.first_in_rationale == "rejected")
    tokens = sum(len(text.encode(errors="surrogatepass")) for text in written) // BYTES_PER_TOKEN
    return (
        REASONS.index("kept"),
        flags,
        len(sizes),
        tokens,
        *map(len, responses),
        *_keys(record),
    ), sizes


def _keys(record: Preference) -> tuple[int, int, int]:
    try:
        images = list(map(content_digest, record.images))
    except OSError as error:
        raise ImageError(f"{record.identity}: an image cannot be read ({error}).") from error
    prompt = [*images, *map(normalised, texts(record.prompt))]
    responses = sorted((normalised(record.chosen), normalised(record.rejected)))
    carried = (
        record.margin,
        record.chosen_critique,
        record.rejected_critique,
        record.rationale,
        record.source,
        record.category,
    )
    known = () if record.truth is None else (record.truth,)
    order = () if record.first_in_rationale == "chosen" else (record.first_in_rationale,)
    whole = (images, record.prompt, record.chosen, record.rejected, *carried, *known, *order)
    return hash64(repr(prompt)), hash64(repr((prompt, responses))), hash64(repr(whole))
