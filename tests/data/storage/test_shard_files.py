"""Shards are read by position, with few open files, and damage to them is noticed."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.errors import RecordError, UserError
from mmrm.data.storage import shard_files
from mmrm.data.storage.files import content_digest
from mmrm.data.storage.shard_files import (
    ENTRY,
    FORMAT,
    INDEX,
    MANIFEST,
    MAX_OPEN,
    MadeOf,
    ShardFile,
    ShardManifest,
    ShardRows,
    ShardWriter,
)

NUM_SHARDS = 3 * MAX_OPEN


def with_places(row: dict[str, Any], writer: ShardWriter) -> dict[str, Any]:
    """Return a row with the places of its images, which are written into the shard."""
    return row | {"images": [writer.place(image) for image in row["images"]]}


def write_manifest(folder: Path, files: list[ShardFile], entries: list[Any]) -> None:
    """Write the index and shards.json of some shards."""
    np.save(folder / INDEX, np.array(entries, ENTRY))
    manifest = ShardManifest(
        format=FORMAT,
        files=files,
        index_digest=content_digest(folder / INDEX),
        made_of=MadeOf(source={}, name="n", licence="l", revision="local", seed=0, left_out={}),
    )
    (folder / MANIFEST).write_text(json.dumps(manifest.model_dump()))


def write(folder: Path, num_shards: int, records_of_shard: int = 4) -> list[dict[str, Any]]:
    """Write shards of numbered records with images, and return their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[ShardFile] = []
    entries: list[Any] = []
    rows: list[dict[str, Any]] = []
    for shard in range(num_shards):
        path = folder / f"{shard:05}.shard"
        with path.open("wb") as file:
            writer = ShardWriter(file)
            for number in range(records_of_shard):
                # The records of a shard have one image in common, and one each.
                images = [f"shared {shard}".encode(), f"own {shard} {number}".encode()]
                prompt = f"{shard} {number} é\u2028"

                row = {"prompt": prompt, "images": images, "chosen": "a", "rejected": "b"}
                writer.add(partial(with_places, row, writer), "record")
                rows.append(row)
        files.append(
            ShardFile(
                name=path.name,
                size=writer.size,
                records=records_of_shard,
                digest=writer.digest(),
            )
        )
        entries += writer.entries
    write_manifest(folder, files, entries)
    return rows


def test_rows_are_those_that_were_written(tmp_path: Path) -> None:
    rows = write(tmp_path, 3)
    shards = ShardRows(tmp_path)
    assert len(shards) == len(rows)
    for index in reversed(range(len(rows))):
        assert shards.row(index) == rows[index]


def test_an_image_of_several_records_is_in_a_shard_once(tmp_path: Path) -> None:
    write(tmp_path, 2)
    content = (tmp_path / "00001.shard").read_bytes()
    assert content.count(b"shared 1") == 1
    assert content.count(b"own 1 2") == 1


def test_media_in_every_place_of_a_row_are_read(tmp_path: Path) -> None:
    with (tmp_path / "00000.shard").open("wb") as file:
        writer = ShardWriter(file)

        def part(kind: str, content: bytes) -> dict[str, Any]:
            return {"type": kind, kind: writer.place(content)}

        def make_row() -> dict[str, Any]:
            return {
                "videos": [writer.place(b"film")],
                "chosen": [{"type": "text", "text": "x"}, part("image", b"one")],
                "rejected": "y",
                "responses": ["z", [part("video", b"film"), part("image", b"two")]],
            }

        writer.add(make_row, "record")
    file_of_shard = ShardFile(
        name="00000.shard", size=writer.size, records=1, digest=writer.digest()
    )
    write_manifest(tmp_path, [file_of_shard], writer.entries)
    assert ShardRows(tmp_path).row(0) == {
        "videos": [b"film"],
        "chosen": [{"type": "text", "text": "x"}, {"type": "image", "image": b"one"}],
        "rejected": "y",
        "responses": [
            "z",
            [{"type": "video", "video": b"film"}, {"type": "image", "image": b"two"}],
        ],
    }


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_few_shards_are_open_at_one_time(tmp_path: Path) -> None:
    rows = write(tmp_path, NUM_SHARDS)
    shards = ShardRows(tmp_path)
    before = open_files()
    for index in range(len(rows)):
        shards.row(index)
        assert shards.num_open() <= MAX_OPEN
    assert open_files() - before <= MAX_OPEN + 1  # the index is mapped into memory
    del shards
    assert open_files() <= before + 1


