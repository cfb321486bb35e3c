"""The work of train/predictors.py before it begins: what is trained, sampled, scored and judged."""

import argparse
from collections import Counter
from collections.abc import Sequence

from mmrm.data.display.table import Column, Table
from mmrm.data.preference import Preference
from mmrm.eval.benchmarks.registry import load
from mmrm.eval.protocol import presentations
from mmrm.train.recipe.epoch import known_steps
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.study import plan as plan_of_runs
from mmrm.train.studies.ablation.variants import Ablation, Run
from mmrm.train.studies.predictor_steps import compares, readings_of_verdicts


def plan(
    ablation: Ablation,
    options: argparse.Namespace,
    num_questions: int,
    policy_questions: Sequence[Preference],
) -> tuple[Table, Table]:
    """Return a table of the reward models to train, and a table of everything after them.

    Work is counted in steps, answers and judgements. What is done already is counted too.

    Args:
        ablation: The list of reward models.
        options: The options of train/predictors.py.
        num_questions: The number of questions of --questions.
        policy_questions: The questions on which policies are evaluated; empty without --pays.
    """
    columns = (
        Column("step"),
        Column("times", is_number=True),
        Column("each", is_number=True),
        Column("together", is_number=True),
        Column("unit"),
    )
    num_judges = sum(map(compares, ablation.runs))
    num_scoring = len(ablation.runs) - num_judges
    num_compared = min(options.compared, num_questions)
    rows = [
        _row("answers of the policy", 1, num_questions * options.samples, "answers"),
        _row("scores", num_scoring, num_questions * options.samples, "answers"),
    ]
    if num_judges:
        num_pairs = options.samples * (options.samples - 1)  # in both orders
        rows.append(_row("tournaments", num_judges, num_compared * num_pairs, "judgements"))
        # Judges that are judged in the same way share a row.
        times_by_judgements: Counter[int] = Counter()
        for run in ablation.runs:
            if len(readings_of_verdicts(run)) == 2:
                times_by_judgements[_benchmark_judgements(run)] += 1
        for num_judgements, times in times_by_judgements.items():
            rows.append(_row("benchmarks once more", times, num_judgements, "judgements"))
    if options.pays:
        recipe = read_recipe(options.policy_recipe)
        num_policies = len(options.pays) * len(options.policy_seeds)
        num_steps = known_steps(recipe) or 0
        num_answers = num_steps * recipe.optim.records_per_step * recipe.method.texts_a_record
        rows.append(_row("policies", num_policies, num_steps, "steps"))
        rows.append(_row("their answers in training", num_policies, num_answers, "answers"))
        # One greedy answer and the samples, at the start and at every save.
        num_evaluations = 1 + -(-num_steps // recipe.output.save_every_steps)
        answers_of_evaluation = len(policy_questions) * (1 + recipe.evaluation.samples)
        rows.append(
            _row(
                "their answers in evaluations",
                num_policies,
                num_evaluations * answers_of_evaluation,
                "answers",
            )
        )
    return plan_of_runs(ablation), Table("after the reward models", columns, tuple(rows))


def _benchmark_judgements(run: Run) -> int:
    """Return the number of judgements of all rows of a run's benchmarks by its protocol."""
    evaluation = run.recipe.evaluation
    num_judgements = 0
    for config in evaluation.benchmarks:
        for example in load(config).examples:
            num_judgements += len(presentations(example, evaluation.protocol))
    return num_judgements


def _row(step: str, times: int, each: int, unit: str) -> tuple[str, ...]:
    """Return a row of the plan."""
    return step, f"{times:,}", f"{each:,}", f"{times * each:,}", unit
