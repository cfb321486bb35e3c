"""The embedded world: endless, labelled image preference data about simple scenes, made with Pillow.

python data/shapes.py --sheet out.png [--level hard]     # examples for a person to look at
python data/shapes.py --write FOLDER --rows 2000         # own-format files and the official benchmark formats

Every item is a function of (level, seed, split, index) alone. Splits share no scene.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.synthetic import benchmark_files, sheet
from data.synthetic.scenes import LEVELS


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", type=Path, help="write a picture with examples here")
    parser.add_argument("--write", type=Path, help="write own-format files and benchmark editions into this folder")
    parser.add_argument("--rows", type=int, default=2000, help="rows of the own-format training file")
    options = parser.parse_args()
    if options.sheet is None and options.write is None:
        parser.error("nothing to do: give --sheet FILE.png, --write FOLDER or both")

    if options.sheet is not None:
        sheet.write_sheet(options.sheet, options.level, options.seed)
    if options.write is not None:
        benchmark_files.write_all(options.write, options.level, options.seed, options.rows)


if __name__ == "__main__":
    main()
