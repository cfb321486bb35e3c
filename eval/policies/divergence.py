"""Measure a policy at the checkpoints of its RL: accuracy, score by a reward model, and KL from its start.

Answers that the run itself gave to the same questions when it saved a checkpoint are used again. The
answers, scores and log-ratios of a checkpoint are stored in one file under a fingerprint, and those of an
unfinished checkpoint in a journal, so that a killed measurement continues where it stopped.
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


@dataclass(frozen=True, slots=True)
class Point:
    """The measurement of a policy at one step of a run; step 0 is the policy before training."""

    run: str
    seed: str
    """The name of the run's folder; runs of one list that differ in their seed alone share `run`."""
    step: int
    answers: tuple[Answers, ...]
    log_ratios: tuple[tuple[float, ...], ...]
    """log(policy / start) of each sampled answer."""

    @property
    def credits(self) -> dict[str, Floats]:
        """Every figure's value for each question, (questions,): the accuracies, the mean score, and the KL in nats."""
        scores = np.array([one.scores for one in self.answers])
        more = {
            "score": scores[:, 1:].mean(1),
            "greedy_score": scores[:, 0],
            "kl": np.array(self.log_ratios).mean(1),
        }
        return credits_of(self.answers) | more


class Measurement:
    """Measures policies that started from one policy, on the same questions and by the same judge.

    All ranks must call its methods together.
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
        """Load the policy that training started from.

        Args:
            run: One of the runs. Its start and its settings of sampling are used for all.
            questions: The questions, with known answers.
            samples: The number of sampled answers to each question.
            judge: The judge that scores the answers, and its digest.
            folder: The folder in which the points are stored.
            runtime: The device and the token budget.
        """
        self.questions = questions
        self.samples = samples
        self.sampling = run.sampling
        self.runtime = runtime
        self.judge, self.judge_digest = judge
        self.folder = folder
        model = load_language_model(run.start).to(runtime.device).eval()
        packed = Packed(load_encoder(run.start), runtime.device, runtime.token_budget or 4096)
        self.start = Answerer(model, packed, run.sampling, samples)
        self.start_path = Path(resolve(run.start.path))

    def point(
        self, run: PolicyRun | None, step: int, checkpoint: Path | None, console: Console
    ) -> Point:
        """Return the measurement of a checkpoint, from its file if an earlier call has stored it.

        `run` and `checkpoint` are None for the policy that training started from.
        """
        name, seed = (run.name, run.folder.name) if run else ("start", "")
        label = name if seed in ("", name) else f"{name}-{seed}"
        file = self.folder / f"{label}-{step}.jsonl"
        mark = gather("" if rank() else self._mark(checkpoint or self.start_path))[0]
        lines = gather(_lines(file, mark) if not rank() else [])[0]
        if not lines:
            journal = Journal(f"{label}, step {step}", console, file.with_suffix(".journal"), mark)
            answerer = self.start
            stored: list[Answers] = []
            if run and checkpoint:
                model, packed = load_policy(checkpoint, self.runtime)
                answerer = Answerer(model, packed, self.sampling, self.samples)
                if rank() == 0:
                    file_of_run = checkpoint / run.answers
                    stored = stored_answers(file_of_run, self.questions, self.samples)
                stored = gather(stored)[0]
            answers = stored or answerer.answer(self.questions, journal)
            answers = with_scores(self.questions, answers, self.judge, journal.of("scored"))
            own = answerer.log_probabilities(self.questions, answers)
            before = (
                own if checkpoint is None else self.start.log_probabilities(self.questions, answers)
            )
            ratios = [tuple(np.subtract(*pair).tolist()) for pair in zip(own, before, strict=True)]
            lines = [
                {"answers": asdict(one), "log_ratios": found}
                for one, found in zip(answers, ratios, strict=True)
            ]
            if not rank():
                write_json_lines(file, [mark, *lines])
                journal.remove()
        adapter = TypeAdapter(Answers)
        answers = [adapter.validate_python(line["answers"]) for line in lines]
        return Point(
            name, seed, step, tuple(answers), tuple(tuple(line["log_ratios"]) for line in lines)
        )

    def _mark(self, policy: Path) -> str:
        policies = policy_digest(policy), policy_digest(self.start_path)
        asked = [(one.identity, question_key(one), one.prompt, one.truth) for one in self.questions]
        code = code_digest("mmrm.eval.policies.divergence", floors=("models", "eval"))
        return digest(repr((policies, asked, self.samples, self.sampling, self.judge_digest, code)))


def _lines(file: Path, mark: str) -> list[dict[str, Any]]:
    """Return the lines of a stored point, or an empty list if none is stored under this mark."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8") as lines:  # not splitlines: answers hold other line breaks
        first, *rest = map(json.loads, lines)
    return rest if first == mark else []
