"""Rows and images of a benchmark as they lie on disk or on the hub, and the checks that all benchmarks share."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.errors import ImageError, RecordError, UserError
from data.images import decode
from data.preference import EncodedImage, ImagePart, Message, TextPart
from data.sources.shared.files import shards_problem
from data.storage.files import content_digest
from eval.benchmarks.benchmark import Known, LoadedBenchmark, Location, Origin, differences
from eval.protocol import Example

Row = dict[str, Any]
LISTED = 20
"""Broken items that an error lists by name."""


def find_files(location: str, names: Sequence[str], what: str) -> list[Path]:
    """Return the file at `location`, or all files like the first of `names` (paths or patterns) that the folder holds.

    Raises: UserError if there is none, or a numbered set of files is not whole.
    """
    place = Path(location).expanduser()
    for found in [[place]] if place.is_file() else (sorted(place.glob(name)) for name in names):
        if problem := shards_problem(found):
            raise UserError(f"{what}: {problem} (The location of a set is its folder.)")
        if found:
            return found
    state = "holds none of its files" if place.is_dir() else "is not there"
    raise UserError(
        f"{what}: {place} {state}. Required is `hub`, `embedded`, the official file itself, or a folder with one of: "
        f"{', '.join(names)}."
    )


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a .parquet, .json (a list) or .jsonl file; raises UserError for anything else."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        return list(parquet.read_table(path).to_pylist())
    if path.suffix == ".jsonl":
        return [row for row in read_json_lines(path, UserError) if row is not None]
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON: {error}.") from error
    if not isinstance(rows, list):
        raise UserError(f"{path}: found a JSON {type(rows).__name__}; required is a list of rows.")
    return rows


def read_json_lines(path: Path, problem: type[ValueError]) -> list[Row | None]:
    """Return one object (or null) for each line that is not blank; raises `problem` naming file and line."""
    found: list[Row | None] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise problem(f"{path}:{number}: not JSON: {error}.") from error
            if row is not None and not isinstance(row, dict):
                raise problem(f"{path}:{number}: found a JSON {type(row).__name__}; required is an object.")
            found.append(row)
    return found


def hub_rows(dataset: str, split: str, revision: str | None, image: str) -> list[Row]:
    """Return the rows of a data set on the hub; the images of column `image` stay encoded."""
    import datasets

    table = datasets.load_dataset(dataset, split=split, revision=revision)
    return list(table.cast_column(image, datasets.Image(decode=False)))


def embedded_folder(name: str) -> str:
    """Return the folder of this project's own edition of a benchmark, written in the official file format."""
    from data.synthetic.benchmark_files import edition

    return str(edition(name))


def located_rows(
    where: Location, name: str, title: str, hub: str, files: Sequence[str], image: str
) -> tuple[list[Row], Path, str]:
    """Return the rows at a location, the folder of their image files, and the place in words.

    `hub` is the data set's id there, `files` what is looked for in a folder, `image` the column of images; `title` is what
    errors call the benchmark. Raises: UserError.
    """
    if where.location == "hub":
        return hub_rows(hub, "test", where.revision, image), Path(), f"{hub}@{where.revision or 'main'}"
    embedded = where.location == "embedded"
    found = find_files(embedded_folder(name) if embedded else where.location, files, title)
    root = Path(where.image_root).expanduser() if where.image_root else found[0].parent
    place = str(found[0] if len(found) == 1 else found[0].parent)
    return [row for file in found for row in read_rows(file)], root, "embedded" if embedded else place


def require_texts(row: Row, names: Sequence[str], record: str) -> None:
    """Raise RecordError unless each of these columns holds a text."""
    missing = [name for name in names if not isinstance(row.get(name), str)]
    if missing:
        raise RecordError(f"{record}: no text under {', '.join(missing)}; the columns are {', '.join(sorted(row))}.")


def encoded(value: object, root: Path, record: str) -> tuple[tuple[EncodedImage, ...], str]:
    """Return the image of a row, and a reference to it for the row's key.

    `value` is a path, or a struct of bytes and path as parquet holds it. "" means that the row is text only by design,
    which no row of the published benchmarks is: it is this project's extension.
    Raises: RecordError for anything else, as null or a column that is not there.
    """
    if value == "":
        return (), ""
    if isinstance(value, Mapping):
        content = value.get("bytes")
        if content:
            return (bytes(content),), content_digest(bytes(content))
        value = value.get("path") or None
    if not isinstance(value, str):
        found = "null or missing" if value is None else f"a {type(value).__name__}"
        raise RecordError(
            f"{record}: the image is {found}; required is a path or a struct of bytes and path, without which the row is "
            'another question. (Text only by design: "".)'
        )
    return (under(root, value, record),), value


