"""Measure a policy at the checkpoints of its training by reinforcement learning.

The measurements are accuracy, score by a reward model, and KL divergence from the policy before
training. Answers that the run itself gave to the same questions when it saved a checkpoint are used
again. The answers, scores and log-ratios of a checkpoint are stored in one file under a
fingerprint, and those of an unfinished checkpoint in a journal, so that a killed measurement
continues where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from rich.console import Console

from mmrm.data.arrays import Floats
from mmrm.data.preference import Preference
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.content import question_key
from mmrm.data.storage.files import digest, write_json_lines
from mmrm.eval.journal import Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.policies.answering import Answerer, Answers, credits_of, stored_answers, with_scores
from mmrm.eval.policies.policy_runs import PolicyRun, load_policy
from mmrm.eval.suite.fingerprint import policy_digest
from mmrm.models.backbone import load_encoder, load_language_model, resolve
from mmrm.models.distributed import gather, rank

TOKEN_BUDGET = 4096
"""Tokens of a packed row if the command line sets no budget."""


@dataclass(frozen=True, slots=True)
class Point:
    """The measurement of one policy, which is a checkpoint of a run.

    A point at step 0 is that of the policy before training.
    """

    run: str
    seed: str
    """The name of the run's folder. Runs that differ only in their seed have the same `run`."""
    step: int
    answers: tuple[Answers, ...]
    log_ratios: tuple[tuple[float, ...], ...]
    """log(policy / start) of each sampled answer."""

    @property
    def credits(self) -> dict[str, Floats]:
        """The values of each figure by question, arrays of shape (questions,).

        The figures are the accuracies, the mean score of the sampled answers, the score of the
        greedy answer, and the KL divergence from the policy before training in nats.
        """
        # (questions, 1 + samples); the greedy answer comes first
        scores = np.array([answers.scores for answers in self.answers])
        credits = credits_of(self.answers)
        credits["score"] = scores[:, 1:].mean(1)
        credits["greedy_score"] = scores[:, 0]
        credits["kl"] = np.array(self.log_ratios).mean(1)
        return credits


class Measurement:
    """Measures several policies on the same questions and by the same judge.

    All of them were trained from one policy, the start, which is measured too. All ranks must call
    its methods together.
    """

    def __init__(
        self,
        run: PolicyRun,
        questions: Sequence[Preference],
        samples: int,
        judge: tuple[Judge, str],
        folder: Path,
        runtime: Runtime,
    ) -> None:
        """Load the policy that training started from, and keep the settings of the measurement.

        Args:
            run: One of the runs to measure. All of them share its start and its sampling settings.
            questions: The questions, with known answers.
            samples: The number of sampled answers to each question.
            judge: The judge that scores the answers, and its digest.
            folder: The folder in which the measurements are stored.
            runtime: The device and the token budget.
        """
        self.questions = questions
        self.samples = samples
        self.sampling = run.sampling
        self.runtime = runtime
        self.judge, self.judge_digest = judge
        self.folder = folder
        model = load_language_model(run.start).to(runtime.device).eval()
        packed = Packed(
            load_encoder(run.start), runtime.device, runtime.token_budget or TOKEN_BUDGET
        )
        self.start = Answerer(model, packed, run.sampling, samples)
        self.start_path = Path(resolve(run.start.path))

    def point(
        self, run: PolicyRun | None, step: int, checkpoint: Path | None, console: Console
    ) -> Point:
        """Return the measurement of a checkpoint, from its file if an earlier call has stored it.

        Args:
            run: The run of the checkpoint; None for the policy that training started from.
            step: The step of the checkpoint; 0 for the policy that training started from.
            checkpoint: The checkpoint folder; None for the policy that training started from.
            console: The console that shows the progress.
        """
        name = "start"
        seed = ""
        label = name
        if run is not None:
            name = run.name
            seed = run.folder.name
            label = name if seed == name else f"{name}-{seed}"
        file = self.folder / f"{label}-{step}.jsonl"

        # The first rank reads the files, and all ranks get its result.
        is_first_rank = rank() == 0
        policy_path = self.start_path if checkpoint is None else checkpoint
        fingerprint = gather(self._fingerprint(policy_path) if is_first_rank else "")[0]
        lines = gather(_stored_lines(file, fingerprint) if is_first_rank else [])[0]
        if not lines:
            title = f"{label}, step {step}"
            journal = Journal(title, console, file.with_suffix(".journal"), fingerprint)
            lines = self._measure(run, checkpoint, journal)
            if is_first_rank:
                write_json_lines(file, [fingerprint, *lines])
                journal.remove()

        adapter = TypeAdapter(Answers)
        answers = tuple(adapter.validate_python(line["answers"]) for line in lines)
        log_ratios = tuple(tuple(line["log_ratios"]) for line in lines)
        return Point(name, seed, step, answers, log_ratios)

    def _measure(
        self, run: PolicyRun | None, checkpoint: Path | None, journal: Journal
    ) -> list[dict[str, Any]]:
        """Let a policy answer the questions, and return a line for each question.

        A line has the `answers` with their scores, and the `log_ratios` of the sampled answers:
        their log-probability under the policy minus that under the policy before training. `run`
        and `checkpoint` are None for the policy before training.
        """
        answerer = self.start
        answers: list[Answers] = []
        if run is not None and checkpoint is not None:
            model, packed = load_policy(checkpoint, self.runtime)
            answerer = Answerer(model, packed, self.sampling, self.samples)
            if rank() == 0:
                file_of_run = checkpoint / run.answers_file
                answers = stored_answers(file_of_run, self.questions, self.samples)
            answers = gather(answers)[0]
        if not answers:
            answers = answerer.answer(self.questions, journal)
        answers = with_scores(self.questions, answers, self.judge, journal.of("scored"))

        # Of every sampled answer, by the measured policy and by the start.
        under_policy = answerer.log_probabilities(self.questions, answers)
        under_start = under_policy
        if checkpoint is not None:
            under_start = self.start.log_probabilities(self.questions, answers)
        lines: list[dict[str, Any]] = []
        for index, question_answers in enumerate(answers):
            log_ratios = np.subtract(under_policy[index], under_start[index]).tolist()
            lines.append({"answers": asdict(question_answers), "log_ratios": tuple(log_ratios)})
        return lines

    def _fingerprint(self, policy: Path) -> str:
        """Return the fingerprint of a measurement, a digest of everything that decides its result.

        `policy` is the checkpoint folder of the policy to measure.
        """
        policies = policy_digest(policy), policy_digest(self.start_path)
        questions = [
            (question.identity, question_key(question), question.prompt, question.truth)
            for question in self.questions
        ]
        # The code of this module, with all modules of models/ and eval/ that it imports.
        code = code_digest("mmrm.eval.policies.divergence", floors=("models", "eval"))
        parts = (policies, questions, self.samples, self.sampling, self.judge_digest, code)
        return digest(repr(parts))


def _stored_lines(file: Path, fingerprint: str) -> list[dict[str, Any]]:
    """Return the lines of a stored measurement, without the fingerprint in the first line.

    Returns an empty list if there is no file, or if it has another fingerprint.
    """
    if not file.is_file():
        return []
    # Lines end at "\n" only. `splitlines` would also end them at other line breaks in the answers.
    with file.open(encoding="utf-8") as lines:
        stored_fingerprint, *stored_lines = map(json.loads, lines)
    return stored_lines if stored_fingerprint == fingerprint else []
