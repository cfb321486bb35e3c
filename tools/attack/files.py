"""Whole files of records that are damaged, odd or far too large: encodings, JSON, parquet, archives, links, huge texts."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from mmrm.data.browse import page, suspicious
from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from tests.data.sources.fixtures import RED
from tools.attack.outcomes import Attempt, Outcome, Tally, cause, kind_of
from tools.attack.records import encoder

SECONDS = 10.0
ROW = {"prompt": "Which colour?", "chosen": "Red.", "rejected": "Blue."}
TEXT = json.dumps(ROW)


def encoded(**changes: Any) -> bytes:
    """Return the row with changes, as a line of JSON."""
    return json.dumps(ROW | changes, ensure_ascii=False).encode()


Write = Callable[[Path], dict[str, Any]]
"""Writes a source's files into a folder, and returns its settings but for the path."""


def one(name: str, content: bytes, **settings: Any) -> Write:
    """Return what writes one file of a `project` source."""

    def write(folder: Path) -> dict[str, Any]:
        (folder / name).write_bytes(content)
        return {"type": "project", **settings}

    return write


def sound() -> dict[str, tuple[Write, int]]:
    """Return files that must be read, with the number of rows that must be used."""
    listed = f"[{TEXT}, {TEXT}]".encode()
    return {
        "JSON lines with a byte order mark": (one("a.jsonl", b"\xef\xbb\xbf" + TEXT.encode()), 1),
        "JSON with a byte order mark": (one("a.json", b"\xef\xbb\xbf" + listed), 2),
        "JSON after many blanks": (one("a.json", b" \n" * 100 + listed), 2),
        "JSON lines between blank ones": (
            one("a.jsonl", f"\n   \n{TEXT}\r\n{' ' * 50}\n{TEXT}\n".encode()),
            2,
        ),
        "JSON lines without an end": (one("a.jsonl", f"{TEXT}\n{TEXT}".encode()), 2),
        "JSON lines with line separators in a text": (
            one("a.jsonl", encoded(chosen="a\u2028\x85b")),
            1,
        ),
        "gzip": (one("a.jsonl.gz", gzip.compress(TEXT.encode()), files=["*.gz"]), 1),
    }


def rows() -> dict[str, Write]:
    """Return JSON lines of one bad row each."""
    lines: dict[str, bytes] = {
        "a row that is not UTF-8": TEXT.encode().replace(b"Red", b"R\xff"),
        "a row in Latin 1": json.dumps(ROW | {"chosen": "Grün"}, ensure_ascii=False).encode(
            "latin-1"
        ),
        "a key twice": (TEXT[:-1] + ', "chosen": "Green."}').encode(),
        "a nested key twice": json.dumps(ROW | {"prompt": [{"role": "user", "content": "x"}]})
        .replace('"content"', '"content": "y", "content"')
        .encode(),
        "margin: true": encoded(margin=True),
        "margin: NaN": encoded(margin=float("nan")),
        "a margin of 5,000 digits": (TEXT[:-1] + ', "margin": ' + "9" * 5000 + "}").encode(),
        "lists to a depth of 100,000": (
            TEXT[:-1] + ', "images": ' + "[" * 100_000 + "]" * 100_000 + "}"
        ).encode(),
        "objects to a depth of 100,000": (
            TEXT[:-1] + ', "images": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}"
        ).encode(),
        "lists to a depth of 500": (
            TEXT[:-1] + ', "images": ' + "[" * 500 + "]" * 500 + "}"
        ).encode(),
        "NUL bytes": b"\0" * 1000,
        "a prompt of 10 MB": encoded(prompt="word " * 2_000_000),
        "a prompt of 10 MB without blanks": encoded(prompt="x" * 10_000_000),
        "a prompt of 10 MB of brackets": encoded(prompt="[" * 10_000_000),
        "a response of 10 MB": encoded(chosen="word " * 2_000_000),
        "a response of 10 MB of blanks behind": encoded(chosen="Red." + " " * 10_000_000),
        "a prompt of 200,000 parts": json.dumps(
            ROW
            | {"prompt": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 200_000}]}
        ).encode(),
        "a prompt of 20,001 turns": json.dumps(
            ROW
            | {
                "prompt": [
                    {"role": ("user", "assistant")[i % 2], "content": "x"} for i in range(20_001)
                ]
            }
        ).encode(),
        "2,000 images": encoded(images=["one.png"] * 2000),
        "70,000 images": encoded(images=["one.png"] * 70_000),
        "a data URI of 30 MB": json.dumps(
            ROW
            | {"images": ["data:image/png;base64," + base64.b64encode(b"x" * 30_000_000).decode()]}
        ).encode(),
    }
    return {name: one("a.jsonl", content) for name, content in lines.items()}


