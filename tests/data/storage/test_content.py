"""Keys by content: different records never share one, and equal records do, whatever they are called."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import LeftOut
from mmrm.data.images import decode
from mmrm.data.preference import Preference, Truth, text, text_responses, validate
from mmrm.data.sources.registry import SOURCES
from mmrm.data.storage.content import record_key, shown_key
from tests.data.shards import source_config, written_shards
from tests.data.sources.fixtures import BLUE, RED, open_source, write_jsonl
from tools.attack.samples import SAMPLES, Sample, surroundings, written

SHAPES: list[dict[str, Any]] = [
    {"level": "demo", "split": "train", "rows": 40, "seed": 0},
    {"level": "demo", "split": "train", "rows": 40, "seed": 1},
    {"level": "demo", "split": "validation", "rows": 40, "seed": 0},
    {"level": "medium", "split": "train", "rows": 40, "seed": 0},
]

RATED_SHAPES: list[dict[str, Any]] = [
    {"level": "demo", "split": "train", "rows": 40, "seed": 0},
    {"level": "demo", "split": "validation", "rows": 40, "seed": 0, "ties": False},
    {"level": "medium", "split": "train", "rows": 40, "seed": 0, "noise": 0.5},
]
PICTURES = [
    {"level": "demo", "split": "train", "rows": 20, "seed": 0},
    {"level": "medium", "split": "validation", "rows": 20, "seed": 0, "ties": False},
]
MOTION: list[dict[str, Any]] = [
    {"level": "demo", "split": "train", "rows": 40, "seed": 0},
    {"level": "demo", "split": "train", "rows": 40, "seed": 0, "played": "reversed"},
    {"level": "medium", "split": "validation", "rows": 20, "seed": 0, "frames": 5},
]
GENERATED = {
    "shapes": SHAPES,
    "shapes_drawn": PICTURES,
    "shapes_edited": PICTURES,
    "shapes_motion": MOTION,
    "shapes_rated": RATED_SHAPES,
}

QUESTIONS = Sample(
    "test.jsonl",
    (
        {"prompt": "How many?", "answer": "2", "images": ["one.png"]},
        {"prompt": "How many?", "answer": "2", "images": ["two.png"]},
        {"prompt": "How many?", "answer": "3", "images": ["one.png"]},
    ),
)


KINDS = sorted(SOURCES)


def records_of(kind: str, folder: Path, **settings: Any) -> Iterator[Preference]:
    """Yield the records of every registered source: of its rows in the public schema, or drawn."""
    if kind in GENERATED:
        for number, changes in enumerate(GENERATED[kind]):
            source = open_source(folder / str(number), type=kind, **changes, **settings)
            yield from map(source.record, range(len(source)))
        return
    if kind == "shards":
        rows = [{"prompt": str(number), "chosen": "a", "rejected": "b"} for number in range(3)]
        rows_file = write_jsonl(folder / "rows.jsonl", rows)
        written_shards(folder / "shards", source_config(type="project", path=str(rows_file)))
        path = str(folder / "shards")
        source = open_source(folder / "cache", type=kind, path=path, **settings)
        yield from map(source.record, range(len(source)))
        return
    sample = QUESTIONS if kind == "questions" else SAMPLES[kind]
    files = folder / "set"
    surroundings(files, kind)
    stated = {name: str(value).format(folder=files) for name, value in sample.settings.items()}
    for _ in written(files, sample, sample.rows):  # rows of another schema replace the file
        source = open_source(folder / "cache", type=kind, path=str(files), **stated, **settings)
        for row in range(len(source)):
            try:
                yield validate(source.record(row))
            except LeftOut:
                continue


def everything(record: Preference) -> tuple[Any, ...]:
    """Return all that a record holds but its identity, with the pixels of its images."""
    values = [
        getattr(record, field.name)
        for field in fields(record)
        if field.name not in ("identity", "images")
    ]
    pixels = [decode(image, "").tobytes() for image in record.images]
    return (repr(values), *pixels)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Preference]]:
    """Return records of all sources, by their type."""
    found = {}
    for kind in KINDS:
        found[kind] = list(records_of(kind, tmp_path_factory.mktemp(kind)))
    return found


def test_every_registered_source_is_drawn_from(records: dict[str, list[Preference]]) -> None:
    assert len(records) == len(SOURCES)
    assert all(records.values()), [kind for kind, found in records.items() if not found]


def test_no_key_stands_for_two_contents_and_no_content_has_two_keys(
    records: dict[str, list[Preference]],
) -> None:
    contents_by_key: dict[str, set[Any]] = {}
    keys_by_content: dict[Any, set[str]] = {}
    for kind_records in records.values():
        for record in kind_records:
            key, content = record_key(record), everything(record)
            contents_by_key.setdefault(key, set()).add(content)
            keys_by_content.setdefault(content, set()).add(key)
    assert all(len(contents) == 1 for contents in contents_by_key.values())
    assert all(len(keys) == 1 for keys in keys_by_content.values())


def test_identities_are_shared_by_different_records(
    records: dict[str, list[Preference]],
) -> None:
    """The fault that keys by content mend: two worlds with other seeds call their records alike."""
    shapes = records["shapes"]
    assert len({record_key(record) for record in shapes}) == len(set(map(everything, shapes)))
    assert len({record.identity for record in shapes}) < len(shapes)


@pytest.mark.parametrize("kind", KINDS)
def test_another_name_of_a_source_is_the_same_content(
    kind: str, records: dict[str, list[Preference]], tmp_path: Path
) -> None:
    renamed = list(records_of(kind, tmp_path, name="renamed"))
    assert list(map(record_key, renamed)) == list(map(record_key, records[kind]))


PLAIN = Preference("a:0", (text("user", "What?", 1),), text_responses("yes", "no"), (RED,))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": (text("user", "What? ", 1),)},
        {"prompt": (text("system", "What?"), text("user", "What?", 1))},
        {"prompt": (text("assistant", "What?", 1),)},
        {"responses": text_responses("Yes", "no")},
        {"responses": text_responses("no", "yes")},
        {"ranks": (0, 0)},
        {"attributes": {"wit": (1.0, 0.0)}},
        {"images": (BLUE,)},
        {"images": (RED, RED)},
        {"images": (RED[:9], RED[9:])},
        {"margin": 0.0},
        {"chosen_critique": ""},
        {"rejected_critique": ""},
        {"rationale": "yes"},
        {"source": "b"},
        {"category": "b"},
        {"truth": Truth("exact", ("yes",))},
    ],
    ids=str,
)
def test_everything_but_the_identity_counts(changes: dict[str, Any]) -> None:
    assert record_key(replace(PLAIN, **changes)) != record_key(PLAIN)
    assert record_key(replace(PLAIN, identity="b:7")) == record_key(PLAIN)


def test_where_images_are_cut_counts() -> None:
    """A digest of the images' bytes one after the other would not tell these apart."""
    whole = [replace(PLAIN, images=images) for images in ((b"ab", b"c"), (b"a", b"bc"))]
    assert len(set(map(record_key, whole))) == 2


def test_an_image_counts_by_its_bytes_and_not_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    path.write_bytes(RED)
    by_path = replace(PLAIN, images=(path,))
    assert record_key(by_path) == record_key(PLAIN)
    path.write_bytes(BLUE)
    assert record_key(by_path) == record_key(replace(PLAIN, images=(BLUE,)))
    path.unlink()
    assert record_key(by_path) not in (record_key(PLAIN), record_key(replace(PLAIN, images=())))


def test_texts_that_are_no_unicode_have_keys() -> None:
    halves = {shown_key((text("user", half),), (), ()) for half in ("\ud800", "\udfff", "?")}
    assert len(halves) == 3
    assert len(base64.b16decode(halves.pop().upper())) == 32
