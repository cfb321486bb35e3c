"""Write generated preference data about simple scenes, or a picture with examples of it.

python data/shapes.py --sheet out.png [--level hard]     # a picture with examples
python data/shapes.py --write FOLDER --rows 2000         # data files

An item is a question about an image of coloured shapes, or about a text, with a right and a wrong
response. It depends only on its level, seed, split and index. Splits share no scene. The data files
are in this project's own format and in the formats of published benchmarks.
"""

import argparse
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # imports work without installation

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.synthetic.benchmark_files import write_all
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.world import ShapesWorld, WorldItem

COLUMNS = 2
"""Examples next to each other on a sheet."""
FEWEST_LINES = 14
"""The smallest height of an example in lines of text, which leaves room for the image."""
LINE_WIDTH = 82
"""Characters of a line of text on a sheet."""


def write_sheet(path: Path, level: str, seed: int) -> None:
    """Write a picture with examples of all types of questions.

    It has two examples of each type of question about images, and one of each type about texts.

    Args:
        path: The file, in any format that matplotlib writes.
        level: The difficulty, a key of `LEVELS`.
        seed: The seed of the examples.
    """
    from matplotlib.figure import Figure

    world = ShapesWorld(level, seed, "train")
    kinds = []
    for kind in QUESTION_TYPES:
        kinds += [kind, kind]
    kinds += TEXT_TYPES
    items = [world.item(index, (kind,)) for index, kind in enumerate(kinds)]
    texts = [_lines(item) for item in items]
    heights = []
    for start in range(0, len(items), COLUMNS):
        lengths = [len(lines) for lines in texts[start : start + COLUMNS]]
        heights.append(max(FEWEST_LINES, *lengths))

    figure = Figure((16, 0.2 * sum(heights)), layout="constrained")
    grid = figure.subplots(
        len(heights), 2 * COLUMNS, height_ratios=heights, width_ratios=(2, 5) * COLUMNS
    )
    for panel in grid.flat:
        panel.set_axis_off()
    panels = grid.reshape(-1, 2)  # one row an example: the panels of its image and of its text
    for item, lines, (image_panel, text_panel) in zip(items, texts, panels, strict=True):
        for image in item.images():
            image_panel.imshow(image, interpolation="nearest")
        _write_lines(text_panel, lines)
    figure.savefig(path)


def _write_lines(panel: Any, lines: list[tuple[str, str]]) -> None:
    """Write lines of (text, colour) into a panel of matplotlib, from the top."""
    for number, (line, colour) in enumerate(lines):
        panel.annotate(
            line,
            (0, 1),
            (0, -13 * number),
            color=colour,
            fontsize=9,
            textcoords="offset points",
            verticalalignment="top",
        )


def _lines(item: WorldItem) -> list[tuple[str, str]]:
    """Return the lines of text about an item as (text, colour)."""
    paragraphs = [
        (f"{item.kind} ({item.category})", "gray"),
        (item.question, "black"),
        (f"chosen: {item.chosen}", "darkgreen"),
        (f"rejected: {item.rejected}", "firebrick"),
        (f"critique of chosen: {item.critique(True)}", "darkgreen"),
        (f"critique of rejected: {item.critique(False)}", "firebrick"),
        (f"rationale: {item.rationale()}", "black"),
    ]
    lines = []
    for text, colour in paragraphs:
        for paragraph in text.split("\n"):
            lines += [(line, colour) for line in wrap(paragraph, LINE_WIDTH)]
    return lines


def main() -> None:
    """Write the picture with examples with --sheet, and the data files with --write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--level", choices=sorted(LEVELS), default="demo", help="The difficulty of the questions."
    )
    parser.add_argument("--seed", type=int, default=0, help="The seed of the items.")
    parser.add_argument("--sheet", type=Path, help="Write a picture with examples to this file.")
    parser.add_argument(
        "--write",
        type=Path,
        help="Write data files in this project's format and in formats of benchmarks into this folder.",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=2000,
        help="The number of rows of the training file in this project's format.",
    )
    options = parser.parse_args()
    if options.sheet is None and options.write is None:
        parser.error(
            "neither --sheet nor --write is given. Give --sheet FILE.png, --write FOLDER or both"
        )

    with exit_on_user_error():
        if options.sheet is not None:
            write_sheet(options.sheet, options.level, options.seed)
        if options.write is not None:
            write_all(options.write, options.level, options.seed, options.rows)


if __name__ == "__main__":
    main()
