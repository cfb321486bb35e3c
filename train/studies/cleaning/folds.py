"""The training records of a recipe in folds, which share no image, prompt or record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from rich.progress import track

from mmrm.data.arrays import Ints
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.decisions import FlippedSource, written_key
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.row_index import normalised_response, pair_key, prompt_key
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.storage.files import content_digest
from mmrm.data.synthetic.source import ShapesSource
from mmrm.eval.results.intervals import cluster_codes
from mmrm.train.studies.cleaning.preference_cycles import RecordPreferences


@dataclass(frozen=True, slots=True)
class LabelledRecord:
    """A training record as the study knows it: key, place, ranks and preferences, without its content."""

    key: int
    """The key by which decisions name the record."""
    source: str
    """The label of its source."""
    row: int
    """The number of its row in the source."""
    ranks: tuple[int, ...]
    preferences: RecordPreferences
    is_wrong: bool | None
    """True if the label is known to be wrong, and False if it is known to be right. Only the
    labels of the embedded world are known, of which a share is wrong on purpose (`flipped`)."""

    @property
    def has_preference(self) -> bool:
        """True if some responses have different ranks."""
        return len(set(self.ranks)) > 1

    @property
    def place(self) -> str:
        """The place of the record for people, such as "shapes:12"."""
        return f"{self.source}:{self.row}"


@dataclass(frozen=True, slots=True)
class LabelledRecords:
    """The training records of a recipe, with their clusters of dependent records."""

    records: tuple[LabelledRecord, ...]
    """The records in the order of the mixture."""
    clusters: Ints
    """The cluster of each record, shape (records,). Records that share an image, a video, a prompt
    or all responses to it are in one cluster, also through others."""

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """The key of each record, uint64 of shape (records,)."""
        return np.array([record.key for record in self.records], np.uint64)


def read_records(mixture: Mixture) -> LabelledRecords:
    """Read all training records of a recipe, and return what the study needs of them."""
    keys = iter(mixture.decision_keys().tolist())
    records: list[LabelledRecord] = []
    names: list[tuple[str, ...]] = []
    for split in mixture.splits:
        known_flips = _KnownFlips.of(split, mixture)
        rows = track(
            split.rows.tolist(),
            description=f"reading {split.config.label}",
            console=plain_console(stderr=True),
            transient=True,
        )
        for row in rows:
            # The images are the source's, also if the recipe trains on grey ones.
            record = split.source.record(row)
            names.append(tuple(_names(record)))
            records.append(
                LabelledRecord(
                    key=next(keys),
                    source=split.config.label,
                    row=row,
                    ranks=record.ranks,
                    preferences=preferences_of(record),
                    is_wrong=known_flips.is_wrong(row),
                )
            )
    return LabelledRecords(tuple(records), cluster_codes(names))


@dataclass(frozen=True, slots=True)
class _KnownFlips:
    """The known wrong labels of a source."""

    source: ShapesSource | None
    """The source without decisions, if its wrong labels are known."""
    flipped_rows: frozenset[int]
    """The rows that decisions of the recipe flip."""

    @classmethod
    def of(cls, split: SourceSplit, mixture: Mixture) -> _KnownFlips:
        """Return the known wrong labels of a source of a mixture."""
        source = split.config.open(mixture.config.cache_folder)
        flipped_rows: frozenset[int] = frozenset()
        if isinstance(split.source, FlippedSource):
            flipped_rows = split.source.rows
        if isinstance(source, ShapesSource):
            return cls(source, flipped_rows)
        return cls(None, flipped_rows)

    def is_wrong(self, row: int) -> bool | None:
        """Return True if the label of a row is wrong, None if that is not known."""
        if self.source is None:
            return None
        return self.source.is_flipped(row) != (row in self.flipped_rows)


def _names(record: Preference) -> Iterator[str]:
    """Yield the contents by which a record depends on others: media, prompt, and responses."""
    for image in record.all_images:
        yield content_digest(image)
    for video in record.all_videos:
        yield content_digest(video.content)
    yield f"prompt {prompt_key(record)}"
    yield f"pair {pair_key(record)}"


def preferences_of(record: Preference) -> RecordPreferences:
    """Return the preferences of a record. Responses count by their normalised content."""
    responses = [normalised_response(response) for response in record.responses]
    pairs: list[tuple[str, str]] = []
    # A record has its best response first.
    for better, worse in combinations(range(len(responses)), 2):
        if record.ranks[better] < record.ranks[worse]:
            pairs.append((responses[better], responses[worse]))
    return RecordPreferences(prompt_key(record), tuple(pairs))


def folds_of(records: LabelledRecords, num_folds: int) -> Ints:
    """Return the fold of each record, from 0 to num_folds - 1, shape (records,).

    A cluster is in one fold. The clusters are dealt from the largest one on, each to the fold with
    the fewest records. Clusters of equal size are in the order of their smallest keys, which are
    digests, so that the folds depend on the content alone.

    Raises:
        UserError: There are too few clusters, so that a fold would be empty.
    """
    keys = records.keys
    clusters = records.clusters
    numbers, sizes = np.unique(clusters, return_counts=True)
    smallest_keys = np.full(len(numbers), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(smallest_keys, np.searchsorted(numbers, clusters), keys)
    if len(numbers) < num_folds:
        raise UserError(
            f"--folds is {num_folds}, and the {len(keys):,} training records are of "
            f"{len(numbers):,} groups that share no image and no prompt. Required is a group for "
            "each fold, because the model of a fold must not have seen it. Lower --folds, or add "
            "records."
        )
    fold_sizes = [0] * num_folds
    fold_by_cluster = np.zeros(len(numbers), np.int64)
    for number in np.lexsort((smallest_keys, -sizes)).tolist():
        fold = fold_sizes.index(min(fold_sizes))
        fold_by_cluster[number] = fold
        fold_sizes[fold] += int(sizes[number])
    return np.asarray(fold_by_cluster[np.searchsorted(numbers, clusters)])


def written_keys(keys: Sequence[int]) -> list[str]:
    """Return distinct keys in hexadecimal digits, ascending."""
    return [written_key(key) for key in sorted(set(keys))]
