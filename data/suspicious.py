"""Records that a person should look at: unusable ones, pairs that prefer nothing, labels that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track

from data.facts import ORDER, check_shape, normalised
from data.images import decode
from data.parts import Part
from data.preference import RecordError
from data.sources.base import LeftOut
from data.validate import validate


@dataclass(frozen=True)
class Suspicion:
    """What is wrong with which record."""

    kind: str
    identity: str
    detail: str


def suspicious(parts: Sequence[Part]) -> Iterator[Suspicion]:
    """Yield what is suspicious in all sources that are not generated.

    Reads every record and decodes every image, which the first reading does not do: this is the slow and thorough look.
    """
    read = [part for part in parts if part.read is not None]
    yield from contradictions(read)
    for part in read:
        console = Console(stderr=True)
        for row in track(range(len(part.source)), f"looking through {part.source.name}", console=console, transient=True):
            yield from _of_record(part, row)


def contradictions(parts: Sequence[Part]) -> Iterator[Suspicion]:
    """Yield the pairs that are preferred one way in one row and the other way in another, of any source."""
    keys, order, places = [], [], []
    for number, part in enumerate(parts):
        if part.read is not None:
            rows = np.concatenate([part.rows, part.held_out])
            facts = part.read.facts.rows[rows]
            keys.append(facts["pair_key"])
            order.append((facts["flags"] & ORDER) > 0)
            places.append(np.stack([np.full(len(rows), number), rows], axis=1))
    if not keys:
        return
    unique, group = np.unique(np.concatenate(keys), return_inverse=True)
    one_way = np.concatenate(order)
    both = (np.bincount(group[one_way], minlength=len(unique)) > 0) & (np.bincount(group[~one_way], minlength=len(unique)) > 0)
    members = np.flatnonzero(both[group])
    for group_number in np.unique(group[members]):
        found = np.concatenate(places)[members[group[members] == group_number]]
        names = [f"{parts[part].source.name}:{row}" for part, row in found]
        yield Suspicion("contradictory labels", names[0], "the same pair in " + ", ".join(names))


def _of_record(part: Part, row: int) -> Iterator[Suspicion]:
    try:
        record = validate(part.source.record(row))
        for image in record.images:
            picture = decode(image, record.identity)
            check_shape(picture.height, picture.width, record.identity)
    except LeftOut:
        return
    except RecordError as error:
        identity = f"{part.source.name}:{row}"
        yield Suspicion("cannot be used", identity, str(error).removeprefix(f"{identity}: "))
        return
    if normalised(record.chosen) == normalised(record.rejected):
        yield Suspicion("chosen equals rejected", record.identity, record.chosen[:80])
