"""Measure what the embedded backbone knows before any reward training, on scenes it never saw.

python eval/answers.py models/embedded [--level demo] [--items 1000] [--output answers.json]

Three figures for every question type: greedy answers that are right word for word (in any of the
world's phrasings), verdicts ("is this answer right?") that are right, and pairs in which the right
answer is the likelier one under the language model.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.eval.studies.answer_accuracy import run, write


def main() -> None:
    """Read the command line, examine the backbone, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--level", choices=sorted(LEVELS), default="demo")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with command():
        result = run(options)
        result.show(plain_console(width=120))
        if options.output:
            write(result, options.output)


if __name__ == "__main__":
    main()
