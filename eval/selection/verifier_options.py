"""The options of commands that verify responses, and the verifier that they name."""

from __future__ import annotations

import argparse

from mmrm.data.errors import UserError
from mmrm.eval.verifiers import RECORDED, VERIFIERS, ResponseVerifier


def add_verifier_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--verifier`, `--answer` and `--tolerance` to a parser."""
    parser.add_argument(
        "--verifier",
        choices=[*VERIFIERS, RECORDED],
        help="The rule of eval/verifiers.py that decides whether a response is right. `recorded` takes "
        "the verdicts that the records hold in the column `right`. A rule that contradicts such "
        "verdicts is refused.",
    )
    parser.add_argument(
        "--answer",
        default="answer",
        metavar="COLUMN",
        help="The column of the known answer. The default is answer.",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="The tolerance of --verifier numeric, as a share of the known answer. The default is "
        "1e-6.",
    )


def verifier_from_options(options: argparse.Namespace) -> ResponseVerifier | None:
    """Return the verifier that the options of `add_verifier_options` name, or None if they name none.

    Raises:
        UserError: If a tolerance is given for a verifier that has none.
    """
    if options.tolerance is not None and options.verifier != "numeric":
        raise UserError("--tolerance is for --verifier numeric.")
    if not options.verifier:
        return None
    return ResponseVerifier(options.verifier, options.answer, options.tolerance)
