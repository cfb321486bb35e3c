"""JSON lines by byte offset and images inside archives: every row and file is found again, across blocks and parts."""

from __future__ import annotations

import errno
import gzip
import io
import json
import pickle
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.storage import archives
from mmrm.data.storage import files as files_module
from mmrm.data.storage import row_files as tables
from mmrm.data.storage.archives import Archive, Folder, open_images
from mmrm.data.storage.files import whole_file, write_whole
from mmrm.data.storage.row_files import JsonLines, open_rows
from tests.data.sources.fixtures import write_jsonl

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.json"
    write_whole(file, "old")
    write_whole(file, "néw")
    with suppress(KeyError), whole_file(file, "wb") as broken:
        broken.write(b"part")
        raise KeyError
    assert file.read_text(encoding="utf-8") == "néw"
    assert list(file.parent.iterdir()) == [file]


@given(
    texts=st.lists(st.one_of(TEXTS, st.none()), max_size=30),
    end=st.sampled_from(["\n", "\r\n"]),
    ended=st.booleans(),
    block=st.integers(1, 50),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_the_lines_that_are_not_blank(
    texts: list[str | None],
    end: str,
    ended: bool,
    block: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "READ", block)
    lines = [
        "  " if text is None else json.dumps({"text": text}, ensure_ascii=False) for text in texts
    ]
    path = tmp_path / f"{abs(hash((tuple(lines), end, ended)))}.jsonl"
    path.write_bytes((end.join(lines) + end * ended).encode())
    rows = JsonLines(path, tmp_path / "cache")
    assert [rows.row(index)["text"] for index in range(len(rows))] == [
        text for text in texts if text is not None
    ]


def test_files_are_closed_with_their_rows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"number": 1}])
    before = sorted(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        rows = JsonLines(path, tmp_path)
        assert rows.row(0) == {"number": 1}
        del rows
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_the_lines_of_a_file_may_be_lists(tmp_path: Path) -> None:
    """Only a .json file that begins with a bracket is one list; a .jsonl file is read by line."""
    for name, rows in (("a.jsonl", 2), ("a.json", 3)):
        path = tmp_path / name
        path.write_text('[{"a": 1}, {"a": 2},\n{"a": 3}]\n')
        assert len(open_rows([path], tmp_path / "cache")) == rows


def test_a_changed_file_gets_a_new_index(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    assert len(JsonLines(path, tmp_path / "cache")) == 1
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert len(JsonLines(path, tmp_path / "cache")) == 2


def files(count: int) -> dict[str, bytes]:
    return {
        f"folder/{number}.png": bytes([number % 256]) * (number * 37 % 900) + b"end"
        for number in range(count)
    }


def zipped(folder: Path, parts: int, compression: int) -> list[Path]:
    with zipfile.ZipFile(folder / "whole.zip", "w", compression) as archive:
        for name, content in files(60).items():
            archive.writestr(name, content)
    data = (folder / "whole.zip").read_bytes()
    if parts == 1:
        return [folder / "whole.zip"]
    size = len(data) // parts + 1
    places = [folder / f"images.zip_a{chr(97 + part)}" for part in range(parts)]
    for part, place in enumerate(places):
        place.write_bytes(data[part * size : (part + 1) * size])
    return places


@pytest.mark.parametrize("parts", [1, 3, 23])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_file_of_a_zip_in_parts_is_found(
    parts: int, compression: int, tmp_path: Path
) -> None:
    images = open_images(zipped(tmp_path, parts, compression), tmp_path / "cache")
    again = pickle.loads(pickle.dumps(images))
    for name, content in files(60).items():
        assert name in images
        assert images.find(name, "r") == again.find(name, "r") == content
    assert "folder/x.png" not in images
    with pytest.raises(ImageError, match=r"row 3: the file 'folder/x\.png' is not in"):
        images.find("folder/x.png", "row 3")


def test_every_file_of_a_tar_is_found(tmp_path: Path) -> None:
    for name, content in files(40).items():
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(content)
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.add(tmp_path / "x", ".")
    images = open_images([tmp_path / "images.tar"], tmp_path / "cache")
    assert all(images.find(name, "r") == content for name, content in files(40).items())


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damage_inside_a_zip_names_the_record(compression: int, tmp_path: Path) -> None:
    (place,) = zipped(tmp_path, 1, compression)
    data = bytearray(place.read_bytes())
    images = open_images([place], tmp_path / "cache")
    assert isinstance(images, Archive)
    start = int(images.index["start"].max())
    data[start + 30 + len("folder/59.png") + 4] ^= 255
    with place.open("r+b") as file:  # the index stays: the damage came after it
        file.write(data)
    for name, content in list(files(60).items())[:-1]:
        assert images.find(name, "row 8") == content
    with pytest.raises(
        ImageError, match=r"row 8: the file 'folder/59\.png' in whole\.zip is damaged"
    ):
        images.find("folder/59.png", "row 8")


def test_what_is_no_place_for_images_stops(tmp_path: Path) -> None:
    assert isinstance(open_images([tmp_path], tmp_path), Folder)
    (tmp_path / "a.tar.gz").write_bytes(b"x")
    (tmp_path / "b.zip").write_bytes(b"no zip")
    with pytest.raises(UserError, match="Unpack anything else"):
        open_images([tmp_path / "a.tar.gz"], tmp_path)
    with pytest.raises(UserError, match=r"b\.zip cannot be read"):
        open_images([tmp_path / "b.zip"], tmp_path)
    with pytest.raises(UserError, match="in no place"):
        open_images([], tmp_path)


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b" \n" * 100])
def test_a_list_may_begin_behind_a_mark_or_blanks(before: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(before + b'[{"a": 1},\n {"a": 2}]')
    rows = open_rows([path], tmp_path / "cache")
    assert [rows.row(index) for index in range(len(rows))] == [{"a": 1}, {"a": 2}]


def test_a_bad_item_of_a_list_costs_one_row(tmp_path: Path) -> None:
    """A key twice, half a character and a byte that is no UTF-8 are still there when the row is read."""
    path = tmp_path / "a.json"
    path.write_bytes(
        rb'[{"a": 1, "a": 2}, {"a": "\ud800"}, {"a": "'
        + b"\xff"
        + b'"}, ['
        + b"9" * 5000
        + b'], {"a": 3}]'
    )
    rows = open_rows([path], tmp_path / "cache")
    assert len(rows) == 5
    for index, message in enumerate(
        ["occurs twice", "half of a character", "no valid JSON", "no valid JSON"]
    ):
        with pytest.raises(RecordError, match=f"row {index} .*{message}"):
            rows.row(index)
    assert rows.row(4) == {"a": 3}


def test_a_line_or_a_packed_file_of_any_size_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LONGEST_ROW", 20)
    rows = JsonLines(
        write_jsonl(tmp_path / "a.jsonl", [{"a": "x" * 20}, {"a": "x"}]), tmp_path / "cache"
    )
    with pytest.raises(RecordError, match=r"row 0 .*a line of 29 bytes; read are at most 20"):
        rows.row(0)
    assert rows.row(1) == {"a": "x"}
    monkeypatch.setattr(files_module, "MAX_UNPACKED_BYTES", 1000)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 1001))
    with pytest.raises(
        UserError,
        match=r"a\.jsonl\.gz: unpacked, it holds more than 1,000 bytes.*unpack it yourself",
    ):
        open_rows([path], tmp_path / "cache")
    assert not list((tmp_path / "cache" / "unpacked").iterdir())


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_image_that_unpacks_to_too_much_names_the_record(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST_IMAGE", 1000)
    place = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("large.png", b"x" * 1001)
            archive.writestr("small.png", b"x" * 1000)
    else:
        with tarfile.open(place, "w") as tar:
            for name, size in (("large.png", 1001), ("small.png", 1000)):
                entry = tarfile.TarInfo(name)
                entry.size = size
                tar.addfile(entry, io.BytesIO(b"x" * size))
    images = open_images([place], tmp_path / "cache")
    with pytest.raises(
        ImageError, match=r"row 8: the file 'large\.png' .* at most 1,000|more than 1,000 bytes"
    ):
        images.find("large.png", "row 8")
    assert images.find("small.png", "row 8") == b"x" * 1000


@pytest.mark.parametrize(
    "name", ["a\0b.png", "n" * 5000, "loop.png", "loop.png/one.png", "../a", "."]
)
def test_a_folder_can_be_asked_for_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    assert name not in Folder(tmp_path)


def test_a_value_that_python_cannot_hold_costs_one_row(tmp_path: Path) -> None:
    broken = pa.array([b"R\xff\xfe", b"red"], pa.binary()).view(pa.string())
    odd: dict[str, pa.Array] = {
        "text": broken,
        "nested": pa.StructArray.from_arrays([broken], ["a"]),
        "date": pa.array([2**50, 0], pa.timestamp("ms")),
        "zone": pa.array([1, None], pa.timestamp("us", tz="Mars/Olympus")),
        "field": pa.StructArray.from_arrays(
            [pa.array([1, 2]), pa.array([1, 2])], ["a", "a"], mask=pa.array([False, True])
        ),
    }
    for name, column in odd.items():
        pq.write_table(pa.table({"a": [1, 2], name: column}), tmp_path / f"{name}.parquet")
        rows = open_rows([tmp_path / f"{name}.parquet"], tmp_path / "cache")
        with pytest.raises(
            RecordError, match=rf"{name}\.parquet, row 0: a value that Python cannot hold"
        ):
            rows.row(0)
        assert rows.row(1)["a"] == 2, name


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(UserError, match=r"a\.parquet: the column 'a' occurs twice"):
        open_rows([path], tmp_path / "cache")


def test_a_full_disk_and_a_folder_that_takes_no_file_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    with pytest.raises(OSError, match=r"page\.html'$") as full, whole_file(file):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.errno == errno.ENOSPC
    assert file.read_text() == "old"
    with pytest.raises(OSError, match="of the caller"), whole_file(file):
        raise OSError("of the caller")
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(OSError, match=r"'/proc/page\.html'$"):
        write_whole(Path("/proc/page.html"), "a process cannot make a file here")
