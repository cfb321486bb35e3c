"""Readers of everything that a page shows: a run folder, or the output folder of a sweep."""

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
from mmrm.eval.judges.judge_card import judge_card_of
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
"""Tables shown: the first, the last, and tables at equal distances between them."""

PROMPTS = 4
"""Prompts shown of a table: the first one, and those whose judgements earned most differently."""

JUDGEMENTS = 4
"""Different judgements shown of a prompt, from the best to the worst paid."""

START = "start"
"""The folder of the results before training."""

FIGURES = {
    "greedy": "greedy",
    "sampled": "sampled",
    "best": "best of {}",
    "pass": "pass@{}",
    "majority": "majority of {}",
}
"""Names of the accuracies of a policy's answers; `{}` is the number of sampled answers."""

LOGGED = re.compile(rf"eval_([^/]+)/({'|'.join(FIGURES)})")
"""Names of these accuracies in the log."""

EARNED = {"judgement": ("result", "consistency", "format"), "answer": ("right", "judge", "format")}
"""Columns of rollout tables: the reward of a judge's judgement or a policy's answer, and its parts.

The first part is 0 for a wrong judgement or answer.
"""

KILLED = "Was the run killed while it was saving?"


JsonRow = Mapping[str, Any]
"""An object of a JSON file, or a row of a table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a checkpoint on a benchmark, and the file of its predictions."""

    result: Result
    predictions: Path

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of predictions.jsonl.

        Raises:
            OSError: If there is no such file.
            UserError: If it is broken.
        """
        return read_predictions(self.predictions)


@dataclass(frozen=True, slots=True)
class ReportedCheckpoint:
    """A checkpoint and its results."""

    name: str
    run: str
    step: int | None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Results with the real images, by benchmark."""
    ablations: dict[str, dict[str, Result]] = field(default_factory=dict)
    """Results without the images, by benchmark and by the replacement of the images."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Figures of a policy's answers to a set of questions; see `summary` in answering.py."""

    name: str
    steps: dict[int, JsonRow]
    """The figures by step, of which 0 is the start.

    A checkpoint that was rotated away has only the means, which are in the log.
    """
    files: dict[int, Path]
    """Files with the answers, a line a question, by step."""
    source: Any
    """The section of the recipe with the source of the questions; None without a recipe."""


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a page shows."""

    title: str
    about: str
    """The subject of the page in one line."""
    checkpoints: Sequence[ReportedCheckpoint]
    """The checkpoints run by run, in the order of their steps."""
    shown: ReportedCheckpoint
    """The checkpoint whose results are shown in full; it has none if nothing was evaluated."""
    why_shown: str
    problems: Sequence[str]
    """Files that could not be read, and judges that could not be evaluated."""
    provenance: Sequence[JsonRow] = ()
    """One entry for each launch; see train/runs/provenance.py."""
    recipe: str = ""
    log: Sequence[JsonRow] = ()
    rollouts: Sequence[JsonRow] = ()
    """Examples of the texts that a reinforcement learning run sampled."""
    benchmarks: Sequence[BenchmarkConfig] = ()
    """The benchmarks in the run's recipe, with their locations."""
    questions: Sequence[QuestionSet] = ()
    """The sets of questions that a policy answered."""
    best: int | None = None
    """The step of the run's best checkpoint, if there is one."""
    held_out: Path | None = None
    """The file of the records that `data.validation` withheld from training; None without it."""


def read_run(folder: Path) -> Content:
    """Return the content of a run folder. A folder without checkpoint-N is read as a checkpoint.

    The run's best checkpoint is shown in full if it was evaluated, else the last one that was.

    Raises:
        UserError: If the folder contains neither a log nor results.
        CheckpointError: If the recipe cannot be read.
    """
    problems: list[str] = []
    title = folder.resolve().name
    run = judge_card_of(folder / "checkpoint") if (folder / RECIPE).is_file() else None
    benchmarks = run.benchmarks if run else ()
    saved = sorted(
        filter(Path.is_dir, folder.glob("checkpoint-*")), key=lambda path: step_of(path) or 0
    )
    folders = saved or [folder]
    order = [config.name for config in benchmarks]
    checkpoints = [_checkpoint(title, place, order, problems) for place in folders]
    evaluated = [checkpoint for checkpoint in checkpoints if checkpoint.outcomes]
    log_file = folder / LOG
    log = _lines(log_file, problems) if log_file.is_file() else _log(folders, problems)
    questions = question_sets(folder, folders, log, problems)
    if not log and not evaluated and not questions:
        contents = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise UserError(
            f"{folder}: nothing to report; found is {contents}. {' '.join(problems)} Required is a "
            f"run folder with checkpoint-N/{STATE}, checkpoint-N/eval/*.json or "
            f"checkpoint-N/answers/*.json, the output folder of a sweep with its {SWEEP}, or that "
            f"of a list with its {ABLATION}."
        )
    best = (folder / BEST).resolve().name
    shown = (evaluated or checkpoints)[-1]
    for checkpoint in evaluated:
        if checkpoint.name == best:
            shown = checkpoint
    why_shown = "the last with results"
    if shown.name == best:
        why_shown = "the best of the run by its recipe"
    provenance = read_json(folder / PROVENANCE) if (folder / PROVENANCE).is_file() else []
    return Content(
        title,
        _about_run(provenance, len(saved)),
        checkpoints,
        shown,
        why_shown,
        problems,
        provenance=provenance,
        recipe=(folder / RECIPE).read_text(encoding="utf-8") if run else "",
        log=log,
        rollouts=rollouts(folder, problems),
        benchmarks=benchmarks,
        questions=questions,
        best=step_of(Path(best)),
        held_out=_held_out_records(folder),
    )


