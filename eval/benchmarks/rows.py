"""Reading the rows and images of a benchmark, and the checks that all benchmarks share."""

import csv
import hashlib
import io
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

from mmrm.data.encoded_video import Video, video_size
from mmrm.data.errors import HubError, ImageError, RecordError, UserError
from mmrm.data.images import decode
from mmrm.data.preference import (
    EncodedImage,
    Message,
    Part,
    Preference,
    control_token_faults,
    image_parts,
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
    row_count_notes,
)
from mmrm.eval.benchmarks.editions import EMBEDDED, edition_folder
from mmrm.eval.candidates import BenchmarkRow

MOST_FAULTS = 20
"""The most faults that an error lists."""
MOST_UNAVAILABLE = 3
"""The most unavailable rows that a note names."""
LONGEST_KEY = 60
"""The most characters of a repeated JSON key in a message."""
MOST_THREADS = 16
"""The most threads that decode images at once."""
KEY_LENGTH = 24
"""Hexadecimal digits of a row's key."""


def find_files(location: str, patterns: Sequence[str], title: str) -> list[Path]:
    """Return the file at `location`, or the benchmark's files in that folder.

    In a folder the patterns are tried in their order. The files that match a pattern are returned,
    and later patterns are not tried any more.

    Args:
        location: The path of a file or a folder.
        patterns: Paths or glob patterns, relative to the folder.
        title: The name of the benchmark in messages.

    Raises:
        UserError: If there is no such file, some shards of a numbered set are missing, or a file is
            not regular.
    """
    path = Path(location).expanduser()
    if path.is_file():
        _check_files([path], title)
        return [path]
    for pattern in patterns:
        files = sorted(path.glob(pattern))
        _check_files(files, title)
        if files:
            return files
    if os.path.lexists(path) and not path.is_dir():
        # A pipe, a device or a broken link has an error that names its kind.
        require_regular(path)
    state = "holds none of its files" if path.is_dir() else "is not there"
    raise UserError(
        f"{title}: {path} {state}. Required is `hub`, `embedded`, `embedded-medium`, "
        "`embedded-hard`, the official file, or a folder with one of: "
        f"{', '.join(patterns)}."
    )


def refuse_embedded(title: str, where: Location) -> None:
    """Raise UserError if a location is an edition with generated rows, for benchmarks without one.

    The message begins with `title`, the name of the benchmark.
    """
    if where.location in EMBEDDED:
        raise UserError(
            f"{title}: there is no edition with generated rows, which {where.location!r} names. "
            "Set the location to `hub` or to the path of a copy."
        )


def _check_files(files: Sequence[Path], title: str) -> None:
    """Raise UserError if two paths lead to the same file, or if shards of a set are missing.

    The message about shards begins with `title`, the name of the benchmark.
    """
    refuse_same_files(files)
    problem = shards_problem(files)
    if problem:
        raise UserError(f"{title}: {problem} The location of a set is its folder.")


