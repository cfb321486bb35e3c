"""A policy that answers questions, trained by reward models and verifiers (BaseReward, arXiv 2509.16127)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from torch import nn

from mmrm.data.preference import Preference
from mmrm.eval.journal import Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.policies.answering import (
    Answerer,
    Answers,
    items_of_questions,
    summary,
    with_scores,
    write_answers,
)
from mmrm.eval.policies.policy_runs import load_questions
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import rank
from mmrm.train.recipe.sections import QUESTION_FIGURES
from mmrm.train.reinforce.method import ReinforceMethod
from mmrm.train.reinforce.policy.answer_reward import AnswerReward
from mmrm.train.reinforce.policy.config import PolicyConfig
from mmrm.train.reinforce.policy.policy_questions import PolicyQuestions
from mmrm.train.supervised.devices import device, unwrapped
from mmrm.train.supervised.whole_weights import whole_weights


class PolicyMethod(ReinforceMethod):
    """Reinforcement learning of a policy by reward models and verifiers."""

    columns: ClassVar[Mapping[str, str]] = {
        **{
            name: ReinforceMethod.columns[name]
            for name in ReinforceMethod.columns
            if name != "rewards/result"
        },
        "rewards/judge": "{:+.3f}",
        "rewards/right": "{:.3f}",
    }

    config: PolicyConfig

    def prepare(self) -> None:
        """Make prompts of the records, and load the judges and the questions of the evaluation.

        The judges are loaded now, before ZeRO-3 is on, which would divide their weights.
        """
        self.prompts = PolicyQuestions(self.mixture, self.encoder, self.config.max_prompt_tokens)
        runtime = Runtime(device(), self.packed().token_budget)
        self.judges: dict[int, Judge] = {}
        for index, term in enumerate(self.config.rewards):
            if term.judge_path is not None:
                self.judges[index] = load_judge(term.judge_path, runtime).judge
        cache = self.mixture.config.cache_folder
        self.questions = {
            source.label: load_questions(source, cache)
            for source in self.recipe.evaluation.questions
        }
        if len(self.mixture.validation):
            self.questions[HELD_OUT] = list(self.mixture.validation)

    def reward(self) -> tuple[AnswerReward, None]:
        """Return the reward of answers, and None: it needs no model that trl has to place on the device."""
        return AnswerReward(self.config, self.judges, self.encoder), None

    def examine(self, model: nn.Module, folder: Path) -> dict[str, float]:
        """Have the policy answer every set of questions, and write its answers into `folder`.

        Return the means of the figures. The first judge of the reward scores the answers.
        """
        figures: dict[str, float] = {}
        for name, questions in self.questions.items():
            answers = self._answer(model, name, questions)
            write_answers(folder, name, questions, answers)
            summary_by_figure = summary(answers, items_of_questions(questions))
            intervals: list[str] = []
            for figure in QUESTION_FIGURES:
                if figure not in summary_by_figure:
                    continue
                interval = summary_by_figure[figure]
                figures[f"{name}/{figure}"] = interval["mean"]
                mean = f"{100 * interval['mean']:.1f}"
                bounds = f"{100 * interval['low']:.1f}, {100 * interval['high']:.1f}"
                intervals.append(f"{figure} {mean} [{bounds}]")
            if rank() == 0:
                num_samples = self.recipe.evaluation.samples
                line = f"{name}, {len(questions):,} questions, N = {num_samples}: "
                self.console.print(
                    line + "  ".join(intervals), markup=False, highlight=False, soft_wrap=True
                )
        return figures

    def _answer(
        self, model: nn.Module, name: str, questions: Sequence[Preference]
    ) -> Sequence[Answers]:
        """Return a greedy answer and sampled answers to each question, with scores if there is a judge."""
        sampling = SamplingConfig(
            temperature=self.config.temperature, max_new_tokens=self.config.max_new_tokens
        )
        journal = Journal(name, self.console)
        with whole_weights(model):
            answerer = Answerer(
                unwrapped(model), self.packed(), sampling, self.recipe.evaluation.samples
            )
            answers = answerer.answer(questions, journal)
        judge = next(iter(self.judges.values()), None)
        if judge is None:
            return answers
        return with_scores(questions, answers, judge, journal.of("scored"))
