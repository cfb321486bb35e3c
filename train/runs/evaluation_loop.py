"""The evaluation of a run at every checkpoint: on benchmarks, held-out records, or questions.

Held-out records are those that the recipe's `data.validation` withholds from training. They are
written into the run folder. A judge is evaluated on them as on a benchmark, and the loss of a
supervised method is computed on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from time import perf_counter

from rich.console import Console
from torch import nn

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import Preference, Response
from mmrm.data.sources.project import project_row
from mmrm.data.storage.files import write_json_lines
from mmrm.eval.benchmarks.benchmark import Benchmark, LoadedBenchmark, Location
from mmrm.eval.benchmarks.preference_folder import (
    PREFERENCE_FOLDER,
    example_from_record,
    require_distinct_responses,
)
from mmrm.eval.benchmarks.rows import loaded_benchmark
from mmrm.eval.candidates import Example, total_usage
from mmrm.eval.judges.judge import cost_figures
from mmrm.eval.results.run_folder import HELD_OUT, HELD_OUT_RECORDS
from mmrm.eval.results.summary_table import results_table
from mmrm.eval.suite.suite import Suite, headline_figures
from mmrm.models.distributed import gather, rank, world_size
from mmrm.train.methods.method import Method
from mmrm.train.recipe.sections import HELD_OUT_ACCURACY, HELD_OUT_LOSS
from mmrm.train.supervised.optimizer import Evaluate

ANSWERS = "answers"
"""The folder in a checkpoint with a policy's answers, in two files for each set of questions."""


def evaluation(method: Method) -> Evaluate | None:
    """Return the function that evaluates the model of a run, None if the recipe evaluates nothing.

    It takes the model and the number of the step, and returns figures by name. The held-out records
    are read now, and written into the run folder.

    Raises:
        UserError: If too many held-out records cannot be used.
    """
    recipe = method.recipe
    if not recipe.evaluates:
        return None
    if recipe.method.evaluated_on == "questions":
        return partial(_evaluate_on_questions, method)

    suite = Suite.load(recipe.evaluation.benchmarks, recipe.evaluation.protocol)
    held_out = HeldOutRecords.load(method)
    if held_out is not None:
        if rank() == 0:
            held_out.write(method.folder)
        if HELD_OUT_ACCURACY in recipe.held_out_figures:
            if rank() == 0:
                held_out.print_ties(method.console)
            benchmarks = {**suite.benchmarks, HELD_OUT: held_out.benchmark()}
            suite = replace(suite, benchmarks=benchmarks)
    return partial(_evaluate_on_benchmarks, method, suite, held_out)


def _evaluate_on_questions(method: Method, model: nn.Module, step: int) -> dict[str, float]:
    """Have the policy answer the questions of the evaluation, and return the figures by name.

    The answers are written into the checkpoint of the step.
    """
    folder = evaluation_folder(method.folder, step).with_name(ANSWERS)
    figures = method.examine(model, folder)
    assert figures is not None, f"{method.recipe.method.type} is evaluated on questions"
    return figures


def _evaluate_on_benchmarks(
    method: Method, suite: Suite, held_out: HeldOutRecords | None, model: nn.Module, step: int
) -> dict[str, float]:
    """Have the model judge the benchmarks and the held-out records, and return figures by name.

    Args:
        method: The method of the run.
        suite: The benchmarks. They include the held-out records, if the model judges these.
        held_out: The records on which the loss is computed. None if there are none.
        model: The model, as the trainer has wrapped it.
        step: The number of optimizer steps so far.
    """
    recipe = method.recipe
    console = method.console
    judge = method.judge(model)
    assert judge is not None, f"{recipe.method.type} is evaluated on benchmarks"
    started = perf_counter()
    # Under ZeRO-3, weights are gathered once for a judge that writes, not again for every token.
    weights = method.whole_weights(model) if judge.info.writes else nullcontext()
    with weights:
        results, scores = suite.run(judge, evaluation_folder(method.folder, step), console)
    seconds = perf_counter() - started
    if rank() == 0 and results:
        baselines = recipe.evaluation.baselines
        console.print(results_table(results, title=f"step {step}", baselines=baselines).rich())

    figures = headline_figures(results)
    if judge.info.writes and scores:
        for name, value in cost_figures(scores).items():
            figures[f"judging/{name}"] = value
    num_pairs = sum(result.micro.n for result in results.values())
    if num_pairs:
        figures["judging/seconds_per_pair"] = seconds / num_pairs
        figures["judging/tokens_per_pair"] = total_usage(scores).tokens / num_pairs

    if held_out is not None:
        loss = method.held_out_loss(model, held_out.records)
        if loss is not None:
            figures[HELD_OUT_LOSS] = loss
            if rank() == 0:
                console.print(f"{HELD_OUT_LOSS} {loss:.4f}", highlight=False)
    return figures


