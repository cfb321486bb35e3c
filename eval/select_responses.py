"""Make data from a file that eval/score.py wrote: best responses, pairs, SFT records or questions.

python eval/select_responses.py best scored.jsonl best.jsonl                       # best of N: adds `response` and `score`
python eval/select_responses.py pairs scored.jsonl pairs.jsonl --min-margin 0.5    # the best against the worst, by score
python eval/select_responses.py pairs scored.parquet dpo.parquet --all --verifier numeric --tolerance 0.05 --output-format trl
python eval/select_responses.py rejection-sampling scored.jsonl sft.jsonl --verifier multiple_choice
python eval/select_responses.py best scored.jsonl best.jsonl --lower-bound 1       # the best by score - 1 standard deviation
python eval/select_responses.py ask scored.jsonl asked.jsonl --pairs 200 --by unsure  # pairs that are worth a label

A --verifier compares responses with the known answer in the column --answer. With it, `best` and
`rejection-sampling` take only right responses, and `pairs` pairs right responses with wrong ones.
The best scored right response comes first. `--verifier recorded` takes the verdicts that the
records hold (`right`, written by eval/sample.py). A rule that contradicts such verdicts is refused.

`pairs` and `rejection-sampling` write records for training. With --output-format project these are
this project's preference records (`type: project` in a recipe), or {images, prompt, response}. With
--output-format trl they are TRL's records of turns (`prompt`, `chosen`, `rejected`, or `prompt`,
`completion`). JSON lines name images by their paths. Parquet holds the images, as `datasets` reads
them. Records with videos are written as JSON lines of this project's form alone.

With --lower-bound Z, `best` and `rejection-sampling` rank responses by score - Z * std, in which std
is the standard deviation that a judge with the head `gaussian` states for each score. A response
that the judge knows little about then loses against one that it knows to be almost as good.

`ask` chooses pairs of responses for a labeller: a person, a verifier or a larger judge. It writes a
record for each pair, which is the prompt's record with two responses and the column `certainty`,
the probability that the response with the higher score is better. `--by random` draws the pairs,
and `--by unsure` takes those whose certainty is closest to one half. It follows from the scores and
standard deviations, or for a judge without deviations from |difference of the scores|. `eval/score.py`
and `pairs` read the written file.

No model is needed. Prompts that give no record are counted by reason. Records that cannot be read
are listed in OUT.errors.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT, FINITE, NOT_NEGATIVE, SEED
from mmrm.data.errors import RecordError, UserError
from mmrm.data.storage.files import write_json_lines
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import refuse_existing
from mmrm.eval.selection.candidate_files import (
    parquet_schema_of,
    require_jsonl_or_parquet,
    write_lines,
    write_records,
    write_with_added_columns,
)
from mmrm.eval.selection.candidate_records import AnsweredPrompt, RecordFile, open_records
from mmrm.eval.selection.pair_choice import (
    Choice,
    PossiblePair,
    choose_pairs,
    possible_pairs,
    record_of_pair,
)
from mmrm.eval.selection.selection import (
    Format,
    NothingSelected,
    ScoredResponses,
    TrainingRecordMaker,
    index_of_best,
    preference_pairs,
    read_scored_responses,
    states_deviations,
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

    def __init__(
        self, file: RecordFile, verifier: ResponseVerifier | None, with_stds: bool = False
    ) -> None:
        self.file = file
        self.verifier = verifier
        self.with_stds = with_stds
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
                        row.columns, answered.responses, self.verifier, self.with_stds
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
    """Write the best responses, the preference pairs, the SFT records or the pairs to ask about.

    The module's docstring describes the command. Errors that a user can correct end it with a
    message and no traceback.
    """
    options = parse(arguments)
    with exit_on_user_error(), locked_file(options.output):
        refuse_existing(options.output)
        require_jsonl_or_parquet(options.output)
        file = open_records(options.scored, options.image_root)
        with_stds = options.lower_bound is not None
        if with_stds:
            refuse_without_deviations(file)
        elif options.what == "ask":
            with_stds = has_deviations(file)
        selection = Selection(file, verifier_from_options(options), with_stds)
        if options.what == "best":
            num_written = write_best_responses(options.output, selection, options.lower_bound)
        elif options.what == "ask":
            num_written = write_pairs_to_ask(options, selection)
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


def has_deviations(file: RecordFile) -> bool:
    """Return True if the first readable record of a file has standard deviations of its scores.

    All records of a scored file have the same columns.
    """
    for number in range(len(file.rows)):
        try:
            return states_deviations(file.row(number).columns)
        except RecordError:
            continue
    return False


def refuse_without_deviations(file: RecordFile) -> None:
    """Raise UserError if the records of a file have no standard deviations of their scores."""
    if not has_deviations(file):
        raise UserError(
            f"{file.path} holds no standard deviations of its scores, which --lower-bound "
            "subtracts: there is no column `score_std`. The judge that scored it states none. Score "
            "the responses by a checkpoint with `head: {type: gaussian}`, or leave --lower-bound "
            "out."
        )


def write_pairs_to_ask(options: argparse.Namespace, selection: Selection) -> int:
    """Write a record for each pair of responses that a labeller is asked about.

    Args:
        options: The parsed command line, of the command `ask`.
        selection: The records of the scored file.

    Returns:
        The number of pairs.
    """
    if options.output.suffix != ".jsonl":
        raise UserError(f"{options.output}: `ask` writes JSON lines. Name a .jsonl file.")
    file = selection.file
    pairs: list[PossiblePair] = []
    pairs_by_record = selection.results(pairs_of_prompt)
    for number, pairs_of_record in enumerate(pairs_by_record):
        pairs += [replace(pair, record=number) for pair in pairs_of_record or ()]
    maker = TrainingRecordMaker("project", options.output.suffix)
    records: list[dict[str, Any]] = []
    for pair in choose_pairs(pairs, options.pairs, options.by, options.seed):
        row = file.row(pair.record)
        records.append(record_of_pair(row, file.answered_prompt(row), pair, maker))
    return write_lines(options.output, records)


def pairs_of_prompt(
    answered: AnsweredPrompt, scored_responses: ScoredResponses, identity: str
) -> list[PossiblePair]:
    """Return the pairs of responses to a prompt that a labeller can be asked about.

    `Selection.results` calls it, and does not say the number of the record, so that it is 0 in the
    pairs. `answered` and `identity` are not used.

    Raises:
        NothingSelected: If there are no two different responses.
    """
    pairs = possible_pairs(0, scored_responses)
    if not pairs:
        raise NothingSelected("there are no two different responses")
    return pairs


def write_best_responses(output: Path, selection: Selection, lower_bound: float | None) -> int:
    """Write the records of a scored file with their best response, and return their number.

    The response and its score are added as the columns `response` and `score`. Records without a
    right or readable response are left out.

    Args:
        output: The file to write.
        selection: The records of the scored file.
        lower_bound: The number of standard deviations that are subtracted from a score before
            responses are ranked. The difference is added as the column `lower_bound`. None ranks
            them by their scores, and adds no column.
    """
    rows = selection.file.rows
    schema = parquet_schema_of(rows, output)
    names = ["response", "score"]
    if lower_bound is not None:
        names.append("lower_bound")
    added_by_record = selection.results(partial(best_response_columns, lower_bound))
    write_with_added_columns(output, rows, schema, names, added_by_record)
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
    for name in ("best", "pairs", "rejection-sampling", "ask"):
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
        subparser.set_defaults(output_format="project", lower_bound=None)
        if name == "ask":
            subparser.set_defaults(verifier=None, tolerance=None)
            add_asking_options(subparser)
            continue
        add_verifier_options(subparser)
        if name != "pairs":
            subparser.add_argument(
                "--lower-bound",
                type=NOT_NEGATIVE,
                metavar="Z",
                help="Rank the responses by score - Z * std, in which std is the standard deviation "
                "that the judge states.",
            )
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


def add_asking_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `ask` to its parser."""
    parser.add_argument(
        "--pairs", type=COUNT, required=True, metavar="N", help="The number of pairs to write."
    )
    parser.add_argument(
        "--by",
        choices=get_args(Choice),
        default="random",
        help="Draw the pairs, or take those of which the judge is least certain. The default is "
        "random.",
    )
    parser.add_argument("--seed", type=SEED, default=0, help="The seed of the draw.")


