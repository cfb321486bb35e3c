"""The making of shards: the records of a source, in a random order, in files of about one size.

Records whose prompts begin with the same image, and records with the same prompt, follow one
another, so that an image is in its shard once. Their groups are in random order. An epoch that draws
from a few shards at one time (`data.shards_together`) then has records from all over the source in
every step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from mmrm.data.encoded_video import Video
from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.preparation.recognition import in_yaml
from mmrm.data.preparation.row_index import REASONS, RowIndex
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.regular_files import read_bytes
from mmrm.data.sources.project import project_row
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.storage.files import (
    content_digest,
    digest,
    parallel_results,
    read_json_object,
    whole_file,
    write_json,
)
from mmrm.data.storage.output_lock import FOLDER_LOCK, locked_folder
from mmrm.data.storage.shard_files import (
    ENTRY,
    FORMAT,
    INDEX,
    MANIFEST,
    MadeOf,
    ShardFile,
    ShardManifest,
    ShardWriter,
)

PLAN = "plan.json"
"""The file in an unfinished folder that tells what the shards are made of."""
SAMPLED_ROWS = 400
"""Records from which the size of a record is estimated."""
SAMPLED_PLACES = 8
"""Places of the order from which they are taken."""


def make_shards(
    config: SourceConfig,
    folder: Path,
    *,
    shard_bytes: int,
    seed: int,
    cache: Path,
    workers: int,
    policy: BadRecordConfig,
    console: Console,
) -> ShardManifest:
    """Write the usable records of a source into shards, and return the content of shards.json.

    A command that was interrupted goes on where it ended: shards that are complete are kept, if the
    records and their order are the same.

    Args:
        config: The source's section of a recipe.
        folder: The folder for the shards, which may not have any yet.
        shard_bytes: The size of a shard in bytes, about.
        seed: Draws the order of the records.
        cache: The folder for derived files, such as the row index of the source.
        workers: The largest number of processes.
        policy: The policy on records that cannot be used.
        console: Shows the progress.

    Raises:
        UserError: The folder has shards or other files already, or parts of other shards; the source
            cannot be read, has keys that belong to a recipe, or has no usable record.
    """
    _refuse_used(folder)
    _refuse_unsuited(config)
    source = config.open(cache)
    index = scan(source, policy, cache, workers)
    order = shuffled_groups(index, seed)
    if not len(order):
        raise UserError(f"{source.name}: the source has no usable record.")
    with locked_folder(folder):
        _refuse_used(folder)  # another command may have ended since
        for leftover in folder.glob("*.tmp"):  # of a killed command
            leftover.unlink()
        jobs = _jobs(source, index, order, shard_bytes)
        order_digest = content_digest(order.tobytes())
        plan = f"{source.fingerprint()} {index.content} {config.settings} {order_digest} {jobs}"
        _keep_to_plan(folder, digest(plan))
        work = partial(_write_shard, source, order, folder)
        files: list[ShardFile] = []
        with parallel_results(work, jobs, workers) as results:
            progress = track(results, description="shards", total=len(jobs), console=console)
            files += progress
        entries = [np.load(_entries_path(folder, number)) for number, _, _ in jobs]
        with whole_file(folder / INDEX, "wb") as file:
            np.save(file, np.concatenate(entries))
        manifest = ShardManifest(
            format=FORMAT,
            files=files,
            index_digest=content_digest(folder / INDEX),
            made_of=MadeOf(
                source=json.loads(config.settings),
                name=source.name,
                licence=source.licence,
                revision=source.revision,
                seed=seed,
                left_out=_left_out(index),
            ),
        )
        write_json(folder / MANIFEST, manifest.model_dump())
        for number, _, _ in jobs:
            _entries_path(folder, number).unlink()
            _result_path(folder, number).unlink()
        (folder / PLAN).unlink()
    return manifest


def _refuse_used(folder: Path) -> None:
    """Raise UserError if a folder has anything but the parts of an interrupted command."""
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"{folder} is a file; required is a folder for the shards. Name another one."
        )
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder} has shards already. Name another folder, or remove it.")
    if folder.exists() and not (folder / PLAN).exists():
        others = sorted(path.name for path in folder.iterdir() if path.name != FOLDER_LOCK)
        if others:
            raise UserError(
                f"{folder} has other files, such as {others[0]}. Name a folder that is empty or not "
                "there."
            )


def _refuse_unsuited(config: SourceConfig) -> None:
    """Raise UserError if a source has no responses, or keys that choose records for an epoch."""
    if not config.has_responses:
        raise UserError(
            f"{config.label}: questions have no responses, and shards hold responses that were "
            "compared. Take a source of preferences."
        )
    for key in ("weight", "cap", "repeat"):
        if key in config.model_fields_set:
            raise UserError(
                f"{config.label}: the key {key} chooses records for an epoch, and shards hold all of "
                "them. Remove it here, and give it in the recipe."
            )


def group_keys(index: RowIndex) -> npt.NDArray[np.uint64]:
    """Return a number for each row of a source that is equal for the rows of a group, (rows,).

    A group has the rows whose prompts begin with the same image, or without an image the rows with
    the same prompt.
    """
    image_keys = index.rows["image_key"]
    return np.where(image_keys != 0, image_keys, index.rows["prompt_key"])


def shuffled_groups(index: RowIndex, seed: int) -> npt.NDArray[np.int64]:
    """Return the usable rows of a source in the order in which shards have them, (records,).

    Rows of one group (`group_keys`) follow one another in their order in the source.
    """
    rows = np.flatnonzero(index.rows["reason"] == REASONS.index("kept"))
    _, group_of_row = np.unique(group_keys(index)[rows], return_inverse=True)
    num_groups = int(group_of_row.max(initial=-1)) + 1
    place_of_group = np.random.default_rng([seed, len(index.rows)]).permutation(num_groups)
    return rows[np.argsort(place_of_group[group_of_row], kind="stable")]


def _keep_to_plan(folder: Path, plan: str) -> None:
    """Write the plan into the folder; raise UserError if the folder has parts of another plan."""
    path = folder / PLAN
    if path.exists() and read_json_object(path)["plan"] != plan:
        raise UserError(
            f"{folder} has parts of other shards: it is from an interrupted command with another "
            "source, seed or size, or the source has changed since. Remove the folder."
        )
    write_json(path, {"plan": plan})


def _jobs(
    source: Source, index: RowIndex, order: npt.NDArray[np.int64], shard_bytes: int
) -> list[tuple[int, int, int]]:
    """Return for each shard its number, and its first and last place in the order of the records.

    A shard ends where a group ends, so that the records of a group are in one shard.
    """
    # Successive records at a few places, because those of a group share images.
    run_length = min(SAMPLED_ROWS // SAMPLED_PLACES, len(order))
    starts = np.linspace(0, len(order) - run_length, SAMPLED_PLACES).astype(np.int64)
    num_sampled = 0
    with tempfile.TemporaryFile() as file:
        writer = ShardWriter(file)
        for start in np.unique(starts).tolist():
            for row in order[start : start + run_length].tolist():
                _add(writer, source, row)
                num_sampled += 1
    records_of_shard = max(1, round(shard_bytes * num_sampled / max(writer.size, 1)))
    keys = group_keys(index)[order]
    # The places in the order at which a group starts; the first one is 0.
    starts_group = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    wanted = np.arange(records_of_shard, len(order), records_of_shard)
    positions = np.searchsorted(starts_group, wanted)
    cuts = starts_group[positions[positions < len(starts_group)]]
    ends = sorted({0, *cuts.tolist(), len(order)})
    return [(number, start, end) for number, (start, end) in enumerate(pairwise(ends))]


def _write_shard(
    source: Source, order: npt.NDArray[np.int64], folder: Path, job: tuple[int, int, int]
) -> ShardFile:
    """Write a shard, and return its line in shards.json; a complete one is kept as it is."""
    number, start, end = job
    result_path = _result_path(folder, number)
    if result_path.exists():
        return ShardFile.model_validate(read_json_object(result_path))
    name = f"{number:05}.shard"
    with whole_file(folder / name, "wb") as file:
        writer = ShardWriter(file)
        for row in order[start:end].tolist():
            _add(writer, source, row)
    with whole_file(_entries_path(folder, number), "wb") as file:
        np.save(file, np.array(writer.entries, ENTRY))
    result = ShardFile(name=name, size=writer.size, records=end - start, digest=writer.digest())
    write_json(result_path, result.model_dump())
    return result


def _add(writer: ShardWriter, source: Source, row: int) -> None:
    """Write a record of the source into a shard.

    Raises: UserError if the record has become unusable since the source was read.
    """
    try:
        record = source.record(row)
        _write(writer, record)
    except RecordError as error:
        raise UserError(
            f"{error} The record could be used when the source was read first. Put its files back, or "
            "give another --cache with a new --output, so that the source is read again and the "
            "record is left out."
        ) from error


def _write(writer: ShardWriter, record: Preference) -> None:
    """Write a record into a shard."""

    def write_image(image: EncodedImage, identity: str) -> dict[str, int]:
        """Return the place of an image in the shard."""
        return writer.place(_content(image, identity))

    def write_video(video: Video, identity: str) -> dict[str, int]:
        """Return the place of a video in the shard."""
        return writer.place(_content(video.content, identity))

    def make_row() -> dict[str, Any]:
        """Return the record as an object, with places of its images and videos."""
        in_order = in_source_order(record)
        has_order = len(record.positions) > 0
        return project_row(in_order, record.rationale, write_image, write_video, as_list=has_order)

    writer.add(make_row, record.identity)


def in_source_order(record: Preference) -> Preference:
    """Return a record whose responses, ranks and attributes are in the order of its source.

    A record is returned unchanged if its source has no order of its own. The data card states how far
    the order predicts which response is better, and that is to be the same for shards.
    """
    if not record.positions:
        return record
    order = np.argsort(record.positions).tolist()
    attributes = {}
    for name, values in record.attributes.items():
        attributes[name] = tuple(values[index] for index in order)
    return replace(
        record,
        responses=tuple(record.responses[index] for index in order),
        ranks=tuple(record.ranks[index] for index in order),
        attributes=attributes,
    )


def _content(medium: bytes | Path, record: str) -> bytes:
    """Return the bytes of an image or a video; raise ImageError if its file cannot be read."""
    if isinstance(medium, bytes):
        return medium
    try:
        return read_bytes(medium)
    except OSError as error:
        raise ImageError(f"{record}: {medium} cannot be read ({error}).") from error


def _left_out(index: RowIndex) -> dict[str, int]:
    """Return the number of rows that are in no shard, by reason."""
    counts = np.bincount(index.rows["reason"], minlength=len(REASONS)).tolist()
    return {
        reason: count
        for reason, count in zip(REASONS, counts, strict=True)
        if count and reason != "kept"
    }


def _entries_path(folder: Path, number: int) -> Path:
    """Return the path of a shard's part of the index, while shards are being made."""
    return folder / f"{number:05}.entries.npy"


def _result_path(folder: Path, number: int) -> Path:
    """Return the path of a shard's line in shards.json, while shards are being made."""
    return folder / f"{number:05}.json"


def lines_about(manifest: ShardManifest, folder: Path) -> Sequence[str]:
    """Return lines for people: what shards hold, what was left out, and how a recipe takes them."""
    num_records = manifest.block_ends[-1]
    num_megabytes = sum(file.size for file in manifest.files) / 1e6
    made_of = manifest.made_of
    lines = [
        f"{num_records:,} records, shards: {len(manifest.files):,}, {num_megabytes:,.1f} MB, made of "
        f"{made_of.name} ({made_of.licence})"
    ]
    for reason, count in made_of.left_out.items():
        lines.append(f"left out: {count:,} ({reason})")
    keys = ["type: shards", f"path: {in_yaml(str(folder.absolute()))}"]
    # A recipe makes pairs of lists and leaves ties out unless it says otherwise.
    for key, value in (("pairs", "none"), ("ties", "keep")):
        if made_of.source.get(key) == value:
            keys.append(f"{key}: {value}")
    lines.append(f"take them as a source: {{{', '.join(keys)}}}")
    return lines
