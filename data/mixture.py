"""Prepare the data of a recipe and print its data card, or tell what format a file is in.

python data/mixture.py recipes/basereward.yaml --plan            # prepare, print and save the data card; needs no GPU
python data/mixture.py recipes/shapes/naive.yaml --plan          # the embedded world, in seconds
python data/mixture.py /data/mine.jsonl                          # what format a file or folder is in, and a recipe for it
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


def main() -> None:
    """Read the command line, prepare the data, print and save the card."""
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
        "--save", type=Path, help="where the card goes; else into the cache under the recipe's name"
    )
    parser.add_argument(
        "--images",
        help="of a file: the folder or archive of its images, if they do not lie beside it",
    )
    options = parser.parse_args()
    if not options.plan and options.recipe.suffix in (".yaml", ".yml"):
        parser.error("nothing to do: give --plan")
    with command():
        if options.plan:
            plan(options.recipe, options.save)
            return
        place = options.recipe.expanduser().absolute()
        for line in inspect(place, options.images, CACHE, os.cpu_count() or 1):
            print(line)


def plan(recipe: Path, save: Path | None) -> None:
    """Prepare the data of a recipe, and print and save its data card.

    Args:
        recipe: The recipe.
        save: The file of the card; None puts it into the cache under the name of the recipe.
    """
    image_tokens, note = image_tokens_of_recipe(recipe)
    mixture = Mixture(section_of(recipe), image_tokens)
    card = mixture.card(pairs_together_of(recipe))
    target = save or mixture.config.cache_folder / f"{recipe.stem}.card.json"
    card.save(target)
    console = plain_console(width=max(120, plain_console().width))
    console.print(card.table(), card.tenths(), card.origins())
    for source in card.sources:
        for message in source.messages:
            console.print(f"bad: {message}", style="yellow")
        for line in source.rationales.lines(source.name):
            console.print(line, style="yellow")
    low, high = image_tokens.bounds
    console.print(f"an image is {image_tokens.how}{low:,} to {high:,} tokens")
    if note:
        console.print(note, style="yellow")
    console.print(
        f"{len(mixture):,} records to train on, {card.epoch_size:,} an epoch; saved as {target}"
    )


if __name__ == "__main__":
    main()
