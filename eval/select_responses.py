"""Make data from a file that eval/score.py wrote: best responses, preference pairs or SFT records.

python eval/select_responses.py best scored.jsonl best.jsonl                       # best of N: adds `response` and `score`
python eval/select_responses.py pairs scored.jsonl pairs.jsonl --min-margin 0.5    # the best against the worst, by score
python eval/select_responses.py pairs scored.parquet dpo.parquet --all --verifier numeric --tolerance 0.05 --output-format trl
python eval/select_responses.py rejection-sampling scored.jsonl sft.jsonl --verifier multiple_choice

A --verifier compares responses with the known answer in the column --answer. With it, `best` and
`rejection-sampling` take only right responses, and `pairs` pairs right responses with wrong ones.
The best scored right response comes first. `--verifier recorded` takes the verdicts that the
records hold (`right`, written by eval/sample.py). A rule that contradicts such verdicts is refused.

`pairs` and `rejection-sampling` write records for training. With --output-format project these are
this project's preference records (`type: project` in a recipe), or {images, prompt, response}. With
--output-format trl they are TRL's records of turns (`prompt`, `chosen`, `rejected`, or `prompt`,
`completion`). JSON lines name images by their paths. Parquet holds the images, as `datasets` reads
them.

No model is needed. Prompts that give no record are counted by reason. Records that cannot be read
are listed in OUT.errors.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import FINITE
from mmrm.data.errors import RecordError
from mmrm.data.storage.files import write_json_lines
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import refuse_existing
from mmrm.eval.selection.candidate_files import (
    parquet_schema_of,
    require_jsonl_or_parquet,
    write_records,
    write_with_added_columns,
)
from mmrm.eval.selection.candidate_records import AnsweredPrompt, RecordFile, open_records
from mmrm.eval.selection.selection import (
    Format,
    NothingSelected,
    ScoredResponses,
    TrainingRecordMaker,
    index_of_best,
    preference_pairs,
    read_scored_responses,
)
from mmrm.eval.selection.verifier_options import add_verifier_options, verifier_from_options
from mmrm.eval.verifiers import ResponseVerifier

ResultT = TypeVar("ResultT")
"""The result for one record: columns to add to it, or a list of training records."""


class Selection:
    """The records of a scored file, and the counts of those that give no result.

    `reasons` counts the records from which nothing can be selected, by reason. `errors` lists the
    records that cannot be read, with their row and the error. Both grow while the iterator that
    `results` returns is consumed.
    """

    def __init__(self, file: RecordFile, verifier: ResponseVerifier | None) -> None:
        self.file = file
        self.verifier = verifier
        self.reasons: Counter[str] = Counter()
        self.errors: list[dict[str, Any]] = []

    def results(
        self, function: Callable[[AnsweredPrompt, ScoredResponses, str], ResultT]
    ) -> Iterator[ResultT | None]:
        """Yield the result of a function for each record, or None for a record without a result.

        The function takes the prompt with its responses, the responses with their scores, and the
        name of the record for messages. It may raise NothingSelected or RecordError, and the record
        is then counted in `reasons` or `errors`.
        """
        for number in range(len(self.file.rows)):
            try:
                row = self.file.row(number)
                answered = self.file.answered_prompt(row)
                try:
                    scored_responses = read_scored_responses(
                        row.columns, answered.responses, self.verifier
                    )
                except RecordError as error:
                    raise RecordError(f"{row.identity}: {error}") from error
                yield function(answered, scored_responses, row.identity)
            except NothingSelected as reason:
                self.reasons[str(reason)] += 1
                yield None
            except RecordError as error:
                self.errors.append({"row": number, "error": str(error)})
                yield None


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the best responses, the preference pairs or the SFT records of a scored file.

    The module's docstring describes the command. Errors that a user can correct end it with a
    message and no traceback.
    """
    options = parse(arguments)
    with exit_on_user_error(), locked_file(options.output):
        refuse_existing(options.output)
        require_jsonl_or_parquet(options.output)
        file = open_records(options.scored, options.image_root)
        selection = Selection(file, verifier_from_options(options))
        if options.what == "best":
            num_written = write_best_responses(options.output, selection)
        else:
            num_written = write_training_records(options, selection)
        errors_file = options.output.with_name(f"{options.output.name}.errors.jsonl")
        errors_file.unlink(missing_ok=True)
        if selection.errors:
            write_json_lines(errors_file, selection.errors)
    message = f"{num_written:,} records of {len(file.rows):,} prompts: {options.output}."
    remarks = [f"{count:,} where {reason}" for reason, count in selection.reasons.most_common()]
    if selection.errors:
        remarks.append(f"{len(selection.errors):,} cannot be read ({errors_file})")
    if remarks:
        message += f" Prompts without any: {'; '.join(remarks)}."
    plain_console(stderr=True, highlight=False).print(message, soft_wrap=True)


