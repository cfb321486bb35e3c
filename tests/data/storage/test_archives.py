"""Members of an archive that could be mistaken for one another are refused, and all others are what extraction writes."""

from __future__ import annotations

import io
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.errors import ImageError
from mmrm.data.storage.archives import Archive, extracted_name, open_images
from tests.data.mixtures import mixture, project, row
from tests.eval.make import png

RED, BLUE, GREEN = (png(colour, (40, 30)) for colour in ("red", "blue", "green"))


@dataclass(frozen=True)
class Entry:
    """A member to be written; `link` is the target of a link."""

    name: str
    content: bytes = b""
    link: str | None = None
    is_hard: bool = False
    compression: int = zipfile.ZIP_STORED


def write_tar(path: Path, entries: list[Entry]) -> Path:
    with tarfile.open(path, "w") as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.size = len(entry.content)
            if entry.link is not None:
                info.type = tarfile.LNKTYPE if entry.is_hard else tarfile.SYMTYPE
                info.linkname = entry.link
            tar.addfile(info, io.BytesIO(entry.content))
    return path


def write_zip(path: Path, entries: list[Entry]) -> Path:
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of zipfile, about a name that is there twice
        for entry in entries:
            info = zipfile.ZipInfo(entry.name)
            info.compress_type = entry.compression
            content = entry.content
            if entry.link is not None:
                info.external_attr = 0o120777 << 16
                content = entry.link.encode()
            archive.writestr(info, content)
    return path


WRITERS: dict[str, Callable[[Path, list[Entry]], Path]] = {"tar": write_tar, "zip": write_zip}
ONCE = Entry("once.png", GREEN)
AMBIGUOUS: dict[str, list[Entry]] = {
    "twice": [Entry("a.png", RED), ONCE, Entry("a.png", BLUE)],
    "three times": [Entry("a.png", RED), Entry("a.png", BLUE), Entry("a.png", RED), ONCE],
    "the same content": [Entry("a.png", RED), Entry("a.png", RED), ONCE],
    "./ before it": [Entry("a.png", RED), Entry("./a.png", BLUE), ONCE],
    "/ before it": [Entry("a.png", RED), Entry("/a.png", BLUE), ONCE],
    "two slashes": [Entry("x/a.png", RED), Entry("x//a.png", BLUE), ONCE],
    "a dot inside": [Entry("x/a.png", RED), Entry("x/./a.png", BLUE), ONCE],
    "followed upwards": [Entry("a.png", RED), Entry("x/../a.png", BLUE), ONCE],
    "left out upwards": [Entry("x/a.png", RED), Entry("x/../a.png", BLUE), ONCE],
    "a folder over a file": [Entry("a.png", RED), Entry("a.png/b.png", BLUE), ONCE],
    "a link over a file": [Entry("a.png", RED), Entry("a.png", link="once.png"), ONCE],
    "a file over a link": [Entry("a.png", link="once.png"), Entry("a.png", BLUE), ONCE],
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("case", AMBIGUOUS)
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, kind: str, case: str) -> None:
    entries = AMBIGUOUS[case]
    path = WRITERS[kind](tmp_path / f"images.{kind}", entries)
    images = open_images([path], tmp_path / "cache")
    assert isinstance(images, Archive)
    assert images.find("once.png", "row 1") == GREEN
    name = extracted_name(entries[0].name)
    assert name is not None
    assert name in images
    with pytest.raises(ImageError, match=rf"row 2: .*{name}.* not used: .*(more than once|`\.\.`)"):
        images.find(name, "row 2")


REFUSED: dict[str, tuple[list[str], Entry, str]] = {
    "a symbolic link": (["tar", "zip"], Entry("a.png", link="once.png"), "it is a link"),
    "a hard link": (["tar"], Entry("a.png", link="once.png", is_hard=True), "it is a link"),
    "bzip2": (["zip"], Entry("a.png", RED, compression=zipfile.ZIP_BZIP2), "compressed in a way"),
    "upwards": (["tar", "zip"], Entry("x/../a.png", RED), "programs differ"),
}


@pytest.mark.parametrize(
    ("case", "kind"), [(case, kind) for case, (kinds, *_) in REFUSED.items() for kind in kinds]
)
def test_a_member_that_cannot_be_read_says_why(tmp_path: Path, case: str, kind: str) -> None:
    _, entry, reason = REFUSED[case]
    path = WRITERS[kind](tmp_path / f"images.{kind}", [ONCE, entry])
    images = open_images([path], tmp_path / "cache")
    assert images.find("once.png", "row 1") == GREEN
    with pytest.raises(ImageError, match=reason):
        images.find("a.png", "row 2")


