"""Prepare the data of a recipe and print its data card, or describe the format of a data file.

python data/mixture.py recipes/basereward.yaml --plan       # prepare, print and save the card; no
GPU python data/mixture.py recipes/shapes/naive.yaml --plan     # the embedded world, in seconds
python data/mixture.py /data/mine.jsonl                     # the format of a file, and a recipe for
it
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.preparation.inspection import inspect
from mmrm.data.preparation.mixing import CACHE, Mixture
from mmrm.data.preparation.recipe_section import (
    image_tokens_of_recipe,
    pairs_together_of,
    section_of,
)

MIN_WIDTH = 120
"""Characters of a line that the tables need, however narrow the terminal is."""


def main() -> None:
    """Read the command line, and prepare a recipe's data or describe a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recipe", type=Path, help="a recipe, or a file or folder of preference records"
    )
    parser.add_argument(
        "--plan", action="store_true", help="prepare all sources, print the data card and save it"
    )
    parser.add_argument(
        "--save",
        type=Path,
        help="path of the saved card; default: in the cache, by the recipe's name",
    )
    parser.add_argument(
        "--images",
        help="for a file: the folder or archive of its images, if they are not next to it",
    )
    options = parser.parse_args()
    if not options.plan and options.recipe.suffix in (".yaml", ".yml"):
        parser.error("nothing to do: give --plan")
    with command():
        if options.plan:
            prepare(options.recipe, options.save)
        else:
            place = options.recipe.expanduser().absolute()
            for line in inspect(place, options.images, CACHE, os.cpu_count() or 1):
                print(line)


def prepare(recipe: Path, card_file: Path | None) -> None:
    """Prepare all sources of a recipe, and print and save the data card.

    Raises: UserError if the recipe or a source cannot be used.
    """
    image_tokens, warning = image_tokens_of_recipe(recipe)
    mixture = Mixture(section_of(recipe), image_tokens)
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
