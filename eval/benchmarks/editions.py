"""Editions of the benchmarks that this project makes itself instead of fetching them.

An edition has the official format of its benchmark and a few hundred rows, so that a run can be
evaluated without a network. Its rows do not count as the published ones.
"""

from pathlib import Path

from mmrm.data.config.registry import is_installed, load
from mmrm.data.errors import UserError

EDITIONS = {"embedded": "mmrm.data.synthetic.benchmark_files:edition"}
"""Functions that write an edition of a benchmark with generated rows, by the name of the generator. The
"embedded world" (data/synthetic/world.py) generates rows about simple scenes, at several levels of
difficulty. A function takes the name of a benchmark and a level, and returns the folder of the
edition's files."""

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