def under(root: Path, reference: str, record: str) -> Path:
    """Return the file or folder that `reference` names: below `root`, its `images` or `data` folder, or beside it.

    The last serves a `root` that is itself the folder with which the reference begins. If none of these is there,
    the first is returned, and reported as missing by `check_images`.
    Raises: RecordError for a reference that is absolute or climbs out of the folder.
    """
    parts = Path(reference).parts
    if not parts or ".." in parts or Path(reference).is_absolute():
        raise RecordError(
            f"{record}: the path {reference!r} does not stay below the image folder {root}; required is a relative path without "
            "'..'. Set image_root to the folder that the paths are relative to."
        )
    first = parts[0]
    places = [root / reference, root / "images" / reference, root / "data" / reference]
    if root.resolve().name == first:
        places.append(root.resolve().parent / reference)
    return next((place for place in places if place.exists()), places[0])


def user_turn(text: str, images: int) -> tuple[Message, ...]:
    """Return one user turn that shows `images` images before the text, as Qwen2.5-VL was trained."""
    parts: list[TextPart | ImagePart] = [{"type": "image"} for _ in range(images)]
    return ({"role": "user", "content": [*parts, {"type": "text", "text": text}]},)


def text_before_images(text: str, images: int) -> tuple[Message, ...]:
    """Return one user turn with the images behind the text, as the official judge scripts send it."""
    parts: list[TextPart | ImagePart] = [{"type": "image"} for _ in range(images)]
    return ({"role": "user", "content": [{"type": "text", "text": text}, *parts]},)


def content_key(prompt: Sequence[Message], responses: Sequence[str], references: Sequence[str]) -> str:
    """Return a digest of what a row shows; ids are no keys, all three benchmarks repeat them."""
    content = json.dumps([list(prompt), list(responses), list(references)], ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def limited(rows: Sequence[Row], limit: int | None) -> list[tuple[int, Row]]:
    """Return the rows with their numbers; only `limit` of them, drawn by a fixed seed, if there are more."""
    numbered = list(enumerate(rows))
    if limit is None or limit >= len(numbered):
        return numbered
    return [numbered[place] for place in sorted(random.Random(0).sample(range(len(numbered)), limit))]


def loaded(
    name: str, examples: Iterable[Example], where: Location, place: str, known: Sequence[Known], unavailable: Mapping[str, str]
) -> LoadedBenchmark:
    """Return the rows with distinct keys, checked images, and notes on how their counts differ from the published ones.

    `place` says where the rows were found; `unavailable` maps the identity of rows that cannot be shown to their group.
    Raises: UserError listing the rows whose image is missing or broken.
    """
    rows = _distinct(examples)
    check_images(name, rows)
    counts = Counter([*(example.group for example in rows), *unavailable.values()])
    notes = []
    if where.limit is not None:
        notes.append(f"Limited to {where.limit} rows: not comparable with any published figure.")
    elif where.location != "embedded":
        notes.extend(differences(counts, known) if known else [])
    if where.location != "embedded" and (text_only := sum(not example.images for example in rows)):
        notes.append(f"{text_only} of {len(rows)} rows are text only.")
    if unavailable:
        notes.append(f"{len(unavailable)} of {counts.total()} rows are unavailable and in no figure.")
    return LoadedBenchmark(rows, Origin(place, tuple(unavailable), tuple(notes)))


def check_images(name: str, examples: Sequence[Example]) -> None:
    """Decode every image once; raises UserError listing the rows whose image is missing or broken."""
    owner: dict[EncodedImage, str] = {}
    for example in examples:
        for image in example.images:
            owner.setdefault(image, example.identity)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        problems = [problem for problem in pool.map(_problem, owner.items()) if problem]
    if problems:
        more = f"\n  … and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
        raise UserError(
            f"{name}: {len(problems)} of {len(owner)} images are missing or broken:\n  "
            + "\n  ".join(problems[:LISTED])
            + more
            + "\nEvery row needs its image, else the score is another benchmark's. Set image_root to the folder that the "
            "paths are relative to, or fetch the images again. (To leave images out on purpose: `--images none`.)"
        )


def _problem(entry: tuple[EncodedImage, str]) -> str | None:
    image, identity = entry
    try:
        decode(image, identity)
    except ImageError as error:
        return str(error)
    return None


def _distinct(examples: Iterable[Example]) -> tuple[Example, ...]:
    """Return the examples with -2, -3 … behind the keys of rows that repeat an earlier row's content."""
    seen: Counter[str] = Counter()
    found = []
    for example in examples:
        seen[example.key] += 1
        repeat = seen[example.key]
        found.append(example if repeat == 1 else replace(example, key=f"{example.key}-{repeat}"))
    return tuple(found)
