"""Evaluate many judges on many benchmarks on all ranks, and none of them twice.

deepspeed eval/sweep.py runs/a runs/b/checkpoint-* --benchmarks vl_rewardbench=hub
python eval/sweep.py runs/shapes/naive --output runs/shapes/sweep --wandb reward-models

A judge is a checkpoint folder or a YAML file, for example of an ensemble or of an endpoint. A run
folder is replaced by all its checkpoints. The folder --output gets sweep.csv, sweep.json, sweep.md,
sweep.png, and for each result the folder results/<fingerprint>/ with `<benchmark>.json` and
`<benchmark>/predictions.jsonl`. The fingerprint is a digest of the weights, the benchmark's rows, the
protocol and the scoring code. A stored result is not computed again. The same command continues an
interrupted sweep, also in the middle of a result.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works without installation

from mmrm.data.display.command import command
from mmrm.data.display.console import first_rank_console, plain_console
from mmrm.data.errors import CheckpointError, EndpointError, UserError
from mmrm.data.storage.files import write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.cli import add_shared, rank_device, task_of
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.reporting.sweep_report import best_of, draw, in_full, log, markdown, rows
from mmrm.eval.results.result_store import Standing, Store, Summary, step_of, summarise
from mmrm.eval.results.summary_table import accuracy_text, write_rows
from mmrm.eval.suite.fingerprint import fingerprint, judge_digest, rows_digest, scoring_version
from mmrm.eval.suite.suite import Suite, journal_in
from mmrm.models.distributed import gather, locked_by_first_rank, rank, world_size

BROKEN = (UserError, OSError)
"""The errors of a judge that cannot be used."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate the judges of the command line on the benchmarks; see the module's docstring."""
    parser = argparse.ArgumentParser(
        "eval/sweep.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "judges",
        nargs="+",
        type=Path,
        metavar="JUDGE",
        help="Run folders, checkpoint folders, or YAML files of judges.",
    )
    add_shared(parser)
    parser.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="Log the figures to this wandb project as well. Without a login, the wandb run stays "
        "in the output folder.",
    )
    parser.set_defaults(output=Path("runs/sweep"))
    options = parser.parse_args(arguments)
    console = first_rank_console(highlight=False, soft_wrap=True)
    with (
        command(),
        rank_device() as device,
        locked_by_first_rank(locked_folder(options.output)),
    ):
        run(options, device, console)


def run(options: argparse.Namespace, device: torch.device, console: Console) -> None:
    """Evaluate the judges whose results are missing, and write the summary of all results.

    All ranks call this together, and the first one writes. All judges have the same benchmarks and
    protocol: those of the options, completed by the recipe of the first judge that has one.
    """
    judges = expand(options.judges)
    folder = options.output
    task = task_of(options, judge_with_task(judges))
    suite = Suite.load(task.benchmarks, task.protocol)
    store = Store(folder / "results")
    sweep = Sweep(suite, store, Runtime(device, options.token_budget), console)
    rows_digests = {
        name: rows_digest(loaded.examples) for name, (_, loaded) in suite.benchmarks.items()
    }
    entries: list[tuple[Path, str, str]] = []
    broken: dict[str, str] = {}
    for judge, (digest, problem) in digests(judges).items():
        marks = {
            name: fingerprint(digest, digest_of_rows, suite.protocol)
            for name, digest_of_rows in rows_digests.items()
        }
        problem = problem or sweep.complete(judge, digest, marks)
        gc.collect()  # a judge holds itself in cycles, and there is no room for two
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if problem:
            broken[str(judge)] = problem
            console.print(f"{judge}: broken, skipped. {problem}")
        else:
            entries += [(judge, name, mark) for name, mark in marks.items()]
    if rank():
        return
    standings = [
        Standing(judge, name, mark, store.result(mark, name)) for judge, name, mark in entries
    ]
    # Only judges that compare have orders and votes: a sweep of both kinds has two protocols.
    protocols = dict.fromkeys(standing.result.done for standing in standings)
    protocol = "; ".join(protocols) or suite.protocol.label
    summary = summarise(standings, broken, store, protocol)
    write_summary(summary, folder, console)
    if options.wandb and summary.standings:
        log(summary, options.wandb, folder)


def write_summary(summary: Summary, folder: Path, console: Console) -> None:
    """Write a summary as JSON, CSV and Markdown, and print the best judges on each benchmark.

    A picture is drawn as well, unless the summary has no results.
    """
    write_json(folder / "sweep.json", in_full(summary))
    write_rows(rows(summary), folder / "sweep.csv")
    write_whole(folder / "sweep.md", markdown(summary))
    if summary.standings:
        draw(summary, folder / "sweep.png")
    for name, standings in summary.standings.items():
        console.print(f"{name}: {best_of(standings)}")
    if summary.comparisons > 1:
        console.print(
            # A distance is the difference between the accuracies of two judges.
            f"Intervals of distances hold at 95 % for all {summary.comparisons} pairs of judges "
            "together."
        )
    console.print(f"written: {folder}/sweep.csv, sweep.json, sweep.md, sweep.png and results/")


