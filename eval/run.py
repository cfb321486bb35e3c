"""Evaluate judges on reward benchmarks, score files of predictions, and compare evaluated judges.

python eval/run.py runs/a/best                                              # the benchmarks of the run's own recipe
deepspeed eval/run.py runs/a/best --benchmarks vl_rewardbench=hub multimodal_rewardbench=hub
python eval/run.py runs/a/best --benchmarks vl_rewardbench=embedded,limit=100 --ablations
python eval/run.py recipes/judges/r1_reward.yaml --benchmarks vl_rewardbench=hub    # a released reward model
python eval/run.py judge.yaml --benchmarks vl_rewardbench=hub --protocol votes=5    # an ensemble, or a judge on a server
python eval/run.py --score predictions.jsonl --benchmark vl_rewardbench --rules r1_reward
python eval/run.py --score official.jsonl --benchmark vl_rewardbench=hub --k 5      # also compared with the hub's rows
python eval/run.py --compare runs/a/checkpoint-200 runs/b/checkpoint-200

A judge is a checkpoint folder, or a YAML file with the keys that the files eval/judges/*/config.py
describe. The results of a checkpoint are written to CHECKPOINT/eval/<benchmark>.json and
CHECKPOINT/eval/<benchmark>/predictions.jsonl, with the official predictions files next to the
latter. The results of judge.yaml are written to judge/eval. The same command continues an
interrupted evaluation, on any number of ranks: the judgements are kept in <benchmark>/journal.jsonl
until the command has ended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT
from mmrm.data.errors import PredictionsError, UserError
from mmrm.data.package import recipe_path
from mmrm.data.storage.files import write_json
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.editions import EMBEDDED
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.cli import (
    ABLATED_IMAGES,
    add_evaluation_options,
    benchmark,
    rank_device,
    task_of,
)
from mmrm.eval.journal import Journal
from mmrm.eval.protocol import Images
from mmrm.eval.results.official_scores import rules_for_format, score_predictions_file
from mmrm.eval.results.result import LIMITED, Result, read_result
from mmrm.eval.results.summary_table import comparison_table, results_table, score_table
from mmrm.models.config import checkpoint_at

if TYPE_CHECKING:
    from mmrm.eval.judges.judge import Judge
    from mmrm.eval.suite.suite import Suite

Results = dict[str, Result]
"""The results of a judge, by the name of the benchmark."""
MIN_WIDTH = 125
"""The fewest columns of the printed tables, also on a narrower terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate judges, or score a file of predictions, or compare two evaluated judges.

    Errors that a user can correct end the command with a message and no traceback.
    """
    options = parse(arguments)
    console = plain_console(width=max(plain_console().width, MIN_WIDTH), highlight=False)
    with exit_on_user_error():
        if options.score:
            score(options, console)
        elif options.compare:
            console.print(comparison_table(*options.compare).rich())
        else:
            judge_all(options, console)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line. A wrong command line ends the process with status 2."""
    parser = CommandParser("eval/run.py", __doc__, epilog=help_on_rules())
    parser.add_argument(
        "judges",
        nargs="*",
        type=recipe_path,
        metavar="JUDGE",
        help="Checkpoint folders or YAML files of judges.",
    )
    add_evaluation_options(parser)
    parser.add_argument(
        "--ablations",
        action="store_true",
        help="Evaluate also without images, with grey images and with shuffled images.",
    )
    parser.add_argument(
        "--score",
        type=Path,
        metavar="FILE",
        help="A file of predictions in one of the formats below.",
    )
    parser.add_argument(
        "--benchmark",
        type=benchmark,
        metavar="NAME[=PLACE]",
        help=f"The benchmark of the file of --score: {', '.join(BENCHMARKS)}. The file is compared "
        "with the rows at PLACE, which is written as in --benchmarks. Without PLACE it is compared "
        "with the rows on which it was evaluated, if its result is next to it, and otherwise with "
        "the published ids.",
    )
    parser.add_argument(
        "--rules",
        help="The published rules to score by. The default is the rules that belong to the file's "
        "format.",
    )
    parser.add_argument(
        "--k",
        type=COUNT,
        help="The number of votes for each item under the official rules of vl_rewardbench: 1, 3, "
        "5, 7 or 9.",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="Accept a file with missing, duplicated or unknown rows.",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A", "B"),
        help="Two checkpoints, runs or folders with predictions to compare.",
    )
    options = parser.parse_args(arguments)
    num_tasks = sum(map(bool, (options.judges, options.score, options.compare)))
    if num_tasks != 1:
        parser.error("give either JUDGES, or --score FILE, or --compare A B")
    if bool(options.score) != bool(options.benchmark):
        parser.error("--score and --benchmark go together")
    has_options_of_score = options.rules or options.k is not None or options.partial
    if has_options_of_score and not options.score:
        parser.error("--rules, --k and --partial are for --score")
    if options.ablations and options.images:
        parser.error("--ablations holds all of --images; give one of them")
    return options