def read_json_lines(path: Path) -> list[Record | None]:
    """Return the JSON value of each line that is not blank: an object, or None for null.

    Raises:
        UserError: If a line is not a JSON object or null, or has a key twice. The message names the
            file and the line.
    """
    records: list[Record | None] = []
    with open_regular(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            encoding = "utf-8-sig" if number == 1 else "utf-8"  # a file may begin with a BOM
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


def read_json_value(path: Path) -> Any:
    """Return the JSON value that a file holds.

    Raises:
        UserError: If the file holds no JSON value, or an object has a key twice. The message names
            the file.
    """
    with open_regular(path) as file:
        content = file.read()
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_with_each_key_once)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}. Fetch or write the file again.") from error


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dictionary of the (key, value) pairs of a JSON object.

    Raises:
        ValueError: If a key occurs twice. Programs differ in which of its values they read.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key in counts if counts[key] > 1)
        raise ValueError(f"the key {repeated[:LONGEST_KEY]!r} is there twice in an object")
    return values


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """Return the rows of all files, which have the same format; all rows are in memory at once.

    Raises:
        UserError: If a file is damaged or of another format.
    """
    if paths[0].suffix == ".csv":
        rows: list[Row] = []
        for path in paths:
            rows += read_csv(path)
        return rows
    if paths[0].suffix == ".parquet":
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        for path in paths:
            refuse_repeated_columns(path, parquet.read_schema(path).names)
        try:
            return list(parquet.read_table(list(paths)).to_pylist())
        except CONVERSION_ERRORS as error:  # a value that no Python object can hold
            names = ", ".join(map(str, paths))
            raise UserError(
                f"{names}: the rows cannot be read ({error}). Fetch the files again."
            ) from error
    with tempfile.TemporaryDirectory() as cache:
        table = open_rows(paths, Path(cache))
        return [table.row(index) for index in range(len(table))]


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a table whose first line names the columns. All values are texts.

    Raises:
        UserError: If the file is no UTF-8, a column is there twice, or a line has more or fewer
            values than there are columns.
    """
    with open_regular(path) as file:
        try:
            lines = list(csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path}: no table of commas ({error}). Fetch it again.") from error
    columns = lines[0] if lines else []
    refuse_repeated_columns(path, columns)
    rows: list[Row] = []
    for number, values in enumerate(lines[1:], start=2):
        if not values:
            continue  # a blank line
        if len(values) != len(columns):
            raise UserError(
                f"{path}: record {number} has {len(values)} values; required are {len(columns)}, "
                "one for each column. Correct the record, or fetch the file again."
            )
        rows.append(dict(zip(columns, values, strict=True)))
    return rows


@contextmanager
def fetching(title: str, hub: str) -> Iterator[None]:
    """Raise a HubError with a remedy if the block, which fetches a data set, raises an error.

    Args:
        title: The name of the benchmark.
        hub: The data set's id on the hub.
    """
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
class FileRows:
    """The rows of a benchmark's files."""

    rows: list[Row]
    image_root: Path
    """The folder that the paths of images are relative to."""
    origin: str
    """The path or the hub revision of the files; results state it."""


@dataclass(frozen=True, slots=True)
class BenchmarkFiles:
    """The files of a published benchmark: where they are, and how their rows are read."""

    name: str
    title: str
    """The name of the benchmark in errors."""
    hub: str
    """The data set's id on the hub."""
    files: Sequence[str]
    """Paths or patterns of the benchmark's files in a folder; the first that matches is read."""

    def check_location(self, where: Location) -> None:
        """Raise UserError if a local location holds no file of the benchmark."""
        if where.location not in BUILT_IN:
            find_files(where.location, self.files, self.title)

    def read(self, where: Location) -> FileRows:
        """Return the rows of the files at a location.

        Files on the hub are downloaded first. An edition with generated rows is written first.

        Raises:
            UserError: If files are missing or cannot be read.
        """
        files = find_files(self._local_path(where), self.files, self.title)
        image_root = files[0].parent
        if where.image_root:
            image_root = Path(where.image_root).expanduser()
        return FileRows(read_rows(files), image_root, self._origin(files, where))

    def _local_path(self, where: Location) -> str:
        """Return the path of the benchmark's folder or file."""
        if where.location == "hub":
            from huggingface_hub import snapshot_download

            with fetching(self.title, self.hub):
                return str(
                    snapshot_download(self.hub, repo_type="dataset", revision=where.revision)
                )
        if where.location in EMBEDDED:
            return str(edition_folder(self.name, where.location))
        return where.location

    def _origin(self, files: Sequence[Path], where: Location) -> str:
        """Return the origin of the rows in `files`: a path or a hub revision, for results."""
        if where.location == "hub":
            return f"{self.hub}@{where.revision or 'main'}"
        if where.location in EMBEDDED:
            return where.location
        if len(files) == 1:
            return str(files[0])
        return os.path.commonpath([file.parent for file in files])


