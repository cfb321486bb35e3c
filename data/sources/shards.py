"""Shards: large files of records with their images, which `data/make_shards.py` makes of any source.

    {type: shards, path: /data/my_shards}

data/storage/shard_files.py describes the files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.project import record_of_row
from mmrm.data.sources.shared.file_source import SourceRow, TableSource
from mmrm.data.sources.shared.source import Source
from mmrm.data.sources.shared.ties import TiedComparisonsConfig
from mmrm.data.storage.archives import Folder
from mmrm.data.storage.shard_files import INDEX, MANIFEST, ShardRows, read_manifest


class ShardsConfig(TiedComparisonsConfig):
    """A source of shards that `data/make_shards.py` has made."""

    FILES = (MANIFEST, INDEX, "*.shard")
    VIDEOS = True
    READS_TABLES = False
    has_critiques = True
    has_rationales = True

    type: Literal["shards"]
    pairs: Literal["hardest", "none"] = "hardest"
    """Of a record with more than two responses: the pair of the best and the worst one, or none,
    the whole record."""

    @property
    def gives_lists(self) -> bool:
        """True if records keep all their responses."""
        return self.pairs == "none"

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row; raises the errors of `record_of_row`."""
        return record_of_row(row, self.pairs, self.check_tie)

    def check_local_files(self) -> None:
        """Check that the folder has a shards.json, and that its files have the stated sizes.

        Raises:
            UserError: If the folder is no folder of shards, or a file is missing or incomplete.
        """
        if self.path is not None:
            ShardRows(Path(self.path).expanduser())

    def open(self, cache: Path) -> TableSource:
        """Open the shards.

        Raises:
            UserError: If a file is missing or incomplete.
        """
        if self.path is not None:
            read_manifest(Path(self.path).expanduser())  # raises if it is no folder of shards
        located = self.locate()
        rows = ShardRows(located.root)
        source = TableSource(self, located.revision, rows, Folder(located.root))
        source.licence = rows.manifest.made_of.licence
        return source

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of records that shards.json states."""
        folder = self._local_folder()
        if folder is None:
            return super().stated_rows()
        return read_manifest(folder).block_ends[-1], f"stated by {MANIFEST}"

    def block_ends(self, source: Source) -> Sequence[int]:
        """Return for each shard the number of records in it and all shards before it."""
        assert isinstance(source, TableSource)
        assert isinstance(source.rows, ShardRows)
        return source.rows.ends

    def _local_folder(self) -> Path | None:
        """Return the folder of the shards, or None if they are on the hub or not there."""
        if self.path is None or not (Path(self.path).expanduser() / MANIFEST).is_file():
            return None
        return Path(self.path).expanduser()