def best_response_columns(
    lower_bound: float | None,
    answered: AnsweredPrompt,
    scored_responses: ScoredResponses,
    identity: str,
) -> dict[str, Any]:
    """Return the columns that the command `best` adds to a record: its best response and the score.

    Args:
        lower_bound: The number of standard deviations that are subtracted from a score before
            responses are ranked, None for none.
        answered: The prompt with the responses to it.
        scored_responses: The same responses with their scores.
        identity: Not used. `Selection.results` passes it.
    """
    if lower_bound is None:
        index = index_of_best(scored_responses)
        return {
            "response": answered.written_responses[index],
            "score": scored_responses.scores[index],
        }
    ranked_responses = scored_responses.by_lower_bound(lower_bound)
    index = index_of_best(ranked_responses)
    return {
        "response": answered.written_responses[index],
        "score": scored_responses.scores[index],
        "lower_bound": ranked_responses.scores[index],
    }


def training_record_function(
    options: argparse.Namespace, maker: TrainingRecordMaker
) -> Callable[[AnsweredPrompt, ScoredResponses, str], list[dict[str, Any]]]:
    """Return the function that makes the training records of one prompt for `Selection.results`."""
    if options.what == "rejection-sampling":
        return partial(sft_records, maker, options.lower_bound)
    return partial(pair_records, maker, options.min_margin, options.all)


def sft_records(
    maker: TrainingRecordMaker,
    lower_bound: float | None,
    answered: AnsweredPrompt,
    scored_responses: ScoredResponses,
    identity: str,
) -> list[dict[str, Any]]:
    """Return a list with one SFT record, which holds the best response to a prompt.

    Args:
        maker: Makes the record in the form of the output file.
        lower_bound: The number of standard deviations that are subtracted from a score before
            responses are ranked, None for none.
        answered: The prompt with the responses to it.
        scored_responses: The same responses with their scores.
        identity: The name of the scored record in messages.
    """
    if lower_bound is not None:
        scored_responses = scored_responses.by_lower_bound(lower_bound)
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
