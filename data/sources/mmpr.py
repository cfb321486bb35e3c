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
from mmrm.data.preference import EncodedImage, Preference, text_responses
from mmrm.data.regular_files import open_regular, read_bytes
from mmrm.data.sources.shared.conversation import prompt_from_question
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
    """A subset of MMPR, as its entry in meta.json describes it."""

    annotation: str
    """The name of the annotation file, without folders."""
    image_root: str
    """The folder that image paths are relative to."""


class MmprConfig(ImageFilesConfig):
    """A source of the pairs of MMPR, of all its subsets or of some."""

    FILES = ("*meta.json", "*annotations.zip", "*annotations/*.jsonl", "*images.zip*")
    LICENCE = "MIT"

    type: Literal["mmpr"]
    hub: str | None = "OpenGVLab/MMPR-v1.2"
    subsets: list[str] | None = None
    """Names of the subsets to read, as in meta.json; null takes all."""

    def check_local_files(self) -> None:
        """Check that meta.json can be read and has the subsets that the recipe names.

        Images are not checked.

        Raises:
            UserError: If meta.json is missing or has another form, or a subset is not in it.
        """
        if self.path is not None:
            self._chosen_subsets(self.locate())

    def open(self, cache: Path) -> MmprSource:
        """Open the annotations of the chosen subsets, and the images.

        Annotation files in a zip, and indices, are written below the folder `cache`.

        Raises:
            UserError: If a file is missing or damaged, or meta.json has another form.
        """
        located = self.locate()
        subsets = self._chosen_subsets(located)
        file_names = [subset.annotation for subset in subsets.values()]
        files = _annotation_files(located, cache, file_names)
        missing = [name for name, subset in subsets.items() if subset.annotation not in files]
        if missing:
            raise UserError(
                f"source {self.label!r}: the annotation files of {', '.join(missing)} are neither "
                "in annotations.zip nor unpacked. Fetch them, or leave these names out of "
                "`subsets`."
            )
        # Only the archives of images: the source's files also contain annotations.zip.
        image_files = [path for path in located.files if path.name.startswith("images")]
        images = self.open_images(replace(located, files=image_files), cache)
        sources = []
        for name, subset in subsets.items():
            rows = JsonLines(files[subset.annotation], cache)
            subset_images = SubsetImages(images, subset.image_root)
            sources.append(
                TableSource(self, located.revision, rows, subset_images, f"{self.label}:{name}")
            )
        return MmprSource(self, located.revision, sources, images)

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row with the columns image, question, chosen and rejected.

        `image` is missing, the path of one image, or a list of paths.
        """
        images = row.all_images(row.optional_value("image", str | list))
        prompt = prompt_from_question(row.text("question"), len(images))
        return Preference(
            row.identity, prompt, text_responses(row.text("chosen"), row.text("rejected")), images
        )

    def _chosen_subsets(self, located: LocatedFiles) -> dict[str, Subset]:
        """Return the subsets that the recipe names, by name, in the order of meta.json.

        Raises:
            UserError: If there is not exactly one meta.json, or it lacks a subset.
        """
        meta_files = [path for path in located.files if path.name == "meta.json"]
        if len(meta_files) != 1:
            raise UserError(
                f"source {self.label!r}: {located.root} holds {len(meta_files)} files meta.json, "
                "and exactly one is needed. Fetch it, or set `path` to the folder of one copy."
            )
        all_subsets = _read_meta(meta_files[0])
        if self.subsets is None:
            return all_subsets
        unknown = [name for name in self.subsets if name not in all_subsets]
        if unknown:
            raise UserError(
                f"source {self.label!r}: `subsets` names {', '.join(unknown)}, which meta.json "
                f"does not contain. Its subsets are {', '.join(all_subsets)}."
            )
        return {name: subset for name, subset in all_subsets.items() if name in self.subsets}


class MmprSource(TableSource):
    """The opened source of MMPR: the pairs of all chosen subsets, in the order of meta.json.

    The category of a record is the name of its subset.
    """

    def __init__(
        self, config: MmprConfig, revision: str, subsets: Sequence[TableSource], images: Images
    ) -> None:
        """Join the opened subsets into one source.

        Args:
            config: The source's section of the recipe.
            revision: The commit on the hub, or `local`.
            subsets: The opened subsets.
            images: The images of all subsets.
        """
        self.subsets = subsets
        self.table = Concatenated([subset.rows for subset in subsets])
        super().__init__(config, revision, self.table, images)

    def record(self, index: int) -> Preference:
        """Return the record at `index`, counted through all subsets."""
        subset_index, row_index = self.table.table_and_position(index)
        subset = self.subsets[subset_index]
        category = subset.name.removeprefix(f"{self.name}:")
        return replace(subset.record(row_index), category=category)


@dataclass
class SubsetImages:
    """The images of a subset, whose paths are relative to the subset's image root in meta.json.

    The root may begin with up to two folders that a copy of the data set does not have.
    """

    images: Archive | Folder
    root: str

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the image `name` of a record; raise ImageError if there is no such image.

        It is looked for below the whole root, and below the root without its first one or two
        folders.
        """
        root_folders = PurePosixPath(self.root).parts
        num_roots = min(3, len(root_folders) + 1)
        paths = [str(PurePosixPath(*root_folders[start:]) / name) for start in range(num_roots)]
        for path in paths:
            if path in self.images:
                return self.images.find(path, record)
        return self.images.find(paths[0], record)  # raises an error about the path of meta.json


