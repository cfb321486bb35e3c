"""Reading the rows and images of a benchmark, and the checks that all benchmarks share."""

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
from mmrm.data.preference import (
    EncodedImage,
    ImagePart,
    Message,
    Preference,
    TextPart,
    control_token_faults,
)
from mmrm.data.preparation.faults import count_faults, fault_messages
from mmrm.data.regular_files import open_regular, require_regular
from mmrm.data.sources.shared.file_source import refuse_same_files, shards_problem
from mmrm.data.storage.arrow import CONVERSION_ERRORS, refuse_repeated_columns
from mmrm.data.storage.files import content_digest
from mmrm.data.storage.row_files import Row, open_rows
from mmrm.data.video import VIDEO_ADVICE, VIDEO_COLUMNS, is_video_name
from mmrm.eval.benchmarks.benchmark import (
    BUILT_IN,
    LoadedBenchmark,
    Location,
    Origin,
    PublishedEdition,
    Record,
    differences,
)
from mmrm.eval.benchmarks.editions import EMBEDDED, edition_folder
from mmrm.eval.candidates import Example

LISTED = 20
"""The most broken items that an error lists by name."""
SHOWN = 3
"""The most unavailable rows that a note names."""


def find_files(location: str, names: Sequence[str], what: str) -> list[Path]:
    """Return the file at `location`, or the benchmark's files in that folder.

    The files of a folder are all that match the first of `names` (paths or patterns) that any file
    matches.

    Raises:
        UserError: If there is no such file, a numbered set is incomplete, or a file is not regular.
            The message calls the benchmark `what`.
    """
    place = Path(location).expanduser()
    if place.is_file():
        _check_files([place], what)
        return [place]
    for name in names:
        files = sorted(place.glob(name))
        _check_files(files, what)
        if files:
            return files
    if os.path.lexists(place) and not place.is_dir():
        require_regular(place)
    state = "holds none of its files" if place.is_dir() else "is not there"
    raise UserError(
        f"{what}: {place} {state}. Required is `hub`, `embedded`, `embedded-medium`, "
        "`embedded-hard`, the official file, or a folder with one of: "
        f"{', '.join(names)}."
    )


def _check_files(files: Sequence[Path], what: str) -> None:
    """Refuse files that are the same by a link, and numbered sets that are incomplete."""
    refuse_same_files(files)
    problem = shards_problem(files)
    if problem:
        raise UserError(f"{what}: {problem} The location of a set is its folder.")


def read_json_lines(path: Path) -> list[Record | None]:
    """Return one object, or None for null, for each line that is not blank.

    Raises:
        UserError: If a line is not a JSON object or null, or has a key twice. The message names the
            file and the line.
    """
    records: list[Record | None] = []
    with open_regular(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            try:
                record = json.loads(line.decode(encoding), object_pairs_hook=_with_each_key_once)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}:{number}: not JSON: {error}. Correct or remove the line."
                ) from error
            if record is not None and not isinstance(record, dict):
                raise UserError(
                    f"{path}:{number}: found a JSON {type(record).__name__}; required is an "
                    "object. Correct or remove the line."
                )
            records.append(record)
    return records


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ValueError: If a key occurs twice, because readers differ in the value that they take.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key in counts if counts[key] > 1)
        raise ValueError(f"the key {repeated[:60]!r} is there twice in an object")
    return values


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """Return the rows of files of one kind, all in memory.

    Sources of training read parquet through a copy in Arrow, because they may not fit into memory.
    A benchmark does fit.
    """
    if paths[0].suffix == ".parquet":
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        for path in paths:
            refuse_repeated_columns(path, parquet.read_schema(path).names)
        try:
            return list(parquet.read_table(list(paths)).to_pylist())
        except CONVERSION_ERRORS as error:
            names = ", ".join(map(str, paths))
            raise UserError(
                f"{names}: the rows cannot be read ({error}). Fetch the files again."
            ) from error
    with tempfile.TemporaryDirectory() as cache:
        table = open_rows(paths, Path(cache))
        return [table.row(index) for index in range(len(table))]