def _about_run(provenance: Sequence[JsonRow], num_saved: int) -> str:
    """Return one line on a run and its number of checkpoints on disk."""
    about = f"Checkpoints on disk: {num_saved}."
    if not provenance:
        return f"{about} There is no {PROVENANCE}: recipe, commit and versions are unknown."
    recipe = provenance[-1]["recipe"]
    return f"Method {recipe['method']['type']} on {recipe['backbone']['path']}. {about}"


def _held_out_records(folder: Path) -> Path | None:
    """Return the held-out records of a run; `folder` is the folder of the run or of a checkpoint."""
    place = folder.resolve()
    for run in (place, place.parent):
        records = run / HELD_OUT_RECORDS
        if records.is_file():
            return records
    return None


def _checkpoint(
    run: str, folder: Path, order: Sequence[str], problems: list[str]
) -> ReportedCheckpoint:
    """Return a checkpoint with its results.

    Args:
        run: Name of the run.
        folder: Folder of the checkpoint.
        order: Names of the benchmarks in the order of the recipe; others follow.
        problems: Gets a sentence for every file that is no result.
    """
    checkpoint = ReportedCheckpoint(folder.name, run, step_of(folder))

    def in_order(file: Path) -> tuple[int, Path]:
        return ([*order, file.stem].index(file.stem), file)

    for file in sorted((folder / "eval").rglob("*.json"), key=in_order):
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
    folder: Path, checkpoints: Sequence[Path], log: Sequence[JsonRow], problems: list[str]
) -> list[QuestionSet]:
    """Return the figures of a policy's answers at its start and at every checkpoint.

    The answers in the run folder itself belong to the last step: train/ablate.py keeps them there
    when it removes checkpoints.

    Args:
        folder: The run folder.
        checkpoints: Folders of its checkpoints.
        log: Lines of its log.
        problems: Gets a sentence for every broken file.
    """
    steps: dict[str, dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    files: dict[str, dict[int, Path]] = defaultdict(dict)
    for line in log:
        for match in filter(None, map(LOGGED.fullmatch, line)):
            steps[match[1]][int(line["step"])][match[2]] = {"mean": line[match[0]]}
    last = max((int(line["step"]) for line in log), default=0)
    places = [(0, folder / START), (last, folder)]
    places += [(step_of(checkpoint) or last, checkpoint) for checkpoint in checkpoints]
    for step, place in places:
        for file in sorted((place / "answers").glob("*.json")):
            try:
                steps[file.stem][step] = read_json(file)
            except json.JSONDecodeError as error:
                problems.append(f"{file} is left out, it is no JSON: {error}. {KILLED}")
                continue
            answers = file.with_suffix(".jsonl")
            if answers.is_file():
                files[file.stem][step] = answers
    sources = _question_sources(folder) if steps else {}
    return [
        QuestionSet(name, dict(sorted(by_step.items())), files[name], sources.get(name))
        for name, by_step in steps.items()
    ]


def _question_sources(folder: Path) -> dict[str, Any]:
    """Return the sources of questions in the recipe of a run by name; empty without a recipe."""
    if not (folder / RECIPE).is_file():
        return {}
    recipe: Any = read_yaml(folder / RECIPE).plain()
    sources = recipe["evaluation"]["questions"]
    return {source.get("name") or source["type"]: source for source in sources}


def _lines(file: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the lines of a log to which a run may be writing, without an unfinished one."""
    whole_lines = file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    rows = []
    for number, line in enumerate(whole_lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            problems.append(f"{file}: line {number} is left out, it is no JSON: {error}.")
    return rows


def _log(checkpoints: Sequence[Path], problems: list[str]) -> list[dict[str, Any]]:
    """Return the log of the newest checkpoint with a readable log."""
    for checkpoint in reversed(checkpoints):
        file = checkpoint / STATE
        if not file.is_file():
            continue
        try:
            return list(read_json(file)["log_history"])
        except json.JSONDecodeError as error:
            problems.append(f"{file} is left out, it is no JSON: {error}. {KILLED}")
    return []


def read_sweep(folder: Path) -> Content:
    """Return the content of a sweep; the best judge on its first benchmark is shown in full.

    Raises:
        UserError: If no judge was evaluated, or a result is missing from the folder.
    """
    sweep = read_json(folder / SWEEP)
    problems = [
        f"{judge} could not be evaluated: {problem}" for judge, problem in sweep["broken"].items()
    ]
    if not sweep["results"]:
        raise UserError(f"{folder / SWEEP}: no judge was evaluated. {' '.join(problems)}")
    checkpoints: dict[str, ReportedCheckpoint] = {}
    for entry in sweep["results"]:
        judge = entry["judge"]
        name = entry["benchmark"]
        place = folder / entry["folder"] / name
        file = place.with_name(f"{name}.json")
        if not file.is_file():
            raise UserError(
                f"{file} is not there, but {SWEEP} names it. Run the sweep again by the same "
                "command: it computes only what is missing."
            )
        checkpoint = checkpoints.setdefault(
            judge, ReportedCheckpoint(judge, entry["run"], entry["step"])
        )
        checkpoint.outcomes[name] = Outcome(read_result(file), place / OWN)
    benchmark, best = next(iter(sweep["best"].items()))
    return Content(
        folder.resolve().name,
        f"A sweep over {len(checkpoints)} judges. Protocol: {sweep['protocol']}.",
        list(checkpoints.values()),
        checkpoints[best],
        f"the best on {benchmark}",
        problems,
    )


def rollouts(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the contents of a run's rollout tables, shortened for the page.

    Each entry has `step`, the number of `prompts` in the table, and the prompts that are `shown`,
    as `_prompt` returns them. Only runs of reinforcement learning have such tables.

    Args:
        folder: The run folder.
        problems: Gets a sentence for every table that was cut off.
    """
    file_by_step: dict[int, Path] = {}
    for file in (folder / TABLES).glob("completions_*.parquet"):
        step_text = file.stem.rpartition("_")[2]
        if step_text.isdecimal():
            file_by_step[int(step_text)] = file
    stages = []
    for step in spread(sorted(file_by_step), STAGES):
        try:
            rows = parquet.read_table(file_by_step[step]).to_pylist()
        except (pyarrow.ArrowInvalid, OSError) as error:
            problems.append(f"{file_by_step[step]} is left out, it is no table: {error}. {KILLED}")
            continue
        if rows:
            first, *others = [_prompt(list(block)) for _, block in groupby(rows, _prompt_key)]
            others.sort(key=_earned_range)
            shown = [first, *others[: PROMPTS - 1]]
            stages.append({"step": step, "prompts": 1 + len(others), "shown": shown})
    return stages


def _earned_range(prompt: JsonRow) -> float:
    """Return the worst paid text of a prompt minus the best paid one, which is at most 0."""
    shown = prompt["shown"]
    return float(shown[-1]["earned"] - shown[0]["earned"])


def _prompt(rows: Sequence[JsonRow]) -> dict[str, Any]:
    """Return a prompt with its different texts, the best paid first.

    Of many texts the best, the worst and some between are `shown`. Each of them is a row of the
    table with its `text`, what it `earned`, the `parts` of that, and how many `times` the prompt
    has it. `winner` is None for a policy.

    Args:
        rows: The rows of the table with this prompt.
    """
    texts = [_text(row["completion"]) for row in rows]
    times = Counter(texts)
    kind = next(kind for kind in EARNED if kind in rows[0])
    different = []
    # Of equal texts the first one gives the order, and the last one the row.
    for text, row in dict(zip(texts, rows, strict=True)).items():
        parts = {part: row[part] for part in EARNED[kind] if part in row}
        shown = {**row, "text": text, "times": times[text], "earned": row[kind], "parts": parts}
        different.append(shown)
    record, winner, request = _prompt_key(rows[0])
    return {
        "record": record,
        "winner": winner,
        "request": request,
        "judgements": len(rows),
        "different": len(different),
        "right": sum(row[EARNED[kind][0]] > 0 for row in rows),
        "shown": spread(sorted(different, key=lambda row: -row["earned"]), JUDGEMENTS),
    }


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return up to `most` of the items: the first, the last, and items evenly between."""
    if not items:
        return []
    indices = {round((len(items) - 1) * part / (most - 1)) for part in range(most)}
    return [items[index] for index in sorted(indices)]


def _prompt_key(row: JsonRow) -> tuple[str, int | None, str]:
    """Return the record, its better response, and the text of a row's prompt.

    The better response is 1 or 2 in the order in which a judge saw them, and None for a policy.
    """
    return row["record"], row.get("winner"), _text(row["prompt"])


def _text(messages: Iterable[JsonRow]) -> str:
    """Return the text of all messages."""
    return "\n".join(message["content"] for message in messages)