@dataclass(frozen=True, slots=True)
class PublishedBenchmark:
    """A published benchmark: where its rows are, and the function that makes examples of them."""

    name: str
    title: str
    """The name of the benchmark in errors."""
    hub: str
    """The data set's id on the hub."""
    files: Sequence[str]
    """Paths or patterns of the benchmark's files in a folder; the first that matches is read."""
    image: str | None
    """The column with the images of the hub's table, which are read without being decoded. None if
    the hub's whole repository is downloaded instead, with its folders of images."""
    known: Sequence[PublishedEdition]
    """Published editions, with whose numbers of rows the loaded rows are compared."""
    convert: Callable[[Row, Path, str], BenchmarkRow]
    """Makes an example of a row, the folder of image files and the row's identity."""
    videos: bool = False
    """True if rows may name videos, whose frames `convert` takes."""

    @property
    def _files(self) -> BenchmarkFiles:
        """The files of the benchmark."""
        return BenchmarkFiles(self.name, self.title, self.hub, self.files)

    def check_location(self, where: Location) -> None:
        """Raise UserError if a local location holds no file of the benchmark."""
        self._files.check_location(where)

    def load(self, where: Location) -> LoadedBenchmark:
        """Return the rows of the benchmark, after checking that every image can be decoded.

        Raises:
            UserError: If files are missing, or the images of rows are missing or broken.
            RecordError: If a row cannot be used.
        """
        examples, origin = self.read_with_origin(where)
        return loaded_benchmark(self.name, examples, where, origin, self.known)

    def read(self, where: Location) -> list[BenchmarkRow]:
        """Return the rows without checking their images.

        Raises:
            UserError: If files are missing.
            RecordError: If a row cannot be used.
        """
        examples, _ = self.read_with_origin(where)
        return examples

    def read_with_origin(self, where: Location) -> tuple[list[BenchmarkRow], str]:
        """Return the rows, at most `where.limit`, and their origin: a path or a hub revision."""
        if where.location == "hub" and self.image is not None:
            rows = self._rows_on_hub(self.image, where.revision)
            origin = f"{self.hub}@{where.revision or 'main'}"
            image_root = Path()  # not used: the table holds the images themselves
        else:
            file_rows = self._files.read(where)
            rows = file_rows.rows
            origin = file_rows.origin
            image_root = file_rows.image_root
        if not self.videos:
            self._refuse_videos(rows)
        examples = []
        for index in limited_indices(len(rows), where.limit):
            row = rows[index]
            identity = f"{self.name}:{index} ({row.get('id', row.get('ID'))})"
            examples.append(self.convert(row, image_root, identity))
        return examples, origin

    def _rows_on_hub(self, image_column: str, revision: str | None) -> list[Row]:
        """Return the rows of the hub's data set; images in `image_column` are not decoded."""
        import datasets

        with fetching(self.title, self.hub):
            table = datasets.load_dataset(self.hub, split="test", revision=revision)
        return list(table.cast_column(image_column, datasets.Image(decode=False)))

    def _refuse_videos(self, rows: Sequence[Row]) -> None:
        """Raise UserError if any row names a video."""
        video_indices = []
        for index, row in enumerate(rows):
            if any(row.get(column) for column in VIDEO_COLUMNS):
                video_indices.append(index)
        if video_indices:
            raise UserError(
                f"{self.name}: {len(video_indices)} rows name videos, the first is row "
                f"{video_indices[0]}. {VIDEO_ADVICE}"
            )


def require_texts(row: Row, columns: Sequence[str], identity: str, hint: str = "") -> None:
    """Raise RecordError unless each of these columns holds a text.

    The message begins with `identity`, the benchmark and the row. It ends with `hint`.
    """
    missing = [column for column in columns if not isinstance(row.get(column), str)]
    if missing:
        raise RecordError(
            f"{identity}: no text under {', '.join(missing)}; the columns are "
            f"{', '.join(sorted(row))}.{hint}"
        )


def image_of_row(value: object, root: Path, identity: str) -> tuple[tuple[EncodedImage, ...], str]:
    """Return the image of a row, and a text that stands for the image in the row's key.

    The first result holds one image, or none if `value` is an empty text. That marks a row that is
    text only by design. The published benchmarks have no such rows.

    Args:
        value: The row's image column: a path, or a mapping with `bytes` and `path`.
        root: The folder that paths are relative to.
        identity: The benchmark and the row, for messages.

    Raises:
        ImageError: If the path names a video.
        RecordError: If the value is neither a path nor such a mapping, or the path leaves `root`.
    """
    if value == "":
        return (), ""
    if isinstance(value, Mapping):
        content = value.get("bytes")
        if content:
            return (bytes(content),), content_digest(bytes(content))
        value = value.get("path") or None  # an empty path is no image, not a row of text only
    if isinstance(value, str) and is_video_name(value):
        raise ImageError(f"{identity}: the image {value!r} is a video. {VIDEO_ADVICE}")
    if not isinstance(value, str):
        description = "null or missing" if value is None else f"a {type(value).__name__}"
        raise RecordError(
            f"{identity}: the image is {description}; required is a path or a struct of bytes and "
            "path. Without its image the row is another question. An empty text marks a row that "
            "is text only by design."
        )
    return (path_below(root, value, identity),), value