def _read_meta(file: Path) -> dict[str, Subset]:
    """Return the subsets that meta.json describes, by name.

    Raises:
        UserError: If the file is not JSON, or has another form.
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
    subsets = {}
    for name, entry in meta.items():
        annotation = entry.get("annotation") if isinstance(entry, dict) else None
        image_root = entry.get("root") if isinstance(entry, dict) else None
        if not isinstance(annotation, str) or not isinstance(image_root, str):
            raise UserError(
                f"{file}: the entry {name!r} must be an object whose 'root' and 'annotation' are "
                "texts. Fetch the file again; the data set may also have changed its format."
            )
        subsets[name] = Subset(PurePosixPath(annotation).name, image_root)
    return subsets


def _annotation_files(
    located: LocatedFiles, cache: Path, wanted_names: Collection[str]
) -> dict[str, Path]:
    """Return the paths of the annotation files that exist, by file name.

    If a file is both unpacked and in annotations.zip, the unpacked one is taken. Files that are
    only in the zip are unpacked into the folder `cache` if their names are in `wanted_names`.

    Raises:
        UserError: If two unpacked files, or two files in the zip, have the same wanted name.
    """
    files: dict[str, Path] = {}
    for path in located.files:
        if path.suffix != ".jsonl":
            continue
        if path.name in files and path.name in wanted_names:
            raise UserError(
                f"{path} and {files[path.name]} have the same name, and meta.json does not tell "
                "which one is meant. Remove one of them."
            )
        files[path.name] = path
    for archive in located.files:
        if archive.name == "annotations.zip":
            missing_names = set(wanted_names) - files.keys()
            files |= _unpacked_annotations(archive, cache, missing_names)
    return files


def _unpacked_annotations(archive: Path, cache: Path, wanted_names: set[str]) -> dict[str, Path]:
    """Unpack annotation files from `archive` into the cache, and return their paths by name.

    Only files whose names are in `wanted_names` are unpacked. A file that is in the cache already
    is not unpacked again.

    Raises:
        UserError: If the archive is damaged, or has two files of a wanted name.
    """
    folder = cached_path(archive, cache, "mmpr", "")
    files: dict[str, Path] = {}
    try:
        with open_regular(archive) as opened, zipfile.ZipFile(opened) as zipped:
            for entry in zipped.infolist():
                name = PurePosixPath(entry.filename).name
                if name not in wanted_names or not name.endswith(".jsonl"):
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
        raise  # it is a ValueError, and those are among ERRORS_OF_DAMAGED_ARCHIVES
    except ERRORS_OF_DAMAGED_ARCHIVES as error:
        raise UserError(
            f"{archive} cannot be read ({error}). It may be incomplete: fetch it again."
        ) from error
    return files
