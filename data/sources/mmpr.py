"""MMPR-v1.2 (OpenGVLab/MMPR-v1.2): about 3M pairs in 148 files over 266,908 images.

meta.json names each subset's annotation file and image root; the files lie in annotations.zip or unpacked beside it,
the images in images.zip_aa, _ab, _ac (one zip in parts, read without unpacking) or unpacked. It contains RLAIF-V.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
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
from mmrm.data.storage.archives import DAMAGED, Archive, Folder, Images
from mmrm.data.storage.files import copy_limited, derived, whole_file
from mmrm.data.storage.row_files import Concatenated, JsonLines
from mmrm.data.storage.strict_json import parse_json


class MmprConfig(ImageFilesConfig):
    """All subsets, or some."""

    FILES = ("*meta.json", "*annotations.zip", "*annotations/*.jsonl", "*images.zip*")
    LICENCE = "MIT"

    type: Literal["mmpr"]
    hub: str | None = "OpenGVLab/MMPR-v1.2"
    subsets: list[str] | None = None
    """Names in meta.json; null takes all."""

    def look(self) -> None:
        """Look at meta.json and at the subsets that it names."""
        if self.path is not None:
            _chosen(self.locate(), self.subsets)

    def open(self, cache: Path) -> MmprSource:
        """Open the annotations and the images."""
        located = self.locate()
        chosen = _chosen(located, self.subsets)
        annotations = _annotations(located, cache, [name for name, _ in chosen.values()])
        missing = [
            name for name, (annotation, _) in chosen.items() if annotation not in annotations
        ]
        if missing:
            raise UserError(
                f"{self.label}: the annotation files of {', '.join(missing)} are neither in annotations.zip nor unpacked."
            )
        own = [path for path in located.files if path.name.startswith("images")]
        images = self.open_images(replace(located, files=own), cache)
        subsets = []
        for name, (annotation, root) in chosen.items():
            rows = JsonLines(annotations[annotation], cache)
            subsets.append(
                TableSource(
                    self, located.revision, rows, SubsetImages(images, root), f"{self.label}:{name}"
                )
            )
        return MmprSource(self, located.revision, subsets, images)

    def convert(self, row: SourceRow) -> Preference:
        """Columns image (none, one or a list), question, chosen, rejected."""
        images = row.all_images(row.optional("image", str | list))
        prompt = question(row.text("question"), len(images))
        return Preference(row.identity, prompt, row.text("chosen"), row.text("rejected"), images)


class MmprSource(TableSource):
    """The rows of all subsets in the order of meta.json, with the subset as the category."""

    def __init__(
        self, config: MmprConfig, revision: str, subsets: Sequence[TableSource], images: Images
    ) -> None:
        self.subsets, self.table = subsets, Concatenated([subset.rows for subset in subsets])
        super().__init__(config, revision, self.table, images)

    def record(self, index: int) -> Preference:
        """Return row `index`; its identity names the subset."""
        number, position = self.table.place(index)
        subset = self.subsets[number]
        return replace(subset.record(position), category=subset.name.removeprefix(f"{self.name}:"))


@dataclass
class SubsetImages:
    """The images of a subset by its root in meta.json, which may or may not count the data set's own folder."""

    images: Archive | Folder
    root: str

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the image `name` under the root."""
        root = PurePosixPath(self.root).parts
        paths = [str(PurePosixPath(*root[start:]) / name) for start in range(min(3, len(root) + 1))]
        return self.images.find(
            next((path for path in paths if path in self.images), paths[0]), record
        )


def _chosen(located: LocatedFiles, subsets: Sequence[str] | None) -> dict[str, tuple[str, str]]:
    """Return the name of the annotation file and the root of the images of each subset that is asked for."""
    metas = [path for path in located.files if path.name == "meta.json"]
    if len(metas) != 1:
        raise UserError(
            f"MMPR in {located.root}: {len(metas)} files meta.json; required is exactly one."
        )
    try:
        meta = parse_json(read_bytes(metas[0]))
    except RecordError as error:
        raise UserError(f"{metas[0]}: {error}") from error
    if not isinstance(meta, dict):
        raise UserError(
            f"{metas[0]}: a JSON {type(meta).__name__}; required is an object with an entry for each subset."
        )
    unknown = [name for name in subsets or [] if name not in meta]
    if unknown:
        raise UserError(
            f"MMPR has no subset {', '.join(unknown)}; meta.json names {', '.join(meta)}."
        )
    for name, subset in meta.items():
        if not isinstance(subset, dict) or not all(
            isinstance(subset.get(key), str) for key in ("root", "annotation")
        ):
            raise UserError(
                f"{metas[0]}: {name!r} is not an object of texts 'root' and 'annotation'. Has the data set changed?"
            )
    return {
        name: (PurePosixPath(subset["annotation"]).name, subset["root"])
        for name, subset in meta.items()
        if subsets is None or name in subsets
    }


def _annotations(located: LocatedFiles, cache: Path, wanted: Sequence[str]) -> dict[str, Path]:
    """Return the annotation files by name, of which `wanted` are read. An unpacked file precedes the one in the zip.

    Those in the zip are unpacked into the cache, each in one step.
    Raises: UserError if there are two files of a wanted name unpacked or two in the zip.
    """
    found: dict[str, Path] = {}
    for path in located.files:
        if path.suffix != ".jsonl":
            continue
        if path.name in found and path.name in wanted:
            raise UserError(
                f"{path} and {found[path.name]} have the same name, and meta.json does not tell which one is meant. Remove one."
            )
        found[path.name] = path
    for archive in (path for path in located.files if path.name == "annotations.zip"):
        found |= _unpacked_annotations(archive, cache, set(wanted) - found.keys())
    return found


def _unpacked_annotations(archive: Path, cache: Path, wanted: set[str]) -> dict[str, Path]:
    """Return the files of the names `wanted` in `archive`, unpacked into the cache, by name.

    Raises: UserError if the archive is damaged or has two files of a name.
    """
    folder = derived(archive, cache, "mmpr", "")
    found: dict[str, Path] = {}
    try:
        with open_regular(archive) as opened, zipfile.ZipFile(opened) as file:
            for entry in file.infolist():
                name = PurePosixPath(entry.filename).name
                if name not in wanted or not name.endswith(".jsonl"):
                    continue
                if name in found:
                    raise UserError(
                        f"{archive} holds more than one file {name}, and extraction would leave the last one. Write the archive "
                        "again with each file once, or unpack it and check which one is right."
                    )
                found[name] = folder / name
                if not found[name].exists():
                    with whole_file(found[name], "wb") as unpacked:
                        copy_limited(file.open(entry), unpacked, archive)
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(f"{archive} cannot be read ({error}). Is it complete?") from error
    return found
