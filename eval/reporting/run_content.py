"""What a report is made of, read from a run folder or from the output folder of a sweep: log, provenance and results."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet
from pydantic import ValidationError

from mmrm.data.config.layers import read_yaml
from mmrm.data.errors import UserError
from mmrm.data.storage.files import read_json
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.judges.judge_card import recorded
from mmrm.eval.results.predictions import OWN, read_predictions
from mmrm.eval.results.result import Result, read_result
from mmrm.eval.results.result_store import step_of
from mmrm.eval.results.run_folder import (
    ABLATION,
    BEST,
    HELD_OUT_RECORDS,
    LOG,
    PROVENANCE,
    RECIPE,
    STATE,
    SWEEP,
)

TABLES = "completions"
"""The folder in which trl keeps a table of rollouts for every line of the log."""

STAGES = 3
"""Tables shown: the first, the last and those at equal distances between them."""

PROMPTS = 4
"""Prompts shown of a table: the first one, then those whose judgements earned most differently."""

JUDGEMENTS = 4
"""Different judgements shown of a prompt, from the best to the worst paid."""

START = "start"
"""The folder with what was measured before training."""

FIGURES = {
    "greedy": "greedy",
    "sampled": "sampled",
    "best": "best of {}",
    "pass": "pass@{}",
    "majority": "majority of {}",
}
"""The accuracies of a policy's answers, and what each is called with the number of sampled answers."""

LOGGED = re.compile(rf"eval_([^/]+)/({'|'.join(FIGURES)})")
"""What the log has of them."""

EARNED = {"judgement": ("result", "consistency", "format"), "answer": ("right", "judge", "format")}
"""The column of what a judge's judgement or a policy's answer earned, and those of its parts; the first is 0 for a wrong one."""


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a checkpoint on a benchmark, and the file of its predictions."""

    result: Result
    predictions: Path

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of predictions.jsonl; raises OSError if it is not there, UserError if it is broken."""
        return read_predictions(self.predictions)


@dataclass(frozen=True, slots=True)
class ReportedCheckpoint:
    """A checkpoint and what was measured of it."""

    name: str
    run: str
    step: int | None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By benchmark, with the real images."""
    ablations: dict[str, dict[str, Result]] = field(default_factory=dict)
    """By benchmark, then by what became of the images."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """What a policy's answers to a set of questions are worth; see `summary` in eval/policies/answering.py."""

    name: str
    steps: dict[int, Row]
    """The figures by step, 0 being the start; of a checkpoint that was rotated away the means, from the log."""
    files: dict[int, Path]
    """The answers to each question, a line a question, by step."""
    source: Any
    """Where the questions come from, as the recipe says it; None without a recipe."""


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a page shows."""

    title: str
    about: str
    """One line on what the page is about."""
    checkpoints: Sequence[ReportedCheckpoint]
    """In the order of their steps, run by run."""
    shown: ReportedCheckpoint
    """The one whose results stand on the page in full; one without results where nothing was evaluated."""
    why_shown: str
    problems: Sequence[str]
    """Files that could not be read, and judges that could not be evaluated."""
    provenance: Sequence[Row] = ()
    """One entry for each launch; see train/runs/provenance.py."""
    recipe: str = ""
    log: Sequence[Row] = ()
    rollouts: Sequence[Row] = ()
    """Examples of what an RL run sampled."""
    benchmarks: Sequence[BenchmarkConfig] = ()
    """Where the run's recipe says that the benchmarks lie."""
    questions: Sequence[QuestionSet] = ()
    """Of a policy."""
    best: int | None = None
    """The step of the run's best checkpoint, where there is one."""
    held_out: Path | None = None
    """The file of the records that `data.validation` withheld from training; None if the run has none."""


