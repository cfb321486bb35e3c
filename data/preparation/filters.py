"""Which rows of a source a mixture leaves out: vectorised over the row index, so that a change costs no reading."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from mmrm.data.config.section import Count, Section
from mmrm.data.errors import SpecialFileError, UserError
from mmrm.data.images import ImageTokens
from mmrm.data.preparation.row_index import IDENTICAL, MARKERS, REASONS, REFUSAL, RowIndex
from mmrm.data.regular_files import read_text

SCHEME, WRITER = "Fingerprints in which an image counts by its content", "found by eval/overlap.py"
"""Comments that eval/overlap.py writes into a `leave_out` file; files without the first identify images by their size alone."""


class FilterConfig(Section):
    """Rules that leave rows out; each is counted under its own name in the data card."""

    identical: bool = True
    """Two responses that differ in white space only."""
    markers: bool = True
    """A marker of another data set for an image, <ImageHere>, <img>, [IMAGE] or [IMG], left in a
    prompt or a response."""
    refusals: bool = False
    """A response in which a language model says that it is one, or that it cannot see images."""
    length_gap: float | None = Field(default=None, gt=1)
    """The chosen response is more than this many times as long as the rejected one (IXC-2.5-Reward drops such pairs)."""
    max_tokens: Count | None = None
    """Images, prompt and both responses come to more than this many tokens (text is estimated at four bytes a token)."""
    leave_out: str | None = None
    """A file of fingerprints, one of 16 hexadecimal digits a line, of the records to leave out (eval/overlap.py writes it)."""


def apply(
    config: FilterConfig, index: RowIndex, fingerprints: npt.NDArray[np.uint64], count: ImageTokens
) -> npt.NDArray[np.uint8]:
    """Return for each row the index into REASONS after the filters; a row counts under the first filter that it fails.

    `fingerprints` are those of `read_fingerprints`, `count` counts the tokens of images.
    """
    rows, gap, limit = index.rows, config.length_gap, config.max_tokens
    reasons = np.array(rows["reason"])
    rules = {
        "identical": config.identical & ((rows["flags"] & IDENTICAL) > 0),
        "markers": config.markers & ((rows["flags"] & MARKERS) > 0),
        "refusal": config.refusals & ((rows["flags"] & REFUSAL) > 0),
        "length_gap": gap is not None
        and rows["chosen"] > gap * rows["rejected"].astype(np.float64),
        "too_long": limit is not None and rows["text_tokens"] + index.image_tokens(count) > limit,
        "overlap": np.isin(rows["pair_key"], fingerprints),
    }
    for name, hit in rules.items():
        reasons[hit & (reasons == REASONS.index("kept"))] = REASONS.index(name)
    return reasons


def read_fingerprints(path: str | None) -> npt.NDArray[np.uint64]:
    """Return the sorted fingerprints of a `leave_out` file; lines that begin with # are comments.

    Raises: UserError naming file and line for a missing file, one of an older scheme, or anything but 16 hexadecimal digits.
    """
    if path is None:
        return np.empty(0, np.uint64)
    file = Path(path).expanduser()
    try:
        content = read_text(file)
    except (OSError, UnicodeDecodeError, SpecialFileError) as error:
        raise UserError(
            f"filters.leave_out: the file of fingerprints {path} cannot be read ({error})."
        ) from error
    if WRITER in content and SCHEME not in content:
        raise UserError(
            f"{path}: an earlier version wrote these fingerprints, which tell images apart by length and size only; required are "
            "those of their content, else none of the listed records is left out. Run eval/overlap.py again."
        )
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        digits = line.partition("#")[0].strip()
        if digits and not re.fullmatch("[0-9a-f]{16}", digits):
            raise UserError(
                f"{path}, line {number}: {line!r} is no fingerprint; required are 16 hexadecimal digits."
            )
        found += [int(digits, 16)] if digits else []
    return np.unique(np.array(found, np.uint64))
