"""Write a report: one HTML page about a run or a sweep that needs no other file and no network.

python eval/report.py runs/shapes/naive                              # writes runs/shapes/naive/report.html
python eval/report.py runs/shapes/naive --output naive.html
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.errors import UserError
from data.storage.files import write_whole
from eval.cli import command
from eval.reporting.content import SWEEP, read_run, read_sweep
from eval.reporting.page import page


def write_report(folder: Path, output: Path) -> None:
    """Write the page of a run or sweep folder, whole or not at all.

    Raises: UserError for a folder that no page can be made of.
    """
    read = read_sweep if (folder / SWEEP).is_file() else read_run
    write_whole(output, page(read(folder)))


def main() -> None:
    """Read the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="RUN_OR_SWEEP")
    parser.add_argument("--output", type=Path, help="write the page here; the default is report.html in the folder")
    options = parser.parse_args()
    output = options.output or options.folder / "report.html"
    with command():
        if not options.folder.is_dir():
            raise UserError(f"{options.folder}: there is no such folder. Give the folder of a run or of a sweep.")
        write_report(options.folder, output)
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