@dataclass(frozen=True, slots=True)
class RowImage:
    """An image of a row, which may be missing, and a text that stands for it in the row's key."""

    content: EncodedImage | None
    """None if the image is missing."""
    reference: str

    @property
    def contents(self) -> tuple[EncodedImage, ...]:
        """The image, or nothing if it is missing."""
        return () if self.content is None else (self.content,)


def row_image(value: object, root: Path, identity: str) -> RowImage:
    """Return an image of a row whose benchmark counts rows without their images as unavailable.

    Args:
        value: The row's image column: a path, or a mapping with `bytes` and `path`.
        root: The folder that paths are relative to.
        identity: The benchmark and the row, for messages.

    Raises:
        ImageError: If the path names a video.
        RecordError: If the value is neither a path nor such a mapping, or the path leaves `root`.
    """
    if not value:
        return RowImage(None, "(none)")
    images, reference = image_of_row(value, root, identity)
    if isinstance(images[0], Path) and not images[0].is_file():
        return RowImage(None, reference)
    return RowImage(images[0], reference)


def path_below(root: Path, reference: str, identity: str) -> Path:
    """Return the path of the file or folder `reference` that a row names.

    The candidates are `reference` below `root`, below `root/images` and below `root/data`. A fourth
    one is added if `root` has the name with which `reference` begins: then `reference` may be
    relative to the parent of `root`. The result is the first candidate that exists. If there is
    none, it is the first candidate, which `check_images` reports as missing.

    Raises:
        RecordError: If the reference is absolute or contains `..`. The message begins with
            `identity`, the benchmark and the row.
    """
    parts = Path(reference).parts
    if not parts or ".." in parts or Path(reference).is_absolute():
        raise RecordError(
            f"{identity}: the path {reference!r} does not stay below the image folder {root}; "
            "required is a relative path without '..'. Set image_root to the folder that the paths "
            "are relative to."
        )
    candidates = [root / reference, root / "images" / reference, root / "data" / reference]
    if root.resolve().name == parts[0]:
        candidates.append(root.resolve().parent / reference)
    for candidate in candidates:
        if candidate.exists():
            return candidate
    return candidates[0]


def user_turn(
    text: str, num_images: int, images_last: bool = False, num_videos: int = 0
) -> tuple[Message, ...]:
    """Return a conversation of one user turn, with a text, images and videos.

    The images and videos come before the text, as Qwen2.5-VL was trained. If `images_last` is True,
    they come after it, as official scripts send them.
    """
    text_part: Part = {"type": "text", "text": text}
    media_parts: list[Part] = image_parts(num_images)
    media_parts += [{"type": "video"} for _ in range(num_videos)]
    parts = [text_part, *media_parts] if images_last else [*media_parts, text_part]
    return ({"role": "user", "content": parts},)


