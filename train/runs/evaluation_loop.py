"""The evaluation inside the loop: benchmarks and held-out records, judged with the model as it stands.

data.validation withholds records from training: into a file, for the loss on them, and as a benchmark that a judge is scored on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import Preference
from mmrm.data.sources.project import as_row
from mmrm.data.storage.files import write_json_lines
from mmrm.eval.benchmarks.benchmark import Benchmark, LoadedBenchmark, Location
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER, as_example, distinct
from mmrm.eval.benchmarks.rows import loaded
from mmrm.eval.journal import Journal
from mmrm.eval.judges.packed_inference import run_packed
from mmrm.eval.judges.writing import JudgingCost, WritingJudge
from mmrm.eval.results.run_folder import HELD_OUT, HELD_OUT_RECORDS
from mmrm.eval.results.summary_table import results_table
from mmrm.eval.suite.suite import Suite, headline
from mmrm.models.distributed import gather, rank, world_size
from mmrm.models.packing.groups import Group, PackedBatch
from mmrm.train.methods.method import JudgeMethod, Method, SupervisedMethod
from mmrm.train.recipe.sections import HELD_OUT_LOSS
from mmrm.train.supervised.optimizer import Evaluate
from mmrm.train.supervised.steps import Encode, PackedRow, PairEncoder, response_tokens

ANSWERS = "answers"
"""In a checkpoint: what a policy answered, a pair of files for each set of questions."""


def evaluation(method: Method) -> Evaluate | None:
    """Return what scores the benchmarks and the held-out records inside the loop, None where there are none.

    The held-out records are written into the run folder. Raises UserError if too many of them cannot be used. What is no judge
    measures itself.
    """
    recipe, folder, console = method.recipe, method.folder, method.console
    if not isinstance(method, JudgeMethod):
        examine = method.examination()
        return examine and (
            lambda model, step: examine(model, evaluation_folder(folder, step).with_name(ANSWERS))
        )
    if not recipe.evaluates:
        return None
    suite, held_out = (
        Suite.load(recipe.evaluation.benchmarks, recipe.evaluation.protocol),
        HeldOut.load(method),
    )
    if held_out and rank() == 0:
        held_out.write(folder)
    if held_out and f"{HELD_OUT}/accuracy" in recipe.held_out_figures:
        suite = replace(suite, benchmarks={**suite.benchmarks, HELD_OUT: held_out.benchmark()})

    def evaluate(model: nn.Module, step: int) -> dict[str, float]:
        judge, started = method.judge(model), perf_counter()
        with method.whole_weights(model) if isinstance(judge, WritingJudge) else nullcontext():
            results = suite.run(judge, evaluation_folder(folder, step), console)
        pairs, seconds = (
            sum(result.micro.n for result in results.values()),
            perf_counter() - started,
        )
        if rank() == 0 and results:
            console.print(
                results_table(
                    results, title=f"step {step}", baselines=recipe.evaluation.baselines
                ).rich()
            )
        spent = judge.spent if isinstance(judge, WritingJudge) else JudgingCost()
        cost = spent.figures() if spent.judgements else {}
        cost |= (
            {"seconds_per_pair": seconds / pairs, "tokens_per_pair": spent.tokens / pairs}
            if pairs
            else {}
        )
        figures = headline(results) | {f"judging/{name}": value for name, value in cost.items()}
        if held_out and isinstance(method, SupervisedMethod):
            figures[HELD_OUT_LOSS] = loss = held_out.loss(model, method)
            if rank() == 0:
                console.print(f"{HELD_OUT_LOSS} {loss:.4f}", highlight=False)
        return figures

    return evaluate


def evaluation_folder(folder: Path, step: int) -> Path:
    """Return where the figures of the model after `step` steps go; before the first step there is no checkpoint."""
    return folder / (f"checkpoint-{step}" if step else "start") / "eval"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out records that can be used."""

    records: Sequence[Preference]

    @classmethod
    def load(cls, method: Method) -> HeldOut | None:
        """Read the records, if there are any, each rank trying to encode a share; those that cannot be used are counted.

        Raises: UserError for more of them than `data.bad_records` allows.
        """
        mixture, count = method.mixture, len(method.mixture.validation)
        if not count:
            return None
        encode = PairEncoder(method.encoder, method.recipe.head.read)
        errors: dict[int, str] = {}
        for index in range(rank(), count, world_size()):
            try:
                encode(distinct(mixture.validation[index]))
            except RecordError as error:
                errors[index] = str(error)
        errors = {index: error for part in gather(errors) for index, error in part.items()}
        policy = mixture.config.bad_records
        if errors:
            message = f"{len(errors):,} of {count:,} held-out records cannot be used. The first: {next(iter(errors.values()))}"
            if (
                policy.policy == "strict"
                or len(errors) == count
                or len(errors) > max(1, policy.limit * count)
            ):
                raise UserError(message)
            if rank() == 0:
                method.console.print(message, markup=False, highlight=False)
        return cls([mixture.validation[index] for index in range(count) if index not in errors])

    def write(self, folder: Path) -> None:
        """Write the records into a run's folder."""
        write_json_lines(
            folder / HELD_OUT_RECORDS, (as_row(record, record.rationale) for record in self.records)
        )

    def benchmark(self) -> tuple[Benchmark, LoadedBenchmark]:
        """Return the records as a benchmark whose groups are the sources."""
        examples = [as_example(replace(record, category=record.source)) for record in self.records]
        rows = loaded(HELD_OUT, examples, Location(location="data.validation"), "data.validation")
        return replace(PREFERENCE_FOLDER, name=HELD_OUT), rows

    @torch.no_grad()
    def loss(self, model: nn.Module, method: SupervisedMethod) -> float:
        """Return the loss that training minimises over the records, in fp32; of judgements over those with a rationale.

        All ranks must call together. `model` may be wrapped, and must be in eval mode.
        """
        packed, objective = method.packed(), method.objective
        used = [
            i
            for i, record in enumerate(self.records)
            if not method.needs_rationale or record.rationale is not None
        ]

        def run(batch: PackedBatch, indices: Sequence[int]) -> list[dict[str, float]]:
            """Return the sums of a row for its first item, and nothing for the others."""
            inside = [self.records[index] for index in indices]
            margins = torch.tensor([record.margin or 0.0 for record in inside])
            lengths = torch.tensor(
                [length for record in inside for length in response_tokens(packed.encoder, record)]
            )
            counts = torch.tensor(batch.group_sizes)
            numbers = (
                lengths,
                torch.zeros(len(inside), dtype=torch.bool),
                torch.arange(int(counts.sum())),
                counts,
            )
            row = PackedRow(batch, margins, *numbers).to(packed.device)
            loss, sums = objective.loss(model, row, torch.ones(2, device=packed.device))
            found = {name: float(value) for name, value in sums.items()} | {
                "loss": float(loss),
                "records": float(row.records),
            }
            return [found if number == 0 else {} for number in range(row.records)]

        total: defaultdict[str, float] = defaultdict(float)
        encode = partial(encode_held_out, method.encode, self.records)
        with Journal(HELD_OUT_LOSS, method.console).judging(
            list(map(str, used)), dict[str, float], len(used)
        ) as judging:
            for part in run_packed(packed, used, encode, run, judging=judging):
                for name, value in part.items():
                    total[name] += value
        return objective.mean_loss(total)


def encode_held_out(encode: Encode, records: Sequence[Preference], index: int) -> Group:
    """Return record `index` as the group that training would learn; every second judgement has the winner first."""
    return encode(records[index], index % 2).group
