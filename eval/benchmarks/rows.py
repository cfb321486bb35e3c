"""Rows and images of a benchmark as they lie on disk or on the hub, and the checks that all benchmarks share."""

import hashlib
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmrm.data.errors import HubError, ImageError, RecordError, UserError
from mmrm.data.images import decode
from mmrm.data.preference import EncodedImage, ImagePart, Message, Preference, TextPart, forged
from mmrm.data.preparation.faults import count_faults, fault_messages
from mmrm.data.regular_files import open_regular, require_regular
from mmrm.data.sources.shared.file_source import refuse_same_files, shards_problem
from mmrm.data.storage.arrow import BEYOND_PYTHON, refuse_repeated_columns
from mmrm.data.storage.files import content_digest
from mmrm.data.storage.row_files import Row, open_rows
from mmrm.data.video import ADVICE, COLUMNS, is_video_name
from mmrm.eval.benchmarks.benchmark import (
    BUILT_IN,
    Known,
    LoadedBenchmark,
    Location,
    Origin,
    Record,
    differences,
)
from mmrm.eval.benchmarks.editions import EMBEDDED, edition_folder
from mmrm.eval.candidates import Example

LISTED, SHOWN = 20, 3
"""Broken items that an error lists by name, and unavailable rows that a note does."""


def find_files(location: str, names: Sequence[str], what: str) -> list[Path]:
    """Return the file at `location`, or all files like the first of `names` (paths or patterns) that the folder holds."""
    place = Path(location).expanduser()
    for found in [[place]] if place.is_file() else (sorted(place.glob(name)) for name in names):
        refuse_same_files(found)
        if problem := shards_problem(found):
            raise UserError(f"{what}: {problem} (The location of a set is its folder.)")
        if found:
            return found
    if os.path.lexists(place) and not place.is_dir():
        require_regular(place)
    state = "holds none of its files" if place.is_dir() else "is not there"
    raise UserError(
        f"{what}: {place} {state}. Required is `hub`, `embedded`, `embedded-medium`, `embedded-hard`, the official file, or a "
        f"folder with one of: {', '.join(names)}."
    )


def read_json_lines(path: Path) -> list[Record | None]:
    """Return one object (or null) for each line that is not blank; raises UserError naming file and line."""
    found: list[Record | None] = []
    with open_regular(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                row = json.loads(line.decode(encoding), object_pairs_hook=_with_each_key_once)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}:{number}: not JSON: {error}.") from error
            if row is not None and not isinstance(row, dict):
                raise UserError(
                    f"{path}:{number}: found a JSON {type(row).__name__}; required is an object."
                )
            found.append(row)
    return found


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError if a key is there twice, because readers differ in which one they take."""
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key in counts if counts[key] > 1)
        raise ValueError(f"the key {repeated[:60]!r} is there twice in an object")
    return values


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """Return the rows of files of one kind; unlike a source's they are held in memory, so that parquet needs no copy in Arrow."""
    if paths[0].suffix == ".parquet":
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        for path in paths:
            refuse_repeated_columns(path, parquet.read_schema(path).names)
        try:
            return list(parquet.read_table(list(paths)).to_pylist())
        except BEYOND_PYTHON as error:
            names = ", ".join(map(str, paths))
            raise UserError(f"{names}: the rows cannot be read ({error}).") from error
    with tempfile.TemporaryDirectory() as cache:
        table = open_rows(paths, Path(cache))
        return [table.row(number) for number in range(len(table))]