def help_on_rules() -> str:
    """Return the part of `--help` that describes the published rules of scoring.

    For each benchmark it lists the formats of files, and the rules with their differences from the
    released script.
    """
    lines = ["what --score reads, and the rules it scores by"]
    for name, scored_benchmark in BENCHMARKS.items():
        lines += ["", f"{name}: file formats"]
        for format_name, file_format in scored_benchmark.files.items():
            names_of_rules = ", ".join(rules_for_format(format_name, scored_benchmark))
            default = f"; default rules: {file_format.rules}" if file_format.rules else ""
            lines.append(f"  {format_name}: {file_format.about}")
            lines.append(f"    scored by {names_of_rules}{default}")
        lines.append(f"{name}: rules")
        for rule_name, rule in scored_benchmark.rules.items():
            lines.append(f"  {rule_name} (reads {rule.reads}): {rule.about}")
            lines.append(f"    differs from the released script: {rule.differs}")
    return "\n".join(lines)


def score(options: argparse.Namespace, console: Console) -> None:
    """Score the predictions file of `--score` by the published rules of its benchmark.

    The table of figures is printed. With `--output` all figures are also written as JSON.

    Raises:
        PredictionsError: If the file does not hold each row of the benchmark exactly once and
            `--partial` is not given. The figures are printed before.
    """
    name = options.benchmark.name
    # The settings of a benchmark are also the location of its rows.
    location: Location | None = options.benchmark
    has_location = "location" in options.benchmark.model_fields_set
    if not has_location:
        location = location_of_evaluated_rows(options.score)
    figures, coverage = score_predictions_file(
        options.score, BENCHMARKS[name], options.rules, options.k, location
    )
    console.print(score_table(name, figures).rich())
    for line in coverage.lines():
        console.print(line, soft_wrap=True)
    if options.output:
        file = options.output / f"{name}.{figures['rules']}.json"
        with locked_folder(options.output):
            write_json(file, figures)
        console.print(f"written: {file}")
    if not (coverage.whole or options.partial):
        raise PredictionsError(
            f"{options.score} does not hold each row of {name} once and no other, so that its "
            "figures are not the benchmark's. Complete the file, name the place of its rows "
            "(--benchmark NAME=PLACE), or accept it as it is: --partial."
        )


def location_of_evaluated_rows(predictions: Path) -> Location | None:
    """Return the location of the benchmark rows to which the lines of a predictions file belong.

    It is read from the result `<benchmark>.json`, which eval/run.py writes next to the folder of
    the predictions file. Returns None if there is no such result, or if the rows are no longer
    there.
    """
    result_file = predictions.resolve().parent.with_suffix(".json")
    if not result_file.is_file():
        return None
    result = read_result(result_file)
    if result.origin not in EMBEDDED and not Path(result.origin).exists():
        return None
    # A note tells that `limit` rows were drawn from the benchmark. Their number is that of the rows
    # that were judged and of those that could not be shown.
    is_limited = any(note.startswith(LIMITED) for note in result.notes)
    limit = result.micro.n + len(result.unavailable) if is_limited else None
    return Location(location=result.origin, limit=limit)


def judge_all(options: argparse.Namespace, console: Console) -> None:
    """Evaluate every judge of the command line, print a table of its results, and write them.

    All ranks judge, and the first one prints and writes. The first rank locks every folder of
    results before anything is judged, so that no other command writes there meanwhile.
    """
    # A run folder stands for its best checkpoint.
    judges = [Path(checkpoint_at(str(path))) for path in options.judges]
    # Refuse a wrong command line before torch is imported, which takes seconds.
    tasks = [task_of(options, judge) for judge in judges]
    with rank_device() as device, ExitStack() as stack:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.judges.loading import load_judge
        from mmrm.eval.suite.fingerprint import shared_digest
        from mmrm.eval.suite.suite import Suite
        from mmrm.models.distributed import locked_by_first_rank, rank

        for folder in distinct_results_folders(options, judges):
            stack.enter_context(locked_by_first_rank(locked_folder(folder)))
        runtime = Runtime(device, options.token_budget)
        # Judges with the same benchmarks and protocol share the loaded rows.
        load_suite = cache(Suite.load)
        journals: list[Journal] = []
        for judge, task in zip(judges, tasks, strict=True):
            folder = results_folder(options, judge)
            suite = load_suite(task.benchmarks, task.protocol)
            if options.output is None:
                refuse_results_of_fewer_rows(suite, folder)
            loaded_judge = load_judge(judge, runtime).judge
            results, ablations = evaluate(
                loaded_judge,
                shared_digest(judge),
                suite,
                folder,
                journals,
                ablations=options.ablations,
            )
            if rank() != 0:
                continue
            table = results_table(
                results, title=str(judge), baselines=task.baselines, ablations=ablations
            )
            console.print(table.rich())
            for name, result in results.items():
                for note in result.notes:
                    console.print(f"{name}: {note}", soft_wrap=True)
            console.print(f"results and predictions: {folder}", soft_wrap=True)
        # The results of all judges are written, so the judgements are not needed any more.
        if rank() == 0:
            for journal in journals:
                journal.remove()