@pytest.mark.parametrize("kind", WRITERS)
def test_what_extraction_would_write_through_a_link_is_refused(tmp_path: Path, kind: str) -> None:
    entries = [Entry("x", link="y"), Entry("x/a.png", RED), Entry("y/b.png", BLUE)]
    images = open_images([WRITERS[kind](tmp_path / f"images.{kind}", entries)], tmp_path / "cache")
    assert images.find("y/b.png", "row 1") == BLUE
    with pytest.raises(ImageError, match="a folder in its path is a link"):
        images.find("x/a.png", "row 2")


@pytest.mark.parametrize("kind", WRITERS)
def test_names_in_upper_case_and_asked_for_by_another_path_are_found(
    tmp_path: Path, kind: str
) -> None:
    entries = [Entry("./x/a.png", RED), Entry("x/A.png", BLUE)]
    images = open_images([WRITERS[kind](tmp_path / f"images.{kind}", entries)], tmp_path / "cache")
    for asked in ("x/a.png", "./x/a.png", "x//a.png", "y/../x/a.png"):
        assert images.find(asked, "row") == RED
    assert images.find("x/A.png", "row") == BLUE
    for asked in ("../x/a.png", "", "x"):
        with pytest.raises(ImageError, match="is not in"):
            images.find(asked, "row")


@pytest.mark.parametrize("kind", WRITERS)
def test_the_record_is_counted_and_the_others_stay(tmp_path: Path, kind: str) -> None:
    entries = [Entry("a.png", RED), Entry("b.png", GREEN), Entry("a.png", BLUE)]
    path = WRITERS[kind](tmp_path / f"images.{kind}", entries)
    rows = [row("first", images=["a.png"]), row("second", images=["b.png"]), row("third")]
    source = project(tmp_path, "mine", rows, images=str(path))
    found = mixture(tmp_path, [source], bad_records={"policy": "skip", "limit": 0.5})
    assert len(found) == 2
    (card,) = found.card().sources
    assert sum(card.left_out.values()) == 1
    (message,) = card.messages
    assert "'a.png'" in message
    assert "more than once" in message


def test_an_index_of_an_older_version_is_not_taken(tmp_path: Path) -> None:
    """Its entry for a name was the first member's."""
    path = write_zip(tmp_path / "images.zip", [Entry("a.png", RED), Entry("a.png", BLUE)])
    images = open_images([path], tmp_path / "cache")
    assert isinstance(images, Archive)
    (index,) = (tmp_path / "cache" / "archives").iterdir()
    assert np.load(index)["kind"].tolist() == [250]
    # The name of the file has to differ from the one that an older version gave it.
    from mmrm.data.storage.files import digest, stamp

    assert digest(f"{path.resolve()} {stamp(path)}") not in index.name


PIECES = st.sampled_from(["a", "b", ".", "..", "", "A"])
NAMES = st.lists(PIECES, min_size=1, max_size=4).map("/".join)
ENTRIES = st.lists(
    st.tuples(NAMES, st.binary(min_size=1, max_size=5)).map(lambda pair: Entry(*pair)), max_size=8
)


def test_a_member_without_a_name_is_passed_over(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "images.zip", [Entry("", RED), ONCE])
    assert open_images([path], tmp_path / "cache").find("once.png", "row") == GREEN


def is_extracted(entry: Entry) -> bool:
    """Return True unless the name ends outside of the folder, or at the folder itself."""
    without_upwards = entry.name.replace("..", ".")
    names = (extracted_name(entry.name), extracted_name(without_upwards))
    return None not in names and not entry.name.endswith("/")


@pytest.mark.parametrize("kind", WRITERS)
@settings(deadline=None, max_examples=25)
@given(entries=ENTRIES)
def test_what_is_read_is_what_extraction_writes(kind: str, entries: list[Entry]) -> None:
    entries = list(filter(is_extracted, entries))
    with tempfile.TemporaryDirectory() as folder:
        path = WRITERS[kind](Path(folder, f"images.{kind}"), entries)
        images = open_images([path], Path(folder, "cache"))
        target = Path(folder, "target")
        extract(path, target)
        for entry in entries:
            name = str(extracted_name(entry.name))
            try:
                content = images.find(name, "row")
            except ImageError:
                continue
            assert (target / name).read_bytes() == content


def extract(path: Path, target: Path) -> None:
    """Extract each member by itself, in order; those that Python refuses to write are left out."""
    if path.suffix == ".tar":
        with tarfile.open(path) as tar:
            for member in tar:
                with suppress(OSError, tarfile.TarError):
                    tar.extract(member, target, filter="tar")
    else:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                with suppress(OSError):
                    archive.extract(entry, target)