@contextmanager
def fetching(title: str, hub: str) -> Iterator[None]:
    """Say what to do where the hub does not give a benchmark."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, OSError) as error:
        raise HubError(
            f"{title} ({hub}) cannot be fetched from the hub ({type(error).__name__}: {error}). Check the revision, the network "
            "and the login; fetch it where there is a network (docs/clusters.md), or give the path of a copy as its location."
        ) from error


@dataclass(frozen=True, slots=True)
class Published:
    """A published benchmark as it lies on the hub, or in a folder."""

    name: str
    title: str
    """What errors call it."""
    hub: str
    """The data set's id there."""
    files: Sequence[str]
    """What is looked for in a folder."""
    image: str | None
    """The column whose images stay encoded; without one the hub's repository is fetched whole, with its folders."""
    known: Sequence[Known]
    convert: Callable[[Row, Path, str], Example]
    """Makes an example of a row, the folder of image files and the row's identity."""
    videos: bool = False
    """Rows may name videos, of which `convert` takes the frames."""

    def look(self, where: Location) -> None:
        """Raise UserError for a local place that holds no file of the benchmark."""
        if where.location not in BUILT_IN:
            find_files(where.location, self.files, self.title)

    def load(self, where: Location) -> LoadedBenchmark:
        """Return the rows; raises UserError or RecordError for files that are not there, or rows that cannot be used."""
        examples, place = self._rows(where)
        return loaded(self.name, examples, where, place, self.known)

    def read(self, where: Location) -> list[Example]:
        """Return the rows without a look at their images; raises as `load` does."""
        return self._rows(where)[0]

    def _rows(self, where: Location) -> tuple[list[Example], str]:
        """Return the rows and where they were found."""
        place, root = f"{self.hub}@{where.revision or 'main'}", Path()
        if where.location == "hub" and self.image is not None:
            import datasets

            with fetching(self.title, self.hub):
                table = datasets.load_dataset(self.hub, split="test", revision=where.revision)
            rows: Sequence[Row] = list(table.cast_column(self.image, datasets.Image(decode=False)))
        else:
            folder = where.location
            if folder == "hub":
                from huggingface_hub import snapshot_download

                with fetching(self.title, self.hub):
                    folder = snapshot_download(
                        self.hub, repo_type="dataset", revision=where.revision
                    )
            elif folder in EMBEDDED:
                folder = str(edition_folder(self.name, folder))
            found = find_files(folder, self.files, self.title)
            if where.location in EMBEDDED:
                place = where.location
            elif where.location != "hub":
                place = str(found[0] if len(found) == 1 else found[0].parent)
            root = Path(where.image_root).expanduser() if where.image_root else found[0].parent
            rows = read_rows(found)
        numbered = ((number, rows[number]) for number in limited(len(rows), where.limit))
        named = [
            number
            for number in range(len(rows))
            if not self.videos and any(map(rows[number].get, COLUMNS))
        ]
        if named:
            raise UserError(
                f"{self.name}: {len(named)} rows name videos, the first is row {named[0]}. {ADVICE}"
            )
        examples = [
            self.convert(row, root, f"{self.name}:{number} ({row.get('id', row.get('ID'))})")
            for number, row in numbered
        ]
        return examples, place


def require_texts(row: Row, names: Sequence[str], record: str, hint: str = "") -> None:
    """Raise RecordError unless each of these columns holds a text."""
    missing = [name for name in names if not isinstance(row.get(name), str)]
    if missing:
        raise RecordError(
            f"{record}: no text under {', '.join(missing)}; the columns are {', '.join(sorted(row))}.{hint}"
        )


def encoded(value: object, root: Path, record: str) -> tuple[tuple[EncodedImage, ...], str]:
    """Return the image of a row, and a reference to it for the row's key.

    `value` is a path, or a struct of bytes and path as parquet holds it. "" means that the row is text only by design,
    which no row of the published benchmarks is: it is this project's extension. Anything else is a RecordError.
    """
    if value == "":
        return (), ""
    if isinstance(value, Mapping):
        content = value.get("bytes")
        if content:
            return (bytes(content),), content_digest(bytes(content))
        value = value.get("path") or None
    if isinstance(value, str) and is_video_name(value):
        raise ImageError(f"{record}: the image {value!r} is a video. {ADVICE}")
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
    places = [root / reference, root / "images" / reference, root / "data" / reference]
    if root.resolve().name == parts[0]:
        places.append(root.resolve().parent / reference)
    return next((place for place in places if place.exists()), places[0])


