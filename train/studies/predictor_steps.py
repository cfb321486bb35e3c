"""The steps of train/predictors.py that run other commands: sampling, scoring, judging, training.

A step is not repeated if its output exists and was made from the same files (`run_step`).
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.arrays import Floats
from mmrm.data.errors import UserError
from mmrm.data.storage.files import content_digest, digest, write_whole
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.contamination.question_overlap import Question, rows_of
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.cached_steps import (
    checkpoint_of,
    model_digest,
    run_step,
    script_path,
    trained_checkpoint,
)
from mmrm.train.studies.ablation.variants import RECIPE, Run

SAMPLINGS = ("greedy", "sampled")
"""The figures of a policy's answers of which a gain is the difference."""


def compares(run: Run) -> bool:
    """Return True if a run trains a judge that compares two responses in writing."""
    return run.recipe.method.judge_template is not None


def readings_of_verdicts(run: Run) -> tuple[str, ...]:
    """Return the ways in which a run's verdicts are measured.

    A judge that compares and writes nothing has soft verdicts alone. The only reading of a model
    that scores responses is the empty text.
    """
    if not compares(run):
        return ("",)
    if run.recipe.evaluation.protocol.rationale == "none":
        return ("soft",)
    return ("hard", "soft")


def train_list(options: argparse.Namespace) -> None:
    """Train the incomplete runs of the list with train/ablate.py.

    It prints the runs that fail. They are left out of the study.
    """
    arguments = [str(options.list), *options.overrides]
    arguments += ["--seeds", *(str(seed) for seed in options.seeds)]
    arguments += ["--launcher", shlex.join(options.launcher)]
    script = script_path("train/ablate.py")
    subprocess.run([sys.executable, script, *arguments], check=False)


def sampled_answers(
    folder: Path, questions: Sequence[Question], options: argparse.Namespace
) -> Path:
    """Let the policy answer the questions, unless it has done so, and return the answers' file.

    Args:
        folder: The folder of the study.
        questions: The questions, whose digest shows if they have changed since the policy answered.
        options: The options of train/predictors.py.
    """
    samples = folder / "samples.jsonl"
    question_texts = [(question.key, question.rule) for question in questions]
    made_from = {
        "policy": model_digest(options.policy),
        "questions": digest(repr(question_texts)),
    }
    arguments = [options.policy, str(samples), "--source", options.questions]
    arguments += ["--samples", str(options.samples)]
    arguments += ["--max-new-tokens", str(options.max_new_tokens)]
    run_step(options.launcher, "eval/sample.py", arguments, samples, made_from)
    return samples


def reward_model_path(run: Run) -> Path:
    """Return the path of a run's reward model: its last checkpoint, or the file of a judge.

    The file of a judge that compares sets soft verdicts and the sampling of the run's own
    evaluation. It is written first.
    """
    checkpoint = checkpoint_of(run)
    if not compares(run):
        return checkpoint
    settings: dict[str, Any] = {"type": "generative", "checkpoint": str(checkpoint)}
    settings["verdicts"] = "soft"
    if "hard" not in readings_of_verdicts(run):
        settings["rationale"] = "none"
    settings |= run.recipe.evaluation.judging.model_dump(mode="json")
    file = run.folder / "soft_judge.yaml"
    # JSON is YAML.
    write_whole(file, json.dumps(settings, indent=2) + "\n")
    return file


def digests_of_model(run: Run) -> dict[str, str]:
    """Return the digests of everything that decides the scores of a run's reward model."""
    digests = {"judge": model_digest(str(checkpoint_of(run)))}
    if compares(run):
        digests["settings"] = content_digest(reward_model_path(run))
    return digests


def scored_answers(run: Run, samples: Path, options: argparse.Namespace) -> Path:
    """Let a reward model score the answers of a file, unless it has, and return the scores' file.

    Args:
        run: The training of the model.
        samples: The file of the answers.
        options: The options of train/predictors.py.
    """
    scored = run.folder / f"scored-{samples.name}"
    made_from = {"samples": content_digest(samples), **digests_of_model(run)}
    arguments = [str(reward_model_path(run)), str(samples), str(scored)]
    run_step(options.launcher, "eval/score.py", arguments, scored, made_from)
    return scored


