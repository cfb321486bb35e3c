"""The options of commands that train several models, such as the reward models of a list of variants."""

import argparse
import shlex
import sys

from mmrm.data.display.option_numbers import SEED
from mmrm.data.package import recipe_path


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Add the list, the settings of all its variants, `--seeds` and `--launcher` to a parser."""
    parser.add_argument(
        "list",
        type=recipe_path,
        help="The YAML file of a list of variants, such as recipes/ablations/shapes_head.yaml.",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="Set a key of the recipe in every variant, such as optim.max_steps=20.",
    )
    add_seeds_option(parser, "Train every variant once with each of these seeds.")
    add_launcher_option(parser, "run")


def add_seeds_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add `--seeds` to a parser: the seeds with which each model is trained, by default 0."""
    parser.add_argument(
        "--seeds", type=SEED, nargs="+", default=[0], metavar="SEED", help=help_text
    )


def add_launcher_option(parser: argparse.ArgumentParser, started: str) -> None:
    """Add `--launcher` to a parser.

    Args:
        parser: The parser.
        started: What the launcher starts, in one word, for the help.
    """
    parser.add_argument(
        "--launcher",
        type=shlex.split,
        default=[sys.executable],
        metavar="COMMAND",
        help=f"The command that starts each {started}. The default is this Python interpreter.",
    )
