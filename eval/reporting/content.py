"""What a report is made of, read from a run folder: provenance, log, and the results of its checkpoints.

What a report is made of, read from the output folder of a sweep: every judge with its results, and which one is the best.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data.errors import PredictionsError, UserError
from eval.benchmarks.rows import read_json_lines
from eval.benchmarks.table import BenchmarkConfig
from eval.judges.card import RECIPE, recorded
from eval.reporting.rollouts import Stage, rollouts
from eval.results.predictions import OWN
from eval.results.result import Result

PROVENANCE, STATE, BEST = "provenance.json", "trainer_state.json", "best"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a checkpoint on a benchmark, and the folder of its predictions."""

    result: Result
    predictions: Path


@dataclass(frozen=True, slots=True)
class ReportedCheckpoint:
    """A checkpoint and what was measured of it."""

    name: str
    run: str
    step: int | None
    outcomes: Mapping[str, Outcome]
    """By benchmark, with the real images."""
    ablations: Mapping[str, Mapping[str, Result]] = field(default_factory=dict)
    """By benchmark, then by what became of the images."""


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a page shows."""

    title: str
    about: str
    """One line on what the page is about."""
    checkpoints: tuple[ReportedCheckpoint, ...]
    """In the order of their steps, run by run."""
    shown: ReportedCheckpoint | None
    """The one whose results stand on the page in full."""
    why_shown: str
    provenance: tuple[Mapping[str, Any], ...] = ()
    """One entry for each launch; see train/runs/provenance.py."""
    recipe: str = ""
    log: Sequence[Mapping[str, Any]] = ()
    rollouts: tuple[Stage, ...] = ()
    """Examples of what an RL run sampled."""
    benchmarks: tuple[BenchmarkConfig, ...] = ()
    """Where the run's recipe says that the benchmarks lie."""
    problems: tuple[str, ...] = ()
    """Files that could not be read."""


def read_run(folder: Path) -> Content:
    """Return what a run folder holds; one without checkpoint-N is taken for a checkpoint itself.

    Raises: UserError if it holds neither a log nor results, CheckpointError for a recipe that cannot be read.
    """
    places, problems = _places(folder), list[str]()
    run = recorded(folder / "checkpoint") if (folder / RECIPE).is_file() else None
    order = [config.name for config in run.benchmarks] if run else []
    title = folder.resolve().name
    checkpoints = tuple(_checkpoint(title, place, order, problems) for place in places)
    log = _log(places, problems)
    if not log and not any(checkpoint.outcomes for checkpoint in checkpoints):
        raise _nothing(folder, problems)
    shown, why = _shown(folder, checkpoints)
    provenance = tuple(_json(folder / PROVENANCE)) if (folder / PROVENANCE).is_file() else ()
    return Content(
        title=title,
        about=_about(provenance, len(places)),
        checkpoints=checkpoints,
        shown=shown,
        why_shown=why,
        provenance=provenance,
        recipe=(folder / RECIPE).read_text(encoding="utf-8") if run else "",
        log=log,
        rollouts=rollouts(folder, problems),
        benchmarks=run.benchmarks if run else (),
        problems=tuple(problems),
    )


def _places(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("checkpoint-*") if path.is_dir()]
    return sorted(found, key=lambda path: step_of(path) or 0) or [folder]


def _shown(folder: Path, checkpoints: Sequence[ReportedCheckpoint]) -> tuple[ReportedCheckpoint | None, str]:
    """Return the checkpoint to show in full and why it is that one: the best where it was evaluated, else the last that was."""
    evaluated = [checkpoint for checkpoint in checkpoints if checkpoint.outcomes]
    best = (folder / BEST).resolve().name
    for checkpoint in evaluated:
        if checkpoint.name == best:
            return checkpoint, "the best of the run by its recipe"
    return (evaluated[-1], "the last with results") if evaluated else (None, "")


def _nothing(folder: Path, problems: Sequence[str]) -> UserError:
    inside = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    return UserError(
        f"{folder}: nothing to report; found is {inside}. {' '.join(problems)} Required is a run folder with "
        f"checkpoint-N/{STATE} or checkpoint-N/eval/*.json, or the output folder of a sweep with its sweep.json."
    )


