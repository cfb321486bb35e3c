"""The embedded world: endless, labelled image preference data about simple scenes, made with Pillow.

python data/shapes.py --sheet out.png [--level hard]     # examples for a person to look at
python data/shapes.py --write FOLDER --rows 2000         # own-format files and the official benchmark formats

Every item is a function of (level, seed, split, index) alone. Splits share no scene.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.synthetic.benchmark_files import write_all
from data.synthetic.questions import QUESTION_TYPES
from data.synthetic.scenes import LEVELS
from data.synthetic.text_questions import TEXT_TYPES
from data.synthetic.world import Item, ShapesWorld

COLUMNS, PICTURE, TEXT, LINE, MARGIN = 2, 224, 560, 17, 14
INK, GREEN, RED, GREY = (20, 20, 20), (0, 110, 40), (170, 20, 20), (110, 110, 110)
Line = tuple[str, tuple[int, int, int]]


def write_sheet(path: Path, level: str, seed: int) -> None:
    """Write a PNG with two examples of each question type with a picture, and one of each without."""
    world = ShapesWorld(level, seed, "train")
    kinds = [*(kind for kind in QUESTION_TYPES for _ in range(2)), *TEXT_TYPES]
    items = (world.item(index, (kind,)) for index, kind in enumerate(kinds))
    cells = [(item, _lines(item)) for item in items]
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    heights = [max(_height(item, lines) for item, lines in row) + 2 * MARGIN for row in rows]
    sheet = Image.new("RGB", (COLUMNS * (PICTURE + TEXT + 3 * MARGIN), sum(heights)), (255, 255, 255))
    top = 0
    for row, height in zip(rows, heights, strict=True):
        for column, (item, lines) in enumerate(row):
            _draw_cell(sheet, (column * (PICTURE + TEXT + 3 * MARGIN) + MARGIN, top + MARGIN), item, lines)
        ImageDraw.Draw(sheet).line((0, top + height - 1, sheet.width, top + height - 1), fill=(215, 215, 215))
        top += height
    sheet.save(path)


def _height(item: Item, lines: list[Line]) -> int:
    """Return the pixels that a cell needs."""
    return max(len(lines) * LINE, PICTURE if item.scene is not None else 0)


def _lines(item: Item) -> list[Line]:
    """Return the words beside a picture, line by line, with their colours."""
    paragraphs = [
        (f"{item.kind} ({item.category})", GREY),
        (item.question, INK),
        (f"chosen: {item.chosen}", GREEN),
        (f"rejected: {item.rejected}", RED),
        (f"critique of chosen: {item.critique(True)}", GREEN),
        (f"critique of rejected: {item.critique(False)}", RED),
        (f"rationale: {item.rationale()}", INK),
    ]
    return [(line, ink) for text, ink in paragraphs for part in text.split("\n") for line in wrap(part, 82)]


def _draw_cell(sheet: Image.Image, corner: tuple[int, int], item: Item, lines: list[Line]) -> None:
    """Draw one example with its upper left corner at `corner`."""
    left, top = corner
    for image in item.images():
        sheet.paste(image.resize((PICTURE, PICTURE), Image.Resampling.NEAREST), corner)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for place, (line, ink) in enumerate(lines):
        pen.text((left + PICTURE + MARGIN, top + place * LINE), line, fill=ink, font=font)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", type=Path, help="write an image with examples here")
    parser.add_argument("--write", type=Path, help="write own-format files and benchmark editions into this folder")
    parser.add_argument("--rows", type=int, default=2000, help="rows of the own-format training file")
    options = parser.parse_args()
    if options.sheet is None and options.write is None:
        parser.error("nothing to do: give --sheet FILE.png, --write FOLDER or both")

    if options.sheet is not None:
        write_sheet(options.sheet, options.level, options.seed)
    if options.write is not None:
        write_all(options.write, options.level, options.seed, options.rows)


if __name__ == "__main__":
    main()