def test_threads_read_at_the_same_time(tmp_path: Path) -> None:
    rows = write(tmp_path, NUM_SHARDS)
    shards = ShardRows(tmp_path)
    indices = np.random.default_rng(0).integers(0, len(rows), 3000).tolist()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shards.row, indices))
    assert found == [rows[index] for index in indices]


def test_shards_travel_to_workers(tmp_path: Path) -> None:
    rows = write(tmp_path, 2)
    shards = ShardRows(tmp_path)
    shards.row(0)
    other = pickle.loads(pickle.dumps(shards))
    assert other.num_open() == 0
    assert other.row(5) == rows[5]
    assert other.fingerprint() == shards.fingerprint()


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    write(tmp_path / "a", 2)
    write(tmp_path / "b", 2)
    write(tmp_path / "c", 2, records_of_shard=5)
    first, copy, other = (ShardRows(tmp_path / name).fingerprint() for name in "abc")
    assert first == copy != other


def damaged_manifest(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(content | changes))


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no shards\.json.*make_shards"):
        ShardRows(tmp_path)
    write(tmp_path, 2)
    shard = tmp_path / "00001.shard"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(UserError, match=r"00001\.shard has .* bytes, and shards\.json says"):
        ShardRows(tmp_path)
    shard.unlink()
    with pytest.raises(UserError, match=r"00001\.shard is missing"):
        ShardRows(tmp_path)
    shard.write_bytes(content)
    damaged_manifest(tmp_path, format=2)
    with pytest.raises(UserError, match="the format is 2"):
        ShardRows(tmp_path)
    damaged_manifest(tmp_path, format=FORMAT, files=[])
    with pytest.raises(UserError, match="damaged"):
        ShardRows(tmp_path)


def test_an_index_of_other_shards_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a", 2)
    write(tmp_path / "b", 2, records_of_shard=5)
    index = tmp_path / "a" / INDEX
    content = (tmp_path / "b" / INDEX).read_bytes()
    for other in (content, content[:-1], b""):
        index.write_bytes(other)
        with pytest.raises(UserError, match="not the index of these shards"):
            ShardRows(tmp_path / "a")
    index.unlink()
    with pytest.raises(UserError, match=r"index\.npy is missing"):
        ShardRows(tmp_path / "a")
    with pytest.raises(UserError, match="required is the folder"):
        ShardRows(tmp_path / "a" / MANIFEST)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1)
    shards = ShardRows(tmp_path)
    entry = shards.index[2]
    end = int(entry["start"] + entry["size"])
    path = tmp_path / "00000.shard"
    content = path.read_bytes()
    path.write_bytes(content[: end - 1] + b"?" + content[end:])
    with pytest.raises(RecordError, match=r"00000\.shard, record 2 \(byte \d+\): .*damaged"):
        ShardRows(tmp_path).row(2)
    ShardRows(tmp_path).row(1)


def test_a_damaged_image_of_an_earlier_record_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = tmp_path / "00000.shard"
    path.write_bytes(path.read_bytes().replace(b"shared 0", b"shared 1", 1))
    for record in range(4):  # the first one has it in its block, the others refer to it
        with pytest.raises(RecordError, match="damaged"):
            ShardRows(tmp_path).row(record)


def test_large_blocks_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reads at most 2 GiB at once."""
    rows = write(tmp_path, 1)
    monkeypatch.setattr(shard_files, "READ_AT_ONCE", 7)
    assert [ShardRows(tmp_path).row(index) for index in range(4)] == rows


def test_a_shard_that_goes_away_makes_a_record_unusable(tmp_path: Path) -> None:
    write(tmp_path, 1)
    shards = ShardRows(tmp_path)
    (tmp_path / "00000.shard").unlink()
    with pytest.raises(RecordError, match=r"00000\.shard, record 1 .* cannot be read"):
        shards.row(1)
