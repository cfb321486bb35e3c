"""Editions of the benchmarks that this project makes itself instead of fetching them.

An edition has the official format of its benchmark and a few hundred rows, so that a run can be
evaluated without a network. Its rows do not count as the published ones.
"""

from pathlib import Path

from mmrm.data.config.registry import is_installed, load
from mmrm.data.errors import UserError

EDITIONS = {"embedded": "mmrm.data.synthetic.benchmark_files:edition"}
"""Functions that write an edition of a benchmark with generated rows, by the name of the generator.

The generator "embedded" (data/synthetic/world.py) makes questions about simple scenes of coloured
shapes, at several levels of difficulty. A function takes the name of a benchmark and a level, and
returns the folder of the edition's files.
"""

EMBEDDED = {"embedded": "demo", "embedded-medium": "medium", "embedded-hard": "hard"}
"""Locations of the editions with generated rows, and the level of difficulty of each."""


def edition_folder(benchmark: str, location: str) -> Path:
    """Return the folder of the generated edition of a benchmark, whose files are written if needed.

    Args:
        benchmark: The name of the benchmark.
        location: A key of EMBEDDED.

    Raises:
        UserError: If the generator, the folder data/synthetic, was removed from the clone.
    """
    import_path = EDITIONS["embedded"]
    if not is_installed(import_path):
        raise UserError(
            f"{benchmark}: the location {location!r} is an edition with generated rows, and "
            "data/synthetic is not installed. Restore this folder, or set the location to `hub` or "
            "to the path of the official files."
        )
    write_edition = load(import_path)
    folder: Path = write_edition(benchmark, EMBEDDED[location])
    return folder