def whole() -> dict[str, Write]:
    """Return files that cannot be read as a whole."""
    return {
        "a JSON list that ends early": one("a.json", f"[{TEXT}, {TEXT[:-3]}".encode()),
        "a JSON list to a depth of 100,000": one("a.json", b"[" * 100_000),
        "a JSON list of 5,000 digits": one("a.json", b"[" + b"9" * 5000 + b"]"),
        "a JSON list that is not UTF-8": one(
            "a.json", b"[" + TEXT.encode().replace(b"Red", b"R\xff") + b"]"
        ),
        "a gzip bomb": one("a.jsonl.gz", gzip.compress(b" " * 300_000_000), files=["*.gz"]),
        "no gzip": one("a.jsonl.gz", TEXT.encode(), files=["*.gz"]),
        "an empty file": one("a.jsonl", b""),
        "no parquet": one("a.parquet", TEXT.encode()),
        "no Arrow": one("a.arrow", b"ARROW1" + b"\xff" * 1000),
    }


def tables() -> dict[str, Write]:
    """Return parquet files with columns that Python cannot hold, and damaged ones."""
    found: dict[str, Write] = {}
    when = pa.array([0], pa.timestamp("us", tz="Mars/Olympus"))
    text = {key: pa.array([value]) for key, value in ROW.items()}
    broken = pa.array([b"R\xff\xfe"], pa.binary()).view(pa.string())
    odd = {
        "an unknown time zone": pa.table(text | {"source": when}),
        "text that is not UTF-8": pa.table(text | {"chosen": broken}),
        "a nested text that is not UTF-8": pa.table(
            text
            | {
                "prompt": pa.ListArray.from_arrays(
                    [0, 1],
                    pa.StructArray.from_arrays([pa.array(["user"]), broken], ["role", "content"]),
                )
            }
        ),
        "a column twice": pa.table([*text.values(), pa.array(["Green."])], names=[*text, "chosen"]),
        "a date beyond all years": pa.table(
            text | {"source": pa.array([2**50], pa.timestamp("ms"))}
        ),
        "nanoseconds": pa.table(text | {"source": pa.array([1], pa.timestamp("ns"))}),
        "a duration": pa.table(text | {"margin": pa.array([2**50], pa.duration("ms"))}),
        "a decimal": pa.table(text | {"margin": pa.array([2], pa.decimal128(38, 0))}),
        "a truth value as margin": pa.table(text | {"margin": pa.array([True])}),
        "lists of images that are null": pa.table(
            text | {"images": pa.array([[None]], pa.list_(pa.string()))}
        ),
    }
    for name, table in odd.items():
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        found[f"parquet: {name}"] = one("a.parquet", buffer.getvalue())
    good = io.BytesIO()
    pq.write_table(
        pa.table({key: [value] * 3000 for key, value in ROW.items()}), good, row_group_size=1000
    )
    data = good.getvalue()
    found["parquet: cut"] = one("a.parquet", data[: len(data) // 2])
    found["parquet: data of a row group overwritten"] = one(
        "a.parquet", data[:4] + b"\xff" * 400 + data[404:]
    )
    return found


def archives() -> dict[str, Write]:
    """Return damaged and hostile archives under MMPR's and OmniAlign's names."""

    def mmpr(annotations: dict[str, bytes], pack: Callable[[zipfile.ZipFile], None]) -> Write:
        def write(folder: Path) -> dict[str, Any]:
            (folder / "meta.json").write_text(
                json.dumps({"some": {"root": ".", "annotation": "annotations/some.jsonl"}})
            )
            with zipfile.ZipFile(folder / "annotations.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in annotations.items():
                    archive.writestr(name, content)
            with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                pack(archive)
            return {"type": "mmpr"}

        return write

    def tar(member: Callable[[tarfile.TarFile], None]) -> Write:
        def write(folder: Path) -> dict[str, Any]:
            (folder / "chart.jsonl").write_text(json.dumps({**ROW, "image": "one.png"}))
            with tarfile.open(folder / "images.tar", "w") as archive:
                member(archive)
            return {"type": "omnialign_v_dpo"}

        return write

    def link(archive: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo("one.png")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)

    def negative(archive: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo("one.png")
        entry.size = 2**40
        archive.fileobj.write(entry.tobuf())

    row = json.dumps({"image": "one.png", "question": "?", "chosen": "a", "rejected": "b"}).encode()
    image = {"annotations/some.jsonl": row}
    bomb = b"\0" * 300_000_000
    return {
        "zip: an image that unpacks to 300 MB": mmpr(
            image, lambda archive: archive.writestr("one.png", bomb)
        ),
        "zip: annotations that unpack to 300 MB": mmpr(
            {"annotations/some.jsonl": bomb}, lambda archive: archive.writestr("one.png", RED)
        ),
        "zip: no annotations": mmpr({}, lambda archive: archive.writestr("one.png", RED)),
        "zip: a folder for an image": mmpr(
            image, lambda archive: archive.writestr("one.png/", b"")
        ),
        "tar: a link": tar(link),
        "tar: a member larger than the archive": tar(negative),
        "tar: empty": tar(lambda archive: None),
    }


def attack(tally: Tally, folder: Path, count: int, seed: int, only: str | None = None) -> None:
    """Attack with all files, or with the one of the name `only`."""
    bad = rows() | whole() | tables() | archives()
    found = sound() | {name: (write, 0) for name, write in bad.items()}
    run(
        tally,
        folder,
        {name: case for name, case in found.items() if only in (None, f"file {name}")},
    )


def run(tally: Tally, folder: Path, found: dict[str, tuple[Write, int]]) -> None:
    """Attack with some files, each with the number of its rows that must be used."""
    encode = encoder()
    for name, (write, expected) in found.items():
        place = folder / f"file {name}".replace("/", "-")
        place.mkdir(parents=True)
        (place / "one.png").write_bytes(RED)
        settings: dict[str, Any] = {
            "cache": str(folder / "cache"),
            "workers": 1,
            "bad_records": {"limit": 1.0},
        }
        sources = [
            {"path": str(place), **write(place)},
            {"type": "shapes", "level": "demo", "rows": 1},
        ]
        case, kept = f"file {name}", 0
        with Attempt(SECONDS) as attempt:
            mixture = Mixture(MixtureConfig.model_validate({"sources": sources, **settings}))
            list(suspicious(mixture.splits[:1]))
            page(mixture, 4, "attack").encode()
            for index in range(len(mixture.splits[0].rows)):
                mixture.load(index, encode)
            kept = len(mixture.splits[0].rows) - len(mixture.skipped)
        error, used = attempt.error, not expected and kept > 0 and "overwritten" not in name
        if error is not None:
            tally.add(
                "uncounted" if expected and isinstance(error, UserError) else kind_of(error),
                case,
                cause(error),
                str(error),
            )
        else:
            outcome: Outcome = (
                "silent"
                if used
                else "counted"
                if not expected
                else "worked"
                if kept == expected
                else "uncounted"
            )
            tally.add(outcome, case, f"{kept} used: {case}")