def user_turn(text: str, images: int, images_last: bool = False) -> tuple[Message, ...]:
    """Return one user turn that shows images before the text, as Qwen2.5-VL was trained, or behind it, as official scripts do."""
    parts: list[TextPart | ImagePart] = [{"type": "image"} for _ in range(images)]
    parts.insert(0 if images_last else images, {"type": "text", "text": text})
    return ({"role": "user", "content": parts},)


def content_key(
    prompt: Sequence[Message], responses: Sequence[str], references: Sequence[str]
) -> str:
    """Return a digest of what a row shows; ids are no keys, all three benchmarks repeat them."""
    content = json.dumps([list(prompt), list(responses), list(references)], ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def limited(rows: int, limit: int | None) -> Sequence[int]:
    """Return the numbers of all rows; only `limit` of them, drawn by a fixed seed, if there are more."""
    return (
        range(rows)
        if limit is None or limit >= rows
        else sorted(random.Random(0).sample(range(rows), limit))
    )


def loaded(
    name: str, examples: Sequence[Example], where: Location, place: str, known: Sequence[Known] = ()
) -> LoadedBenchmark:
    """Return the rows with distinct keys, checked images, and notes on how their counts differ from the published ones.

    A row with a control token of Qwen2.5-VL in its texts is unavailable, to every judge alike: a chat template would make a turn
    or an image of it. The keys of rows that repeat an earlier row's content get -2, -3 … behind them. `place` says where the
    rows were found.
    Raises: UserError listing the rows whose image is missing or broken, or all where none can be shown.
    """
    seen: Counter[str] = Counter()
    rows, unavailable = [], []
    for example in examples:
        better, other = example.responses[example.better], example.responses[1 - example.better]
        if reason := example.unavailable or next(
            forged(Preference(example.identity, example.prompt, better, other)), ""
        ):
            unavailable.append(f"{example.identity}: {reason}")
            continue
        seen[example.key] += 1
        repeat = seen[example.key]
        rows.append(example if repeat == 1 else replace(example, key=f"{example.key}-{repeat}"))
    if unavailable and not rows:
        raise UserError(
            f"{name}: none of its {len(examples)} rows can be shown to a judge:{listed(unavailable)}"
        )
    check_images(name, rows)
    notes = []
    if where.limit is not None:
        notes.append(f"Limited to {where.limit} rows: not comparable with any published figure.")
    elif where.location not in EMBEDDED and known:
        notes += differences(examples, known)
    if unavailable:
        notes.append(
            f"{len(unavailable)} of {len(examples)} rows are unavailable and in no figure: {'; '.join(unavailable[:SHOWN])}"
            f"{' …' if len(unavailable) > SHOWN else ''}"
        )
    return LoadedBenchmark(tuple(rows), Origin(place, tuple(unavailable), tuple(notes)))


def check_images(name: str, examples: Sequence[Example]) -> None:
    """Decode every image once; raises UserError listing the rows whose image is missing or broken."""
    owner: dict[EncodedImage, str] = {}
    for example in examples:
        for image in example.images:
            owner.setdefault(image, example.identity)

    def problem(image: EncodedImage) -> str:
        try:
            decode(image, owner[image])
        except ImageError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        problems = list(filter(None, pool.map(problem, owner)))
    if problems:
        raise UserError(
            f"{name}: {len(problems)} of {len(owner)} images are missing or broken:{listed(problems)}"
            "\nEvery row needs its image, else the score is another benchmark's. Set image_root to the folder that the "
            "paths are relative to, or fetch the images again. (To leave images out on purpose: `--images none`.)"
        )


def listed(problems: Sequence[str]) -> str:
    """Return the first problems, a line each, those of the same fault as one."""
    faults = fault_messages(count_faults(((problem, 1) for problem in problems), len(problems)))
    more = [f"… and {len(faults) - LISTED} other faults"] if len(faults) > LISTED else []
    return "".join(f"\n  {fault}" for fault in [*faults[:LISTED], *more])
