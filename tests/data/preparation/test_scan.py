"""The first reading: parallel, resumable after a kill, and never repeated for what did not change."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.errors import UserError
from mmrm.data.images import PatchTokens, resized
from mmrm.data.preference import Preference
from mmrm.data.preparation import scan as preparation
from mmrm.data.preparation.faults import fault_messages
from mmrm.data.preparation.row_index import ROW, RowIndex, index_rows
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage import code_digest as code
from tests.data.sources.fixtures import open_source, png, write_images, write_jsonl

ROOT = Path(__file__).resolve().parents[3]


def records(folder: Path, count: int) -> Source:
    write_images(folder, one=png("red", (60, 40)), two=png("blue", (300, 500)))
    images: tuple[list[str], ...] = ([], ["one.png"], ["two.png", "one.png"])
    rows: list[Any] = [
        {"prompt": f"q {n}", "chosen": f"a {n}", "rejected": "b", "images": images[n % 3]}
        for n in range(count)
    ]
    rows[count // 2] = {"prompt": "?", "chosen": "a", "rejected": 3, "images": []}
    return open_source(
        folder / "cache", type="project", path=str(write_jsonl(folder / "a.jsonl", rows))
    )


def read(source: Source, cache: Path, workers: int = 1) -> RowIndex:
    return scan(source, BadRecordConfig(), cache, workers)


@pytest.mark.slow
def test_one_process_and_several_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "ROWS_PER_BLOCK", 100)
    source = records(tmp_path, 1050)
    one, several = read(source, tmp_path / "one"), read(source, tmp_path / "several", workers=2)
    assert one.content == several.content
    assert (
        one.faults
        == several.faults
        == {"project:525: 'rejected' is int 3; required is str or list.": 1}
    )
    assert one.rows.tobytes() == several.rows.tobytes()
    assert one.sizes.tobytes() == several.sizes.tobytes()
    assert one.shortcuts.tobytes() == several.shortcuts.tobytes()
    for row in (0, 1, 2, 525, 526, 1049):
        assert one.rows[row] == index_rows(source, [row]).rows[0]
    assert one.folder is not None
    assert {path.name for path in one.folder.iterdir()} == {
        "rows.npy",
        "shortcuts.npy",
        "sizes.npy",
        "videos.npy",
        "summary.json",
        "lock",
    }


def test_a_strict_recipe_refuses_what_an_earlier_reading_skipped(tmp_path: Path) -> None:
    source = records(tmp_path, 300)
    assert read(source, tmp_path / "cache").skipped == 1
    with pytest.raises(
        UserError,
        match=r"(?s)1 of 300 rows are bad so far, and the recipe allows 0.*'rejected' is int 3",
    ):
        scan(source, BadRecordConfig(policy="strict"), tmp_path / "cache", 1)


def test_a_finished_reading_is_not_repeated_and_a_changed_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = records(tmp_path, 300)
    first = read(source, tmp_path / "cache")
    monkeypatch.setattr(preparation, "index_rows", None)  # reading again would fail
    assert read(source, tmp_path / "cache").content == first.content
    monkeypatch.undo()
    path = tmp_path / "a.jsonl"
    path.write_text(path.read_text().replace('"a 7"', '"other"'))
    second = read(
        open_source(tmp_path / "cache", type="project", path=str(path)), tmp_path / "cache"
    )
    assert len(second.rows) == len(first.rows)
    assert second.content != first.content


def test_a_change_that_leaves_size_and_time_as_they_were_is_seen(tmp_path: Path) -> None:
    first = read(records(tmp_path, 100), tmp_path / "cache")
    path, status = tmp_path / "a.jsonl", (tmp_path / "a.jsonl").stat()
    path.write_text(path.read_text().replace('"a 7"', '"a 8"'))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = read(
        open_source(tmp_path / "cache", type="project", path=str(path)), tmp_path / "cache"
    )
    assert path.stat().st_size == status.st_size
    assert again.content != first.content


def test_other_code_reads_the_data_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = records(tmp_path, 100)
    first = read(source, tmp_path / "cache")
    clone = tmp_path / "clone" / "data"
    shutil.copytree(ROOT / "data", clone)
    files = clone / "storage" / "files.py"
    files.write_text(files.read_text().replace("sha256", "sha512"))
    code.code_digest.cache_clear()
    monkeypatch.setattr(code, "PACKAGE", clone.parent)
    assert read(source, tmp_path / "cache").folder != first.folder
    code.code_digest.cache_clear()


def test_an_interrupted_reading_keeps_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "ROWS_PER_BLOCK", 100)
    source = records(tmp_path, 1000)
    whole = read(source, tmp_path / "whole")
    seen = []

    record = source.record

    def failing(index: int) -> Preference:
        seen.append(index)
        if len(seen) == 450:
            raise KeyboardInterrupt
        return record(index)

    monkeypatch.setattr(source, "record", failing)
    with pytest.raises(KeyboardInterrupt):
        read(source, tmp_path / "cache")
    resumed = read(source, tmp_path / "cache")
    assert len(seen) == 450 + 600
    assert seen[450] == 400
    assert (resumed.content, resumed.faults) == (whole.content, whole.faults)
    assert resumed.sizes.tobytes() == whole.sizes.tobytes()
    assert resumed.shortcuts.tolist() == whole.shortcuts.tolist()
    assert len(resumed.shortcuts) == 1000


def test_images_that_were_missing_are_found_once_they_are_there(tmp_path: Path) -> None:
    row = {"images": ["late.png"], "prompt": "?", "chosen": "a", "rejected": "b"}
    source = open_source(
        tmp_path / "cache", type="project", path=str(write_jsonl(tmp_path / "a.jsonl", [row]))
    )
    with pytest.raises(UserError, match=r"late\.png.* is not there"):
        read(source, tmp_path / "cache")
    write_images(tmp_path, late=png())
    assert read(source, tmp_path / "cache").rows["images"].tolist() == [1]


@pytest.mark.slow
def test_equal_faults_of_several_blocks_are_told_once_with_their_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "ROWS_PER_BLOCK", 50)
    rows: list[Any] = [
        {"prompt": "?", "chosen": [{"role": "assistant", "content": f"{n}; a"}], "rejected": "b"}
        for n in range(120)
    ]
    rows += [
        {"prompt": "?", "chosen": "a", "rejected": "b", "images": [f"{name}.png"]} for name in "xyz"
    ]
    source = open_source(
        tmp_path / "cache", type="project", path=str(write_jsonl(tmp_path / "a.jsonl", rows))
    )
    with pytest.raises(UserError) as caught:
        read(source, tmp_path / "cache")
    assert str(caught.value).count("\n- ") == 1
    everything = scan(source, BadRecordConfig(limit=1.0), tmp_path / "cache", 2)
    assert list(everything.faults.values()) == [120, 3]
    first, images = fault_messages(everything.faults)
    assert first.startswith("project:0: a part of a turn is of type None")
    assert first.endswith(
        "Correct the row, or remove it. … and 119 more records with the same fault"
    )
    assert "x.png" in images
    assert images.endswith("… and 2 more records with the same fault")


@pytest.mark.slow
def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"q {number}", "chosen": f"a {number} " * 40, "rejected": "b " * 100}
        for number in range(33_000)
    ]
    write_jsonl(tmp_path / "a.jsonl", rows)
    section = {
        "sources": [{"type": "project", "path": str(tmp_path / "a.jsonl")}],
        "cache": str(tmp_path / "cache"),
        "workers": 2,
    }
    (tmp_path / "r.yaml").write_text(json.dumps({"data": section}))
    command = [
        sys.executable,
        str(ROOT / "data" / "mixture.py"),
        str(tmp_path / "r.yaml"),
        "--plan",
    ]
    running = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while (
        not (done := sorted(tmp_path.glob("cache/row_index/*/*.npz")))
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    folder = done[0].parent
    assert not (folder / "summary.json").exists(), "the reading was faster than the kill"
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    (folder / "0.npz.keep").hardlink_to(done[0])
    after = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "33,000 records to train on" in after.stdout
    assert (folder / "0.npz.keep").stat().st_mtime_ns == stamps[done[0]]
    assert len(np.load(folder / "rows.npy", mmap_mode="r")) == 33_000
    assert not list(folder.glob("*.tmp"))


SIDES = st.one_of(
    st.integers(20, 3000), st.integers(2, 200).map(lambda halves: 14 * halves)
)  # where rounding is tied


@given(
    st.lists(st.lists(st.tuples(SIDES, SIDES), max_size=3), min_size=1, max_size=20),
    st.integers(784, 50_000),
    st.integers(50_000, 2_000_000),
)
@settings(deadline=None)
def test_image_tokens_of_rows_are_those_of_their_images(
    images: list[list[tuple[int, int]]], min_pixels: int, max_pixels: int
) -> None:
    sizes = np.array([size for row in images for size in row], np.uint32).reshape(-1, 2)
    rows = np.zeros(len(images), ROW)
    rows["images"] = [len(row) for row in images]
    expected = [
        sum(
            int(resized(np.array([size], np.uint32), min_pixels, max_pixels).prod()) // 28**2
            for size in row
        )
        for row in images
    ]
    assert (
        RowIndex(rows, sizes, np.empty((0, 4)), {})
        .image_tokens(PatchTokens(min_pixels, max_pixels))
        .tolist()
        == expected
    )
    assert resized(sizes, min_pixels, max_pixels).shape == sizes.shape


def test_a_row_index_pickles_small_and_arrives_whole(tmp_path: Path) -> None:
    source = records(tmp_path, 3000)
    whole, part = read(source, tmp_path / "cache"), index_rows(source, range(7))
    assert len(pickle.dumps(whole)) < 1000
    for index in (whole, part):
        copy = pickle.loads(pickle.dumps(index))
        assert copy.rows.tobytes() == index.rows.tobytes()
        assert copy.shortcuts.tolist() == index.shortcuts.tolist()
        assert (copy.faults, copy.content, copy.folder) == (
            index.faults,
            index.content,
            index.folder,
        )