@contextmanager
def fetching(title: str, hub: str) -> Iterator[None]:
    """Turn an error of the hub into a HubError whose message has a remedy."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, OSError) as error:
        raise HubError(
            f"{title} ({hub}) cannot be fetched from the hub ({type(error).__name__}: {error}). "
            "Check the revision, the network and the login; fetch it where there is a network "
            "(docs/clusters.md), or give the path of a copy as its location."
        ) from error


@dataclass(frozen=True, slots=True)
class Published:
    """A benchmark in the form in which it was published, on the hub or in a folder."""

    name: str
    title: str
    """The name of the benchmark in errors."""
    hub: str
    """The data set's id on the hub."""
    files: Sequence[str]
    """Paths or patterns of the benchmark's files in a folder; the first that matches is read."""
    image: str | None
    """The column whose images stay encoded. None: the hub's repository is fetched whole, with its
    folders of images."""
    known: Sequence[PublishedEdition]
    convert: Callable[[Row, Path, str], Example]
    """Makes an example of a row, the folder of image files and the row's identity."""
    videos: bool = False
    """True if rows may name videos, whose frames `convert` takes."""

    def look(self, where: Location) -> None:
        """Raise UserError if a local location holds no file of the benchmark."""
        if where.location not in BUILT_IN:
            find_files(where.location, self.files, self.title)

    def load(self, where: Location) -> LoadedBenchmark:
        """Return the rows with checked images.

        Raises:
            UserError: If files are missing, or the images of rows are missing or broken.
            RecordError: If a row cannot be used.
        """
        examples, place = self._examples(where)
        return loaded(self.name, examples, where, place, self.known)

    def read(self, where: Location) -> list[Example]:
        """Return the rows without looking at their images; raise errors as `load` does."""
        examples, _ = self._examples(where)
        return examples

    def _examples(self, where: Location) -> tuple[list[Example], str]:
        """Return the rows, limited as the location demands, and the place where they were found."""
        if where.location == "hub" and self.image is not None:
            rows = self._rows_on_hub(self.image, where.revision)
            place = f"{self.hub}@{where.revision or 'main'}"
            image_root = Path()
        else:
            files = find_files(self._folder(where), self.files, self.title)
            place = self._place_of_files(files, where)
            image_root = files[0].parent
            if where.image_root:
                image_root = Path(where.image_root).expanduser()
            rows = read_rows(files)
        if not self.videos:
            self._refuse_videos(rows)
        examples = []
        for index in limited(len(rows), where.limit):
            row = rows[index]
            identity = f"{self.name}:{index} ({row.get('id', row.get('ID'))})"
            examples.append(self.convert(row, image_root, identity))
        return examples, place

    def _rows_on_hub(self, image_column: str, revision: str | None) -> list[Row]:
        """Return the rows of the hub's data set, with the images of one column still encoded."""
        import datasets

        with fetching(self.title, self.hub):
            table = datasets.load_dataset(self.hub, split="test", revision=revision)
        return list(table.cast_column(image_column, datasets.Image(decode=False)))

    def _folder(self, where: Location) -> str:
        """Return the folder or file to read, after fetching or writing it if it is built in."""
        if where.location == "hub":
            from huggingface_hub import snapshot_download

            with fetching(self.title, self.hub):
                return str(
                    snapshot_download(self.hub, repo_type="dataset", revision=where.revision)
                )
        if where.location in EMBEDDED:
            return str(edition_folder(self.name, where.location))
        return where.location

    def _place_of_files(self, files: Sequence[Path], where: Location) -> str:
        """Return the place of the rows, as results state it."""
        if where.location == "hub":
            return f"{self.hub}@{where.revision or 'main'}"
        if where.location in EMBEDDED:
            return where.location
        return str(files[0] if len(files) == 1 else files[0].parent)

    def _refuse_videos(self, rows: Sequence[Row]) -> None:
        """Raise UserError if any row names a video."""
        with_video = []
        for index, row in enumerate(rows):
            if any(row.get(name) for name in VIDEO_COLUMNS):
                with_video.append(index)
        if with_video:
            raise UserError(
                f"{self.name}: {len(with_video)} rows name videos, the first is row "
                f"{with_video[0]}. {VIDEO_ADVICE}"
            )


