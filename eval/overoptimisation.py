"""Measure how far RL over-optimises a reward model: a policy's true accuracy against its score.

python eval/overoptimisation.py runs/shapes/policy               # start and every checkpoint
python eval/overoptimisation.py runs/shapes/policy runs/shapes/policy_shuffled --samples 8
python eval/overoptimisation.py runs/shapes/ablations/rewards    # all runs of a list

For every checkpoint of a policy the command measures the accuracy of its answers by the known
answers, their score by the reward model, and the KL divergence from the policy that training
started from. All RUNs have to start from the same policy. They are measured on the same questions,
the first ones of their `evaluation.questions`, by one judge: --judge, or the first judge of the
reward.

The table also shows what the starting policy reaches without training: best of n by the judge,
pass@n and the majority of n, for every n up to --samples. Each is an unbiased estimate from the
same answers. The runs that differ only in their seed are one line of the picture. Answers that a
run gave to the same questions when it saved a checkpoint are used again. Questions that the runs,
their start or the judge were trained on are recognised by their content, left out and counted. If
they are a quarter of the questions or more, the command ends before any work is done.

Differences are between answers to the same questions. For a run with one seed, the interval of a
difference is over questions, and holds for this one policy. For three seeds or more it is over
questions and trainings. For two seeds there is no interval. The intervals hold at 95 % for all
differences together. The last line of a run is "sharpening" if the sampled answers became better
and the greedy answer did not.

The folder --output (default RUN/overoptimisation) gets figures.json, picture.png and points/. The
last holds a file for each checkpoint, so that a second call does not measure the checkpoint again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT, STEP
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.cli import add_model_options, rank_device

MIN_WIDTH = 150
"""The fewest columns of the printed tables, also on a narrower terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the accuracy, the score and the KL divergence of all checkpoints of policy runs.

    All ranks measure. The first rank prints the figures, and writes figures and a picture to the
    folder `--output`.
    """
    parser = CommandParser("eval/overoptimisation.py", __doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="The folder of a run of `method: policy`."
    )
    parser.add_argument(
        "--judge",
        type=Path,
        help="A checkpoint folder or the YAML file of a judge. The default is the first judge of "
        "the first RUN's reward.",
    )
    parser.add_argument("--questions", type=COUNT, default=1000, help="The number of questions.")
    parser.add_argument(
        "--samples", type=COUNT, default=16, help="The number of sampled answers to each question."
    )
    parser.add_argument(
        "--steps",
        type=STEP,
        nargs="+",
        help="The steps of the checkpoints to measure. The default is all checkpoints that were "
        "saved completely.",
    )
    parser.add_argument("--output", type=Path, help="The folder for figures and picture.")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    if options.samples < 2 or options.questions < 2:
        parser.error("--samples and --questions must be at least 2")
    output = options.output or options.runs[0] / "overoptimisation"
    with exit_on_user_error(), rank_device() as device:
        # The study imports torch, which takes seconds that --help should not.
        from mmrm.eval.studies import overoptimisation
        from mmrm.models.distributed import locked_by_first_rank

        with locked_by_first_rank(locked_folder(output)):
            result = overoptimisation.run(options, device, output)
            if result is None:  # the result is returned on the first rank only
                return
            result.show(plain_console(width=max(plain_console().width, MIN_WIDTH)))
            overoptimisation.write(result, output)
            plain_console().print(f"saved in {output}", soft_wrap=True)


if __name__ == "__main__":
    main()
