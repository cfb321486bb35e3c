"""Prepare the data of a recipe and print its data card, or describe the format of a data file.

python data/mixture.py recipes/basereward.yaml       # prepare the data, without a GPU
python data/mixture.py recipes/shapes/naive.yaml     # generated images, in seconds
python data/mixture.py /data/mine.jsonl              # describe a file, and print a recipe

The data card is a summary of the data. It has the number of records that each source gives to
training, the number of dropped records and the reasons, and the lengths of the records.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.package import data_cache, recipe_path
from mmrm.data.preparation.inspection import inspect
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import (
    image_tokens_of_recipe,
    images_together_of,
    pairs_together_of,
    read_data_section,
)

MIN_WIDTH = 120
"""The smallest width of the tables in characters. Lines are longer than a narrower terminal."""


def main() -> None:
    """Prepare the data of a recipe, or print the format of a data file."""
    parser = CommandParser("data/mixture.py", __doc__)
    parser.add_argument(
        "recipe_or_data",
        type=recipe_path,
        metavar="RECIPE_OR_DATA",
        help="A recipe, or a file or folder of preference records.",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="Read RECIPE_OR_DATA as a recipe, whatever its name. A file that ends in .yaml or "
        ".yml is read as a recipe without this option, too.",
    )
    parser.add_argument(
        "--save",
        type=Path,
        help="The file for the data card. The default is RECIPE.card.json in the cache.",
    )
    parser.add_argument(
        "--images",
        help="The folder or archive with the images of a data file, if they are not next to it.",
    )
    options = parser.parse_args()
    recipe_or_data: Path = options.recipe_or_data
    is_recipe = options.plan or recipe_or_data.suffix in (".yaml", ".yml")
    if is_recipe and options.images is not None:
        parser.error("--images is for a data file. A recipe names the images of each source.")
    if not is_recipe and options.save is not None:
        parser.error("--save is for the data card of a recipe. A data file has none.")
    with exit_on_user_error():
        if is_recipe:
            prepare(recipe_or_data, options.save)
            return
        data_path = recipe_or_data.expanduser().absolute()
        num_workers = os.cpu_count() or 1
        descriptions = inspect(data_path, options.images, data_cache(), num_workers)
        for description in descriptions:
            print(description)


def prepare(recipe: Path, card_file: Path | None) -> None:
    """Read and index all sources of a recipe, and print and save its data card.

    The data card is a summary: the number of records that each source gives to training, the number
    of dropped records and the reasons, and the lengths of the records.

    Args:
        recipe: The YAML file of the recipe.
        card_file: The file for the card. None writes `RECIPE.card.json` into the cache.

    Raises:
        UserError: The recipe or a source cannot be used.
    """
    # The warning is empty, unless the backbone's config.json could not be read.
    image_tokens, warning = image_tokens_of_recipe(recipe)
    mixture = Mixture(read_data_section(recipe), image_tokens)
    card = mixture.card(pairs_together_of(recipe), images_together_of(recipe))
    if card_file is None:
        card_file = mixture.config.cache_folder / f"{recipe.stem}.card.json"
    card.save(card_file)

    terminal_width = plain_console().width
    console = plain_console(width=max(MIN_WIDTH, terminal_width))
    # The tables of the sources, of their shares of each tenth of an epoch, of what is left to
    # compute, and of their origins.
    console.print(card.table(), card.tenths(), card.sharing(), card.origins())
    for source in card.sources:
        # One message for each fault of records that cannot be used, then notes on the rationales,
        # how far shortcuts predict the labels, the number of videos, counts of the responses if
        # there are more than pairs, and counts of the difficulties if there are some.
        for message in source.messages:
            console.print(f"bad: {message}", style="yellow")
        for line in source.rationales.lines(source.name):
            console.print(line, style="yellow")
        for line in source.shortcut_lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        for line in (*source.video_lines, *source.response_lines, *source.difficulty_lines):
            console.print(line, markup=False)
    for line in (*card.difficulty_lines, *card.decisions):
        console.print(line, markup=False)
    fewest, most = image_tokens.bounds
    console.print(f"an image is {image_tokens.description}{fewest:,} to {most:,} tokens")
    if warning:
        console.print(warning, style="yellow")
    console.print(
        f"{len(mixture):,} records to train on, {card.epoch_size:,} an epoch; saved as {card_file}"
    )


if __name__ == "__main__":
    main()
