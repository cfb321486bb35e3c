"""Print our figures and the official scorers' on the same predictions, for each benchmark.

    make official                                    # download the repositories, and print the table
    python -m tools.official_figures FOLDER          # the repositories are in FOLDER
    python -m tools.official_figures FOLDER --fetch  # download those that are not there
    python -m tools.official_figures FOLDER --only genai_bench

The predictions are those that the benchmark's repository holds, and files that are generated here,
some of them malformed. "refused" is a file that our rules refuse with a message, and that stops the
official scorer with an error. The command ends with status 1 if any two figures differ.

To add a benchmark, write a module like official_scorers/genai_bench.py and add its row to SCORERS.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.table import Table

from mmrm.data.display.console import plain_console
from tools.official_scorers.edit_reward_bench import EDIT_REWARD_BENCH
from tools.official_scorers.genai_bench import GENAI_BENCH
from tools.official_scorers.mmrb2 import MMRB2
from tools.official_scorers.scorer import Comparison, OfficialScorer
from tools.official_scorers.videogen_rewardbench import VIDEOGEN_REWARDBENCH

SCORERS: tuple[OfficialScorer, ...] = (
    MMRB2,
    GENAI_BENCH,
    EDIT_REWARD_BENCH,
    VIDEOGEN_REWARDBENCH,
)
"""The official scorers with which our figures are compared."""
MIN_WIDTH = 125
"""The fewest columns of the printed table."""


def main() -> None:
    """Print the table, and exit with 1 if any figure differs from its scorer's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the repositories, each by its name")
    parser.add_argument("--fetch", action="store_true", help="download missing repositories")
    parser.add_argument(
        "--only", nargs="+", choices=[scorer.benchmark for scorer in SCORERS], help="benchmarks"
    )
    options = parser.parse_args()
    table = Table("benchmark", "predictions", "figure", "ours", "official", "equal")
    num_different = 0
    for scorer in SCORERS:
        if options.only and scorer.benchmark not in options.only:
            continue
        checkout = options.folder / scorer.folder
        if options.fetch and not checkout.exists():
            fetch(scorer, checkout)
        with tempfile.TemporaryDirectory() as scratch:
            for comparison in scorer.compare(checkout, Path(scratch)):
                table.add_row(scorer.benchmark, *cells(comparison))
                num_different += not comparison.is_equal
    console = plain_console(width=max(plain_console().width, MIN_WIDTH))
    console.print(table)
    if num_different:
        sys.exit(f"{num_different} of {table.row_count} figures differ.")
    console.print(f"All {table.row_count} figures are equal.")


def fetch(scorer: OfficialScorer, checkout: Path) -> None:
    """Download the needed paths of a scorer's repository at its commit into the folder `checkout`."""
    partial = checkout.with_name(f"{checkout.name}.part")
    if partial.exists():  # an earlier download was cut off
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    git = ["git", "-C", str(partial)]
    url = f"https://github.com/{scorer.repository}"
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "fetch", "--quiet", "--depth", "1", url, scorer.commit], check=True)
    subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD", "--", *scorer.paths], check=True)
    partial.rename(checkout)


def cells(comparison: Comparison) -> list[str]:
    """Return the cells of a comparison in the table."""
    return [
        comparison.predictions,
        comparison.figure,
        cell(comparison.ours),
        cell(comparison.official),
        "yes" if comparison.is_equal else "NO",
    ]


def cell(figure: float | None) -> str:
    """Return a figure with all its digits, or "refused" if there is none."""
    return "refused" if figure is None else repr(float(figure))


if __name__ == "__main__":
    main()
