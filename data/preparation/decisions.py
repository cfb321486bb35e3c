"""Decisions about the labels of records: which are left out, and which are flipped.

A recipe names files of decisions in `data.decisions`. Each line of such a file is a JSON object:

    {"key": "0f1e2d3c4b5a6978", "decision": "flip", "source": "mine", "row": 12, "reason": "..."}

`key` names a record by its content (16 hexadecimal digits). It is the `record_key` of the row
index, which is equal for records that are equal in everything but their identity, their preference
included. `decision` is one of DECISIONS. Other fields are for people and are not read. The lists
and the page of train/clean.py have this format.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import SpecialFileError, UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.row_index import (
    KEEPS_ORDER,
    ORDER,
    RATIONALE,
    REASONS,
    REJECTED_FIRST,
    RowIndex,
)
from mmrm.data.regular_files import read_text
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.files import digest
from mmrm.data.text_shortcuts import UNKNOWN

Decision = Literal["keep", "flip", "equal", "leave_out"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)
"""The decisions about a record. `keep` changes nothing, and takes back a decision of an earlier
file. `flip` reverses the ranks. `equal` says that no response is better; such a record is left out,
as ties are by default. `leave_out` leaves the record out."""
REASON_BY_DECISION: Mapping[Decision, str] = {
    "leave_out": "decision",
    "equal": "decided_equal",
}
"""The member of REASONS under which the records of a decision are left out."""
KEY = re.compile("[0-9a-f]{16}")
LABEL_FLAGS = RATIONALE | KEEPS_ORDER | REJECTED_FIRST
"""The bits of `flags` that describe a rationale, which a flipped record has not."""
MAX_SHOWN = 100
"""The most characters of a faulty line that a message shows."""


@dataclass(frozen=True)
class Decisions:
    """The decisions of all files of a recipe, at most one for each record."""

    by_key: Mapping[int, Decision]
    """The decision by the key of the record."""

    @property
    def counts(self) -> dict[Decision, int]:
        """The number of keys with each decision, in the order of DECISIONS, without zeros."""
        counts = Counter(self.by_key.values())
        return {decision: counts[decision] for decision in DECISIONS if counts[decision]}

    def keys_of(self, decision: Decision) -> npt.NDArray[np.uint64]:
        """Return the keys with a decision, ascending, uint64 of shape (keys,)."""
        keys = [key for key, decided in self.by_key.items() if decided == decision]
        return np.sort(np.array(keys, np.uint64))


@dataclass(frozen=True)
class AppliedDecisions:
    """The number of records of a source that each decision was applied to."""

    counts: Mapping[Decision, int]
    """By the decision. Records that were left out before, such as bad ones, do not count."""
    digest: str
    """A digest of the keys and decisions that were applied."""

    def line(self, source: str) -> str:
        """Return the counts of the source named `source` as a line for people."""
        return f"{source}: decisions about labels: {decision_counts_in_words(self.counts)}"


def decision_counts_in_words(counts: Mapping[Decision, int]) -> str:
    """Return counts by decision as words, such as "3 flip, 12 leave_out"; "none" without any."""
    return ", ".join(f"{count:,} {decision}" for decision, count in counts.items()) or "none"


def read_decisions(paths: Sequence[str]) -> Decisions:
    """Return the decisions of all files. A later line, or file, replaces an earlier one of a record.

    Args:
        paths: The files that `data.decisions` names.

    Raises:
        UserError: A file cannot be read, or a line is no decision.
    """
    by_key: dict[int, Decision] = {}
    for path in paths:
        try:
            content = read_text(Path(path).expanduser())
        except (OSError, UnicodeDecodeError, SpecialFileError) as error:
            raise UserError(
                f"data.decisions: the file {path} cannot be read ({error}). Correct the path, or "
                "remove it from the list."
            ) from error
        for number, line in enumerate(content.split("\n"), start=1):
            if line.strip():
                key, decision = _decision_of_line(line, f"{path}, line {number}")
                by_key[key] = decision
    return Decisions(by_key)


def _decision_of_line(line: str, place: str) -> tuple[int, Decision]:
    """Return the key and the decision of a line.

    Args:
        line: The line.
        place: The file and the number of the line, for the message.

    Raises:
        UserError: The line is no decision.
    """
    required = (
        'Required is a JSON object such as {"key": "0f1e2d3c4b5a6978", "decision": "flip"}, with a '
        f"key of 16 hexadecimal digits and one of {', '.join(DECISIONS)}. Correct or remove the "
        "line; train/clean.py writes such files."
    )
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{place}: {line[:MAX_SHOWN]!r} is no JSON object ({error}). {required}"
        ) from error
    if not isinstance(fields, dict):
        raise UserError(f"{place}: {line[:MAX_SHOWN]!r} is no JSON object. {required}")
    key = fields.get("key")
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise UserError(f"{place}: the key is {str(key)[:MAX_SHOWN]!r}. {required}")
    decision = fields.get("decision")
    for known in DECISIONS:
        if decision == known:
            return int(key, 16), known
    raise UserError(f"{place}: the decision is {str(decision)[:MAX_SHOWN]!r}. {required}")


def written_key(key: int) -> str:
    """Return the key of a record as files of decisions have it: 16 hexadecimal digits."""
    return f"{key:016x}"


def reasons_after_decisions(
    decisions: Decisions, index: RowIndex, reasons: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Return the reason for which each row is left out, or "kept", after the decisions.

    The result is uint8 of shape (rows,), and its numbers are indices into REASONS. A row that was
    left out before keeps its reason.

    Args:
        decisions: The decisions.
        index: The row index of a source.
        reasons: Index into REASONS of each row before the decisions, (rows,).
    """
    is_kept = reasons == REASONS.index("kept")
    decided = reasons.copy()
    for decision, reason in REASON_BY_DECISION.items():
        is_named = np.isin(index.rows["record_key"], decisions.keys_of(decision))
        decided[is_named & is_kept] = REASONS.index(reason)
    return decided


