"""Where the files of a source lie: in a local copy, or on the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

from pydantic import model_validator

from data.errors import UserError
from data.sources.shared.base import SourceConfig

SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\b.*")
"""The name of one file of a set, as the hub writes them: `test-00000-of-00003.parquet`."""


class FilesConfig(SourceConfig):
    """A source that reads files: a local copy if `path` is given, else the data set `hub`."""

    path: str | None = None
    """A file, or a folder that is a copy of the data set's repository."""
    hub: str | None = None
    """The data set's id on the hub."""
    revision: str | None = None
    """Commit, tag or branch on the hub; None takes the newest and the data card says which that was."""

    @model_validator(mode="after")
    def _place_given(self) -> FilesConfig:
        if self.path is None and self.hub is None:
            raise ValueError(f"source {self.label!r}: give `path` (a local file or folder) or `hub` (a data set's id)")
        if self.path is not None and self.revision is not None:
            raise ValueError(f"source {self.label!r}: `revision` is for the hub; a local `path` has none")
        return self

    def locate(self, patterns: Sequence[str], branch: str | None = None) -> LocatedFiles:
        """Find (or fetch) the files whose path inside the data set matches one of `patterns` (as `fnmatch` reads them).

        `branch` is the revision on the hub where the recipe names none.

        Raises: UserError if there are none, one of a numbered set is missing, or the hub does not answer.
        """
        if self.path is None:
            return _fetched(str(self.hub), self.revision or branch, patterns)
        place = Path(self.path).expanduser()
        if place.is_file():
            return LocatedFiles([place], place.parent, "local")
        if not place.is_dir():
            raise UserError(
                f"source {self.label!r}: {place} is neither a file nor a folder. Correct `path`, or fetch the data first."
            )
        found = _matching(place, patterns, self.label)
        if problem := shards_problem(found):
            raise UserError(f"source {self.label!r}: {problem} (To read one of them alone, let `path` name that file.)")
        return LocatedFiles(found, place, "local")


@dataclass(frozen=True)
class LocatedFiles:
    """The files of a source."""

    files: list[Path]
    root: Path
    """The folder that relative paths inside the data set refer to."""
    revision: str


def shards_problem(files: Sequence[Path]) -> str | None:
    """Say which sets of files `NAME-00000-of-00003…` are not whole (a number is missing, or there twice); None if all are."""
    sets: dict[tuple[Path, str, str], list[tuple[int, int]]] = {}
    for path in files:
        if match := SHARD.fullmatch(path.name):
            sets.setdefault((path.parent, match[1], path.suffix), []).append((int(match[2]), int(match[3])))
    for (folder, name, suffix), found in sets.items():
        total = max(of for _, of in found)
        if sorted(found) != [(number, total) for number in range(total)]:
            shown = ", ".join(f"{number:05}-of-{of:05}" for number, of in sorted(found))
            return (
                f"of {folder / name}-…{suffix} there are the parts {shown}; required is each of {total} once, "
                "else rows would be missing, or there twice. Fetch the parts that are missing, remove those of another set."
            )
    return None


def _matching(folder: Path, patterns: Sequence[str], label: str) -> list[Path]:
    wanted = re.compile("|".join(map(translate, patterns)))
    files = [(Path(place) / name) for place, _, names in os.walk(folder) for name in names]
    found = sorted(path for path in files if wanted.match(path.relative_to(folder).as_posix()))
    if not found:
        raise UserError(
            f"source {label!r}: in {folder} there is no file like {' or '.join(patterns)} ({len(files)} other files). "
            "A local copy must have the names of the data set's repository."
        )
    return found


def _fetched(hub: str, revision: str | None, patterns: Sequence[str]) -> LocatedFiles:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub, repo_type="dataset", revision=revision, allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"the data set {hub} cannot be fetched from the hub ({type(error).__name__}: {error}). "
            "Check the id, the revision, the network and (for a gated set) the login, or give `path` to a local copy."
        ) from error
    return LocatedFiles(_matching(folder, patterns, hub), folder, folder.name)
