r"""Compare ways to rank responses: judges, and schedules of fewer comparisons, on the same answers.

python eval/sample.py embedded answers.jsonl --max-new-tokens 48 \
    --source '{type: shapes, level: medium, split: benchmark, rows: 300, text_only: 0.0}'
python eval/score.py judge.yaml answers.jsonl scored/judge.jsonl
python eval/score.py runs/shapes/points_medium/best answers.jsonl scored/points.jsonl
python eval/compare_rankings.py judge=scored/judge.jsonl points=scored/points.jsonl --output rankings

NAME=FILE[,FILE…] names a judge and its scored files, one for each of its trainings. The files are
written by eval/score.py from the same answers, whose verdicts (`right`) are known.

A judge that compares must have compared every two responses (`comparisons: all`). From its
comparisons the command computes what `sorted` and `swiss` would have asked for, and which response
they would have put first. Soft verdicts are used where the file has them, and hard verdicts of the
same judgements are compared with them. Nothing is judged again. This is exact for a judge that
always gives the same verdict on two responses.

    judgements     comparisons, or scores of single responses, for each question
    tokens         tokens that were written for each question
    AUC            the share of pairs of a right and a wrong answer to a question in which the right
                   one has the higher score
    best of N      the accuracy of the answer with the highest score among N
    gain           this accuracy minus that of a sampled answer
    loss           the accuracy of the reference's best of N minus that of this way; negative if
                   this way is better. The reference is the first judge, after all its comparisons

Equal scores count half, and among answers with equal highest scores one is drawn. Intervals are at
95 % over trainings and questions from three trainings on, and over questions for fewer. Those of
the losses hold for all ways together. Questions about one image are not independent, which the
intervals take into account. A question that is not in all files is left out and counted.

OUT gets rankings.json and rankings.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import wide_console
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.studies.compare_rankings import ScoredJudge, run, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare ways to rank responses, and print and write the table.

    Errors that a user can correct end the command with a message and no traceback.
    """
    options = parse(arguments)
    with exit_on_user_error(), locked_folder(options.output):
        console = wide_console(120, highlight=False)
        result = run(options.judges, options.image_root, console)
        write(result, options.output)
        result.show(console)
        console.print(f"written: {options.output}/rankings.json and rankings.md", soft_wrap=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = CommandParser("eval/compare_rankings.py", __doc__)
    parser.add_argument(
        "judges",
        type=scored_judge,
        nargs="+",
        metavar="NAME=FILE[,FILE…]",
        help="A judge and its scored files, one for each of its trainings.",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="The folder for the table and its figures."
    )
    parser.add_argument(
        "--image-root",
        type=Path,
        help="The folder that paths of images are relative to. The default is the folder of each "
        "FILE. eval/score.py says it if it is another one.",
    )
    options = parser.parse_args(arguments)
    names = [judge.name for judge in options.judges]
    if len(set(names)) != len(names):
        parser.error("every judge needs a name of its own")
    return options


def scored_judge(text: str) -> ScoredJudge:
    """Return a judge with its scored files from `NAME=FILE[,FILE…]`.

    Raises:
        argparse.ArgumentTypeError: If the text has another form.
    """
    name, separator, files = text.partition("=")
    paths = [Path(file) for file in files.split(",")]
    if not name or not separator or not all(files.split(",")):
        raise argparse.ArgumentTypeError(f"{text!a} should be NAME=FILE or NAME=FILE,FILE")
    return ScoredJudge(name, tuple(paths))


if __name__ == "__main__":
    main()
