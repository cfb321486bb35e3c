"""Evaluate judges on reward benchmarks, score predictions made elsewhere, compare what was evaluated.

python eval/run.py runs/a/best                                              # the benchmarks of the run's own recipe
deepspeed eval/run.py runs/a/best --benchmarks vl_rewardbench=hub multimodal_rewardbench=hub
python eval/run.py runs/a/best --benchmarks vl_rewardbench=embedded,limit=100 --ablations
python eval/run.py recipes/judges/r1_reward.yaml --benchmarks vl_rewardbench=hub    # a released reward model
python eval/run.py judge.yaml --benchmarks vl_rewardbench=hub --protocol votes=5    # an ensemble, or a judge on a server
python eval/run.py --score predictions.jsonl --benchmark vl_rewardbench --rules r1_reward
python eval/run.py --score official.jsonl --benchmark vl_rewardbench=hub --k 5      # also compared with the hub's rows
python eval/run.py --compare runs/a/checkpoint-200 runs/b/checkpoint-200

A judge is a checkpoint folder, or a YAML file as the files eval/judges/*/config.py describe it. Results lie beside
it: CHECKPOINT/eval/<benchmark>.json, CHECKPOINT/eval/<benchmark>/predictions.jsonl and the official predictions
files; those of judge.yaml in judge/eval. A killed evaluation is continued by the same command, on any number of ranks:
what was judged stands in <benchmark>/journal.jsonl until the command is done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.errors import PredictionsError, UserError
from mmrm.data.storage.files import write_json
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.editions import EMBEDDED
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.cli import add_shared, benchmark, rank_device, task_of
from mmrm.eval.journal import Journal
from mmrm.eval.protocol import Images
from mmrm.eval.results.official_scores import readers, score_predictions_file
from mmrm.eval.results.result import LIMITED, Result, read_result
from mmrm.eval.results.summary_table import comparison_table, results_table, score_table
from mmrm.models.config import checkpoint_at

if TYPE_CHECKING:
    from mmrm.eval.judges.judge import Judge
    from mmrm.eval.suite.suite import Suite

REAL, *ABLATED = get_args(Images)
Results = dict[str, Result]
"""By benchmark."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for; what a user can put right ends with a message and no traceback."""
    options = parse(arguments)
    console = plain_console(width=max(plain_console().width, 125), highlight=False)
    with command():
        if options.score:
            score(options, console)
        elif options.compare:
            console.print(comparison_table(*options.compare).rich())
        else:
            judge_all(options, console)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; a command line that fits no use ends the process with status 2."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "eval/run.py", description=__doc__, epilog=rules_listed(), formatter_class=form
    )
    parser.add_argument(
        "judges", nargs="*", type=Path, metavar="JUDGE", help="checkpoint folders or YAML files"
    )
    add_shared(parser)
    parser.add_argument(
        "--ablations", action="store_true", help="also without, with grey and with shuffled images"
    )
    parser.add_argument(
        "--score", type=Path, metavar="FILE", help="predictions in one of the formats below"
    )
    parser.add_argument(
        "--benchmark",
        type=benchmark,
        metavar="NAME[=PLACE]",
        help=f"what --score is of: {', '.join(BENCHMARKS)}. The file is compared with the rows at PLACE (as in --benchmarks); "
        "without one with those it was evaluated on, if its result lies beside it, else with the published ids",
    )
    parser.add_argument(
        "--rules",
        help="published rules to score by; default: those that belong to the file's format",
    )
    parser.add_argument(
        "--k",
        type=int,
        help="votes an item that vl_rewardbench's official rules take: 1, 3, 5, 7 or 9",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="accept a file with missing, duplicated or unknown rows",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A", "B"),
        help="checkpoints, runs or folders with predictions",
    )
    options = parser.parse_args(arguments)
    if sum(map(bool, (options.judges, options.score, options.compare))) != 1:
        parser.error("give either JUDGES, or --score FILE, or --compare A B")
    if bool(options.score) != bool(options.benchmark):
        parser.error("--score and --benchmark go together")
    if not options.score and (options.rules or options.k is not None or options.partial):
        parser.error("--rules, --k and --partial are for --score")
    if options.ablations and options.images:
        parser.error("--ablations holds all of --images; give one of them")
    return options


def rules_listed() -> str:
    """Return for `--help` the rules of each benchmark, the file formats they read, and what differs from the released script."""
    lines = ["what --score reads, and the rules it scores by"]
    for name, scored in BENCHMARKS.items():
        lines += ["", f"{name}: file formats"]
        for form, about in scored.files.items():
            default = f"; default rules: {about.rules}" if about.rules else ""
            lines += [
                f"  {form}: {about.about}",
                f"    scored by {', '.join(readers(form, scored))}{default}",
            ]
        lines.append(f"{name}: rules")
        for rules, rule in scored.rules.items():
            lines += [
                f"  {rules} (reads {rule.reads}): {rule.about}",
                f"    differs from the released script: {rule.differs}",
            ]
    return "\n".join(lines)


def score(options: argparse.Namespace, console: Console) -> None:
    """Score a predictions file; figures in full precision, and with `--output` everything that the rules compute.

    Raises: PredictionsError, once the figures are printed, for a file that does not hold each row once, unless `--partial`.
    """
    name = options.benchmark.name
    where = (
        options.benchmark
        if "location" in options.benchmark.model_fields_set
        else evaluated_on(options.score)
    )
    found, compared = score_predictions_file(
        options.score, BENCHMARKS[name], options.rules, options.k, where
    )
    console.print(score_table(name, found).rich())
    for line in compared.lines():
        console.print(line, soft_wrap=True)
    if options.output:
        file = options.output / f"{name}.{found['rules']}.json"
        with locked_folder(options.output):
            write_json(file, found)
        console.print(f"written: {file}")
    if not (compared.whole or options.partial):
        raise PredictionsError(
            f"{options.score} does not hold each row of {name} once and no other, so that its figures are not the benchmark's. "
            "Complete the file, name the place of its rows (--benchmark NAME=PLACE), or accept it as it is: --partial."
        )


