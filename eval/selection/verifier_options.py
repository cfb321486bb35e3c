"""The options of commands that verify responses, and the verifier that they name."""

from __future__ import annotations

import argparse

from mmrm.data.display.option_numbers import NOT_NEGATIVE
from mmrm.data.errors import UserError
from mmrm.eval.verifiers import RECORDED, VERIFIERS, ResponseVerifier


def add_verifier_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that verifies responses to its parser.

    They are `--verifier`, `--answer` and `--tolerance`.
    """
    parser.add_argument(
        "--verifier",
        choices=[*VERIFIERS, RECORDED],
        help="The rule of eval/verifiers.py that decides whether a response is right. `recorded` "
        "takes the verdicts that the records hold in the column `right`. A rule that contradicts "
        "such verdicts is refused.",
    )
    parser.add_argument(
        "--answer",
        default="answer",
        metavar="COLUMN",
        help="The column of the known answer. The default is answer.",
    )
    parser.add_argument(
        "--tolerance",
        type=NOT_NEGATIVE,
        help="The tolerance of --verifier numeric, as a share of the known answer. The default is "
        "1e-6.",
    )


def verifier_from_options(options: argparse.Namespace) -> ResponseVerifier | None:
    """Return the verifier that the command line names, or None without --verifier.

    Args:
        options: The parsed command line, with the options that `add_verifier_options` adds.

    Raises:
        UserError: If a tolerance is given for another verifier than `numeric`.
    """
    if options.tolerance is not None and options.verifier != "numeric":
        raise UserError("--tolerance is for --verifier numeric.")
    if not options.verifier:
        return None
    return ResponseVerifier(options.verifier, options.answer, options.tolerance)
