"""The options of commands that verify responses, and the verifier that they name."""

from __future__ import annotations

import argparse

from mmrm.data.errors import UserError
from mmrm.eval.verifiers import RECORDED, VERIFIERS, Verifying


def add_verifier(parser: argparse.ArgumentParser) -> None:
    """Add the options by which responses are verified."""
    parser.add_argument(
        "--verifier",
        choices=[*VERIFIERS, RECORDED],
        help="how responses are verified: by a rule of eval/verifiers.py, or `recorded`, which takes "
        "the verdicts that the records hold (`right`); a rule that contradicts these is refused",
    )
    parser.add_argument(
        "--answer",
        default="answer",
        metavar="COLUMN",
        help="where the known answer stands; default: answer",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="of --verifier numeric, as a share of the known answer; default: 1e-6",
    )


def verifying(options: argparse.Namespace) -> Verifying | None:
    """Return what `add_verifier`'s options say; raise UserError for a tolerance of another verifier."""
    if options.tolerance is not None and options.verifier != "numeric":
        raise UserError("--tolerance is for --verifier numeric.")
    return (
        Verifying(options.verifier, options.answer, options.tolerance) if options.verifier else None
    )