def applied_decisions(
    decisions: Decisions, index: RowIndex, reasons: npt.NDArray[np.uint8]
) -> AppliedDecisions:
    """Return the number of rows of a source that each decision was applied to.

    Args:
        decisions: The decisions.
        index: The row index of the source.
        reasons: Index into REASONS of each row after the decisions, (rows,).
    """
    keys = index.rows["record_key"]
    counts: dict[Decision, int] = {}
    applied: list[str] = []
    for decision in DECISIONS:
        reason = REASON_BY_DECISION.get(decision, "kept")
        has_reason = reasons == REASONS.index(reason)
        is_named = np.isin(keys, decisions.keys_of(decision)) & has_reason
        if is_named.any():
            counts[decision] = int(is_named.sum())
        if decision != "keep":
            applied += [f"{decision} {key}" for key in keys[is_named].tolist()]
    return AppliedDecisions(counts, digest("\n".join(applied)) if applied else "")


def unmatched_keys(decisions: Decisions, indices: Sequence[RowIndex]) -> int:
    """Return the number of keys of `decisions` that name no record of any source."""
    keys = np.array(list(decisions.by_key), np.uint64)
    is_found = np.zeros(len(keys), np.bool_)
    for index in indices:
        is_found |= np.isin(keys, index.rows["record_key"])
    return int((~is_found).sum())


def flipped_rows(decisions: Decisions, index: RowIndex) -> frozenset[int]:
    """Return the numbers of the rows that are flipped."""
    is_flipped = np.isin(index.rows["record_key"], decisions.keys_of("flip"))
    return frozenset(np.flatnonzero(is_flipped).tolist())


def flipped_index(index: RowIndex, rows: frozenset[int]) -> RowIndex:
    """Return a row index in which some rows are those of flipped records.

    The keys of the rows stay those of the records in the source, by which decisions name them.

    Args:
        index: The row index of a source.
        rows: The numbers of the flipped rows.
    """
    if not rows:
        return index
    numbers = np.array(sorted(rows))
    entries = np.array(index.rows)
    entries["chosen"][numbers] = index.rows["rejected"][numbers]
    entries["rejected"][numbers] = index.rows["chosen"][numbers]
    flags = index.rows["flags"][numbers]
    entries["flags"][numbers] = (flags ^ ORDER) & ~np.uint8(LABEL_FLAGS)
    shortcuts = np.array(index.shortcuts)
    # The last column, the overlap of both responses, does not depend on the preference.
    signs = shortcuts[numbers, :-1]
    shortcuts[numbers, :-1] = np.where(signs == UNKNOWN, UNKNOWN, -signs)
    return replace(index, rows=entries, shortcuts=shortcuts, folder=None)


def flipped(record: Preference) -> Preference:
    """Return a record with reversed ranks: the worst response is the best one.

    Responses keep their critiques and attributes. The rationale, which argues for the other
    preference, is removed. The margin is kept, because its size is that of the difference.

    Example: responses A, B, C with the ranks 0, 0, 1 become C, B, A with the ranks 0, 1, 1.
    """
    worst_rank = record.ranks[-1]
    attributes = {name: tuple(reversed(values)) for name, values in record.attributes.items()}
    return replace(
        record,
        responses=tuple(reversed(record.responses)),
        ranks=tuple(worst_rank - rank for rank in reversed(record.ranks)),
        positions=tuple(reversed(record.positions)),
        attributes=attributes,
        chosen_critique=record.rejected_critique,
        rejected_critique=record.chosen_critique,
        rationale=None,
        first_in_rationale="chosen",
    )


class FlippedSource:
    """A source in which some records are flipped."""

    def __init__(self, source: Source, rows: frozenset[int]) -> None:
        """Store the source, and the numbers of the rows that are flipped."""
        self.name = source.name
        self.licence = source.licence
        self.revision = source.revision
        self.generated = source.generated
        self.rows = rows
        self._source = source

    def __len__(self) -> int:
        """Return the number of rows of the source."""
        return len(self._source)

    def record(self, index: int) -> Preference:
        """Return the record at `index`, flipped if it is one of the rows to flip."""
        record = self._source.record(index)
        return flipped(record) if index in self.rows else record

    def fingerprint(self) -> str:
        """Return a text that changes when the records or the flipped rows change."""
        return f"{self._source.fingerprint()} flipped {digest(repr(sorted(self.rows)))}"
