"""Prepare the data of a recipe and print its data card, or describe the format of a data file.

python data/mixture.py recipes/basereward.yaml --plan       # prepare the data, without a GPU
python data/mixture.py recipes/shapes/naive.yaml --plan     # generated images, in seconds
python data/mixture.py /data/mine.jsonl                     # describe a file, and print a recipe

The data card is a summary of the data: how many records each source gives to training, how many are
dropped and why, and how long they are.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # imports work without installation

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.console import plain_console
from mmrm.data.preparation.inspection import inspect
from mmrm.data.preparation.mixing import CACHE, Mixture
from mmrm.data.preparation.recipe_section import (
    image_tokens_of_recipe,
    pairs_together_of,
    read_data_section,
)

MIN_WIDTH = 120
"""The smallest width of the tables in characters. Lines are longer than a narrower terminal."""


def main() -> None:
    """Prepare the data of a recipe with --plan, else describe the format of a data file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recipe",
        type=Path,
        metavar="RECIPE_OR_DATA",
        help="A recipe, or a file or folder of preference records.",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="Prepare all sources of the recipe, and print and save the data card.",
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
    is_recipe = options.recipe.suffix in (".yaml", ".yml")
    if is_recipe and not options.plan:
        parser.error("nothing to do: give --plan")
    with exit_on_user_error():
        if options.plan:
            prepare(options.recipe, options.save)
            return
        data = options.recipe.expanduser().absolute()
        for line in inspect(data, options.images, CACHE, os.cpu_count() or 1):
            print(line)


def prepare(recipe: Path, card_file: Path | None) -> None:
    """Prepare all sources of a recipe, and print and save the data card.

    Args:
        recipe: The YAML file of the recipe.
        card_file: The file for the card. None writes `RECIPE.card.json` into the cache.

    Raises:
        UserError: The recipe or a source cannot be used.
    """
    image_tokens, warning = image_tokens_of_recipe(recipe)
    mixture = Mixture(read_data_section(recipe), image_tokens)
    card = mixture.card(pairs_together_of(recipe))
    if card_file is None:
        card_file = mixture.config.cache_folder / f"{recipe.stem}.card.json"
    card.save(card_file)

    console = plain_console(width=max(MIN_WIDTH, plain_console().width))
    console.print(card.table(), card.tenths(), card.origins())
    for source in card.sources:
        for message in source.messages:
            console.print(f"bad: {message}", style="yellow")
        for line in source.rationales.lines(source.name):
            console.print(line, style="yellow")
    fewest, most = image_tokens.bounds
    console.print(f"an image is {image_tokens.how}{fewest:,} to {most:,} tokens")
    if warning:
        console.print(warning, style="yellow")
    console.print(
        f"{len(mixture):,} records to train on, {card.epoch_size:,} an epoch; saved as {card_file}"
    )


if __name__ == "__main__":
    main()