def evaluated_on(predictions: Path) -> Location | None:
    """Return the place of the rows that a file of our own was evaluated on, as the result beside it says; None without one."""
    beside = predictions.resolve().parent.with_suffix(".json")
    if not beside.is_file():
        return None
    result = read_result(beside)
    if result.origin not in EMBEDDED and not Path(result.origin).exists():
        return None
    limited = any(note.startswith(LIMITED) for note in result.notes)
    return Location(
        location=result.origin, limit=result.micro.n + len(result.unavailable) if limited else None
    )


def judge_all(options: argparse.Namespace, console: Console) -> None:
    """Evaluate every judge; on several ranks all take part and the first one prints and writes.

    The first rank holds the lock of every folder of results from the beginning, so that nothing is judged in vain.
    """
    judges = [Path(checkpoint_at(str(given))) for given in options.judges]
    # Refuse a wrong command line before torch is imported, which takes seconds.
    tasks = [task_of(options, judge) for judge in judges]
    with rank_device() as device, ExitStack() as stack:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.judges.loading import load_judge
        from mmrm.eval.suite.fingerprint import shared_digest
        from mmrm.eval.suite.suite import Suite
        from mmrm.models.distributed import locked_by_first_rank, rank

        for folder in folders_of_results(options, judges):
            stack.enter_context(locked_by_first_rank(locked_folder(folder)))
        runtime = Runtime(device, options.token_budget)
        load_suite = cache(Suite.load)
        journals: list[Journal] = []
        for judge, task in zip(judges, tasks, strict=True):
            folder = folder_of(options, judge)
            suite = load_suite(task.benchmarks, task.protocol)
            if options.output is None:
                keep_whole_results(suite, folder)
            loaded_judge = load_judge(judge, runtime).judge
            results, ablations = evaluate(
                loaded_judge,
                shared_digest(judge),
                suite,
                folder,
                journals,
                ablations=options.ablations,
            )
            if rank():
                continue
            console.print(
                results_table(
                    results, title=str(judge), baselines=task.baselines, ablations=ablations
                ).rich()
            )
            for name, result in results.items():
                for note in result.notes:
                    console.print(f"{name}: {note}", soft_wrap=True)
            console.print(f"results and predictions: {folder}", soft_wrap=True)
        if rank() == 0:
            for journal in journals:
                journal.remove()


def keep_whole_results(suite: Suite, folder: Path) -> None:
    """Refuse to replace stored figures by figures of fewer rows.

    The report and `--compare` would then read the figures of fewer rows.
    """
    for name, (_, rows) in suite.benchmarks.items():
        file = folder / f"{name}.json"
        if not file.is_file():
            continue
        num_stored = read_result(file).micro.n
        num_rows = len(rows.examples)
        if num_stored > num_rows:
            raise UserError(
                f"{file} holds the figures of {num_stored:,} rows, and those of {num_rows:,} would "
                "take their place. For a quick look give another folder (--output FOLDER), or remove "
                "the file first."
            )


def folder_of(options: argparse.Namespace, judge: Path) -> Path:
    """Return the folder for the results of a judge.

    It is inside the checkpoint or next to the YAML file. With `--output` it is that folder, or a
    folder for each judge below it if there are several.
    """
    if options.output is None:
        base = judge if judge.is_dir() else judge.with_suffix("")
        return base / "eval"
    if len(options.judges) == 1:
        return Path(options.output)
    name = "-".join(judge.resolve().with_suffix("").parts[-2:])
    return Path(options.output, name)


def folders_of_results(options: argparse.Namespace, judges: Sequence[Path]) -> list[Path]:
    """Return the folders that get the results of the judges.

    Raises: UserError if two judges would write into the same one.
    """
    judge_by_folder: dict[Path, Path] = {}
    for judge in judges:
        folder = folder_of(options, judge)
        other = judge_by_folder.setdefault(folder.resolve(), judge)
        if other != judge:
            raise UserError(
                f"The results of {other} and of {judge} would both go to {folder}, and only one of them would be left. Evaluate "
                "them by two commands with different --output."
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
    """Return the results on a suite, and those of the ablations by what became of the images; add the journals.

    An ablation's files lie in `ablations/<images>`, so that they never stand where the score is looked for. `digest` is the
    judge's, as `judge_digest` returns it.
    """
    from mmrm.eval.suite.fingerprint import fingerprint, rows_digest
    from mmrm.eval.suite.suite import journal_in

    found: dict[Images, Results] = {}
    for images in dict.fromkeys([suite.protocol.images, *(ABLATED if ablations else [])]):
        seen = replace(suite, protocol=suite.protocol.model_copy(update={"images": images}))
        place = folder if images == REAL else folder / "ablations" / images
        found[images] = {}
        for name, (_, rows) in seen.benchmarks.items():
            mark = fingerprint(digest, rows_digest(rows.examples), seen.protocol)
            journal = journal_in(place, name, mark, plain_console(stderr=True))
            journals.append(journal)
            evaluation = seen.evaluate(name, judge, place, with_notes=True, journal=journal)
            found[images][name] = evaluation.result
    return found.pop(suite.protocol.images), found


if __name__ == "__main__":
    main()
