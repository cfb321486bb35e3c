"""The embedded world: endless, labelled image preference data about simple scenes, made with Pillow.

python data/shapes.py --sheet out.png [--level hard]     # examples for a person to look at
python data/shapes.py --write FOLDER --rows 2000         # own-format files and the official benchmark formats

Every item is a function of (level, seed, split, index) alone. Splits share no scene.
"""

import argparse
import sys
from pathlib import Path
from textwrap import wrap

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.synthetic.benchmark_files import write_all
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.world import Item, ShapesWorld


def write_sheet(path: Path, level: str, seed: int) -> None:
    """Write an image with two examples of each question type with an image, and one of each without."""
    from matplotlib.figure import Figure

    world = ShapesWorld(level, seed, "train")
    kinds = [*(kind for kind in QUESTION_TYPES for _ in range(2)), *TEXT_TYPES]
    items = [world.item(index, (kind,)) for index, kind in enumerate(kinds)]
    cells = [_lines(item) for item in items]
    heights = [max(14, *map(len, cells[start : start + 2])) for start in range(0, len(cells), 2)]
    figure = Figure((16, 0.2 * sum(heights)), layout="constrained")
    grid = figure.subplots(len(heights), 4, height_ratios=heights, width_ratios=(2, 5, 2, 5))
    for panel in grid.flat:
        panel.set_axis_off()
    for item, lines, (left, right) in zip(items, cells, grid.reshape(-1, 2), strict=True):
        for image in item.images():
            left.imshow(image, interpolation="nearest")
        for number, (line, ink) in enumerate(lines):
            right.annotate(
                line,
                (0, 1),
                (0, -13 * number),
                color=ink,
                fontsize=9,
                textcoords="offset points",
                verticalalignment="top",
            )
    figure.savefig(path)


def _lines(item: Item) -> list[tuple[str, str]]:
    """Return the words beside an image, line by line, with their colours."""
    paragraphs = [
        (f"{item.kind} ({item.category})", "gray"),
        (item.question, "black"),
        (f"chosen: {item.chosen}", "darkgreen"),
        (f"rejected: {item.rejected}", "firebrick"),
        (f"critique of chosen: {item.critique(True)}", "darkgreen"),
        (f"critique of rejected: {item.critique(False)}", "firebrick"),
        (f"rationale: {item.rationale()}", "black"),
    ]
    return [
        (line, ink)
        for text, ink in paragraphs
        for part in text.split("\n")
        for line in wrap(part, 82)
    ]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", type=Path, help="write an image with examples here")
    parser.add_argument(
        "--write", type=Path, help="write own-format files and benchmark editions into this folder"
    )
    parser.add_argument(
        "--rows", type=int, default=2000, help="rows of the own-format training file"
    )
    options = parser.parse_args()
    if options.sheet is None and options.write is None:
        parser.error("nothing to do: give --sheet FILE.png, --write FOLDER or both")

    with command():
        if options.sheet is not None:
            write_sheet(options.sheet, options.level, options.seed)
        if options.write is not None:
            write_all(options.write, options.level, options.seed, options.rows)


if __name__ == "__main__":
    main()