def evaluation_folder(folder: Path, step: int) -> Path:
    """Return the folder for the results of the model after `step` optimizer steps.

    It is inside the checkpoint of that step. Before the first step there is no checkpoint, and it
    is inside the folder `start`. `folder` is the run folder.
    """
    folder_of_step = f"checkpoint-{step}" if step else "start"
    return folder / folder_of_step / "eval"


@dataclass(frozen=True, slots=True)
class HeldOutRecords:
    """The held-out records (`data.validation` in the recipe) that can be encoded."""

    records: Sequence[Preference]

    @classmethod
    def load(cls, method: Method) -> HeldOutRecords | None:
        """Return the held-out records of a run, None if the recipe withholds none.

        All ranks must call together. Each rank tries to encode a part of the records. Records that
        cannot be encoded are left out, and their number is printed with the first error.

        Raises:
            UserError: If more of them cannot be used than `data.bad_records` allows.
        """
        validation = method.mixture.validation
        num_records = len(validation)
        if not num_records:
            return None
        encode = method.held_out_encoder()
        errors_on_this_rank: dict[int, str] = {}
        for index in range(rank(), num_records, world_size()):
            try:
                record = validation[index]
                # A record in which one text has two ranks is also refused.
                for pair in pairs_of_record(record):
                    require_distinct_responses(pair)
                encode(record, 0)
            except RecordError as error:
                errors_on_this_rank[index] = str(error)
        errors: dict[int, str] = {}
        for errors_of_rank in gather(errors_on_this_rank):
            errors |= errors_of_rank

        if errors:
            message = (
                f"{len(errors):,} of {num_records:,} held-out records cannot be used. The first: "
                f"{next(iter(errors.values()))}"
            )
            bad_records = method.mixture.config.bad_records
            num_allowed = max(1, bad_records.limit * num_records)
            is_strict = bad_records.policy == "strict"
            is_none_left = len(errors) == num_records
            if is_strict or is_none_left or len(errors) > num_allowed:
                raise UserError(message)
            if rank() == 0:
                method.console.print(message, markup=False, highlight=False)
        usable = [validation[index] for index in range(num_records) if index not in errors]
        return cls(usable)

    def pairs(self) -> Iterator[Preference]:
        """Yield the pairs of responses of different rank of every record."""
        for record in self.records:
            yield from pairs_of_record(record)

    def write(self, folder: Path) -> None:
        """Write the pairs of the records, which are the rows of the benchmark, into a run folder.

        The file has JSON lines in the project's own format.
        """
        rows = (project_row(pair, pair.rationale) for pair in self.pairs())
        write_json_lines(folder / HELD_OUT_RECORDS, rows)

    def print_ties(self, console: Console) -> None:
        """Print how many pairs of responses are tied, and are therefore no row of the benchmark."""
        num_pairs = 0
        num_tied = 0
        for record in self.records:
            for one, other in combinations(record.ranks, 2):
                num_pairs += 1
                num_tied += one == other
        if num_tied:
            console.print(
                f"{num_tied:,} of {num_pairs:,} pairs of held-out responses are tied in the data, "
                f"and are not counted in {HELD_OUT_ACCURACY}",
                markup=False,
                highlight=False,
            )

    def benchmark(self) -> tuple[Benchmark, LoadedBenchmark]:
        """Return the pairs of the records as a benchmark, and its rows.

        Two responses of equal rank are no row, because neither is the right answer. The rows are
        grouped by the source of their record, so that each source has its own figures.

        Raises:
            UserError: All responses of each record are tied.
        """
        examples: list[Example] = []
        for pair in self.pairs():
            # A benchmark groups its rows by the category of a record.
            examples.append(example_from_record(replace(pair, category=pair.source)))
        if not examples:
            raise UserError(
                f"All responses of each of the {len(self.records):,} records that data.validation "
                "withholds are tied, so that no judge can be right about them. Withhold more "
                "records, or set data.validation to 0."
            )
        key = "data.validation"
        rows = loaded_benchmark(HELD_OUT, examples, Location(location=key), key)
        return replace(PREFERENCE_FOLDER, name=HELD_OUT), rows


def pairs_of_record(record: Preference) -> list[Preference]:
    """Return every two responses of different rank as a record of a pair, the better one first.

    A record that is a pair is returned unchanged. Two pairs of the same responses are returned once.
    """
    if record.is_pair:
        return [record]
    pair_by_responses: dict[tuple[Response, Response], Preference] = {}
    for better, worse in combinations(range(len(record.responses)), 2):
        if record.ranks[better] == record.ranks[worse]:
            continue
        responses = (record.responses[better], record.responses[worse])
        identity = f"{record.identity}, responses {better + 1} and {worse + 1}"
        pair_by_responses[responses] = replace(
            record, identity=identity, responses=responses, ranks=(0, 1), margin=None, attributes={}
        )
    return list(pair_by_responses.values())