def refuse_results_of_fewer_rows(suite: Suite, folder: Path) -> None:
    """Raise UserError if a folder holds results of more rows than the suite would evaluate.

    The new results would replace them, and the report and `--compare` would then read figures of
    fewer rows.
    """
    for name, (_, loaded_benchmark) in suite.benchmarks.items():
        file = folder / f"{name}.json"
        if not file.is_file():
            continue
        num_stored = read_result(file).micro.n
        num_rows = len(loaded_benchmark.examples)
        if num_stored > num_rows:
            raise UserError(
                f"{file} holds the figures of {num_stored:,} rows, and those of {num_rows:,} would "
                "take their place. For a quick look give another folder (--output FOLDER), or "
                "remove the file first."
            )


def results_folder(options: argparse.Namespace, judge: Path) -> Path:
    """Return the folder to which the results of a judge are written.

    Without `--output` it is `eval` in the checkpoint folder, or `NAME/eval` next to NAME.yaml. With
    `--output` it is that folder if the command has one judge, and otherwise a subfolder of it that
    is named for the judge.
    """
    if options.output is None:
        base = judge if judge.is_dir() else judge.with_suffix("")
        return base / "eval"
    if len(options.judges) == 1:
        return Path(options.output)
    # Such as run-checkpoint-200: the names of checkpoints alone are equal in all runs.
    name = "-".join(judge.resolve().with_suffix("").parts[-2:])
    return Path(options.output, name)


def distinct_results_folders(options: argparse.Namespace, judges: Sequence[Path]) -> list[Path]:
    """Return the folders to which the results of the judges are written, each once.

    Raises:
        UserError: If two judges would write into the same folder.
    """
    judge_by_folder: dict[Path, Path] = {}
    for judge in judges:
        folder = results_folder(options, judge)
        first_judge = judge_by_folder.setdefault(folder.resolve(), judge)
        if first_judge != judge:
            raise UserError(
                f"The results of {first_judge} and of {judge} would both go to {folder}, and only "
                "one of them would be left. Evaluate them by two commands with different --output."
            )
    return list(judge_by_folder)


def evaluate(
    judge: Judge,
    digest: str,
    suite: Suite,
    folder: Path,
    journals: list[Journal],
    *,
    ablations: bool,
) -> tuple[Results, dict[Images, Results]]:
    """Evaluate a judge on the benchmarks of a suite, also without the images if asked to.

    Returns:
        Two dictionaries. The first holds the results under the suite's protocol by the name of the
        benchmark. The second holds, for `none`, `grey` and `shuffled`, the same results with images
        that are left out, grey or shuffled. It is empty without `ablations`.

    Args:
        judge: The judge.
        digest: The digest of the judge's files, as `judge_digest` returns it.
        suite: The benchmarks with their rows, and the protocol.
        folder: The folder for the results. Those of an ablation go to `ablations/<images>` in it,
            so that they are never taken for the results with real images.
        journals: A list to which the journals of the evaluations are appended. The caller removes
            the journals once everything is written.
        ablations: Evaluate also without images, with grey images and with shuffled images.
    """
    from mmrm.eval.suite.fingerprint import fingerprint, rows_digest
    from mmrm.eval.suite.suite import journal_in

    kinds_of_images: list[Images] = [suite.protocol.images]
    if ablations:
        kinds_of_images += [images for images in ABLATED_IMAGES if images not in kinds_of_images]
    results_by_images: dict[Images, Results] = {}
    for images in kinds_of_images:
        protocol = suite.protocol.model_copy(update={"images": images})
        ablated_suite = replace(suite, protocol=protocol)
        result_folder = folder if images == "real" else folder / "ablations" / images
        results: Results = {}
        for name, (_, loaded_benchmark) in suite.benchmarks.items():
            digest_of_rows = rows_digest(loaded_benchmark.examples)
            evaluation_fingerprint = fingerprint(digest, digest_of_rows, protocol)
            journal = journal_in(
                result_folder, name, evaluation_fingerprint, plain_console(stderr=True)
            )
            journals.append(journal)
            evaluation = ablated_suite.evaluate(
                name, judge, result_folder, with_notes=True, journal=journal
            )
            results[name] = evaluation.result
        results_by_images[images] = results
    results_under_protocol = results_by_images.pop(suite.protocol.images)
    return results_under_protocol, results_by_images


if __name__ == "__main__":
    main()
