"""Which rows of a source a mixture leaves out: vectorised over the facts, so that a change costs no reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from data.config.section import Section
from data.errors import UserError
from data.preparation.row_index import IDENTICAL, MARKERS, REASONS, REFUSAL, RowIndex

SCHEME, WRITER = "Fingerprints in which an image counts by its content", "found by eval/overlap.py"
"""Remarks in a `leave_out` file: what eval/overlap.py writes, and what it always wrote; of old, images counted by their size."""


class FilterConfig(Section):
    """Rules that leave rows out; each is counted under its own name in the data card."""

    identical: bool = True
    """Two responses that differ in white space only."""
    markers: bool = True
    """A place holder such as <image> left over in the text of a prompt or response."""
    refusals: bool = False
    """A response in which a language model says that it is one, or that it cannot see images."""
    length_gap: float | None = Field(default=None, gt=1)
    """The chosen response is more than this many times as long as the rejected one (IXC-2.5-Reward drops such pairs)."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Images, prompt and both responses come to more than this many tokens (text is estimated at four bytes a token)."""
    leave_out: str | None = None
    """A file of fingerprints, one of 16 hexadecimal digits a line, of the records to leave out (eval/overlap.py writes it)."""


@dataclass(frozen=True)
class Filters:
    """The filters of a recipe with what they need from elsewhere."""

    config: FilterConfig
    fingerprints: npt.NDArray[np.uint64]
    """Sorted, as `read_fingerprints` returns them."""
    min_pixels: int
    max_pixels: int
    """The backbone's limits per image."""


def apply(filters: Filters, facts: RowIndex) -> npt.NDArray[np.uint8]:
    """Return for each row the index into REASONS after the filters; a row counts under the first filter that it fails."""
    config, rows = filters.config, facts.rows
    reasons = np.array(rows["reason"])
    rules = {
        "identical": config.identical & ((rows["flags"] & IDENTICAL) > 0),
        "markers": config.markers & ((rows["flags"] & MARKERS) > 0),
        "refusal": config.refusals & ((rows["flags"] & REFUSAL) > 0),
        "length_gap": _much_longer(config.length_gap, facts),
        "too_long": _too_long(filters, facts),
        "overlap": np.isin(rows["pair_key"], filters.fingerprints),
    }
    for name, hit in rules.items():
        reasons[hit & (reasons == REASONS.index("kept"))] = REASONS.index(name)
    return reasons


def _much_longer(length_gap: float | None, facts: RowIndex) -> npt.NDArray[np.bool_]:
    if length_gap is None:
        return np.zeros(len(facts.rows), np.bool_)
    return np.asarray(facts.rows["chosen"] > length_gap * facts.rows["rejected"].astype(np.float64))


def _too_long(filters: Filters, facts: RowIndex) -> npt.NDArray[np.bool_]:
    if filters.config.max_tokens is None:
        return np.zeros(len(facts.rows), np.bool_)
    tokens = facts.rows["text_tokens"] + facts.image_tokens(filters.min_pixels, filters.max_pixels)
    return np.asarray(tokens > filters.config.max_tokens)


def read_fingerprints(path: str | None) -> npt.NDArray[np.uint64]:
    """Return the sorted fingerprints of a `leave_out` file; lines that begin with # are comments.

    Raises: UserError naming file and line for a missing file, one of an older scheme, or anything but 16 hexadecimal digits.
    """
    if path is None:
        return np.empty(0, np.uint64)
    found = []
    try:
        content = Path(path).expanduser().read_text()
    except OSError as error:
        raise UserError(f"filters.leave_out: the file of fingerprints {path} cannot be read ({error}).") from error
    if WRITER in content and SCHEME not in content:
        raise UserError(
            f"{path}: an earlier version wrote these fingerprints, which tell images apart by length and size only; required are "
            "those of their content, else none of the listed records is left out. Run eval/overlap.py again."
        )
    for number, line in enumerate(content.splitlines(), start=1):
        digits = line.partition("#")[0].strip()
        if not digits:
            continue
        if len(digits) != 16 or not set(digits) <= set("0123456789abcdef"):
            raise UserError(f"{path}, line {number}: {line!r} is no fingerprint; required are 16 hexadecimal digits.")
        found.append(int(digits, 16))
    return np.unique(np.array(found, np.uint64))