def judge_with_task(judges: Sequence[Path]) -> Path:
    """Return the first judge whose checkpoint records the recipe of its run.

    Without such a judge it is the first one that can be read, or else the first of all.
    """
    readable = []
    for judge in judges:
        try:
            has_task = judge.is_dir() and judge_card_of(judge) is not None
        except UserError:
            continue  # `digests` reports it as broken
        if has_task:
            return judge
        readable.append(judge)
    return readable[0] if readable else judges[0]


def digests(judges: Sequence[Path]) -> dict[Path, tuple[str, str]]:
    """Return each judge's digest and an empty text, or an empty digest and its problem.

    The ranks share the reading of the files.
    """
    own_digests: dict[Path, tuple[str, str]] = {}
    for judge in judges[rank() :: world_size()]:
        try:
            own_digests[judge] = (judge_digest(judge), "")
        except BROKEN as error:
            own_digests[judge] = ("", str(error))
    all_digests: dict[Path, tuple[str, str]] = {}
    for digests_of_rank in gather(own_digests):
        all_digests |= digests_of_rank
    return {judge: all_digests[judge] for judge in judges}


@dataclass(frozen=True, slots=True)
class Sweep:
    """The evaluation of judges on the benchmarks of a suite, with the store of their results."""

    suite: Suite
    store: Store
    runtime: Runtime
    console: Console

    def complete(self, path: Path, digest: str, marks: dict[str, str]) -> str:
        """Evaluate a judge on the benchmarks for which the store has no result of it.

        Args:
            path: The checkpoint folder or the YAML file of the judge.
            digest: The digest of the judge's files.
            marks: For each benchmark the fingerprint under which the result is or will be stored.
                It is known before the judge is evaluated.

        Returns:
            An empty text, or the message of the error if the judge cannot be loaded or asked. The
            sweep then goes on with the next judge.
        """
        missing = gather([name for name, mark in marks.items() if not self.store.has(mark)])[0]
        for name in marks.keys() - set(missing):
            self.console.print(f"{path}, {name}: stored")
        if not missing:
            return ""
        judge: Judge | None = None
        problem = ""
        try:
            judge = load_judge(path, self.runtime).judge
        except BROKEN as error:
            problem = str(error)
        problems = list(filter(None, gather(problem)))
        if judge is None or problems:
            return problems[0]
        for name in missing:
            # Raises an error, which ends the sweep, if the judge cannot be asked under the protocol.
            # The protocol is then at fault, and it is the same for all judges.
            judge.under(self.suite.protocol, self.suite.benchmarks[name][0])
            try:
                self._evaluate(path, name, judge, digest, marks[name])
            except (EndpointError, CheckpointError) as error:  # raised on all ranks alike
                return str(error)
        return ""

    def _evaluate(self, path: Path, name: str, judge: Judge, digest: str, mark: str) -> None:
        """Evaluate a judge on one benchmark, and store the result on the first rank."""
        protocol = self.suite.protocol
        folder = Path() if rank() else self.store.begin(mark)
        journal = journal_in(folder, name, mark, plain_console(stderr=True))
        evaluation = self.suite.evaluate(name, judge, folder, with_notes=True, journal=journal)
        if rank():
            return
        about = {
            "judge": str(path),
            "benchmark": name,
            "judge_digest": digest,
            "fingerprint": mark,
            "protocol": protocol.model_dump(),
            "scoring": scoring_version(),
        }
        self.store.finish(mark, about)
        self.console.print(f"{path}, {name}: {accuracy_text(evaluation.result.micro)}")


def expand(judges_and_runs: Sequence[Path]) -> list[Path]:
    """Return every judge once, with each run folder replaced by its checkpoints, ordered by step."""
    judge_by_resolved_path: dict[Path, Path] = {}
    for judge_or_run in judges_and_runs:
        checkpoints: list[tuple[int, Path]] = []
        for path in judge_or_run.glob("checkpoint-*"):
            step = step_of(path)
            if step is not None:
                checkpoints.append((step, path))
        paths = [path for _, path in sorted(checkpoints)]
        for path in paths or [judge_or_run]:
            judge_by_resolved_path.setdefault(path.resolve(), path)
    return list(judge_by_resolved_path.values())


if __name__ == "__main__":
    main()
