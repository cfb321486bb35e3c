"""Measure RL by a reward model: true accuracy and score of a policy against the KL from its start.

python eval/overoptimisation.py runs/shapes/policy               # start and every checkpoint
python eval/overoptimisation.py runs/shapes/policy runs/shapes/policy_shuffled --samples 8
python eval/overoptimisation.py runs/shapes/ablations/rewards    # all runs of a list

All RUNs start from the same policy and are measured on the same questions (the first of their
evaluation.questions) by one judge (the reward's first, or --judge). Beside the checkpoints stands
what the start reaches without training: best of n by the judge, pass@n and the majority of n, for
every n up to --samples, each estimated without bias from the same answers. The seeds of a variant
of a list are one line. Answers that a run gave to the same questions at its saves are used again.
Questions are compared by content with the data that the runs, their start and the judge were
trained on. Those that were trained on are left out and counted. If a quarter were, the command ends
before any work is done.

A difference is paired: the same questions. Its interval is over questions for a run with one seed,
and then speaks of this policy alone; over questions and trainings for three seeds or more; two
seeds have none. Intervals of differences hold at 95 % for all of them together. The last line of a
run says "sharpening" if sampled answers became better, and the greedy one did not.

Into --output (default RUN/overoptimisation) go figures.json, picture.png and points/, with a file
for each checkpoint, which a second call does not repeat.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.cli import add_ranks, processes


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(
        "eval/overoptimisation.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run folder of `method: policy`"
    )
    parser.add_argument(
        "--judge",
        type=Path,
        help="a checkpoint or YAML file; default: the first judge of the first RUN's reward",
    )
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=16, help="sampled answers to each question")
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        help="the checkpoints to measure; default: all that are whole",
    )
    parser.add_argument("--output", type=Path)
    add_ranks(parser)
    options = parser.parse_args(arguments)
    if options.samples < 2 or options.questions < 2:
        parser.error("--samples and --questions must be at least 2")
    output = options.output or options.runs[0] / "overoptimisation"
    with command(), processes() as device:
        # The study imports torch, which takes seconds that --help should not.
        from mmrm.eval.studies.overoptimisation import run, write
        from mmrm.models.distributed import locked_by_first_rank

        with locked_by_first_rank(locked_folder(output)):
            result = run(options, device, output)
            if result is not None:
                result.show(plain_console(width=max(plain_console().width, 150)))
                write(result, output)
                plain_console().print(f"saved in {output}", soft_wrap=True)


if __name__ == "__main__":
    main()