def read_run(folder: Path) -> Content:
    """Return what a run folder holds; one without checkpoint-N is taken for a checkpoint itself.

    Shown in full is the run's best checkpoint where it was evaluated, else the last that was.
    Raises: UserError if it holds neither a log nor results, CheckpointError for a recipe that cannot be read.
    """
    problems: list[str] = []
    title = folder.resolve().name
    run = recorded(folder / "checkpoint") if (folder / RECIPE).is_file() else None
    order = [config.name for config in run.benchmarks] if run else []
    saved = sorted(
        filter(Path.is_dir, folder.glob("checkpoint-*")), key=lambda path: step_of(path) or 0
    )
    places = saved or [folder]
    checkpoints = [_checkpoint(title, place, order, problems) for place in places]
    evaluated = [checkpoint for checkpoint in checkpoints if checkpoint.outcomes]
    log = _lines(folder / LOG, problems) if (folder / LOG).is_file() else _log(places, problems)
    questions = question_sets(folder, places, log, problems)
    if not log and not evaluated and not questions:
        inside = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise UserError(
            f"{folder}: nothing to report; found is {inside}. {' '.join(problems)} Required is a run folder with "
            f"checkpoint-N/{STATE}, checkpoint-N/eval/*.json or checkpoint-N/answers/*.json, the output folder of a sweep "
            f"with its {SWEEP}, or that of a list with its {ABLATION}."
        )
    best = (folder / BEST).resolve().name
    shown = next((one for one in evaluated if one.name == best), (evaluated or checkpoints)[-1])
    provenance = read_json(folder / PROVENANCE) if (folder / PROVENANCE).is_file() else []
    about = f"Checkpoints on disk: {len(saved)}."
    if provenance:
        recipe = provenance[-1]["recipe"]
        about = f"Method {recipe['method']['type']} on {recipe['backbone']['path']}. {about}"
    else:
        about += f" There is no {PROVENANCE}: recipe, commit and versions are unknown."
    return Content(
        title,
        about,
        checkpoints,
        shown,
        "the best of the run by its recipe" if shown.name == best else "the last with results",
        problems,
        provenance,
        (folder / RECIPE).read_text(encoding="utf-8") if run else "",
        log,
        rollouts(folder, problems),
        run.benchmarks if run else (),
        questions,
        step_of(Path(best)),
        _held_out_records(folder),
    )


def _held_out_records(folder: Path) -> Path | None:
    """Return the held-out records of a run, whose folder, or that of one of its checkpoints, is `folder`."""
    place = folder.resolve()
    for run in (place, place.parent):
        records = run / HELD_OUT_RECORDS
        if records.is_file():
            return records
    return None


def _checkpoint(
    run: str, place: Path, order: Sequence[str], problems: list[str]
) -> ReportedCheckpoint:
    """Return a checkpoint with its results, benchmarks in the recipe's order; a file that is no result goes to `problems`."""
    checkpoint = ReportedCheckpoint(place.name, run, step_of(place))
    for file in sorted(
        (place / "eval").rglob("*.json"),
        key=lambda file: ([*order, file.stem].index(file.stem), file),
    ):
        try:
            result = read_result(file)
        except ValidationError as error:
            problems.append(f"{file} is left out, it is no result: {error.errors()[0]['msg']}.")
            continue
        images = result.protocol["images"]
        if images == "real":
            checkpoint.outcomes[result.benchmark] = Outcome(result, file.with_suffix("") / OWN)
        else:
            checkpoint.ablations.setdefault(result.benchmark, {})[images] = result
    return checkpoint


