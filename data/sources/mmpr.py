"""MMPR-v1.2 (OpenGVLab/MMPR-v1.2): about 3M pairs in 148 files over 266,908 images.

meta.json names the annotation file and the image root of each subset. The annotation files are in
annotations.zip, or unpacked next to it. The images are in images.zip_aa, _ab and _ac (one zip in
parts, which is read without unpacking), or unpacked. MMPR contains RLAIF-V.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.regular_files import open_regular, read_bytes
from mmrm.data.sources.shared.conversation import question
from mmrm.data.sources.shared.file_source import (
    ImageFilesConfig,
    LocatedFiles,
    SourceRow,
    TableSource,
)
from mmrm.data.storage.archives import ERRORS_OF_DAMAGED_ARCHIVES, Archive, Folder, Images
from mmrm.data.storage.files import cached_path, copy_limited, whole_file
from mmrm.data.storage.row_files import Concatenated, JsonLines
from mmrm.data.storage.strict_json import parse_json


@dataclass(frozen=True, slots=True)
class Subset:
    """An entry of meta.json."""

    annotation: str
    """The name of the annotation file, without folders."""
    image_root: str
    """The folder that image paths are relative to."""


class MmprConfig(ImageFilesConfig):
    """Pairs of MMPR, of all subsets or of some."""

    FILES = ("*meta.json", "*annotations.zip", "*annotations/*.jsonl", "*images.zip*")
    LICENCE = "MIT"

    type: Literal["mmpr"]
    hub: str | None = "OpenGVLab/MMPR-v1.2"
    subsets: list[str] | None = None
    """Names in meta.json; null takes all."""

    def look(self) -> None:
        """Check meta.json and the subsets that the recipe names. Images are not looked at."""
        if self.path is not None:
            self._chosen_subsets(self.locate())

    def open(self, cache: Path) -> MmprSource:
        """Open the annotations and the images.

        Raises:
            UserError: If a file is missing or damaged, or meta.json has another form.
        """
        located = self.locate()
        subsets = self._chosen_subsets(located)
        files = _annotation_files(located, cache, [entry.annotation for entry in subsets.values()])
        missing = [name for name, entry in subsets.items() if entry.annotation not in files]
        if missing:
            raise UserError(
                f"source {self.label!r}: the annotation files of {', '.join(missing)} are neither "
                "in annotations.zip nor unpacked. Fetch them, or leave these names out of "
                "`subsets`."
            )
        image_files = [path for path in located.files if path.name.startswith("images")]
        images = self.open_images(replace(located, files=image_files), cache)
        sources = []
        for name, entry in subsets.items():
            rows = JsonLines(files[entry.annotation], cache)
            subset_images = SubsetImages(images, entry.image_root)
            sources.append(
                TableSource(self, located.revision, rows, subset_images, f"{self.label}:{name}")
            )
        return MmprSource(self, located.revision, sources, images)

    def convert(self, row: SourceRow) -> Preference:
        """Read the columns image (none, one or a list), question, chosen and rejected."""
        images = row.all_images(row.optional("image", str | list))
        prompt = question(row.text("question"), len(images))
        return Preference(row.identity, prompt, row.text("chosen"), row.text("rejected"), images)

    def _chosen_subsets(self, located: LocatedFiles) -> dict[str, Subset]:
        """Return the entries of meta.json that the recipe names, by name in the file's order."""
        metas = [path for path in located.files if path.name == "meta.json"]
        if len(metas) != 1:
            raise UserError(
                f"source {self.label!r}: {located.root} holds {len(metas)} files meta.json, and "
                "exactly one is needed. Fetch it, or set `path` to the folder of one copy."
            )
        entries = _read_meta(metas[0])
        if self.subsets is None:
            return entries
        unknown = [name for name in self.subsets if name not in entries]
        if unknown:
            raise UserError(
                f"source {self.label!r}: `subsets` names {', '.join(unknown)}, which meta.json "
                f"does not contain. Its subsets are {', '.join(entries)}."
            )
        return {name: entry for name, entry in entries.items() if name in self.subsets}


