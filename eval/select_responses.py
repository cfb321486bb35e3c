"""Make data from a file that eval/score.py wrote: best responses, preference pairs or SFT records. No model is needed.

python eval/select_responses.py best scored.jsonl best.jsonl                       # best of N: adds `response` and `score`
python eval/select_responses.py pairs scored.jsonl pairs.jsonl --min-margin 0.5    # the best against the worst, by score
python eval/select_responses.py pairs scored.parquet dpo.parquet --all --verifier numeric --tolerance 0.05 --output-format trl
python eval/select_responses.py rejection-sampling scored.jsonl sft.jsonl --verifier multiple_choice

A --verifier compares responses with the known answer in the column --answer. With it, `best` and
`rejection-sampling` take only right responses, and `pairs` pairs right responses with wrong ones. The
best scored right response comes first. `--verifier recorded` takes the verdicts that the records hold
(`right`, written by eval/sample.py). A rule that contradicts such verdicts is refused.

`pairs` and `rejection-sampling` write records for training. With --output-format project these are this
project's preference records (`type: project` in a recipe), or {images, prompt, response}. With
--output-format trl they are TRL's records of turns (`prompt`, `chosen`, `rejected`, or `prompt`,
`completion`). JSON lines name images by their paths. Parquet holds the images, as `datasets` reads them.

Prompts that give no record are counted by reason. Records that cannot be read are listed in
OUT.errors.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works without installation

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.console import plain_console
from mmrm.data.errors import RecordError
from mmrm.data.storage.files import write_json_lines
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import refuse_existing
from mmrm.eval.selection.candidate_files import check_kind, schema_for, write_records, write_with
from mmrm.eval.selection.candidate_records import Answered, RecordFile, open_records
from mmrm.eval.selection.selection import (
    Format,
    NotTaken,
    ScoredResponses,
    Writer,
    best,
    preference_pairs,
    scored,
)
from mmrm.eval.selection.verifier_options import add_verifier_options, verifier_from_options
from mmrm.eval.verifiers import ResponseVerifier

Made = TypeVar("Made")
"""What the command makes of one record: columns to add to it, or a list of training records."""


class Selection:
    """The records of a scored file, and the counts of those that give no result.

    `reasons` counts the records that the rules leave out, by reason. `errors` lists the records that
    cannot be read, with their row and the error. Both grow while `made` is iterated.
    """

    def __init__(self, file: RecordFile, verifier: ResponseVerifier | None) -> None:
        self.file = file
        self.verifier = verifier
        self.reasons: Counter[str] = Counter()
        self.errors: list[dict[str, Any]] = []

    def made(self, make: Callable[[Answered, ScoredResponses, str], Made]) -> Iterator[Made | None]:
        """Yield the result of `make` for each record, or None for a record that gives no result.

        `make` takes the prompt with its responses, their scores, and the name of the record for
        messages. It may raise NotTaken or RecordError.
        """
        for number in range(len(self.file.rows)):
            try:
                row = self.file.row(number)
                answered = self.file.answered(row)
                try:
                    scored_responses = scored(row.columns, answered.responses, self.verifier)
                except RecordError as error:
                    raise RecordError(f"{row.identity}: {error}") from error
                yield make(answered, scored_responses, row.identity)
            except NotTaken as reason:
                self.reasons[str(reason)] += 1
                yield None
            except RecordError as error:
                self.errors.append({"row": number, "error": str(error)})
                yield None


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the selected responses or pairs of a scored file; see the module's docstring.

    Errors that a user can correct end the command with a message and no traceback.
    """
    options = parse(arguments)
    with exit_on_user_error(), locked_file(options.output):
        refuse_existing(options.output)
        check_kind(options.output)
        file = open_records(options.scored, options.image_root)
        schema = schema_for(file.rows, options.output) if options.what == "best" else None
        selection = Selection(file, verifier_from_options(options))
        if options.what == "best":
            columns = selection.made(best_of)
            write_with(options.output, file.rows, schema, ["response", "score"], columns)
            num_left_out = sum(selection.reasons.values()) + len(selection.errors)
            num_records = len(file.rows) - num_left_out
        else:
            num_records = write_training_records(options, selection)
        errors_file = options.output.with_name(f"{options.output.name}.errors.jsonl")
        errors_file.unlink(missing_ok=True)
        if selection.errors:
            write_json_lines(errors_file, selection.errors)
    message = f"{num_records:,} records of {len(file.rows):,} prompts: {options.output}."
    remarks = [f"{count:,} where {reason}" for reason, count in selection.reasons.most_common()]
    if selection.errors:
        remarks.append(f"{len(selection.errors):,} cannot be read ({errors_file})")
    if remarks:
        message += f" Prompts without any: {'; '.join(remarks)}."
    plain_console(stderr=True, highlight=False).print(message, soft_wrap=True)


def write_training_records(options: argparse.Namespace, selection: Selection) -> int:
    """Write the training records of `pairs` or `rejection-sampling`, and return their number."""
    writer = Writer(options.output_format, options.output.suffix)
    num_records = 0

    def records() -> Iterator[dict[str, Any]]:
        nonlocal num_records
        for made in selection.made(maker(options, writer)):
            if made is not None:
                num_records += len(made)
                yield from made

    is_verified = selection.verifier is not None
    schema = writer.schema(options.what == "pairs", is_verified)
    write_records(options.output, records(), schema)
    return num_records


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed options; a wrong command line ends the process with status 2."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "eval/select_responses.py", description=__doc__, formatter_class=form
    )
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
                type=float,
                help="The smallest difference between the scores of a pair.",
            )
            subparser.add_argument(
                "--all",
                action="store_true",
                help="Write all pairs of a prompt, not only that of the best and the worst response.",
            )
    return parser.parse_args(arguments)


def best_of(answered: Answered, scored_responses: ScoredResponses, identity: str) -> dict[str, Any]:
    """Return the columns that the command `best` adds to a record.

    `identity` is not used. The function has the signature that `Selection.made` calls.
    """
    index = best(scored_responses)
    return {"response": answered.responses[index], "score": scored_responses.scores[index]}


def maker(
    options: argparse.Namespace, writer: Writer
) -> Callable[[Answered, ScoredResponses, str], list[dict[str, Any]]]:
    """Return the function that makes the training records of one prompt, as `Selection.made` calls it."""
    if options.what == "rejection-sampling":
        return partial(best_example, writer)
    return partial(pair_records, writer, options.min_margin, options.all)


def best_example(
    writer: Writer, answered: Answered, scored_responses: ScoredResponses, identity: str
) -> list[dict[str, Any]]:
    """Return one SFT record, with the best response to a prompt."""
    return [writer.example(answered, best(scored_responses), identity)]


def pair_records(
    writer: Writer,
    min_margin: float | None,
    all_pairs: bool,
    answered: Answered,
    scored_responses: ScoredResponses,
    identity: str,
) -> list[dict[str, Any]]:
    """Return the preference records of the responses to a prompt; see `preference_pairs`."""
    records: list[dict[str, Any]] = []
    for chosen, rejected in preference_pairs(scored_responses, min_margin, all_pairs):
        records.append(writer.pair(answered, scored_responses, chosen, rejected, identity))
    return records


if __name__ == "__main__":
    main()