def write_best_responses(output: Path, selection: Selection) -> int:
    """Write the records of a scored file with their best response, and return their number.

    The response and its score are added as the columns `response` and `score`. Records without a
    right or readable response are left out.
    """
    rows = selection.file.rows
    schema = parquet_schema_of(rows, output)
    added_by_record = selection.results(best_response_columns)
    write_with_added_columns(output, rows, schema, ["response", "score"], added_by_record)
    # The counts are complete, because all results were written.
    num_left_out = sum(selection.reasons.values()) + len(selection.errors)
    return len(rows) - num_left_out


def write_training_records(options: argparse.Namespace, selection: Selection) -> int:
    """Write the training records that the command line asks for, and return their number.

    Args:
        options: The parsed command line, of the command `pairs` or `rejection-sampling`.
        selection: The records of the scored file.
    """
    maker = TrainingRecordMaker(options.output_format, options.output.suffix)
    # With a verifier, pairs are right and wrong responses, and their scores need not differ.
    has_margin = selection.verifier is None
    schema = maker.schema(for_pairs=options.what == "pairs", with_margin=has_margin)
    results = selection.results(training_record_function(options, maker))
    lists_of_records = (records for records in results if records is not None)
    return write_records(options.output, chain.from_iterable(lists_of_records), schema)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line. A wrong command line ends the process with status 2."""
    parser = CommandParser("eval/select_responses.py", __doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("best", "pairs", "rejection-sampling"):
        subparser = commands.add_parser(name)
        subparser.add_argument(
            "scored", type=Path, metavar="SCORED", help="A file that eval/score.py wrote."
        )
        subparser.add_argument(
            "output", type=Path, metavar="OUT", help="The .jsonl or .parquet file to write."
        )
        subparser.add_argument(
            "--image-root",
            type=Path,
            help="The folder that paths of images are relative to. The default is the folder of "
            "SCORED.",
        )
        add_verifier_options(subparser)
        subparser.set_defaults(output_format="project")
        if name != "best":
            subparser.add_argument(
                "--output-format",
                choices=get_args(Format),
                help="The form of the training records. The default is project.",
            )
        if name == "pairs":
            subparser.add_argument(
                "--min-margin",
                type=FINITE,
                help="The smallest difference between the scores of a pair.",
            )
            subparser.add_argument(
                "--all",
                action="store_true",
                help="Write all pairs of a prompt, not only that of the best and the worst "
                "response.",
            )
    return parser.parse_args(arguments)


def best_response_columns(
    answered: AnsweredPrompt, scored_responses: ScoredResponses, identity: str
) -> dict[str, Any]:
    """Return the columns that the command `best` adds to a record: its best response and the score.

    `identity` is not used. It is a parameter because `Selection.results` passes it.
    """
    index = index_of_best(scored_responses)
    return {"response": answered.responses[index], "score": scored_responses.scores[index]}


def training_record_function(
    options: argparse.Namespace, maker: TrainingRecordMaker
) -> Callable[[AnsweredPrompt, ScoredResponses, str], list[dict[str, Any]]]:
    """Return the function that makes the training records of one prompt for `Selection.results`."""
    if options.what == "rejection-sampling":
        return partial(sft_records, maker)
    return partial(pair_records, maker, options.min_margin, options.all)


def sft_records(
    maker: TrainingRecordMaker,
    answered: AnsweredPrompt,
    scored_responses: ScoredResponses,
    identity: str,
) -> list[dict[str, Any]]:
    """Return a list with one SFT record, which holds the best response to a prompt.

    Args:
        maker: Makes the record in the form of the output file.
        answered: The prompt with the responses to it.
        scored_responses: The same responses with their scores.
        identity: The name of the scored record in messages.
    """
    return [maker.sft_record(answered, index_of_best(scored_responses), identity)]


def pair_records(
    maker: TrainingRecordMaker,
    min_margin: float | None,
    all_pairs: bool,
    answered: AnsweredPrompt,
    scored_responses: ScoredResponses,
    identity: str,
) -> list[dict[str, Any]]:
    """Return the preference records of the responses to a prompt.

    Args:
        maker: Makes the records in the form of the output file.
        min_margin: The least difference between the scores of a pair; None allows any difference.
        all_pairs: Make all pairs instead of the best and the worst response only.
        answered: The prompt with the responses to it.
        scored_responses: The same responses with their scores.
        identity: The name of the scored record in messages.
    """
    records: list[dict[str, Any]] = []
    for chosen, rejected in preference_pairs(scored_responses, min_margin, all_pairs):
        record = maker.preference_record(answered, scored_responses, chosen, rejected, identity)
        records.append(record)
    return records


if __name__ == "__main__":
    main()
