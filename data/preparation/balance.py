"""Balanced sampling: records are left out until chosen shortcuts predict nothing.

A shortcut is a property of responses that says nothing about their quality, such as their length
(`mmrm.data.text_shortcuts`). Its sign in a record is 1 if the preferred response has more of it, -1
if it has less, and 0 if both have equally much.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import UserError
from mmrm.data.preparation.row_index import RowIndex, ShortcutArrays
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.text_shortcuts import SHORTCUTS, UNKNOWN

LEFT_OUT = "unbalanced"
"""The reason under which the data card counts records that balancing leaves out."""


def signs_of(shortcuts: ShortcutArrays, names: Sequence[str]) -> npt.NDArray[np.int8]:
    """Return the signs of some shortcuts, int8 of shape (records, names); 0 if one is not known.

    Args:
        shortcuts: Signs of all shortcuts, as in a row index.
        names: Keys of SHORTCUTS.
    """
    all_names = list(SHORTCUTS)
    columns = [all_names.index(name) for name in names]
    signs = np.array(shortcuts[:, columns])
    signs[signs == UNKNOWN] = 0
    return signs


def balanced(
    signs: npt.NDArray[np.int8], record_keys: npt.NDArray[np.uint64], seed: int
) -> npt.NDArray[np.bool_]:
    """Return whether each record is kept, so that no shortcut predicts which response is preferred.

    The signs of a record in all chosen shortcuts are its pattern, such as (1, -1). Exchanging both
    responses of a record would give it the opposite pattern, (-1, 1). As many records are kept of a
    pattern as of the opposite one: all of the rarer of both. Therefore neither a single shortcut
    nor any combination of them predicts anything in the kept records. All records whose pattern is
    0 in every shortcut are kept.

    Which records of the more frequent pattern are kept depends on their content and the seed alone.

    Example: of three records with the pattern (1,), one with (-1,) and two with (0,), the result
    keeps one, one and two.

    Args:
        signs: The signs of the chosen shortcuts, int8 of shape (records, shortcuts).
        record_keys: Numbers that depend on the content of each record, (records,).
        seed: The seed.
    """
    weights = 3 ** np.arange(signs.shape[1], dtype=np.int64)
    # The pattern as one number. The number of the opposite pattern is its negative.
    patterns = signs.astype(np.int64) @ weights
    different, pattern_numbers, counts = np.unique(
        patterns, return_inverse=True, return_counts=True
    )
    indices_of_opposite = np.searchsorted(different, -different) % max(1, len(different))
    has_opposite = different[indices_of_opposite] == -different
    counts_of_opposite = np.where(has_opposite, counts[indices_of_opposite], 0)
    counts_to_keep = np.minimum(counts, counts_of_opposite)  # 0 is its own opposite

    # The records of each pattern follow one another in `sequence`, in random order.
    sequence = np.lexsort((record_keys, _drawn_numbers(record_keys, seed), pattern_numbers))
    first_of_pattern = np.cumsum(counts) - counts
    positions_in_pattern = np.empty(len(patterns), np.int64)
    positions_in_pattern[sequence] = (
        np.arange(len(patterns)) - first_of_pattern[pattern_numbers[sequence]]
    )
    return np.asarray(positions_in_pattern < counts_to_keep[pattern_numbers])


def balanced_split(
    split: SourceSplit, row_index: RowIndex, names: Sequence[str], seed: int
) -> SourceSplit:
    """Return a source of which some training rows are left out, so that shortcuts predict nothing.

    The rows that are left out are counted in its `left_out`.

    Args:
        split: The source.
        row_index: The row index of the source, also if it is generated.
        names: Keys of SHORTCUTS.
        seed: The seed that decides which of several records are left out.

    Raises:
        UserError: No record would be left.
    """
    signs = signs_of(row_index.shortcuts[split.rows], names)
    is_kept = balanced(signs, row_index.rows["record_key"][split.rows], seed)
    num_left_out = int((~is_kept).sum())
    if num_left_out == len(split.rows):
        raise UserError(
            f"{split.config.label}: data.balance ({', '.join(names)}) would leave none of its "
            f"{num_left_out:,} records. Required are records of which some prefer the response with "
            "more, and some the response with less. Balance fewer shortcuts, or remove the source."
        )
    left_out = dict(split.left_out)
    if num_left_out:
        left_out[LEFT_OUT] = num_left_out
    return replace(split, rows=split.rows[is_kept], left_out=left_out)


def refuse_unknown(shortcuts: Sequence[ShortcutArrays], names: Sequence[str]) -> None:
    """Raise UserError if a shortcut is not known in a single record of any source.

    Args:
        shortcuts: Signs of all shortcuts in the training rows of each source.
        names: The keys of SHORTCUTS to balance.
    """
    all_names = list(SHORTCUTS)
    for name in names:
        column = all_names.index(name)
        if not any((of_source[:, column] != UNKNOWN).any() for of_source in shortcuts):
            raise UserError(
                f"data.balance has {name!r}, which is not known in a single record: the sources do "
                "not say in which order responses were listed, or have no preferences. Remove it."
            )


def _drawn_numbers(record_keys: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """Return a number for each record that depends on its key and the seed, uint64 (records,).

    Records in the order of these numbers are in random order. This is the output function of
    SplitMix64 (Steele, Lea and Flood 2014), applied to the key plus a number made of the seed.
    """
    digest = hashlib.blake2b(f"balance {seed}".encode(), digest_size=8).digest()
    numbers = record_keys.astype(np.uint64) + np.uint64(int.from_bytes(digest, "little"))
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)))
