"""Select pairs for reinforcement learning by their difficulty.

The selected pairs are written as ordinary records without rationales.

python eval/select_pairs.py tries RECIPE ANNOTATED --out rl.jsonl                 # the rule of R1-Reward
python eval/select_pairs.py pass-rate RECIPE CHECKPOINT --out rl.jsonl --votes 4 --band 0.2 0.8

`tries` selects the pairs that a model got right at the second try or later, or never. It reads the
journal that eval/annotate.py wrote beside ANNOTATED, for the same RECIPE. `pass-rate` judges every
pair several times in both orders, by a checkpoint of a generative judge or a judge's YAML file. It
selects the pairs for which the share of right judgements is within the band.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT, SHARE
from mmrm.data.errors import UserError
from mmrm.data.package import recipe_path
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import read_pairs_section
from mmrm.data.sources.project import project_row
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.annotation.annotator import (
    append_json_line,
    difficulty_of,
    journal_file_of,
    read_journal,
)
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Candidates, candidates_from_record
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.protocol import LISTED, REVERSED, ProtocolConfig

CHUNK = 256
"""Number of pairs that are judged together. Selected pairs are written before the next are
judged."""


def main() -> None:
    """Select preference pairs of a recipe by their difficulty, and write them as records.

    The difficulty is the number of tries of eval/annotate.py, or the share of a judge's votes that
    are right.
    """
    parser = CommandParser("eval/select_pairs.py", __doc__)
    commands = parser.add_subparsers(dest="by", required=True)
    tries_parser = commands.add_parser("tries")
    pass_rate_parser = commands.add_parser("pass-rate")
    for subparser in (tries_parser, pass_rate_parser):
        subparser.add_argument(
            "recipe", type=recipe_path, help="The recipe whose pairs are selected."
        )
        subparser.add_argument("--out", type=Path, required=True, help="The .jsonl file to write.")
    tries_parser.add_argument("annotated", type=Path, help="The file that eval/annotate.py wrote.")
    tries_parser.add_argument(
        "--least",
        type=COUNT,
        default=2,
        help="Select the pairs that took at least this many tries until the answer was right. "
        "Pairs that were never got right are selected as well.",
    )
    pass_rate_parser.add_argument(
        "judge", type=recipe_path, help="A checkpoint folder or the YAML file of a judge."
    )
    pass_rate_parser.add_argument(
        "--votes",
        type=COUNT,
        default=4,
        help="The number of rounds. In each, a pair is judged in both orders.",
    )
    pass_rate_parser.add_argument(
        "--band",
        type=SHARE,
        nargs=2,
        default=[0.2, 0.8],
        metavar=("LOW", "HIGH"),
        help="Smallest and largest share of right judgements of a selected pair.",
    )
    options = parser.parse_args()
    with exit_on_user_error(), locked_file(options.out):
        if options.out.exists():
            raise UserError(f"{options.out} exists; move it away, or give another --out.")
        mixture = Mixture(read_pairs_section(options.recipe))
        select = pairs_by_tries if options.by == "tries" else pairs_by_pass_rate
        num_selected = 0
        for pair in select(mixture, options):
            record = mixture[pair.index]
            if pair.difficulty is not None:
                record = replace(record, difficulty=pair.difficulty)
            # Reinforcement learning needs no rationales, so they are left out of the records.
            append_json_line(options.out, project_row(record, rationale=None))
            num_selected += 1
    plain_console().print(
        f"{num_selected:,} of {len(mixture):,} pairs selected; saved as {options.out}"
    )


@dataclass(frozen=True, slots=True)
class SelectedPair:
    """A pair that is written."""

    index: int
    """Its index in the mixture."""
    difficulty: int | None = None
    """Its difficulty by the number of tries; None keeps that of the record."""


def pairs_by_tries(mixture: Mixture, options: argparse.Namespace) -> Iterable[SelectedPair]:
    """Return the records that were hard for the model of eval/annotate.py.

    That command asks its model about a record several times (tries) until it names the better
    response. Hard are the records that took `--least` tries or more, and those that the model never
    got right. R1-Reward takes 2 as `--least`.

    Args:
        mixture: The records of the recipe.
        options: The parsed command line. `options.annotated` is the file that eval/annotate.py
            wrote. The journal next to it, a file of JSON lines, has the number of tries.

    Raises:
        UserError: If no record was annotated yet.
    """
    journal_file = journal_file_of(options.annotated)
    lines = read_journal(journal_file, mixture)
    if not lines:
        raise UserError(f"{journal_file} is empty or missing: annotate the pairs first.")
    pairs: list[SelectedPair] = []
    for line in lines:
        if line["tries"] >= options.least or not line["right"]:
            difficulty = difficulty_of(line["tries"], right=line["right"])
            pairs.append(SelectedPair(line["index"], difficulty))
    return pairs


def pairs_by_pass_rate(mixture: Mixture, options: argparse.Namespace) -> Iterable[SelectedPair]:
    """Yield the records whose pass rate is within `--band`, bounds included.

    The pass rate is the share of the judge's votes that name the chosen response.

    Args:
        mixture: The records of the recipe.
        options: The parsed command line, with the judge, the number of votes and the band.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded_judge = load_judge(options.judge, Runtime(device)).judge
    # The records are judged like the rows of a benchmark that is a folder of preference records.
    judge = loaded_judge.under(ProtocolConfig(votes=options.votes), PREFERENCE_FOLDER)
    low, high = options.band
    for start in range(0, len(mixture), CHUNK):
        indices = range(start, min(start + CHUNK, len(mixture)))
        rates = pass_rates(judge, [mixture[index] for index in indices], options.votes)
        for index, rate in zip(indices, rates, strict=True):
            if low <= rate <= high:
                yield SelectedPair(index)


def pass_rates(judge: Judge, records: Sequence[Preference], num_rounds: int) -> list[float]:
    """Return for each record the share of the judge's votes that name its chosen response.

    A vote that cannot be read counts as a vote for the rejected response.

    Args:
        judge: A judge that compares two responses.
        records: The records to judge.
        num_rounds: The number of votes in each of the two orders.
    """
    both_orders = (LISTED, REVERSED) * num_rounds
    batch: list[Candidates] = []
    for record in records:
        batch.append(replace(candidates_from_record(record), presentations=both_orders))
    rates: list[float] = []
    for scores in judge.score_batch(batch):
        # The chosen response is the first one, with index 0.
        num_right = sum(vote.named == 0 for vote in scores.votes)
        rates.append(num_right / max(len(scores.votes), 1))
    return rates


if __name__ == "__main__":
    main()
