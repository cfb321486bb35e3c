"""Editions of the benchmarks that this project makes itself instead of fetching them.

An edition has the official format of its benchmark and a few hundred rows, so that a run can be
evaluated without a network. Its rows do not count as the published ones.
"""

from pathlib import Path

from mmrm.data.config.registry import is_installed, load
from mmrm.data.errors import UserError

EDITIONS = {"embedded": "mmrm.data.synthetic.benchmark_files:edition"}
"""The function that writes an edition, by the world that its rows are about. It takes the name of a
benchmark and a level of the world, and returns the folder of the edition's files."""

EMBEDDED = {"embedded": "demo", "embedded-medium": "medium", "embedded-hard": "hard"}
"""Locations of the editions of the embedded world, and the world's level of each."""


def edition_folder(benchmark: str, location: str) -> Path:
    """Return the folder of a benchmark's edition; `location` is a key of EMBEDDED.

    Raises:
        UserError: If the embedded world was removed from the clone.
    """
    path = EDITIONS["embedded"]
    if not is_installed(path):
        raise UserError(
            f"{benchmark}: the location {location!r} is an edition of the embedded world, and "
            "data/synthetic is not installed. Restore this folder, or set the location to `hub` or "
            "to the path of the official files."
        )
    folder: Path = load(path)(benchmark, EMBEDDED[location])
    return folder
