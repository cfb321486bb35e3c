"""The options of commands that search for wrong labels by models of folds."""

import argparse

from mmrm.data.display.option_numbers import COUNT, SHARE, WholeNumber


def add_fold_options(parser: argparse.ArgumentParser) -> None:
    """Add `--steps`, `--folds`, `--leave-out-above` and `--flip-above` to a parser."""
    parser.add_argument(
        "--steps",
        type=COUNT,
        required=True,
        help="The number of training steps of each model. A model that is trained for many epochs "
        "learns wrong labels by heart, which does not matter here, because it scores other records.",
    )
    parser.add_argument(
        "--folds",
        type=WholeNumber(2, 100),
        default=3,
        help="The number of parts of the data. Each model is trained on all parts but one. The "
        "default is %(default)s.",
    )
    parser.add_argument(
        "--leave-out-above",
        type=SHARE,
        default=0.5,
        metavar="PROBABILITY",
        help="Leave out records whose label is wrong with this probability or a larger one. The "
        "default is %(default)s.",
    )
    parser.add_argument(
        "--flip-above",
        type=SHARE,
        default=0.9,
        metavar="PROBABILITY",
        help="Flip records whose label is wrong with this probability or a larger one. The default "
        "is %(default)s.",
    )


def refuse_reversed_thresholds(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> None:
    """End the process with status 2 if more labels would be flipped than are suspected."""
    if options.flip_above < options.leave_out_above:
        parser.error("--flip-above must not be below --leave-out-above")
