"""Measure which shortcuts a trained judge has learned, and what it answers without the images.

python eval/shortcuts.py runs/shapes/naive                               # the data and benchmarks of its recipe
python eval/shortcuts.py runs/a/best recipes/basereward.yaml --records 1000
python eval/shortcuts.py runs/a/best --source '{type: shapes, level: demo, split: benchmark, rows: 400, courteous_right: 0.5}'

A shortcut is a property of a response that says nothing about its quality: its length, lists,
headings, bold text, code, tables, phrases of a refusal, words of the prompt, the first position.
For each source of the recipe and each benchmark, the command prints in how many pairs the labels
prefer the response with more of it, and in how many the judge does. A judge that prefers it more
often than the labels has learned the shortcut.

It also prints the accuracy with the real images, without images and with grey ones, of the rows
that have images. Pairs that are judged right without the images can be answered from the text, or
by a shortcut. The judge has been trained on the pairs of its own recipe, so that it may know them
by heart. Name sources that it was not trained on by --source.

The figures are written as JSON, by default to shortcuts/CHECKPOINT.json in the folder of the run.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT
from mmrm.data.errors import UserError
from mmrm.data.package import recipe_path
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import add_benchmarks_option, add_model_options, rank_device
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.studies import shortcuts
from mmrm.models.config import checkpoint_at
from mmrm.models.distributed import locked_by_first_rank, rank

MIN_WIDTH = 160
"""The fewest columns of the printed tables, also on a narrower terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the shortcuts of a judge, and its accuracy without the images.

    All ranks judge. The first rank prints the figures and writes them as JSON.
    """
    parser = CommandParser("eval/shortcuts.py", __doc__)
    parser.add_argument(
        "judge",
        type=recipe_path,
        metavar="JUDGE",
        help="A run or a checkpoint folder, or the YAML file of a judge.",
    )
    parser.add_argument(
        "recipe",
        nargs="?",
        type=recipe_path,
        metavar="RECIPE",
        help="The recipe whose sources are judged. The default is the recipe of the run.",
    )
    parser.add_argument(
        "--source",
        nargs="+",
        default=[],
        metavar="YAML",
        help="Sources to judge in place of those of the recipe, each written as in data.sources.",
    )
    parser.add_argument("--records", type=COUNT, default=500, help="The most pairs of each source.")
    add_benchmarks_option(parser, ". The default is the recipe's benchmarks.", default=[])
    parser.add_argument("--output", type=Path, help="The JSON file for the figures.")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    with exit_on_user_error():
        options.judge = Path(checkpoint_at(str(options.judge)))
        if not options.judge.exists():
            raise UserError(
                f"{options.judge}: there is no such folder or file. Give a checkpoint folder, or the "
                "YAML file of a judge."
            )
        checkpoint = options.judge.resolve()
        default_output = checkpoint.parent / "shortcuts" / f"{checkpoint.stem}.json"
        output: Path = options.output or default_output
        output.parent.mkdir(parents=True, exist_ok=True)
        with rank_device() as device, locked_by_first_rank(locked_file(output)):
            result = shortcuts.run(options, Runtime(device, options.token_budget))
            if rank() == 0:
                shortcuts.write(result, output)
                result.show(plain_console(width=max(plain_console().width, MIN_WIDTH)))
                print(f"saved as {output}")


if __name__ == "__main__":
    main()
