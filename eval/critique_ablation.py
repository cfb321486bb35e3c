"""Measure the worth of a critic's critiques: scores without one, after its own, after true ones.

python eval/critique_ablation.py runs/shapes/critic/best --rows 600 --scalar runs/shapes/naive/best
deepspeed eval/critique_ablation.py runs/shapes/critic/best --samples 4 --temperature 0.7

A critic is a judge that writes a critique of each response before it scores the response. The
command prints the accuracy of the scores without a critique, after the critic's own critiques and
after true ones, on generated scenes of coloured shapes. It also prints the share of written
critiques that are true (their claims are compared with the scene), and the cost of a judgement
compared with the scalar judge's. It writes the same figures as JSON, by default to
CHECKPOINT/eval/critique_ablation.json.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT, SEED, TEMPERATURE
from mmrm.data.storage.output_lock import locked_file
from mmrm.data.synthetic.scenes import LEVELS
from mmrm.eval.cli import add_model_options, rank_device
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.studies import critique_ablation
from mmrm.models.distributed import locked_by_first_rank, rank

MIN_WIDTH = 110
"""The fewest columns of the printed tables, also on a narrower terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure how critiques change the accuracy of a critic's scores.

    The scores are measured without critiques, after the critic's own critiques and after true ones.

    All ranks judge. The first rank prints the figures and writes them as JSON.
    """
    parser = CommandParser("eval/critique_ablation.py", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        help="The critic: a checkpoint folder of a run of `method: critic`.",
    )
    parser.add_argument(
        "--rows", type=COUNT, default=600, help="The number of generated pairs to judge."
    )
    parser.add_argument(
        "--level", choices=sorted(LEVELS), default="demo", help="The difficulty of the scenes."
    )
    parser.add_argument("--seed", type=SEED, default=0, help="The seed of the generated scenes.")
    parser.add_argument(
        "--scalar", type=Path, metavar="CHECKPOINT", help="A scalar reward model to compare with."
    )
    parser.add_argument(
        "--samples",
        type=COUNT,
        default=1,
        help="The number of critiques of each response. Their scores are averaged.",
    )
    parser.add_argument(
        "--temperature", type=TEMPERATURE, default=0.0, help="The critiques' temperature."
    )
    parser.add_argument("--output", type=Path, help="The JSON file for the figures.")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    output = options.output or options.checkpoint / "eval" / "critique_ablation.json"
    with exit_on_user_error(), rank_device() as device, locked_by_first_rank(locked_file(output)):
        result = critique_ablation.run(options, Runtime(device, options.token_budget))
        if rank() == 0:
            critique_ablation.write(result, output)
            console = plain_console(width=max(plain_console().width, MIN_WIDTH))
            result.show(console)
            console.print(f"saved as {output}")


if __name__ == "__main__":
    main()