def content_key(
    prompt: Sequence[Message], responses: Sequence[str], references: Sequence[str]
) -> str:
    """Return the key of a row: a digest of its prompt, its responses and its images.

    `references` holds a text for each image, such as its path. Ids cannot be keys, because they
    repeat in all three published benchmarks.
    """
    content = json.dumps([list(prompt), list(responses), list(references)], ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()[:KEY_LENGTH]


def limited_indices(num_rows: int, limit: int | None) -> Sequence[int]:
    """Return the indices of all rows, or of `limit` rows drawn by a fixed seed, in order."""
    if limit is None or limit >= num_rows:
        return range(num_rows)
    return sorted(random.Random(0).sample(range(num_rows), limit))


def loaded_benchmark(
    name: str,
    examples: Sequence[BenchmarkRow],
    where: Location,
    origin: str,
    editions: Sequence[PublishedEdition] = (),
) -> LoadedBenchmark:
    """Return the rows that can be judged, after checking their images, with notes about all rows.

    A row with a control token of Qwen2.5-VL in a text is unavailable to every judge, because a chat
    template would turn the token into a turn or an image. Such rows are left out, and a note names
    them. If several rows have the same content, the keys of all but the first end with -2, -3 and
    so on. Other notes state how the numbers of rows differ from the nearest published edition.

    Args:
        name: The name of the benchmark.
        examples: The rows in file order.
        where: The location as the user gave it.
        origin: The path or the hub revision that the rows were read from; results state it.
        editions: The published editions.

    Raises:
        UserError: If no row can be shown, or images are missing or broken. It lists them.
    """
    rows_by_key: Counter[str] = Counter()
    rows: list[BenchmarkRow] = []
    unavailable: list[str] = []
    for example in examples:
        reason = example.unavailable or _control_token_problem(example)
        if reason:
            unavailable.append(f"{example.identity}: {reason}")
            continue
        rows_by_key[example.key] += 1
        num_equal = rows_by_key[example.key]
        if num_equal > 1:
            example = replace(example, key=f"{example.key}-{num_equal}")
        rows.append(example)
    if unavailable and not rows:
        raise UserError(
            f"{name}: none of its {len(examples)} rows can be shown to a judge:"
            f"{problem_lines(unavailable)}"
        )
    check_images(name, rows)
    check_videos(name, rows)

    notes = []
    if where.limit is not None:
        notes.append(f"Limited to {where.limit} rows: not comparable with any published figure.")
    elif where.location not in EMBEDDED and editions:
        notes += row_count_notes(examples, editions)
    if unavailable:
        ellipsis = " …" if len(unavailable) > MOST_UNAVAILABLE else ""
        notes.append(
            f"{len(unavailable)} of {len(examples)} rows are unavailable and in no figure: "
            f"{'; '.join(unavailable[:MOST_UNAVAILABLE])}{ellipsis}"
        )
    return LoadedBenchmark(tuple(rows), Origin(origin, tuple(unavailable), tuple(notes)))


def _control_token_problem(example: BenchmarkRow) -> str:
    """Return a message about the first control token in a row's texts; "" if there is none."""
    best_first = sorted(range(len(example.ranks)), key=lambda index: example.ranks[index])
    record = Preference(
        identity=example.identity,
        prompt=example.prompt,
        responses=tuple(example.responses[index] for index in best_first),
        ranks=tuple(example.ranks[index] for index in best_first),
    )
    return next(control_token_faults(record), "")


def check_images(name: str, examples: Sequence[BenchmarkRow]) -> None:
    """Raise UserError if images of the benchmark `name` are missing or broken; it lists their rows.

    Every image is decoded once, even if several rows show it.
    """
    identity_by_image: dict[EncodedImage, str] = {}
    for example in examples:
        for image in example.all_images:
            identity_by_image.setdefault(image, example.identity)

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        results = pool.map(_image_problem, identity_by_image.keys(), identity_by_image.values())
        problems = [problem for problem in results if problem]
    if problems:
        raise UserError(
            f"{name}: {len(problems)} of {len(identity_by_image)} images are missing or broken:"
            f"{problem_lines(problems)}"
            "\nEvery row needs its image, or else the score is another benchmark's. Set image_root "
            "to the folder that the paths are relative to, or fetch the images again. The option "
            "`--images none` leaves images out on purpose."
        )


def check_videos(name: str, examples: Sequence[BenchmarkRow]) -> None:
    """Raise UserError if videos of the benchmark `name` are missing or broken; it lists their rows.

    Videos are opened, and their frames are counted without being decoded.
    """
    identity_by_video: dict[Video, str] = {}
    for example in examples:
        for video in example.all_videos:
            identity_by_video.setdefault(video, example.identity)
    problems = []
    for video, identity in identity_by_video.items():
        try:
            video_size(video, identity)
        except ImageError as error:
            problems.append(str(error))
    if problems:
        raise UserError(
            f"{name}: {len(problems)} of {len(identity_by_video)} videos are missing or broken:"
            f"{problem_lines(problems)}"
            "\nEvery row needs its video, or else the score is another benchmark's. Fetch the "
            "videos again."
        )


def _image_problem(image: EncodedImage, identity: str) -> str:
    """Return the reason why an image cannot be decoded; an empty text if it can be.

    Args:
        image: The image.
        identity: The benchmark and the row of the image, which the reason begins with.
    """
    try:
        decode(image, identity)
    except ImageError as error:
        return str(error)
    return ""


def problem_lines(problems: Sequence[str]) -> str:
    """Return a list of problems for the end of a message; each begins on a new line.

    Problems that differ only in their row or value are one line with their number. At most
    MOST_FAULTS lines are written, and then the number of the other faults.
    """
    counted_problems = [(problem, 1) for problem in problems]  # each is about one row
    faults = fault_messages(count_faults(counted_problems, max_faults=len(problems)))
    lines = faults[:MOST_FAULTS]
    if len(faults) > MOST_FAULTS:
        lines.append(f"… and {len(faults) - MOST_FAULTS} other faults")
    return "".join(f"\n  {line}" for line in lines)