def require_texts(row: Row, names: Sequence[str], record: str, hint: str = "") -> None:
    """Raise RecordError unless each of these columns holds a text."""
    missing = [name for name in names if not isinstance(row.get(name), str)]
    if missing:
        raise RecordError(
            f"{record}: no text under {', '.join(missing)}; the columns are "
            f"{', '.join(sorted(row))}.{hint}"
        )


def encoded(value: object, root: Path, record: str) -> tuple[tuple[EncodedImage, ...], str]:
    """Return the image of a row, and a reference to it for the row's key.

    `value` is a path, or a struct of bytes and path as parquet holds it. An empty text means that
    the row is text only by design. No row of the published benchmarks is; it is this project's
    extension.

    Raises:
        ImageError: If the path names a video.
        RecordError: If the value is anything else.
    """
    if value == "":
        return (), ""
    if isinstance(value, Mapping):
        content = value.get("bytes")
        if content:
            return (bytes(content),), content_digest(bytes(content))
        value = value.get("path") or None
    if isinstance(value, str) and is_video_name(value):
        raise ImageError(f"{record}: the image {value!r} is a video. {VIDEO_ADVICE}")
    if not isinstance(value, str):
        description = "null or missing" if value is None else f"a {type(value).__name__}"
        raise RecordError(
            f"{record}: the image is {description}; required is a path or a struct of bytes and "
            "path. Without its image the row is another question. An empty text marks a row that "
            "is text only by design."
        )
    return (under(root, value, record),), value


def under(root: Path, reference: str, record: str) -> Path:
    """Return the file or folder that `reference` names.

    It is looked for below `root`, below the folders `images` and `data` of `root`, and next to
    `root`. The last serves a `root` that is itself the folder with which the reference begins. If
    it is in none of these places, the first is returned, which `check_images` reports as missing.

    Raises:
        RecordError: If the reference is absolute or contains `..`.
    """
    parts = Path(reference).parts
    if not parts or ".." in parts or Path(reference).is_absolute():
        raise RecordError(
            f"{record}: the path {reference!r} does not stay below the image folder {root}; "
            "required is a relative path without '..'. Set image_root to the folder that the paths "
            "are relative to."
        )
    places = [root / reference, root / "images" / reference, root / "data" / reference]
    if root.resolve().name == parts[0]:
        places.append(root.resolve().parent / reference)
    for place in places:
        if place.exists():
            return place
    return places[0]


def user_turn(text: str, images: int, images_last: bool = False) -> tuple[Message, ...]:
    """Return one user turn of a text and images.

    The images come before the text, as Qwen2.5-VL was trained, or after it, as official scripts
    send them.
    """
    text_part: TextPart = {"type": "text", "text": text}
    image_parts: list[TextPart | ImagePart] = [{"type": "image"} for _ in range(images)]
    parts = [text_part, *image_parts] if images_last else [*image_parts, text_part]
    return ({"role": "user", "content": parts},)


