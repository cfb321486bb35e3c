"""Score the responses of a recipe's training records, by a checkpoint or another judge.

python eval/score_records.py RECIPE runs/mine/best scored.jsonl
deepspeed eval/score_records.py RECIPE runs/mine/best scored.jsonl --keys fold.txt

OUT is a file of JSON lines, one for each record of the recipe's `data` section:

    {"key": "0f1e2d3c4b5a6978", "source": "shapes", "ranks": [0, 1], "scores": [1.5, -0.25]}

`key` names the record by its content, as files of decisions do (data/preparation/decisions.py).
`scores` has the score of each response in the order of the record, whose best response comes first
(`ranks`, 0 is the best). The judge sees the responses in a random order, so that their order does
not show the preference. A record that cannot be judged has a message in `error`, and no scores.

The same command continues an interrupted one: finished records are kept in OUT.journal until OUT is
written. eval/score.py scores files of responses, which need no preferences.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.package import recipe_path
from mmrm.data.preference import Preference
from mmrm.data.preparation.decisions import written_key
from mmrm.data.preparation.filters import read_fingerprints
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import image_tokens_of_recipe, read_data_section
from mmrm.data.preparation.row_index import pair_key
from mmrm.data.storage.content import written_response
from mmrm.data.storage.files import write_json_lines
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.candidates import Candidates
from mmrm.eval.cli import add_model_options, rank_device, refuse_existing

if TYPE_CHECKING:
    from mmrm.eval.selection.candidate_scores import JudgeableRecord, LineJournal


def main(arguments: Sequence[str] | None = None) -> None:
    """Score the responses of a recipe's training records with a judge.

    Errors that a user can correct end the command with a message and no traceback.
    """
    options = parse(arguments)
    with exit_on_user_error():
        score(options, plain_console(stderr=True))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line. A wrong command line ends the process with status 2."""
    parser = CommandParser("eval/score_records.py", __doc__)
    parser.add_argument("recipe", type=recipe_path, help="The recipe whose records are scored.")
    parser.add_argument(
        "judge",
        type=recipe_path,
        metavar="CHECKPOINT",
        help="A checkpoint folder, or the YAML file of a judge.",
    )
    parser.add_argument("output", type=Path, metavar="OUT", help="The .jsonl file to write.")
    parser.add_argument(
        "--keys",
        metavar="FILE",
        help="Score only the records whose keys are in this file, one of 16 hexadecimal digits a "
        "line.",
    )
    add_model_options(parser)
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class ScoredRecords:
    """The training records of a recipe that are scored."""

    mixture: Mixture
    indices: npt.NDArray[np.integer]
    """Their indices in the mixture, ascending, (records,)."""
    keys: npt.NDArray[np.uint64]
    """The key of each of them, by which decisions name it, (records,)."""

    @classmethod
    def of_recipe(cls, recipe: Path, file_of_keys: str | None) -> ScoredRecords:
        """Return the training records of a recipe whose keys are in a file.

        Args:
            recipe: The recipe.
            file_of_keys: The file; None takes all records.

        Raises:
            UserError: The recipe or the file cannot be read, or no record has a key of the file.
        """
        image_tokens, _ = image_tokens_of_recipe(recipe)
        mixture = Mixture(read_data_section(recipe), image_tokens)
        keys = mixture.decision_keys()
        indices = np.arange(len(mixture))
        if file_of_keys is not None:
            indices = np.flatnonzero(np.isin(keys, read_fingerprints(file_of_keys)))
        if not len(indices):
            raise UserError(
                f"{recipe}: no training record has a key of {file_of_keys}. Required are keys of "
                "its records as they are now."
            )
        return cls(mixture, indices, keys[indices])

    def read(self, number: int) -> JudgeableRecord:
        """Return the record with this number in a random order of its responses.

        Raises:
            RecordError: If the record cannot be used.
        """
        from mmrm.eval.selection.candidate_scores import JudgeableRecord

        record = self.mixture[int(self.indices[number])]
        order = random_order(record)
        candidates = Candidates(
            key=written_key(pair_key(record)),
            images=record.images,
            videos=record.videos,
            prompt=record.prompt,
            responses=tuple(record.responses[index] for index in order),
            identity=record.identity,
        )
        label = {"source": record.source, "ranks": list(record.ranks), "order": order}
        return JudgeableRecord(candidates, label)

    def lines(self, journal: LineJournal, journal_keys: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a line of the output for each record.

        Args:
            journal: The journal with the results.
            journal_keys: The keys of the results in the journal, in the order of the records.
        """
        for number, result in enumerate(journal.lines(journal_keys)):
            line: dict[str, Any] = {"key": written_key(int(self.keys[number]))}
            if "error" in result:
                yield line | {"error": result["error"]}
                continue
            scores = dict(zip(result["order"], result["scores"], strict=True))
            yield line | {
                "source": result["source"],
                "ranks": result["ranks"],
                "scores": [scores[index] for index in range(len(scores))],
            }


def random_order(record: Preference) -> list[int]:
    """Return indices of a record's responses in an order that does not depend on the preference."""
    order = list(range(len(record.responses)))
    order.sort(key=lambda index: written_response(record.responses[index]))
    random.Random(pair_key(record)).shuffle(order)
    return order


def score(options: argparse.Namespace, console: Console) -> None:
    """Score the records of the recipe that the command line names, and write the file.

    All ranks judge. The first rank locks and writes the output.

    Args:
        options: The parsed command line, as `parse` returns it.
        console: The console for the progress, for remarks and for the final message.

    Raises:
        UserError: If the output exists, the judge or the recipe cannot be used, or no record can be
            judged.
    """
    with rank_device() as device, ExitStack() as stack:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.judges.loading import load_judge
        from mmrm.eval.selection.candidate_scores import (
            LineJournal,
            Scoring,
            record_errors,
            score_records,
            scoring_fingerprint,
        )
        from mmrm.models.distributed import locked_by_first_rank, rank

        stack.enter_context(locked_by_first_rank(locked_file(options.output)))
        refuse_existing(options.output)
        records = ScoredRecords.of_recipe(options.recipe, options.keys)
        judge = load_judge(options.judge, Runtime(device, options.token_budget)).judge
        scoring = Scoring("raw", verifier=None, reference=None, clip=None)
        journal = LineJournal(
            options.output.with_name(f"{options.output.name}.journal"),
            scoring_fingerprint(options.judge, scoring),
        )
        num_records = len(records.indices)
        title = options.recipe.name
        keys = score_records(judge, num_records, records.read, title, journal, console)
        if rank() != 0:
            return
        errors = list(record_errors(journal, keys))
        if len(errors) == num_records:
            raise UserError(f"no record can be judged. The first: {errors[0]['error']}")
        write_json_lines(options.output, records.lines(journal, keys))
        journal.path.unlink()
        console.print(
            f"{num_records:,} records, {len(errors):,} of them cannot be judged: {options.output}",
            soft_wrap=True,
            markup=False,
        )


if __name__ == "__main__":
    main()
