"""The making of shards: the records of a source, in a random order, in files of about one size.

Records whose prompts begin with the same image, and records with the same prompt, follow one
another, so that an image is in its shard once. Their groups are in random order. An epoch that draws
from a few shards at one time (`data.shards_together`) then has records from all over the source in
every step.
"""

from __future__ import annotations

import io
import json
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
from mmrm.data.errors import ImageError, UserError
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.preparation.row_index import REASONS, RowIndex
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.regular_files import read_bytes
from mmrm.data.sources.project import project_row
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.storage.files import (
    digest,
    parallel_results,
    read_json_object,
    whole_file,
    write_json,
)
from mmrm.data.storage.output_lock import locked_folder
from mmrm.data.storage.shard_files import (
    ENTRY,
    FORMAT,
    INDEX,
    MANIFEST,
    ShardFile,
    ShardManifest,
    ShardWriter,
)

PLAN = "plan.json"
"""The file in an unfinished folder that tells what the shards are made of."""
SAMPLED_ROWS = 200
"""Records from which the size of a record is estimated."""


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

    A command that was interrupted goes on where it ended: shards that are complete are kept.

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
        UserError: The folder has shards already, or parts of others; the source cannot be read, or
            has no usable record.
    """
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder} has shards already. Name another folder, or remove it.")
    if not config.has_responses:
        raise UserError(
            f"{config.label}: questions have no responses, and shards hold responses that were "
            "compared. Take a source of preferences."
        )
    source = config.open(cache)
    index = scan(source, policy, cache, workers)
    order = shuffled_groups(index, seed)
    if not len(order):
        raise UserError(f"{source.name}: the source has no usable record.")
    with locked_folder(folder):
        plan = digest(f"{source.fingerprint()} {config.settings} {seed} {shard_bytes}")
        _keep_to_plan(folder, plan)
        jobs = _jobs(source, index, order, shard_bytes)
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
            made_of={
                "source": json.loads(config.settings),
                "name": source.name,
                "licence": source.licence,
                "revision": source.revision,
                "seed": seed,
                "left_out": _left_out(index),
            },
        )
        write_json(folder / MANIFEST, manifest.model_dump())
        for number, _, _ in jobs:
            _entries_path(folder, number).unlink()
            _result_path(folder, number).unlink()
        (folder / PLAN).unlink()
    return manifest


def shuffled_groups(index: RowIndex, seed: int) -> npt.NDArray[np.int64]:
    """Return the usable rows of a source in the order in which shards have them, (records,).

    Rows of one group follow one another in their order in the source. A group has the rows whose
    prompts begin with the same image, or without an image the rows with the same prompt.
    """
    rows = np.flatnonzero(index.rows["reason"] == REASONS.index("kept"))
    keys = np.where(index.rows["image_key"] != 0, index.rows["image_key"], index.rows["prompt_key"])
    _, group_of_row = np.unique(keys[rows], return_inverse=True)
    num_groups = int(group_of_row.max(initial=-1)) + 1
    place_of_group = np.random.default_rng([seed, len(index.rows)]).permutation(num_groups)
    return rows[np.argsort(place_of_group[group_of_row], kind="stable")]


def _keep_to_plan(folder: Path, plan: str) -> None:
    """Write the plan into the folder; raise UserError if the folder has parts of another plan."""
    path = folder / PLAN
    if path.exists() and read_json_object(path)["plan"] != plan:
        raise UserError(
            f"{folder} has parts of other shards, from an interrupted command with another source, "
            "seed or size. Remove the folder, or give the same command again."
        )
    write_json(path, {"plan": plan})


def _jobs(
    source: Source, index: RowIndex, order: npt.NDArray[np.int64], shard_bytes: int
) -> list[tuple[int, int, int]]:
    """Return for each shard its number, and its first and last place in the order of the records.

    A shard ends where a group ends, so that the records of a group are in one shard.
    """
    sample = order[np.linspace(0, len(order) - 1, min(SAMPLED_ROWS, len(order))).astype(np.int64)]
    writer = ShardWriter(io.BytesIO())
    for row in sample.tolist():
        _add(writer, source, row)
    records_of_shard = max(1, round(shard_bytes * len(sample) / max(writer.size, 1)))
    keys = np.where(index.rows["image_key"] != 0, index.rows["image_key"], index.rows["prompt_key"])
    starts_group = np.flatnonzero(np.diff(keys[order], prepend=keys[order[0]] + 1) != 0)
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
    """Write a record of the source into a shard."""
    record = source.record(row)

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


def lines_about(manifest: ShardManifest) -> Sequence[str]:
    """Return lines for people: the number of records, shards and bytes, and what was left out."""
    num_records = manifest.block_ends[-1]
    num_bytes = sum(file.size for file in manifest.files)
    lines = [
        f"{num_records:,} records in {len(manifest.files):,} shards, {num_bytes / 1e9:,.2f} GB, "
        f"of {manifest.made_of['name']} ({manifest.made_of['licence']})"
    ]
    for reason, count in manifest.made_of["left_out"].items():
        lines.append(f"left out: {count:,} ({reason})")
    return lines
