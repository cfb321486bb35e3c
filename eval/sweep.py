"""Evaluate many judges on many benchmarks on all ranks, and none of them twice.

deepspeed eval/sweep.py runs/a runs/b/checkpoint-* --benchmarks vl_rewardbench=hub
python eval/sweep.py runs/shapes/naive --output runs/shapes/sweep --wandb reward-models

A judge is a checkpoint folder or a YAML file, for example of an ensemble or of an endpoint. A run
folder is replaced by all its checkpoints. The folder --output gets sweep.csv, sweep.json, sweep.md,
sweep.png, and for each result the folder results/<fingerprint>/ with `<benchmark>.json` and
`<benchmark>/predictions.jsonl`. The fingerprint is a digest of the weights, the benchmark's rows,
the protocol and the scoring code. A stored result is not computed again. The same command continues
an interrupted sweep, also in the middle of a result.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import first_rank_console, plain_console
from mmrm.data.errors import CheckpointError, EndpointError, UserError
from mmrm.data.package import recipe_path
from mmrm.data.storage.files import write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.cli import (
    add_evaluation_options,
    rank_device,
    refuse_other_held_out_records,
    task_of,
)
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.reporting.sweep_report import (
    best_judge_sentence,
    flat_rows,
    log_to_wandb,
    markdown,
    save_charts,
    sweep_content,
)
from mmrm.eval.results.result_store import Standing, Store, Summary, step_of, summarise
from mmrm.eval.results.summary_table import accuracy_text, write_rows
from mmrm.eval.suite.fingerprint import fingerprint, judge_digest, rows_digest, scoring_version
from mmrm.eval.suite.suite import Suite, journal_in
from mmrm.models.distributed import gather, locked_by_first_rank, rank, world_size

UNUSABLE_JUDGE_ERRORS = (UserError, OSError)
"""The errors of a judge that cannot be used."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate judges on benchmarks on all ranks, and write a summary of all results.

    Results that an earlier call stored in the folder `--output` are not computed again.
    """
    parser = CommandParser("eval/sweep.py", __doc__)
    parser.add_argument(
        "judges",
        nargs="+",
        type=recipe_path,
        metavar="JUDGE",
        help="Run folders, checkpoint folders, or YAML files of judges.",
    )
    add_evaluation_options(parser)
    parser.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="Log the figures to this wandb project as well. Without a login, the wandb run stays "
        "in the output folder.",
    )
    # `add_evaluation_options` gives `--output` no default.
    parser.set_defaults(output=Path("runs/sweep"))
    options = parser.parse_args(arguments)
    console = first_rank_console(highlight=False, soft_wrap=True)
    with (
        exit_on_user_error(),
        rank_device() as device,
        locked_by_first_rank(locked_folder(options.output)),
    ):
        run(options, device, console)


def run(options: argparse.Namespace, device: torch.device, console: Console) -> None:
    """Evaluate the judges whose results are missing, and write the summary of all results.

    All ranks call this together, and the first one writes. All judges have the same benchmarks and
    protocol: those of the options, completed by the recipe of the first judge that has one. If
    neither names a benchmark, it is the held-out records of that judge's run.

    Args:
        options: The parsed command line.
        device: The device of this rank.
        console: The console for messages, which is silent on ranks other than the first.
    """
    judges = expand_run_folders(options.judges)
    folder = options.output
    task = task_of(options, judge_with_recipe(judges))
    refuse_other_held_out_records(task.benchmarks, judges)
    suite = Suite.load(task.benchmarks, task.protocol)
    store = Store(folder / "results")
    sweep = Sweep(suite, store, Runtime(device, options.token_budget), console)
    rows_digest_by_benchmark: dict[str, str] = {}
    for benchmark, (_, loaded_benchmark) in suite.benchmarks.items():
        rows_digest_by_benchmark[benchmark] = rows_digest(loaded_benchmark.examples)
    fingerprints_by_judge: dict[Path, dict[str, str]] = {}
    problem_by_broken_judge: dict[str, str] = {}
    for judge, judge_files in digests_of_judges(judges).items():
        fingerprint_by_benchmark: dict[str, str] = {}
        for benchmark, digest_of_rows in rows_digest_by_benchmark.items():
            fingerprint_by_benchmark[benchmark] = fingerprint(
                judge_files.digest, digest_of_rows, suite.protocol
            )
        problem = judge_files.problem
        if not problem:
            problem = sweep.complete(judge, judge_files.digest, fingerprint_by_benchmark)
        # A judge refers to itself in cycles, so it is not freed at once, and there is no memory for
        # two judges.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if problem:
            problem_by_broken_judge[str(judge)] = problem
            console.print(f"{judge}: broken, skipped. {problem}")
        else:
            fingerprints_by_judge[judge] = fingerprint_by_benchmark
    if rank() != 0:
        return
    standings: list[Standing] = []
    for judge, fingerprint_by_benchmark in fingerprints_by_judge.items():
        for benchmark, result_fingerprint in fingerprint_by_benchmark.items():
            result = store.result(result_fingerprint, benchmark)
            standings.append(Standing(judge, benchmark, result_fingerprint, result))
    # Only judges that compare have orders and votes: a sweep of both kinds has two protocols.
    protocols = dict.fromkeys(standing.result.description for standing in standings)
    protocol = "; ".join(protocols) or suite.protocol.label
    summary = summarise(standings, problem_by_broken_judge, store, protocol)
    write_summary(summary, folder, console)
    if options.wandb and summary.standings:
        log_to_wandb(summary, options.wandb, folder)


def write_summary(summary: Summary, folder: Path, console: Console) -> None:
    """Write the summary of a sweep to files, and print the best judges on each benchmark.

    The files are sweep.json, sweep.csv and sweep.md in `folder`, and the picture sweep.png if the
    summary has results.
    """
    write_json(folder / "sweep.json", sweep_content(summary))
    write_rows(flat_rows(summary), folder / "sweep.csv")
    write_whole(folder / "sweep.md", markdown(summary))
    if summary.standings:
        save_charts(summary, folder / "sweep.png")
    for benchmark, standings in summary.standings.items():
        console.print(f"{benchmark}: {best_judge_sentence(standings)}")
    if summary.comparisons > 1:
        # A distance is the difference between the accuracies of the best judge and another one.
        console.print(
            f"Intervals of distances hold at 95 % for all {summary.comparisons} pairs of judges "
            "together."
        )
    # The results themselves were stored in results/ while the judges were evaluated.
    console.print(f"written: {folder}/sweep.csv, sweep.json, sweep.md, sweep.png and results/")


def judge_with_recipe(judges: Sequence[Path]) -> Path:
    """Return the first judge whose checkpoint has the evaluation settings of its run's recipe.

    Without such a judge it is the first one that can be read, or else the first of all.
    """
    readable_judges = []
    for judge in judges:
        try:
            has_recipe = judge.is_dir() and judge_card_of(judge) is not None
        except UserError:
            continue  # `digests_of_judges` reports it as broken
        if has_recipe:
            return judge
        readable_judges.append(judge)
    return readable_judges[0] if readable_judges else judges[0]


@dataclass(frozen=True, slots=True)
class JudgeFiles:
    """The digest of a judge's files, or the reason why they cannot be read."""

    digest: str = ""
    """Empty if the files cannot be read."""
    problem: str = ""
    """The message of the error; empty if there is none."""