def folder_of_results(run: Run, verdicts: str, launcher: Sequence[str]) -> Path:
    """Return the folder with a run's results on the benchmarks of the list.

    If verdicts are read otherwise than in the run's own evaluation, they are judged once more.

    Args:
        run: The training of the model.
        verdicts: `hard` or `soft` for a judge that compares; empty for a model that scores.
        launcher: The command line that starts the judging.
    """
    evaluation = run.recipe.evaluation
    if not verdicts or evaluation.protocol.verdicts == verdicts or not evaluation.benchmarks:
        return run.folder / "eval"
    folder = run.folder / f"eval-{verdicts}"
    protocol = evaluation.protocol.model_dump(mode="json", exclude_defaults=True)
    protocol["verdicts"] = verdicts
    benchmarks = [benchmark_argument(config) for config in evaluation.benchmarks]
    arguments = [str(reward_model_path(run)), "--benchmarks", *benchmarks]
    arguments += ["--protocol", *(f"{key}={json.dumps(value)}" for key, value in protocol.items())]
    arguments += ["--output", str(folder)]
    # The benchmarks are evaluated in their order, so that the last result is written last.
    last_result = folder / f"{evaluation.benchmarks[-1].name}.json"
    made_from = digests_of_model(run) | {
        "benchmarks": " ".join(benchmarks),
        "protocol": json.dumps(protocol, sort_keys=True),
    }
    run_step(launcher, "eval/run.py", arguments, last_result, made_from)
    return folder


def benchmark_argument(config: BenchmarkConfig) -> str:
    """Return a benchmark of a recipe as an argument of --benchmarks."""
    settings = config.model_dump(mode="json", exclude_defaults=True)
    name = settings.pop("name")
    argument = f"{name}={settings.pop('location', config.location)}"
    for key, value in settings.items():
        argument += f",{key}={value}"
    return argument


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """A question that policies answer: its identity, and a digest of its content.

    Earlier versions did not store the digest, which is empty then.
    """

    identity: str
    key: str
    item: str
    """The questions of one item, such as questions about one image, are not independent."""


@dataclass(frozen=True, slots=True)
class PolicyChanges:
    """By how much the accuracy of the policies that a reward model trains rose on each question."""

    questions: tuple[PolicyQuestion, ...]
    seeds: tuple[int, ...]
    """The seeds of the policies."""
    before: Mapping[str, Floats]
    """Accuracy before the training by SAMPLINGS, shape (seeds, questions)."""
    after: Mapping[str, Floats]
    """Accuracy after the training, in the same form."""


def policy_changes(run: Run, folder: Path, options: argparse.Namespace, lock: int) -> PolicyChanges:
    """Train a policy with a reward model and each seed, unless done, and return how it changed.

    Args:
        run: The training of the reward model.
        folder: The folder of this reward model's policies. The run folder of each is named for its
            seed.
        options: The options of train/predictors.py.
        lock: The file descriptor of the study's lock.

    Raises:
        UserError: If a training fails, or if a policy answered other questions than another one.
    """
    rows_before: list[dict[PolicyQuestion, dict[str, float]]] = []
    rows_after: list[dict[PolicyQuestion, dict[str, float]]] = []
    for seed in options.policy_seeds:
        policy = folder / str(seed)
        overrides = [f"method.rewards.0.path={reward_model_path(run)}", f"seed={seed}"]
        # The policy is also evaluated at the start, before it has been trained.
        overrides += [f"data.seed={seed}", "evaluation.at_start=true"]
        made_from = {f"reward model, {name}": text for name, text in digests_of_model(run).items()}
        trained_checkpoint(
            options.policy_recipe, overrides, policy, options.launcher, lock, made_from
        )
        question_set = read_recipe(policy / RECIPE).question_sets[0]
        start = policy / "start" / "answers" / f"{question_set}.jsonl"
        rows_before.append(credits_by_question(start))
        rows_after.append(credits_by_question(policy / "answers" / f"{question_set}.jsonl"))
    questions = tuple(rows_before[0])
    for rows in (*rows_before, *rows_after):
        if rows.keys() != set(questions):
            num_common = len(rows.keys() & set(questions))
            raise UserError(
                f"{folder}: a policy answered {len(rows):,} questions and its start "
                f"{len(questions):,}, {num_common:,} of them the same. A gain is paired by "
                "question. Remove that folder to train the policies again."
            )
    before: dict[str, Floats] = {}
    after: dict[str, Floats] = {}
    for sampling in SAMPLINGS:
        before[sampling] = _credits(rows_before, questions, sampling)
        after[sampling] = _credits(rows_after, questions, sampling)
    return PolicyChanges(questions, tuple(options.policy_seeds), before, after)


def credits_by_question(file: Path) -> dict[PolicyQuestion, dict[str, float]]:
    """Read the points from 0 to 1 that a policy has on each question, from a file of its answers.

    They are by figure, such as `greedy` for its greedy answer.
    """
    credits: dict[PolicyQuestion, dict[str, float]] = {}
    for row in rows_of(file):
        # Earlier versions did not store keys and items.
        item = str(row.get("item", row["id"]))
        credits[PolicyQuestion(row["id"], row.get("key", ""), item)] = row["credits"]
    return credits


def _credits(
    rows_by_seed: Sequence[Mapping[PolicyQuestion, Mapping[str, float]]],
    questions: Sequence[PolicyQuestion],
    sampling: str,
) -> npt.NDArray[np.float64]:
    """Return the credits of all seeds, shape (seeds, questions)."""
    credits = []
    for rows in rows_by_seed:
        credits.append([rows[question][sampling] for question in questions])
    return np.array(credits, dtype=np.float64)