class MmprSource(TableSource):
    """The rows of all subsets in the order of meta.json, with the subset as the category."""

    def __init__(
        self, config: MmprConfig, revision: str, subsets: Sequence[TableSource], images: Images
    ) -> None:
        self.subsets = subsets
        self.table = Concatenated([subset.rows for subset in subsets])
        super().__init__(config, revision, self.table, images)

    def record(self, index: int) -> Preference:
        """Return the record at `index`; its identity contains the name of the subset."""
        subset_index, row_index = self.table.table_and_position(index)
        subset = self.subsets[subset_index]
        category = subset.name.removeprefix(f"{self.name}:")
        return replace(subset.record(row_index), category=category)


@dataclass
class SubsetImages:
    """The images of a subset below its root in meta.json.

    The root may begin with up to two folders that a copy of the data set does not have.
    """

    images: Archive | Folder
    root: str

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the image `name` below the root."""
        root_parts = PurePosixPath(self.root).parts
        num_roots = min(3, len(root_parts) + 1)
        paths = [str(PurePosixPath(*root_parts[start:]) / name) for start in range(num_roots)]
        for path in paths:
            if path in self.images:
                return self.images.find(path, record)
        return self.images.find(paths[0], record)  # its error names the path of meta.json


def _read_meta(file: Path) -> dict[str, Subset]:
    """Return the entries of meta.json by the names of the subsets.

    Raises:
        UserError: If the file has another form.
    """
    try:
        meta = parse_json(read_bytes(file))
    except RecordError as error:
        raise UserError(f"{file}: {error}") from error
    if not isinstance(meta, dict):
        raise UserError(
            f"{file} holds a JSON {type(meta).__name__}, and must hold an object with an entry for "
            "each subset. Fetch it again."
        )
    entries = {}
    for name, entry in meta.items():
        annotation = entry.get("annotation") if isinstance(entry, dict) else None
        image_root = entry.get("root") if isinstance(entry, dict) else None
        if not isinstance(annotation, str) or not isinstance(image_root, str):
            raise UserError(
                f"{file}: the entry {name!r} must be an object whose 'root' and 'annotation' are "
                "texts. Fetch the file again; the data set may also have changed its format."
            )
        entries[name] = Subset(PurePosixPath(annotation).name, image_root)
    return entries


def _annotation_files(
    located: LocatedFiles, cache: Path, wanted: Collection[str]
) -> dict[str, Path]:
    """Return the annotation files by name. An unpacked file is preferred to the one in the zip.

    Files in the zip are unpacked into the cache if their names are `wanted`.

    Raises:
        UserError: If two unpacked files, or two files in the zip, have the same wanted name.
    """
    files: dict[str, Path] = {}
    for path in located.files:
        if path.suffix != ".jsonl":
            continue
        if path.name in files and path.name in wanted:
            raise UserError(
                f"{path} and {files[path.name]} have the same name, and meta.json does not tell "
                "which one is meant. Remove one of them."
            )
        files[path.name] = path
    for archive in located.files:
        if archive.name == "annotations.zip":
            files |= _unpacked_annotations(archive, cache, set(wanted) - files.keys())
    return files


def _unpacked_annotations(archive: Path, cache: Path, wanted: set[str]) -> dict[str, Path]:
    """Return the files of the names `wanted` in `archive`, unpacked into the cache, by name.

    Raises:
        UserError: If the archive is damaged or has two files of a name.
    """
    folder = cached_path(archive, cache, "mmpr", "")
    files: dict[str, Path] = {}
    try:
        with open_regular(archive) as opened, zipfile.ZipFile(opened) as zipped:
            for entry in zipped.infolist():
                name = PurePosixPath(entry.filename).name
                if name not in wanted or not name.endswith(".jsonl"):
                    continue
                if name in files:
                    raise UserError(
                        f"{archive} holds more than one file {name}, and extraction would leave "
                        "only the last one. Write the archive again with each file once, or unpack "
                        "it and check which file is right."
                    )
                files[name] = folder / name
                if not files[name].exists():
                    with whole_file(files[name], "wb") as unpacked:
                        copy_limited(zipped.open(entry), unpacked, archive)
    except UserError:
        raise
    except ERRORS_OF_DAMAGED_ARCHIVES as error:
        raise UserError(
            f"{archive} cannot be read ({error}). It may be incomplete: fetch it again."
        ) from error
    return files
