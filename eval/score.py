"""Score a file of prompts with any number of responses, by a checkpoint or another judge.

python eval/score.py runs/mine/best samples.jsonl scored.jsonl
deepspeed eval/score.py runs/mine/best samples.parquet scored.parquet --image-root /data/images
python eval/score.py runs/mine/best samples.jsonl scored.jsonl --form stratified --verifier multiple_choice

IN is a file of JSON lines, a JSON list, parquet or Arrow, with one record in each row. OUT is a
.jsonl or a .parquet file. A record looks like this:

    {"prompt": "Which colour is the cat?", "images": ["cat.png"], "responses": ["Black.", "White."]}

The prompt is in the column `prompt` (a text or turns) or `messages`. The responses are in
`responses`, or a single one is in `response` or `completion`, or two are in `chosen` and
`rejected`, as in this project's and TRL's preference records. Images are in the turns, in `images`
or in `image`. They are paths inside IN's folder or --image-root, data URIs, or {bytes, path} as
`datasets` stores them. Videos are in the turns, in `videos` or in `video`, in the same ways. How
their frames are sampled is a setting of the checkpoint (`backbone.videos` of its recipe).

OUT holds the columns of the record unchanged, and these columns, which replace columns of the same
name:

    scores      the score of each response; higher is better. The score of a judge that compares two
                responses at a time is the response's share of points in a tournament, or its
                strength if its file says `comparisons: sorted` or `swiss`
    score_NAME  a further number of each response, if the checkpoint's head computes several. NAME is
                that of an attribute, or `std` for the standard deviation of the score. A `score_std`
                that the record has already is left out if this judge states none. Strengths also
                have `low` and `high`, the ends of their 95 % intervals
    order       the indices of the responses, best first; equal scores keep the order of the
                responses
    margin      the best score minus the second best; null for one response
    normalised  (score - mean) / std, if the checkpoint's config.json has reference_scores
    rewards     the scores in the --form, if it is not raw (eval/selection/score_forms.py)
    right       whether each response is right by the --verifier, which compares it with the known
                answer in the column --answer. Verdicts that a record holds already (`right`,
                written by eval/sample.py) are kept; a rule that contradicts them is refused
    judgements  the number of judgements that were written, or comparisons that were made
    unread      the number of these that name no response, or no score
    tokens      the number of tokens that were written for them
    comparisons each comparison of a judge that compares: `shown`, the indices of the two responses
                in their order; `named`, the index of the better one, or null; and `probability`
                that the first one is better, or null without soft verdicts
    critiques   the critiques that a critic wrote

A record that cannot be judged is counted and left out of OUT; OUT.errors.jsonl gets its row and the
reason. The same command continues an interrupted one, on any number of ranks: finished records are
kept in OUT.journal until OUT is written. A second command for the same OUT is refused while the
first runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import FINITE, LIMIT
from mmrm.data.errors import UserError
from mmrm.data.limits import DEFAULTS, Limits
from mmrm.data.package import recipe_path
from mmrm.data.storage.files import write_json_lines
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import add_model_options, rank_device, refuse_existing
from mmrm.eval.selection.candidate_files import (
    STD_COLUMN,
    parquet_schema_of,
    require_jsonl_or_parquet,
    write_with_added_columns,
)
from mmrm.eval.selection.candidate_records import open_records
from mmrm.eval.selection.score_forms import FORMS
from mmrm.eval.selection.verifier_options import add_verifier_options, verifier_from_options


def main(arguments: Sequence[str] | None = None) -> None:
    """Score the responses in a file with a judge, and write its records with columns of scores.

    Errors that a user can correct end the command with a message and no traceback.
    """
    options = parse(arguments)
    with exit_on_user_error():
        score(options, plain_console(stderr=True))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line. A wrong command line ends the process with status 2."""
    parser = CommandParser("eval/score.py", __doc__)
    parser.add_argument(
        "judge",
        type=recipe_path,
        metavar="CHECKPOINT",
        help="A checkpoint folder, or the YAML file of a judge.",
    )
    parser.add_argument("input", type=Path, metavar="IN", help="The file with the responses.")
    parser.add_argument(
        "output", type=Path, metavar="OUT", help="The .jsonl or .parquet file to write."
    )
    parser.add_argument(
        "--image-root",
        type=Path,
        help="The folder that paths of images are relative to. The default is the folder of IN.",
    )
    parser.add_argument(
        "--form",
        choices=FORMS,
        default="raw",
        help="Write the scores in this form as well, as column `rewards`. The form `relative` "
        "needs the reference answer in a column `reference`. The default is raw, which adds no "
        "column.",
    )
    parser.add_argument(
        "--clip",
        type=FINITE,
        help="With --form standardised, clip the rewards to the range from -CLIP to CLIP. "
        "OpenRLHF uses 10.",
    )
    for name in Limits.model_fields:
        parser.add_argument(
            f"--max-{name}",
            type=LIMIT,
            default=getattr(DEFAULTS, name),
            metavar="N",
            help=f"Largest number of {name} of a record. A larger record is refused before it is "
            "judged. The default is %(default)s.",
        )
    add_verifier_options(parser)
    add_model_options(parser)
    options = parser.parse_args(arguments)
    needs_verdicts = "right" in FORMS[options.form].needs
    if needs_verdicts and not options.verifier:
        parser.error(f"--form {options.form} needs a --verifier")
    if options.clip is not None and (options.form != "standardised" or options.clip <= 0):
        parser.error("--clip is a positive number for --form standardised")
    return options


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits on a record's size that the options `--max-…` set.

    Raises:
        UserError: If a limit has a value that is not allowed.
    """
    values: dict[str, int] = {}
    for name in Limits.model_fields:
        values[name] = vars(options)[f"max_{name}"]  # such as --max-images
    try:
        return Limits(**values)
    except ValidationError as error:
        raise UserError(f"--max-…: {format_validation_error(error)}") from error


def score(options: argparse.Namespace, console: Console) -> None:
    """Score the records of the file that the command line names, and write the scored file.

    All ranks judge. The first rank locks and writes the output.

    Args:
        options: The parsed command line, as `parse` returns it.
        console: The console for the progress, for remarks and for the final message.

    Raises:
        UserError: If the output exists, the judge or the file cannot be used, or no record can be
            judged.
    """
    with rank_device() as device, ExitStack() as stack:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.judges.loading import load_judge
        from mmrm.eval.judges.registry import reference_of
        from mmrm.eval.selection.candidate_scores import (
            LineJournal,
            Scoring,
            columns_to_add,
            record_errors,
            score_candidates_file,
            scoring_fingerprint,
        )
        from mmrm.models.distributed import locked_by_first_rank, rank

        stack.enter_context(locked_by_first_rank(locked_file(options.output)))
        refuse_existing(options.output)
        mean_and_std = reference_of(options.judge)
        if options.form == "standardised" and mean_and_std is None:
            raise UserError(
                f"{options.judge} has no reference_scores in a config.json, by which --form "
                "standardised standardises. Merge an adapter first (train/merge.py), or take "
                "another form."
            )
        scoring = Scoring(options.form, verifier_from_options(options), mean_and_std, options.clip)
        require_jsonl_or_parquet(options.output)
        file = open_records(options.input, options.image_root, limits_of(options))
        schema = parquet_schema_of(file.rows, options.output)
        if scoring.verifier is not None:
            file.refuse_contradiction(scoring.verifier)
        judge = load_judge(options.judge, Runtime(device, options.token_budget)).judge
        journal = LineJournal(
            options.output.with_name(f"{options.output.name}.journal"),
            scoring_fingerprint(options.judge, scoring),
        )
        # The keys of the results in the journal, in the order of the file's records.
        keys = score_candidates_file(judge, file, scoring, journal, console)
        if rank() != 0:
            return
        errors_file = options.output.with_name(f"{options.output.name}.errors.jsonl")
        errors_file.unlink(missing_ok=True)
        num_errors = sum(1 for _ in record_errors(journal, keys))
        remark = ""
        if num_errors:
            write_json_lines(errors_file, record_errors(journal, keys))
            remark = (
                f"{num_errors:,} of {len(file.rows):,} records cannot be judged: {errors_file} "
                "says why"
            )
        if num_errors == len(file.rows):
            first_error = next(record_errors(journal, keys))["error"]
            raise UserError(f"{remark}. The first: {first_error}")
        # All scored records get the same columns, so the names are those of the first one.
        added_columns = columns_to_add(journal, scoring, keys)
        names = list(next(columns for columns in added_columns if columns is not None))
        write_with_added_columns(
            options.output,
            file.rows,
            schema,
            names,
            columns_to_add(journal, scoring, keys),
            [STD_COLUMN],  # removed: deviations of other scores do not belong to these
        )
        journal.path.unlink()
        message = f"{len(file.rows) - num_errors:,} records: {options.output}"
        if remark:
            message += f". {remark}"
        console.print(message, soft_wrap=True, markup=False)
        if file.images.root.resolve() != options.output.resolve().parent:
            console.print(
                f"Paths of images in it are relative to {file.images.root}.",
                soft_wrap=True,
                markup=False,
            )


if __name__ == "__main__":
    main()
