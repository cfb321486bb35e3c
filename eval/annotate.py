"""Annotate preference pairs with rationales, by an endpoint or by a judge in this process.

python eval/annotate.py recipes/r1_reward_rl.yaml endpoint.yaml --out data/r1_reward.jsonl --agree
python eval/annotate.py RECIPE runs/judge/best --out FILE --agree --temperatures 1 1 1 1 --max-tokens 512
python eval/annotate.py RECIPE JUDGE --out FILE --temperatures 0 0.5 1 --failures keep --limit 1000

The pairs are those of RECIPE's `data` section. JUDGE is the YAML file of a judge that compares two
responses in writing (`type` endpoint, generative or released), or a checkpoint folder of one. It is
asked about each pair once for each temperature, until its judgement is right. A try shows the pair
in a random order. With --agree it shows both orders, and is right only if both judgements are. With
a judge's own checkpoint, this is rejection sampling: FILE is the cold start of the next judge.

FILE holds ordinary preference records with rationales, and the number of tries as `difficulty`. A
pair that was never got right has one more; it is in FILE with --failures keep. The journal beside
FILE (with the ending .journal.jsonl) has a line for every pair. The same command continues an
interrupted annotation.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT, TEMPERATURE
from mmrm.data.package import recipe_path
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import read_pairs_section
from mmrm.data.prompts import TEMPLATES
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.annotation.annotation_counts import counts_by_source, table_of_counts
from mmrm.eval.annotation.annotator import Annotator, annotate, journal_file_of, read_journal
from mmrm.eval.annotation.pair_annotator import AnnotatorOptions
from mmrm.eval.annotation.registry import open_annotator
from mmrm.eval.journal import progress_bar

MIN_WIDTH = 120
"""The smallest width of the table in characters. Its lines are longer than a narrower terminal."""


def main() -> None:
    """Let a judge write rationales for the preference pairs of a recipe.

    A rationale is a text that compares the two responses of a pair. The pairs with their rationales
    go to the file `--out`, and the number of tries for each pair to a journal, a JSON-lines file
    next to it. Pairs that the journal holds already are skipped.
    """
    parser = CommandParser("eval/annotate.py", __doc__)
    parser.add_argument("recipe", type=recipe_path, help="The recipe whose pairs are annotated.")
    parser.add_argument(
        "judge",
        type=Path,
        help="The YAML file of an endpoint or of another judge that compares two responses in "
        "writing, or a checkpoint folder.",
    )
    parser.add_argument("--out", type=Path, required=True, help="The .jsonl file to write.")
    parser.add_argument(
        "--agree",
        action="store_true",
        help="Ask in both orders in every try, and keep a rationale only if both judgements name "
        "the right response.",
    )
    parser.add_argument(
        "--template",
        choices=sorted(TEMPLATES),
        help="The wording of the question to an endpoint. The default is r1_reward. Other judges "
        "have their own.",
    )
    parser.add_argument(
        "--temperatures",
        type=TEMPERATURE,
        nargs="+",
        default=[0.0, 0.5, 1.0],
        help="The temperature of each try, in order.",
    )
    parser.add_argument(
        "--max-tokens",
        type=COUNT,
        default=2048,
        help="The largest number of tokens of a judgement.",
    )
    parser.add_argument(
        "--failures",
        choices=("drop", "keep"),
        default="drop",
        help="What happens to a record that no try got right: it is left out (drop), or written "
        "without a rationale (keep).",
    )
    parser.add_argument(
        "--limit", type=COUNT, help="Annotate only this many records, from the first on."
    )
    options = parser.parse_args()
    console = plain_console(width=max(MIN_WIDTH, plain_console().width))
    with exit_on_user_error(), ExitStack() as stack:
        journal_file = journal_file_of(options.out)
        stack.enter_context(locked_file(journal_file))
        mixture = Mixture(read_pairs_section(options.recipe))
        model = open_annotator(
            options.judge, AnnotatorOptions(options.max_tokens, options.template)
        )
        for note in model.notes:
            console.print(note, markup=False)
        num_records = len(mixture)
        if options.limit:
            num_records = min(num_records, options.limit)
        annotator = Annotator(model, options.temperatures, options.agree)
        with progress_bar("annotating", console, num_records) as progress:
            num_annotated_now = annotate(
                mixture,
                range(num_records),
                annotator,
                options.out,
                options.failures,
                # The journal keeps a digest of these settings, and is refused under other ones.
                annotator.settings,
                model.records_together,
                progress,
            )
        journal_lines = read_journal(journal_file, mixture)
    console.print(table_of_counts(counts_by_source(journal_lines), agree=options.agree).rich())
    num_right = sum(line["right"] for line in journal_lines)
    summary = (
        f"{num_annotated_now:,} records done now, {len(journal_lines):,} in all, {num_right:,} of "
        "them got right"
    )
    if options.out.exists():
        console.print(f"{summary}; saved as {options.out}")
    else:
        console.print(f"{summary}; no record was written. {journal_file} has the tries")


if __name__ == "__main__":
    main()