def question_sets(
    folder: Path, places: Sequence[Path], log: Sequence[Row], problems: list[str]
) -> list[QuestionSet]:
    """Return what a policy's answers at its start and at every checkpoint are worth; a file that is broken goes to `problems`.

    What lies in the run folder itself belongs to its last step: train/ablate.py keeps it there when checkpoints go.
    """
    steps: dict[str, dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    files: dict[str, dict[int, Path]] = defaultdict(dict)
    for line in log:
        for match in filter(None, map(LOGGED.fullmatch, line)):
            steps[match[1]][int(line["step"])][match[2]] = {"mean": line[match[0]]}
    last = max((int(line["step"]) for line in log), default=0)
    for step, place in [
        (0, folder / START),
        (last, folder),
        *((step_of(place) or last, place) for place in places),
    ]:
        for file in sorted((place / "answers").glob("*.json")):
            try:
                steps[file.stem][step] = read_json(file)
            except json.JSONDecodeError as error:
                problems.append(
                    f"{file} is left out, it is no JSON: {error}. Was the run killed while it was saving?"
                )
                continue
            if (rows := file.with_suffix(".jsonl")).is_file():
                files[file.stem][step] = rows
    recipe = read_yaml(folder / RECIPE).plain() if steps and (folder / RECIPE).is_file() else None
    sources = (
        {
            source.get("name") or source["type"]: source
            for source in recipe["evaluation"]["questions"]
        }
        if recipe
        else {}
    )
    return [
        QuestionSet(name, dict(sorted(by_step.items())), files[name], sources.get(name))
        for name, by_step in steps.items()
    ]


def _lines(file: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the lines of a log to which a run may write just now: the last one counts once it is whole."""
    found = []
    for number, line in enumerate(
        file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines(), start=1
    ):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            problems.append(f"{file}: line {number} is left out, it is no JSON: {error}.")
    return found


def _log(places: Sequence[Path], problems: list[str]) -> list[dict[str, Any]]:
    """Return the log of the newest checkpoint that has one; a file that was cut off is named in `problems`."""
    for file in (place / STATE for place in reversed(places) if (place / STATE).is_file()):
        try:
            return list(read_json(file)["log_history"])
        except json.JSONDecodeError as error:
            problems.append(
                f"{file} is left out, it is no JSON: {error}. Was the run killed while it was saving?"
            )
    return []


def read_sweep(folder: Path) -> Content:
    """Return what a sweep found; shown in full is the judge that is the best on its first benchmark.

    Raises: UserError if no judge was evaluated, or a result is gone from the folder.
    """
    sweep = read_json(folder / SWEEP)
    problems = [
        f"{judge} could not be evaluated: {problem}" for judge, problem in sweep["broken"].items()
    ]
    if not sweep["results"]:
        raise UserError(f"{folder / SWEEP}: no judge was evaluated. {' '.join(problems)}")
    found: dict[str, ReportedCheckpoint] = {}
    for entry in sweep["results"]:
        judge, name = entry["judge"], entry["benchmark"]
        place = folder / entry["folder"] / name
        if not (file := place.with_name(f"{name}.json")).is_file():
            raise UserError(
                f"{file} is not there, but {SWEEP} names it. Run the sweep again by the same command: it computes only what "
                "is missing."
            )
        checkpoint = found.setdefault(judge, ReportedCheckpoint(judge, entry["run"], entry["step"]))
        checkpoint.outcomes[name] = Outcome(read_result(file), place / OWN)
    benchmark, best = next(iter(sweep["best"].items()))
    about = f"A sweep over {len(found)} judges. Protocol: {sweep['protocol']}."
    return Content(
        folder.resolve().name,
        about,
        list(found.values()),
        found[best],
        f"the best on {benchmark}",
        problems,
    )


def rollouts(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return what the rollout tables of a run folder hold, cut to what a person reads; a run that is not RL has none.

    Each entry has `step`, the number of `prompts` in the table, and those that are `shown`, by `_prompt`. A table that was cut
    off is named in `problems`.
    """
    steps = {
        file: file.stem.rpartition("_")[2]
        for file in (folder / TABLES).glob("completions_*.parquet")
    }
    files = {int(step): file for file, step in steps.items() if step.isdecimal()}
    found = []
    for step in spread(sorted(files), STAGES):
        try:
            rows = parquet.read_table(files[step]).to_pylist()
        except (pyarrow.ArrowInvalid, OSError) as error:
            problems.append(
                f"{files[step]} is left out, it is no table: {error}. Was the run killed while it was saving?"
            )
            continue
        if rows:
            prompts = [_prompt(list(block)) for _, block in groupby(rows, _identity)]
            rest = sorted(
                prompts[1:], key=lambda one: one["shown"][-1]["earned"] - one["shown"][0]["earned"]
            )
            found.append(
                {"step": step, "prompts": len(prompts), "shown": [prompts[0], *rest[: PROMPTS - 1]]}
            )
    return found


def _prompt(block: Sequence[Row]) -> dict[str, Any]:
    """Return a prompt with its different texts, the best paid first; of many the best, the worst and some between.

    Each that is `shown` is a row of the table with its `text`, what it `earned`, the `parts` of that, and how many `times` the
    prompt has it. `winner` is None for a policy.
    """
    texts = [_text(row["completion"]) for row in block]
    times = Counter(texts)
    kind = next(kind for kind in EARNED if kind in block[0])
    different = [
        {
            **row,
            "text": text,
            "times": times[text],
            "earned": row[kind],
            "parts": {part: row[part] for part in EARNED[kind] if part in row},
        }
        for text, row in dict(zip(texts, block, strict=True)).items()
    ]
    record, winner, request = _identity(block[0])
    return {
        "record": record,
        "winner": winner,
        "request": request,
        "judgements": len(block),
        "different": len(different),
        "right": sum(row[EARNED[kind][0]] > 0 for row in block),
        "shown": spread(sorted(different, key=lambda row: -row["earned"]), JUDGEMENTS),
    }


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return up to `most` of the items: the first, the last and those at equal distances between them."""
    places = {round((len(items) - 1) * part / (most - 1)) for part in range(most)} if items else ()
    return [items[place] for place in sorted(places)]


def _identity(row: Row) -> tuple[str, int | None, str]:
    """Return the record, its better response as a judge was shown them (1 or 2; of a policy None), and what was asked."""
    return row["record"], row.get("winner"), _text(row["prompt"])


def _text(messages: Iterable[Row]) -> str:
    return "\n".join(message["content"] for message in messages)
