"""A policy that answers questions, trained by reward models and verifiers (BaseReward, arXiv 2509.16127)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from torch import nn

from mmrm.eval.journal import Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.policies.answering import (
    Answerer,
    items_of_questions,
    scored,
    summary,
    write_answers,
)
from mmrm.eval.policies.policy_runs import load_questions
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.models.config import SamplingConfig
from mmrm.models.distributed import rank
from mmrm.train.recipe.methods import JudgeTerm, PolicyConfig
from mmrm.train.recipe.sections import QUESTION_FIGURES
from mmrm.train.reinforce.method import ReinforceMethod
from mmrm.train.reinforce.policy.answer_reward import AnswerReward
from mmrm.train.reinforce.policy.policy_questions import Questions
from mmrm.train.supervised.devices import device, unwrapped
from mmrm.train.supervised.whole_weights import whole_weights


class PolicyMethod(ReinforceMethod):
    """Reinforcement learning of a policy by reward models and verifiers."""

    columns: ClassVar[Mapping[str, str]] = {
        **{
            name: form for name, form in ReinforceMethod.columns.items() if name != "rewards/result"
        },
        "rewards/judge": "{:+.3f}",
        "rewards/right": "{:.3f}",
    }

    config: PolicyConfig

    def prepare(self) -> None:
        """Take the records as questions, and load the judges: before ZeRO-3 is on, which would divide their weights."""
        recipe, cache = self.recipe, self.mixture.config.cache_folder
        self.prompts = Questions(self.mixture, self.encoder, self.config.max_prompt_tokens)
        runtime = Runtime(device(), self.packed().token_budget)
        self.judges: dict[int, Judge] = {
            place: load_judge(term.path, runtime).judge
            for place, term in enumerate(self.config.rewards)
            if isinstance(term, JudgeTerm)
        }
        self.questions = {
            source.label: load_questions(source, cache) for source in recipe.evaluation.questions
        }
        if len(self.mixture.validation):
            self.questions[HELD_OUT] = list(self.mixture.validation)

    def reward(self) -> tuple[AnswerReward, None]:
        """Return the reward of answers."""
        return AnswerReward(self.config, self.judges, self.encoder), None

    def examination(self) -> Callable[[nn.Module, Path], dict[str, float]] | None:
        """Return what has the policy answer the questions of the evaluation, and writes its answers into a folder."""
        if not self.questions:
            return None
        config, judge = self.config, next(iter(self.judges.values()), None)
        sampling = SamplingConfig(
            temperature=config.temperature, max_new_tokens=config.max_new_tokens
        )

        def examine(model: nn.Module, folder: Path) -> dict[str, float]:
            figures: dict[str, float] = {}
            for name, questions in self.questions.items():
                journal = Journal(name, self.console)
                with whole_weights(model):
                    answerer = Answerer(
                        unwrapped(model), self.packed(), sampling, self.recipe.evaluation.samples
                    )
                    answers = answerer.answer(questions, journal)
                if judge is not None:
                    answers = scored(questions, answers, judge, journal.of("scored"))
                write_answers(folder, name, questions, answers)
                found = summary(answers, items_of_questions(questions))
                shown = {figure: found[figure] for figure in QUESTION_FIGURES if figure in found}
                figures |= {f"{name}/{figure}": value["mean"] for figure, value in shown.items()}
                intervals = "  ".join(
                    f"{figure} {100 * one['mean']:.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]"
                    for figure, one in shown.items()
                )
                if not rank():
                    line = f"{name}, {len(questions):,} questions, N = {self.recipe.evaluation.samples}: {intervals}"
                    self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return figures

        return examine