def digests_of_judges(judges: Sequence[Path]) -> dict[Path, JudgeFiles]:
    """Return the digest of each judge's files, in the order of the judges.

    All ranks must call together. Each reads the files of some judges, and all get all digests.
    """
    read_here: dict[Path, JudgeFiles] = {}
    for judge in judges[rank() :: world_size()]:
        try:
            read_here[judge] = JudgeFiles(digest=judge_digest(judge))
        except UNUSABLE_JUDGE_ERRORS as error:
            read_here[judge] = JudgeFiles(problem=str(error))
    read_on_all_ranks: dict[Path, JudgeFiles] = {}
    for read_on_rank in gather(read_here):
        read_on_all_ranks |= read_on_rank
    return {judge: read_on_all_ranks[judge] for judge in judges}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Evaluates judges on the benchmarks of a suite, and stores their results."""

    suite: Suite
    store: Store
    runtime: Runtime
    console: Console

    def complete(self, path: Path, digest: str, fingerprint_by_benchmark: dict[str, str]) -> str:
        """Evaluate a judge on the benchmarks for which the store has no result of it.

        All ranks must call together.

        Args:
            path: The checkpoint folder or the YAML file of the judge.
            digest: The digest of the judge's files.
            fingerprint_by_benchmark: For each benchmark the fingerprint under which the result is
                or will be stored. It is known before the judge is evaluated.

        Returns:
            An empty text, or the message of the error if the judge cannot be loaded or asked. The
            sweep then goes on with the next judge.
        """
        not_stored = [
            benchmark
            for benchmark, result_fingerprint in fingerprint_by_benchmark.items()
            if not self.store.has(result_fingerprint)
        ]
        # The first rank decides, because it writes the store, which the others may see late.
        missing_benchmarks = gather(not_stored)[0]
        for benchmark in fingerprint_by_benchmark.keys() - set(missing_benchmarks):
            self.console.print(f"{path}, {benchmark}: stored")
        if not missing_benchmarks:
            return ""
        judge: Judge | None = None
        problem = ""
        try:
            judge = load_judge(path, self.runtime).judge
        except UNUSABLE_JUDGE_ERRORS as error:
            problem = str(error)
        # A judge that one rank cannot load is skipped on all ranks.
        problems = list(filter(None, gather(problem)))
        if judge is None or problems:
            return problems[0]
        for benchmark in missing_benchmarks:
            # Raises an error, which ends the sweep, if the judge cannot be asked under the
            # protocol. The protocol is then at fault, and it is the same for all judges.
            judge.under(self.suite.protocol, self.suite.benchmarks[benchmark][0])
            try:
                self._evaluate(path, benchmark, judge, digest, fingerprint_by_benchmark[benchmark])
            except (EndpointError, CheckpointError) as error:  # raised on all ranks alike
                return str(error)
        return ""

    def _evaluate(
        self, path: Path, benchmark: str, judge: Judge, digest: str, result_fingerprint: str
    ) -> None:
        """Evaluate a judge on one benchmark on all ranks, and store the result on the first rank.

        Args:
            path: The checkpoint folder or the YAML file of the judge.
            benchmark: The name of the benchmark.
            judge: The loaded judge.
            digest: The digest of the judge's files.
            result_fingerprint: The fingerprint under which the result is stored.
        """
        # Only the first rank writes files, so the other ranks need no folder.
        folder = self.store.begin(result_fingerprint) if rank() == 0 else Path()
        journal = journal_in(folder, benchmark, result_fingerprint, plain_console(stderr=True))
        evaluation = self.suite.evaluate(benchmark, judge, folder, with_notes=True, journal=journal)
        if rank() != 0:
            return
        description = {
            "judge": str(path),
            "benchmark": benchmark,
            "judge_digest": digest,
            "fingerprint": result_fingerprint,
            "protocol": self.suite.protocol.model_dump(),
            "scoring": scoring_version(),
        }
        self.store.finish(result_fingerprint, description)
        self.console.print(f"{path}, {benchmark}: {accuracy_text(evaluation.result.micro)}")


def expand_run_folders(judges_and_runs: Sequence[Path]) -> list[Path]:
    """Return every judge once, with each run folder replaced by its checkpoints, ordered by step.

    A path without a folder `checkpoint-N` in it is a judge: a checkpoint folder or a YAML file.
    """
    judge_by_resolved_path: dict[Path, Path] = {}
    for judge_or_run in judges_and_runs:
        checkpoints: list[tuple[int, Path]] = []
        for path in judge_or_run.glob("checkpoint-*"):
            step = step_of(path)
            if step is not None:
                checkpoints.append((step, path))
        judges = [path for _, path in sorted(checkpoints)] or [judge_or_run]
        for path in judges:
            # A judge that is named by several links is evaluated once.
            judge_by_resolved_path.setdefault(path.resolve(), path)
    return list(judge_by_resolved_path.values())


if __name__ == "__main__":
    main()