def content_key(
    prompt: Sequence[Message], responses: Sequence[str], references: Sequence[str]
) -> str:
    """Return a digest of everything that a row shows.

    Ids cannot be keys, because they repeat in all three published benchmarks.
    """
    content = json.dumps([list(prompt), list(responses), list(references)], ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def limited(num_rows: int, limit: int | None) -> Sequence[int]:
    """Return the indices of all rows, or of `limit` rows drawn by a fixed seed, in order."""
    if limit is None or limit >= num_rows:
        return range(num_rows)
    return sorted(random.Random(0).sample(range(num_rows), limit))


def loaded(
    name: str,
    examples: Sequence[Example],
    where: Location,
    place: str,
    known: Sequence[PublishedEdition] = (),
) -> LoadedBenchmark:
    """Return the rows with distinct keys, checked images, and notes on unavailable rows.

    Rows are unavailable to every judge if a text holds a control token of Qwen2.5-VL, because a
    chat template would make a turn or an image of it. If several rows have the same content, the
    keys of all but the first end with -2, -3 and so on. Notes also state how the number of rows
    differs from the published ones.

    Args:
        name: The name of the benchmark.
        examples: The rows in file order.
        where: The location as the user gave it.
        place: The place where the rows were found, for the result.
        known: The published editions.

    Raises:
        UserError: If no row can be shown, or images are missing or broken. It lists them.
    """
    num_repeats: Counter[str] = Counter()
    rows: list[Example] = []
    unavailable: list[str] = []
    for example in examples:
        reason = example.unavailable or _forged_token(example)
        if reason:
            unavailable.append(f"{example.identity}: {reason}")
            continue
        num_repeats[example.key] += 1
        repeat = num_repeats[example.key]
        if repeat > 1:
            example = replace(example, key=f"{example.key}-{repeat}")
        rows.append(example)
    if unavailable and not rows:
        raise UserError(
            f"{name}: none of its {len(examples)} rows can be shown to a judge:"
            f"{listed(unavailable)}"
        )
    check_images(name, rows)

    notes = []
    if where.limit is not None:
        notes.append(f"Limited to {where.limit} rows: not comparable with any published figure.")
    elif where.location not in EMBEDDED and known:
        notes += differences(examples, known)
    if unavailable:
        more = " …" if len(unavailable) > SHOWN else ""
        notes.append(
            f"{len(unavailable)} of {len(examples)} rows are unavailable and in no figure: "
            f"{'; '.join(unavailable[:SHOWN])}{more}"
        )
    return LoadedBenchmark(tuple(rows), Origin(place, tuple(unavailable), tuple(notes)))


def _forged_token(example: Example) -> str:
    """Return the problem with a control token in a row's texts; an empty text without one."""
    better = example.responses[example.better]
    other = example.responses[1 - example.better]
    return next(
        control_token_faults(Preference(example.identity, example.prompt, better, other)), ""
    )


def check_images(name: str, examples: Sequence[Example]) -> None:
    """Decode every image once.

    Raises:
        UserError: If images are missing or broken. It lists their rows.
    """
    owner_by_image: dict[EncodedImage, str] = {}
    for example in examples:
        for image in example.images:
            owner_by_image.setdefault(image, example.identity)

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        results = pool.map(_image_problem, owner_by_image.keys(), owner_by_image.values())
        problems = [problem for problem in results if problem]
    if problems:
        raise UserError(
            f"{name}: {len(problems)} of {len(owner_by_image)} images are missing or broken:"
            f"{listed(problems)}"
            "\nEvery row needs its image, or else the score is another benchmark's. Set image_root "
            "to the folder that the paths are relative to, or fetch the images again. The option "
            "`--images none` leaves images out on purpose."
        )


def _image_problem(image: EncodedImage, identity: str) -> str:
    """Return the reason why an image cannot be decoded; an empty text if it can."""
    try:
        decode(image, identity)
    except ImageError as error:
        return str(error)
    return ""


def listed(problems: Sequence[str]) -> str:
    """Return the first problems, one a line. Problems of the same fault are one line."""
    counts = count_faults(((problem, 1) for problem in problems), len(problems))
    faults = fault_messages(counts)
    lines = faults[:LISTED]
    if len(faults) > LISTED:
        lines.append(f"… and {len(faults) - LISTED} other faults")
    return "".join(f"\n  {line}" for line in lines)
