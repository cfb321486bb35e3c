"""Score files: any number of responses to each prompt, by a checkpoint of any kind or the YAML file of a judge.

python eval/score.py runs/mine/best samples.jsonl scored.jsonl
deepspeed eval/score.py runs/mine/best samples.parquet scored.parquet --image-root /data/images
python eval/score.py runs/mine/best samples.jsonl scored.jsonl --form stratified --verifier multiple_choice

IN holds JSON lines, a JSON list, parquet or Arrow, a record a row; OUT is .jsonl or .parquet by its name:

    {"prompt": "Which colour is the cat?", "images": ["cats/1.png"], "responses": ["Black.", "White."]}

The prompt is `prompt` (a text or turns) or `messages`; the responses are `responses`, or one in `response` or `completion`, or
`chosen` and `rejected` of this project's and TRL's preference records. Images stand in the turns, in `images` or in `image`:
paths relative to IN's folder or --image-root, which they may not leave, data URIs, or {bytes, path} as `datasets` stores them.

OUT has the record's own columns (an image stays what it was, a path a path) and these, in the place of any of the same name:
    scores      one a response; higher is better. A judge that compares gives shares of its tournament
    order       places of the responses, best first; equal scores keep the order of the responses
    margin      best minus second best score; null for one response
    normalised  (score - mean) / std, where the checkpoint's config.json has reference_scores
    rewards     the scores in another --form (eval/selection/score_forms.py)
    right       what the --verifier says of each response, by the known answer in the column --answer. Verdicts
                that a record holds (eval/sample.py's `right`) are kept; a rule that contradicts them is refused
    judgements, unread    comparisons of a judge, and those that name no response;    critiques    of a critic

A record that cannot be judged is counted, stands in OUT.errors.jsonl with its row and the reason, and not in OUT. A killed
command is continued by the same command, on any number of ranks: what is done stands in OUT.journal until OUT is written, under
the content of its record. A second command on the same OUT is refused while the first one runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.limits import DEFAULTS, Limits
from mmrm.data.storage.files import write_json_lines
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import add_model_options, rank_device, refuse_existing
from mmrm.eval.selection.candidate_files import check_kind, schema_for, write_with
from mmrm.eval.selection.candidate_records import open_records
from mmrm.eval.selection.score_forms import FORMS
from mmrm.eval.selection.verifier_options import add_verifier, verifying


def main(arguments: Sequence[str] | None = None) -> None:
    """Score a file; what a user can put right ends with a message and no traceback."""
    options = parse(arguments)
    with command():
        score(options, plain_console(stderr=True))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; options that do not fit together end the process with status 2."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("eval/score.py", description=__doc__, formatter_class=form)
    parser.add_argument(
        "judge",
        type=Path,
        metavar="CHECKPOINT",
        help="a checkpoint folder, or the YAML file of a judge",
    )
    parser.add_argument("input", type=Path, metavar="IN")
    parser.add_argument("output", type=Path, metavar="OUT", help="a .jsonl or .parquet file")
    parser.add_argument(
        "--image-root",
        type=Path,
        help="the folder that paths of images are relative to; default: IN's",
    )
    parser.add_argument(
        "--form",
        choices=FORMS,
        default="raw",
        help="also as `rewards`; `relative` reads a column `reference`",
    )
    parser.add_argument("--clip", type=float, help="of --form standardised: OpenRLHF takes 10")
    for name in Limits.model_fields:
        parser.add_argument(
            f"--max-{name}",
            type=int,
            default=getattr(DEFAULTS, name),
            metavar="N",
            help=f"{name} of a record; more is refused before it is judged; default: %(default)s",
        )
    add_verifier(parser)
    add_model_options(parser)
    options = parser.parse_args(arguments)
    if "right" in FORMS[options.form].needs and not options.verifier:
        parser.error(f"--form {options.form} needs a --verifier")
    if options.clip is not None and (options.form != "standardised" or options.clip <= 0):
        parser.error("--clip is a positive number for --form standardised")
    return options


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits on a record's size; raises UserError for impossible limits."""
    values = {name: vars(options)[f"max_{name}"] for name in Limits.model_fields}
    try:
        return Limits(**values)
    except ValidationError as error:
        raise UserError(f"--max-…: {format_validation_error(error)}") from error


def score(options: argparse.Namespace, console: Console) -> None:
    """Score the records of a file on all ranks; the first one writes, and holds the output's lock."""
    with rank_device() as device, ExitStack() as stack:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.judges.loading import load_judge
        from mmrm.eval.judges.registry import reference_of
        from mmrm.eval.selection.candidate_scores import (
            LineJournal,
            Scoring,
            added,
            errors,
            fingerprint,
            score_candidates_file,
        )
        from mmrm.models.distributed import locked_by_first_rank, rank

        stack.enter_context(locked_by_first_rank(locked_file(options.output)))
        refuse_existing(options.output)
        reference = reference_of(options.judge)
        if options.form == "standardised" and reference is None:
            raise UserError(
                f"{options.judge} has no reference_scores in a config.json, by which --form standardised standardises. "
                "Merge an adapter first (train/merge.py), or take another form."
            )
        scoring = Scoring(options.form, verifying(options), reference, options.clip)
        check_kind(options.output)
        file = open_records(options.input, options.image_root, limits_of(options))
        schema = schema_for(file.rows, options.output)
        if scoring.verifying is not None:
            file.refuse_contradiction(scoring.verifying)
        judge = load_judge(options.judge, Runtime(device, options.token_budget))
        journal = LineJournal(
            options.output.with_name(f"{options.output.name}.journal"),
            fingerprint(options.judge, scoring),
        )
        keys = score_candidates_file(judge.judge, file, scoring, journal, console)
        if rank():
            return
        beside = options.output.with_name(f"{options.output.name}.errors.jsonl")
        beside.unlink(missing_ok=True)
        bad = sum(1 for _ in errors(journal, keys))
        if bad:
            write_json_lines(beside, errors(journal, keys))
        said = (
            f"{bad:,} of {len(file.rows):,} records cannot be judged: {beside} says why"
            if bad
            else ""
        )
        first = next((one for one in added(journal, scoring, keys) if one is not None), None)
        if first is None:
            raise UserError(f"{said}. The first: {next(errors(journal, keys))['error']}")
        write_with(options.output, file.rows, schema, list(first), added(journal, scoring, keys))
        journal.path.unlink()
        console.print(
            f"{len(file.rows) - bad:,} records: {options.output}{'. ' + said if said else ''}",
            soft_wrap=True,
            markup=False,
        )
        if file.images.root.resolve() != options.output.resolve().parent:
            console.print(
                f"Paths of images in it are relative to {file.images.root}.",
                soft_wrap=True,
                markup=False,
            )


if __name__ == "__main__":
    main()
