"""A table of the differences between vLLM's numbers and those of `score()`, for every family that vLLM serves.

    make vllm-table
    PYTHONPATH=tools/vllm_cpu .venv-vllm/bin/python -m tools.vllm_table FAMILY ...

It runs in the environment of `make test-vllm`. For each family and each type of reward head it saves
a tiny checkpoint with random weights, serves it with a real vLLM on the CPU, and compares the numbers
of the answers: the score, and those that the head reports next to it. A row takes half a minute.
The status is 1 if a difference exceeds `LIMIT`.
"""

import argparse
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mmrm.eval.serving.vllm_plugin import SERVED_MODELS
from tests.eval.serving.vllm_server import PROMPTS, Agreement, compare
from tests.models.heads.examples import HEADS

LIMIT = 1e-3
"""The largest difference of two numbers that counts as the same."""


def vllm_version() -> str:
    """Return the name and version of the installed vLLM, whose build for CPUs has another name."""
    try:
        return f"vllm-cpu {version('vllm-cpu')}"
    except PackageNotFoundError:
        return f"vllm {version('vllm')}"


def score_range(agreements: dict[str, Agreement]) -> str:
    """Return the smallest and the largest score of this project, for the table."""
    scores: list[float] = []
    for agreement in agreements.values():
        scores += [numbers[0] for numbers in agreement.expected]
    return f"{min(scores):.2f} to {max(scores):.2f}"


def main() -> None:
    """Read the command line, compare every family, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="a model_type; default: all")
    options = parser.parse_args()
    families = options.families or list(SERVED_MODELS)
    unknown = set(families) - set(SERVED_MODELS)
    if unknown:
        parser.error(f"vLLM serves {', '.join(SERVED_MODELS)}, not {', '.join(sorted(unknown))}")

    table = Table("family", "head", *PROMPTS, "scores", title=vllm_version())
    largest_difference = 0.0
    for family in families:
        for name, head in HEADS.items():
            with tempfile.TemporaryDirectory() as folder:
                agreements = compare(Path(folder), family, head)
            differences = [agreement.difference for agreement in agreements.values()]
            largest_difference = max(largest_difference, *differences)
            cells = [f"{difference:.1e}" for difference in differences]
            table.add_row(family, name, *cells, score_range(agreements))
    console = Console(width=100)
    console.print(table, f"Largest difference: {largest_difference:.1e}; allowed are {LIMIT:g}.")
    sys.exit(int(largest_difference > LIMIT))


if __name__ == "__main__":
    main()
