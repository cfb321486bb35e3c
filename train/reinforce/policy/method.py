"""A policy that answers questions, trained by reward models and verifiers.

The method is that of BaseReward (arXiv 2509.16127).
"""

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
        # All columns but "rewards/result", which only the reward of a judgement has.
        **{
            name: form for name, form in ReinforceMethod.columns.items() if name != "rewards/result"
        },
        "rewards/judge": "{:+.3f}",
        "rewards/right": "{:.3f}",
    }

    config: PolicyConfig

    def prepare(self) -> None:
        """Make the prompts, and load the judges of the reward and the evaluation's questions."""
        self.prompts = PolicyQuestions(self.mixture, self.encoder, self.config.max_prompt_tokens)
        runtime = Runtime(device(), self.packed().token_budget)
        self.judges: dict[int, Judge] = {}
        """The judges, by the index of their term in the reward."""
        # They are loaded before ZeRO-3 is switched on, which would divide their weights.
        for index, term in enumerate(self.config.rewards):
            if term.judge_path is not None:
                self.judges[index] = load_judge(term.judge_path, runtime).judge
        cache = self.mixture.config.cache_folder
        self.questions = {
            source.label: load_questions(source, cache)
            for source in self.recipe.evaluation.questions
        }
        """The questions of the evaluation, by the name of their set."""
        if len(self.mixture.validation):
            self.questions[HELD_OUT] = list(self.mixture.validation)

    def reward(self) -> tuple[AnswerReward, None]:
        """Return the function that trl calls for the rewards of answers, and None.

        None means that the trainer has no model to place on the device: judges place their own.
        """
        return AnswerReward(self.config, self.judges, self.encoder), None

    def examine(self, model: nn.Module, folder: Path) -> dict[str, float]:
        """Have the policy answer every set of questions, and return the mean of every figure.

        The answers are written into `folder`. The first judge of the reward, if there is one,
        scores them. The first rank prints a line for every set of questions. All ranks must call
        together.
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
        """Return a greedy answer and sampled answers to each question.

        They have scores if the reward has a judge. `name` is the name of the set of questions.
        """
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
