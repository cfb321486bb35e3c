"""Make data of a file that eval/score.py wrote: the best response, preference pairs, SFT records. No model is needed.

python eval/select_responses.py best scored.jsonl best.jsonl                       # best of N: adds `response` and `score`
python eval/select_responses.py pairs scored.jsonl pairs.jsonl --min-margin 0.5    # the best against the worst, by score
python eval/select_responses.py pairs scored.parquet dpo.parquet --all --verifier numeric --tolerance 0.05 --output-format trl
python eval/select_responses.py rejection-sampling scored.jsonl sft.jsonl --verifier multiple_choice

With a --verifier, which reads the known answer in the column --answer, `best` and `rejection-sampling` take right responses only,
and `pairs` sets right ones against wrong ones, in each the better scored first. `--verifier recorded` takes the verdicts that the
records hold (`right` of eval/sample.py); a rule that contradicts them is refused. `pairs` and `rejection-sampling` write records
for training: this project's preference records (`type: project` in a recipe) and {images, prompt, response}, or TRL's of turns
(`prompt`, `chosen`, `rejected`; `prompt`, `completion`). JSON lines name images by their paths; parquet holds them, as
`datasets` reads them. What gives nothing is counted by reason; records that cannot be read stand in OUT.errors.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
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
from mmrm.eval.selection.verifier_options import add_verifier, verifying
from mmrm.eval.verifiers import Verifying

Made = TypeVar("Made")


class Selection:
    """The records of a scored file, with what became of them."""

    def __init__(self, file: RecordFile, verifying: Verifying | None) -> None:
        self.file = file
        self.verifying = verifying
        self.reasons: Counter[str] = Counter()
        self.errors: list[dict[str, Any]] = []

    def made(self, make: Callable[[Answered, ScoredResponses, str], Made]) -> Iterator[Made | None]:
        """Yield what `make` makes of each record; None for one that gives nothing."""
        for number in range(len(self.file.rows)):
            try:
                row = self.file.row(number)
                answered = self.file.answered(row)
                try:
                    found = scored(row.columns, answered.responses, self.verifying)
                except RecordError as error:
                    raise RecordError(f"{row.identity}: {error}") from error
                yield make(answered, found, row.identity)
            except NotTaken as reason:
                self.reasons[str(reason)] += 1
                yield None
            except RecordError as error:
                self.errors.append({"row": number, "error": str(error)})
                yield None


def main(arguments: Sequence[str] | None = None) -> None:
    """Select; what a user can put right ends with a message and no traceback."""
    options = parse(arguments)
    with command(), locked_file(options.output):
        refuse_existing(options.output)
        check_kind(options.output)
        file = open_records(options.scored, options.image_root)
        schema = schema_for(file.rows, options.output) if options.what == "best" else None
        selection = Selection(file, verifying(options))
        count: Counter[str] = Counter()
        writer = Writer(options.output_format, options.output.suffix)

        def records() -> Iterator[dict[str, Any]]:
            for made in selection.made(maker(options, writer)):
                count["records"] += len(made or ())
                yield from made or ()

        if options.what == "best":
            write_with(
                options.output, file.rows, schema, ["response", "score"], selection.made(best_of)
            )
            count["records"] = (
                len(file.rows) - sum(selection.reasons.values()) - len(selection.errors)
            )
        else:
            verified = selection.verifying is not None
            write_records(
                options.output, records(), writer.schema(options.what == "pairs", verified)
            )
        beside = options.output.with_name(f"{options.output.name}.errors.jsonl")
        beside.unlink(missing_ok=True)
        if selection.errors:
            write_json_lines(beside, selection.errors)
    said = [f"{number:,} where {reason}" for reason, number in selection.reasons.most_common()]
    said += [f"{len(selection.errors):,} cannot be read ({beside})"] if selection.errors else []
    nothing = f" Prompts without any: {'; '.join(said)}." if said else ""
    plain_console(stderr=True, highlight=False).print(
        f"{count['records']:,} records of {len(file.rows):,} prompts: {options.output}.{nothing}",
        soft_wrap=True,
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "eval/select_responses.py", description=__doc__, formatter_class=form
    )
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("best", "pairs", "rejection-sampling"):
        one = commands.add_parser(name)
        one.add_argument(
            "scored", type=Path, metavar="SCORED", help="a file that eval/score.py wrote"
        )
        one.add_argument("output", type=Path, metavar="OUT", help="a .jsonl or .parquet file")
        one.add_argument(
            "--image-root",
            type=Path,
            help="the folder that paths of images are relative to; default: SCORED's",
        )
        add_verifier(one)
        one.set_defaults(output_format="project")
        if name != "best":
            one.add_argument("--output-format", choices=get_args(Format), help="default: project")
        if name == "pairs":
            one.add_argument(
                "--min-margin", type=float, help="smallest difference of the two scores"
            )
            one.add_argument(
                "--all",
                action="store_true",
                help="all pairs of a prompt, not the best and the worst alone",
            )
    return parser.parse_args(arguments)


def best_of(answered: Answered, found: ScoredResponses, identity: str) -> dict[str, Any]:
    """Return the columns that `best` adds."""
    place = best(found)
    return {"response": answered.responses[place], "score": found.scores[place]}


def maker(
    options: argparse.Namespace, writer: Writer
) -> Callable[[Answered, ScoredResponses, str], list[dict[str, Any]]]:
    """Return what makes the training records of a prompt."""
    if options.what == "rejection-sampling":
        return lambda answered, found, identity: [writer.example(answered, best(found), identity)]
    return lambda answered, found, identity: [
        writer.pair(answered, found, chosen, rejected, identity)
        for chosen, rejected in preference_pairs(found, options.min_margin, options.all)
    ]


if __name__ == "__main__":
    main()