def _about(provenance: Sequence[Mapping[str, Any]], checkpoints: int) -> str:
    if not provenance:
        return f"Checkpoints on disk: {checkpoints}. There is no {PROVENANCE}: recipe, commit and versions are unknown."
    recipe = provenance[-1]["recipe"]
    return f"Method {recipe['method']['type']} on {recipe['backbone']['path']}. Checkpoints on disk: {checkpoints}."


def records(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the lines of an outcome's predictions.jsonl; raises OSError if it is not there, PredictionsError if it is broken."""
    return [record for record in read_json_lines(outcome.predictions, PredictionsError) if record is not None]


def step_of(checkpoint: Path) -> int | None:
    """Return N of a folder `checkpoint-N`, None for any other name."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def _log(places: Sequence[Path], problems: list[str]) -> list[dict[str, Any]]:
    """Return the log of the newest checkpoint that has one; a file that was cut off is named in `problems`."""
    for file in (place / STATE for place in reversed(places) if (place / STATE).is_file()):
        try:
            return list(_json(file)["log_history"])
        except json.JSONDecodeError as error:
            problems.append(f"{file} is left out, it is no JSON: {error}. Was the run killed while it was saving?")
    return []


def _checkpoint(run: str, place: Path, order: Sequence[str], problems: list[str]) -> ReportedCheckpoint:
    """Return a checkpoint with its results, benchmarks in the recipe's order."""
    files = sorted((place / "eval").rglob("*.json"), key=lambda file: ([*order, file.stem].index(file.stem), file))
    return gathered(place.name, run, step_of(place), _outcomes(files, problems))


def _outcomes(files: Iterable[Path], problems: list[str]) -> Iterable[Outcome]:
    for file in files:
        try:
            yield Outcome(Result.model_validate_json(file.read_text(encoding="utf-8")), file.with_suffix("") / OWN)
        except ValidationError as error:
            problems.append(f"{file} is left out, it is no result: {error.errors()[0]['msg']}.")


def gathered(name: str, run: str, step: int | None, outcomes: Iterable[Outcome]) -> ReportedCheckpoint:
    """Return a checkpoint of these outcomes, ablations of the images apart from the rest."""
    real: dict[str, Outcome] = {}
    ablations: dict[str, dict[str, Result]] = {}
    for outcome in outcomes:
        images = outcome.result.protocol["images"]
        if images == "real":
            real[outcome.result.benchmark] = outcome
        else:
            ablations.setdefault(outcome.result.benchmark, {})[images] = outcome.result
    return ReportedCheckpoint(name, run, step, real, ablations)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


SWEEP = "sweep.json"


def read_sweep(folder: Path) -> Content:
    """Return what a sweep found; shown in full is the judge that is the best on its first benchmark.

    Raises: UserError if no judge was evaluated, or a result is gone from the folder.
    """
    sweep = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
    broken = tuple(f"{judge} could not be evaluated: {problem}" for judge, problem in sweep["broken"].items())
    if not sweep["results"]:
        raise UserError(f"{folder / SWEEP}: no judge was evaluated. {' '.join(broken)}")
    found: dict[str, dict[str, Outcome]] = {}
    for entry in sweep["results"]:
        found.setdefault(entry["judge"], {})[entry["benchmark"]] = _outcome(folder, entry)
    first = {entry["judge"]: entry for entry in reversed(sweep["results"])}
    checkpoints = [
        ReportedCheckpoint(judge, first[judge]["run"], first[judge]["step"], outcomes) for judge, outcomes in found.items()
    ]
    benchmark, best = next(iter(sweep["best"].items()))
    return Content(
        title=folder.resolve().name,
        about=f"A sweep over {len(checkpoints)} judges. Protocol: {sweep['protocol']}.",
        checkpoints=tuple(checkpoints),
        shown=next(checkpoint for checkpoint in checkpoints if checkpoint.name == best),
        why_shown=f"the best on {benchmark}",
        problems=broken,
    )


def _outcome(folder: Path, entry: Mapping[str, Any]) -> Outcome:
    place, name = folder / entry["folder"], entry["benchmark"]
    if not (place / f"{name}.json").is_file():
        raise UserError(
            f"{place / name}.json is not there, but {SWEEP} names it. Run the sweep again by the same command: it computes "
            "only what is missing."
        )
    result = Result.model_validate_json((place / f"{name}.json").read_text(encoding="utf-8"))
    return Outcome(result, place / name / OWN)
