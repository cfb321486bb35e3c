"""Nothing waits for a FIFO or reads a device: each place where a file is named or found refuses it by its kind."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mmrm.data.config.layers import read_yaml
from mmrm.data.errors import ImageError, RecordError, SpecialFileError, UserError
from mmrm.data.frames import extract_all
from mmrm.data.images import data_uri, decode, grey_like, image_size
from mmrm.data.preparation.filters import read_fingerprints
from mmrm.data.preparation.recognition import files_config
from mmrm.data.regular_files import open_regular, open_regular_text, read_bytes, read_text
from mmrm.data.storage.archives import Archive, Folder, open_images
from mmrm.data.storage.files import content_digest, read_json, remembered_digest, stamp
from mmrm.data.storage.manifest import verify_settings, verify_weights
from mmrm.data.storage.row_files import open_rows
from mmrm.eval import serve
from mmrm.eval.adapters import trl_reward
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.benchmarks.rows import find_files, read_json_lines
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.results.result import read_result
from mmrm.eval.selection.candidate_records import open_records
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.request_reader import Intake
from mmrm.models.backbone import load_encoder, load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.models.lora import with_adapters
from mmrm.models.portable.processor import upright
from tests.data.mixtures import mixture, project, row
from tests.eval import run_folders
from tests.eval.make import png
from tests.models import tiny

pytestmark = pytest.mark.timeout(60)
"""A test fails instead of waiting for ever."""


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def link_to_fifo(path: Path) -> None:
    os.mkfifo(f"{path}.pipe")
    path.symlink_to(f"{path}.pipe")


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "FIFO": (os.mkfifo, "is a FIFO"),
    "link to a FIFO": (link_to_fifo, "is a FIFO"),
    "link to /dev/zero": (lambda path: path.symlink_to("/dev/zero"), "is a character device"),
    "broken link": (lambda path: path.symlink_to("nowhere"), "is a link to nowhere"),
    "link to itself": (lambda path: path.symlink_to(path.name), "is a link to"),
    "socket": (make_socket, "is a socket"),
    "folder": (Path.mkdir, "is a folder"),
}
"""What makes a special file at a path, and what the message says of it."""
FILES = [kind for kind in SPECIAL if kind != "folder"]
"""Where a folder is named in place of a file, it is searched for files."""


def special(path: Path, kind: str) -> str:
    """Make a special file at `path`; return what the message must say of it."""
    make, said = SPECIAL[kind]
    make(path)
    return said


READERS: dict[str, Callable[[Path], object]] = {
    "open_regular": open_regular,
    "open_regular_text": open_regular_text,
    "read_bytes": read_bytes,
    "read_text": read_text,
    "content_digest": content_digest,
    "remembered_digest": remembered_digest,
    "stamp": stamp,
    "read_json": read_json,
    "read_json_lines": read_json_lines,
    "read_result": read_result,
    "api key": serve.api_key,
    "candidates": lambda path: open_records(path, None),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_one_file_says_what_it_is(tmp_path: Path, reader: str, kind: str) -> None:
    said = special(tmp_path / "file.jsonl", kind)
    with pytest.raises(SpecialFileError, match=f"file.jsonl {said}"):
        READERS[reader](tmp_path / "file.jsonl")


def test_what_is_regular_or_not_there_is_as_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\xc3\xa4")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"a\r\nb\xc3\xa4"
    assert read_text(tmp_path / "link") == (tmp_path / "file").read_text(encoding="utf-8")
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nowhere")


TABLES = ("jsonl", "json", "jsonl.gz", "parquet", "arrow")


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("suffix", TABLES)
def test_a_table_says_what_it_is(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"data.{suffix}"
    said = special(path, kind)
    with pytest.raises(UserError, match=said):
        open_rows([path], tmp_path / "cache")


def source_at(path: Path) -> None:
    files_config(type="project", path=str(path)).check_local_files()


def benchmark_at(path: Path) -> object:
    return BENCHMARKS["vl_rewardbench"].load(Location(location=str(path)))


def judge_at(path: Path) -> object:
    return judge_config(path)


NAMED: dict[str, Callable[[Path], object]] = {
    "source": source_at,
    "benchmark": benchmark_at,
    "judge": judge_at,
    "leave_out": lambda path: read_fingerprints(str(path)),
    "recipe": read_yaml,
    "images.zip": lambda path: open_images([path], path.parent / "cache"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("entry", NAMED)
def test_a_path_that_a_user_names_says_what_it_is(tmp_path: Path, entry: str, kind: str) -> None:
    path = tmp_path / ("x.zip" if entry == "images.zip" else "x.jsonl")
    said = special(path, kind)
    if entry == "judge" and "is a link" in said:
        said = "there is no such folder"
    if entry == "recipe":
        said = "it is no regular file|it is not there|cannot be read"
    with pytest.raises(UserError, match=said):
        NAMED[entry](path)


FOUND: dict[str, Callable[[Path], object]] = {
    "source": source_at,
    "benchmark": lambda path: find_files(str(path), ("*.jsonl",), "mine"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("entry", FOUND)
def test_a_file_that_a_folder_holds_says_what_it_is(tmp_path: Path, entry: str, kind: str) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    said = special(tmp_path / "b.jsonl", kind)
    with pytest.raises(SpecialFileError, match=f"b.jsonl {said}"):
        FOUND[entry](tmp_path)


@pytest.mark.parametrize("entry", FOUND)
@pytest.mark.parametrize("is_hard", [False, True])
def test_one_file_under_two_names_is_refused(tmp_path: Path, entry: str, is_hard: bool) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    if is_hard:
        (tmp_path / "b.jsonl").hardlink_to(tmp_path / "a.jsonl")
    else:
        (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl and .*b\.jsonl are the same file"):
        FOUND[entry](tmp_path)


def serve_image(path: Path) -> object:
    intake = Intake(RequestLimits(), path.parent, False)
    return intake._content(Path(path.name), "image", "group 0")


IMAGES: dict[str, Callable[[Path], object]] = {
    "decode": lambda path: decode(path, "row 3"),
    "image_size": lambda path: image_size(path, "row 3"),
    "grey_like": lambda path: grey_like(path, "row 3"),
    "data_uri": lambda path: data_uri(path, "row 3"),
    "Folder": lambda path: Folder(path.parent).find(path.name, "row 3"),
    "server": serve_image,
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("entry", IMAGES)
def test_an_image_that_is_no_regular_file_is_an_unusable_image(
    tmp_path: Path, entry: str, kind: str
) -> None:
    special(tmp_path / "image.png", kind)
    with pytest.raises(ImageError, match="image"):
        IMAGES[entry](tmp_path / "image.png")


@pytest.mark.parametrize("kind", ["FIFO", "link to /dev/zero", "socket", "folder"])
def test_what_travels_to_others_refuses_such_images_too(tmp_path: Path, kind: str) -> None:
    special(tmp_path / "image.png", kind)
    with pytest.raises(OSError, match="is no regular file"):
        upright(tmp_path / "image.png")
    with pytest.raises(trl_reward.RewardServerError, match="is no regular file"):
        trl_reward.data_uri(str(tmp_path / "image.png"))


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_record_with_such_an_image_is_dropped_and_counted(tmp_path: Path, kind: str) -> None:
    special(tmp_path / "bad.png", kind)
    (tmp_path / "good.png").write_bytes(png("red", (40, 30)))
    rows = [row("first", images=["bad.png"]), row("second", images=["good.png"])]
    source = project(tmp_path, "mine", rows)
    found = mixture(tmp_path, [source], bad_records={"policy": "skip", "limit": 0.5})
    assert [record.images for record in (found[index] for index in range(len(found)))] == [
        (tmp_path / "good.png",)
    ]
    (card,) = found.card().sources
    assert sum(card.left_out.values()) == 1
    (message,) = card.messages
    assert "bad.png" in message


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_benchmark_lists_such_an_image(tmp_path: Path, kind: str) -> None:
    folder = run_folders.vl_rewardbench(tmp_path / "vl", 4)
    (folder / "1.png").unlink()
    special(folder / "1.png", kind)
    with pytest.raises(UserError, match=r"images are missing or broken"):
        benchmark_at(folder)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_an_archive_that_becomes_special_after_the_check_is_refused(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    said = special(tmp_path / f"images.{suffix}", kind)
    with pytest.raises(SpecialFileError, match=said):
        Archive([tmp_path / f"images.{suffix}"], tmp_path / "cache")


@pytest.mark.parametrize("kind", FILES)
def test_a_video_that_is_no_regular_file_is_reported(tmp_path: Path, kind: str) -> None:
    (tmp_path / "videos").mkdir()
    said = special(tmp_path / "videos" / "a.mp4", kind)
    (problem,) = extract_all(tmp_path / "videos", tmp_path / "frames", 4, 1)
    assert said in problem


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"]
)
def test_a_checkpoint_with_such_a_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    folder = tiny.checkpoint(tmp_path / "base")
    (folder / name).unlink()
    said = special(folder / name, kind)
    config = BackboneConfig(path=str(folder), dtype="float32")
    with pytest.raises(SpecialFileError, match=f"{re.escape(name)} {said}"):
        load_language_model(config)
    verify = verify_weights if name == "model.safetensors" else verify_settings
    with pytest.raises(SpecialFileError, match=f"{re.escape(name)} {said}"):
        verify(folder)
    if name != "model.safetensors":
        with pytest.raises(SpecialFileError, match=said):
            load_encoder(config)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_adapters_with_such_a_file_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / file).write_text(json.dumps({}))
    (tmp_path / name).unlink()
    said = special(tmp_path / name, kind)
    with pytest.raises(SpecialFileError, match=said):
        with_adapters(tiny.language_model(), tmp_path)


def test_a_record_error_is_what_a_special_image_raises() -> None:
    """A run drops records for a RecordError and stops for other errors."""
    assert issubclass(ImageError, RecordError)
    assert not issubclass(SpecialFileError, RecordError)
