"""What a checkpoint's `complete` promises about the files that loading reads."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mmrm.data.errors import CheckpointError
from mmrm.data.storage import files
from mmrm.data.storage.files import content_digest, remembered_digest
from mmrm.data.storage.manifest import (
    COMPLETE,
    FileEntry,
    Manifest,
    parse_manifest,
    verify_settings,
    verify_weights,
)

SETTINGS = ("config.json", "tokenizer_config.json", "chat_template.jinja", "judge.json")
WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
FOR_RESUME = ("optimizer.pt", "trainer_state.json", "global_step3/states.pt", "training_args.bin")


def saved(folder: Path) -> Path:
    """Write a checkpoint of stand-in files with its manifest."""
    entries = {}
    for number, name in enumerate((*SETTINGS, *WEIGHTS, INDEX, *FOR_RESUME, "modeling.py")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(range(60 + number)))
        entries[name] = FileEntry(path.stat().st_size, content_digest(path))
    (folder / COMPLETE).write_text(Manifest(folder.name, entries).to_json())
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def verify(folder: Path) -> None:
    verify_settings(folder)
    verify_weights(folder)


CHANGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, 10),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [*SETTINGS, *WEIGHTS, INDEX, "modeling.py"])
def test_a_changed_file_that_loading_reads_is_named(tmp_path: Path, name: str, change: str) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    verify(folder)
    CHANGES[change](folder / name)
    with pytest.raises(CheckpointError, match=name) as raised:
        verify(folder)
    message = str(raised.value)
    assert str(folder) in message
    assert f"delete {folder / COMPLETE}" in message
    if change == "flipped":
        assert content_digest(folder / name) in message
        noted = parse_manifest((folder / COMPLETE).read_bytes())
        assert noted is not None
        assert noted.entries[name].sha256 in message


@pytest.mark.parametrize("name", [name for name in (*SETTINGS, *WEIGHTS) if name != "judge.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: No such file"):
        verify(folder)


def test_a_missing_judge_card_is_left_to_the_notes_of_a_result(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    (folder / "judge.json").unlink()
    verify(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.json", "tokenizer.json"])
def test_a_file_that_would_be_read_instead_of_the_saved_ones_is_named(
    tmp_path: Path, name: str
) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    (folder / name).write_text("{}")
    with pytest.raises(CheckpointError, match=f"{name} was added"):
        verify(folder)


def test_files_that_only_a_resume_reads_may_be_deleted_or_added(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    for name in FOR_RESUME:
        (folder / name).unlink()
    (folder / "notes.md").write_text("mine")
    (folder / "eval").mkdir()
    (folder / "eval" / "config.json").write_text("{}")
    verify(folder)


def test_copied_moved_and_linked_checkpoints_pass(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    verify(shutil.copytree(folder, tmp_path / "checkpoint-9"))
    verify(folder.rename(tmp_path / "mine"))
    (tmp_path / "best").symlink_to("mine")
    verify(tmp_path / "best")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"folder": "a"}', b'{"files": {"a": 1}}'])
def test_an_unreadable_manifest_is_named(tmp_path: Path, content: bytes) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    (folder / COMPLETE).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{folder}: complete cannot be read"):
        verify(folder)


@pytest.mark.parametrize("content", [None, b""])
def test_our_folder_without_digests_warns_once(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "checkpoint-3")
    (folder / COMPLETE).unlink()
    if content is not None:
        (folder / COMPLETE).write_bytes(content)
    flip(folder / "config.json")
    verify(folder)
    verify(folder)
    (tmp_path / "best").symlink_to("checkpoint-3")
    verify(tmp_path / "best")
    printed = capsys.readouterr().err
    assert printed.count("warning") == 1
    assert f"{folder} are loaded unchecked" in printed
    assert "complete" in printed


@pytest.mark.parametrize("kind", ["stock", "published"])
def test_what_others_published_loads_without_a_warning(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "snapshots" / "abc" if kind == "published" else tmp_path / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_vl"}))
    if kind == "published":
        (folder / "judge.json").write_text("{}")
    verify(folder)
    assert capsys.readouterr().err == ""


def test_an_unchanged_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 100)
    hour_ago = path.stat().st_mtime - 3600
    os.utime(path, (hour_ago, hour_ago))
    # The time of the inode cannot be set, so the clock is.
    monkeypatch.setattr(time, "time_ns", lambda: path.stat().st_ctime_ns + 10**10)
    first = remembered_digest(path)
    monkeypatch.setattr(files, "content_digest", lambda path: "read again")
    assert remembered_digest(path) == first
    path.write_bytes(b"y" * 100)
    assert remembered_digest(path) == "read again"


def test_a_file_that_changed_a_moment_ago_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"a" * 100)
    status = path.stat()
    first = remembered_digest(path)
    path.write_bytes(b"b" * 100)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert remembered_digest(path) != first
