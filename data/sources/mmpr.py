"""MMPR-v1.2 (OpenGVLab/MMPR-v1.2): about 3M pairs in 148 files over 266,908 images.

meta.json names each subset's annotation file and image root; the files lie in annotations.zip or unpacked beside it,
the images in images.zip_aa, _ab, _ac (one zip in parts, read without unpacking) or unpacked. It contains RLAIF-V.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from data.errors import UserError
from data.preference import EncodedImage, Preference
from data.sources.shared.base import Source
from data.sources.shared.conversation import question
from data.sources.shared.files import FilesConfig, LocatedFiles
from data.storage.archives import Images, open_images
from data.storage.files import digest, stamp, whole_file
from data.storage.rows import Row, field, optional
from data.storage.tables import Concatenated, JsonLines


class MmprConfig(FilesConfig):
    """All subsets, or some."""

    type: Literal["mmpr"]
    hub: str | None = "OpenGVLab/MMPR-v1.2"
    subsets: list[str] | None = None
    """Names in meta.json; None takes all."""
    images: str | None = None
    """A folder or zip of the images; None looks for images.zip* or the folder `images` in the data set."""

    def open(self, cache: Path) -> Source:
        """Open the annotations and the images."""
        located = self.locate(["*meta.json", "*annotations.zip", "*annotations/*.jsonl", "*images.zip*"])
        chosen = _chosen(located, self.subsets)
        annotations = _annotations(located, cache)
        missing = [name for name, subset in chosen.items() if PurePosixPath(subset["annotation"]).name not in annotations]
        if missing:
            raise UserError(
                f"{self.label}: the annotation files of {', '.join(missing)} are neither in annotations.zip nor unpacked."
            )
        tables = [JsonLines(annotations[PurePosixPath(subset["annotation"]).name], cache) for subset in chosen.values()]
        roots = [subset["root"] for subset in chosen.values()]
        images = open_images(_image_places(located, self.images), cache)
        return MmprSource(self, located.revision, Concatenated(tables), list(chosen), roots, images)


class MmprSource:
    """The rows of all subsets in the order of meta.json."""

    licence = "MIT"
    generated = False

    def __init__(
        self, config: MmprConfig, revision: str, rows: Concatenated, subsets: Sequence[str], roots: Sequence[str], images: Images
    ) -> None:
        self.name, self.revision = config.label, revision
        self.rows, self.subsets, self.roots, self.images = rows, subsets, roots, images
        self._settings = config.settings

    def __len__(self) -> int:
        """Return the number of rows of all subsets."""
        return len(self.rows)

    def record(self, index: int) -> Preference:
        """Return row `index`, its subset as the category."""
        table, position = self.rows.place(index)
        identity = f"{self.name}:{self.subsets[table]}:{position}"
        return self._convert(self.rows.tables[table].row(position), self.subsets[table], self.roots[table], identity)

    def fingerprint(self) -> str:
        """Return the fingerprint of the annotation files and the settings."""
        return f"{self.rows.fingerprint()} {self._settings}"

    def _convert(self, row: Row, subset: str, root: str, record: str) -> Preference:
        names = optional(row, "image", (str, list), record) or []
        images = tuple(self._image(root, name, record) for name in (names if isinstance(names, list) else [names]))
        return Preference(
            identity=record,
            prompt=(question(field(row, "question", str, record), len(images), record),),
            chosen=field(row, "chosen", str, record),
            rejected=field(row, "rejected", str, record),
            images=images,
            category=subset,
        )

    def _image(self, root: str, name: str, record: str) -> EncodedImage:
        """Return an image by its root in meta.json, which may or may not count the data set's own folder."""
        full = PurePosixPath(root) / name
        short = PurePosixPath(*full.parts[1:])
        inner = PurePosixPath(*full.parts[2:])
        found = next((str(path) for path in (full, short, inner) if str(path) in self.images), str(full))
        return self.images.find(found, record)


def _chosen(located: LocatedFiles, subsets: Sequence[str] | None) -> dict[str, Any]:
    metas = [path for path in located.files if path.name == "meta.json"]
    if len(metas) != 1:
        raise UserError(f"MMPR in {located.root}: {len(metas)} files meta.json; required is exactly one.")
    meta: dict[str, Any] = json.loads(metas[0].read_text())
    unknown = [name for name in subsets or [] if name not in meta]
    if unknown:
        raise UserError(f"MMPR has no subset {', '.join(unknown)}; meta.json names {', '.join(meta)}.")
    for name, subset in meta.items():
        if not isinstance(subset, dict) or not {"root", "annotation"} <= subset.keys():
            raise UserError(f"{metas[0]}: {name!r} is not an object with 'root' and 'annotation'. Has the data set changed?")
    return {name: subset for name, subset in meta.items() if subsets is None or name in subsets}


def _annotations(located: LocatedFiles, cache: Path) -> dict[str, Path]:
    """Return the annotation files by name; those in the zip are unpacked into the cache, each in one step."""
    found = {path.name: path for path in located.files if path.suffix == ".jsonl"}
    for archive in (path for path in located.files if path.name == "annotations.zip"):
        folder = cache / "mmpr" / digest(f"{archive.resolve()} {stamp(archive)}")
        try:
            with zipfile.ZipFile(archive) as file:
                for entry in file.infolist():
                    target = folder / PurePosixPath(entry.filename).name
                    if target.suffix == ".jsonl" and not target.exists():
                        with whole_file(target, "wb") as unpacked:
                            unpacked.write(file.read(entry))
                    if target.suffix == ".jsonl":
                        found.setdefault(target.name, target)
        except (zipfile.BadZipFile, OSError) as error:
            raise UserError(f"{archive} cannot be read ({error}). Is it complete?") from error
    return found


def _image_places(located: LocatedFiles, images: str | None) -> list[Path]:
    if images is not None:
        place = Path(images).expanduser()
        return sorted(place.parent.glob(f"{place.name}*")) if not place.exists() else [place]
    parts = [path for path in located.files if ".zip" in path.suffix and path.name.startswith("images")]
    return parts or [located.root]
