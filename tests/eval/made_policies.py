"""A policy's run and a list of runs as training and measuring leave them, with made-up answers: written by the same writers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.preference import Preference
from mmrm.data.storage.files import write_json
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.policies.answering import Answers, write_answers
from mmrm.eval.policies.divergence import Point
from mmrm.eval.policies.policy_runs import load_questions
from mmrm.eval.results.split_correlation import RowValues
from mmrm.eval.studies import overoptimisation
from mmrm.train.recipe.recipe import STAND_IN, Recipe
from mmrm.train.studies.ablation.comparison import flat_rows, statement, variant_line
from mmrm.train.studies.ablation.run_costs import Cost
from mmrm.train.studies.ablation.variants import Ablation, Run
from mmrm.train.studies.predictors import AUC, MeasuredModel, correlations
from tests.eval.made_run import HOSTILE

SOURCE = {
    "type": "shapes",
    "name": "scenes",
    "level": "demo",
    "split": "benchmark",
    "rows": 12,
    "text_only": 0.0,
}
RECIPE = {
    "method": {"type": "policy"},
    "evaluation": {"questions": [SOURCE], "benchmarks": [], "protocol": {}, "baselines": True},
}
VARIANTS = {
    "shuffled": "rewards.0.shuffled=true",
    "reward-model": "",
    "<b>other</b>": "rewards.0.path=a/long/path/of/another/model",
}


def made_answers(number: int, skill: float, samples: int = 4) -> Answers:
    """Return answers to a question, right with probability `skill`; scores that know a little of it; one of all is markup."""
    dice = random.Random(f"{number}/{skill}")
    right = tuple(dice.random() < skill for _ in range(samples + 1))
    texts = tuple("four circles" if one else f"{dice.randint(1, 2)} circles" for one in right)
    if number == 0:
        right, texts = (False, *right[1:]), (HOSTILE, *texts[1:])
    scores = tuple(one + dice.gauss(0, 1) for one in right)
    return Answers(
        tuple((1, 2) for _ in right),
        texts,
        right,
        (number == 0, *(False for _ in right[1:])),
        scores,
    )


def make_policy(folder: Path) -> Path:
    """Write a policy's run: its start, two checkpoints on disk, one between them that was rotated away."""
    run, questions = folder / "made-policy", questions_of()
    for name, skill in (("start", 0.3), ("checkpoint-10", 0.5), ("checkpoint-30", 0.8)):
        write_answers(run / name / "answers", "scenes", questions, answers_to(questions, skill))
    (run / "recipe.yaml").write_text(json.dumps(json_recipe()), encoding="utf-8")
    log = [
        {"step": step, "loss": 1 / (1 + step), "eval_scenes/greedy": step / 50}
        for step in (0, 10, 20, 30)
    ]
    (run / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log), encoding="utf-8")
    return run


def questions_of() -> list[Preference]:
    """Return the questions."""
    return load_questions(ShapesConfig.model_validate(SOURCE), Path("unused"))


def answers_to(questions: Sequence[Preference], skill: float) -> list[Answers]:
    """Return answers to all of them."""
    return [made_answers(number, skill) for number in range(len(questions))]


def json_recipe() -> dict[str, object]:
    """Return a recipe as far as a report reads it."""
    recipe = Recipe.model_validate(STAND_IN).model_dump(mode="json")
    return {**recipe, **RECIPE}


def make_list(folder: Path) -> Path:
    """Write a list of three variants, three seeds each but one of two, with what was measured of its policies and models."""
    made = Ablation(Path("recipes/made.yaml"), folder, VARIANTS, ())
    credits = {
        name: {
            seed: np.array([float((number * 7 + seed) % 10 < 5 + place) for number in range(40)])
            for seed in ((0, 1) if name == "reward-model" else (0, 1, 2))
        }
        for place, name in enumerate(VARIANTS)
    }
    lines = [
        variant_line(name, own, credits["shuffled"] if name != "shuffled" else {})
        for name, own in credits.items()
    ]
    write_json(
        folder / "ablation.json",
        {
            "list": str(made.path),
            "reference": made.reference,
            "statement": statement(made.reference, 4),
            "results": flat_rows(made, {"scenes/greedy": lines, "scenes/sampled": lines}),
            "costs": {"shuffled": asdict(Cost(25_600.0, 110.4, 0.0125, 320.0, 0.007, 0.0))},
            "missing": [{"variant": "reward-model", "seed": 2, "folder": "elsewhere"}],
        },
    )
    make_overoptimisation(folder / "overoptimisation")
    make_predictors(folder / "predictors" / "predictors.json", flat_rows(made, {AUC: lines}))
    return folder


def make_overoptimisation(output: Path) -> None:
    """Write what eval/overoptimisation.py does."""
    questions = range(12)
    points = [
        Point(
            run,
            seed,
            step,
            tuple(made_answers(one, skill) for one in questions),
            tuple((step / 20,) * 4 for _ in questions),
        )
        for run, seed, step, skill in (
            ("start", "", 0, 0.4),
            ("shuffled", "0", 10, 0.3),
            ("reward-model", "0", 10, 0.6),
            ("reward-model", "1", 10, 0.65),
            ("reward-model", "0", 20, 0.5),
        )
    ]
    result = overoptimisation.study_result(points, "12 questions, 4 answers each, judge made/up")
    overoptimisation.write(result, output)


def make_predictors(file: Path, variants: Sequence[dict[str, Any]]) -> None:
    """Write what train/predictors.py does, with models of three paradigms."""
    recipe = Recipe.model_validate(STAND_IN)
    models = []
    for place, (name, seed) in enumerate(
        (name, seed)
        for name in ("few", "many", "judge", "critic", "grey", "short")
        for seed in (0, 1)
    ):
        figures = {
            "AUC": 0.4 + place / 20,
            "vl_rewardbench accuracy": 0.6 + place % 3 / 10,
            "vl_rewardbench ECE": 0.01 * place,
        }
        gain = 0.02 * place - 0.05
        gains: dict[str, tuple[float, float | None, float | None]] = {}
        gains["best_of_gain"] = (gain, gain - 0.02, gain + 0.02)
        if seed == 0:
            gains["rl_greedy_gain"] = (gain, -0.1, 0.1)
        values = {
            name: RowValues(np.full(20, value), np.arange(20)) for name, value in figures.items()
        }
        for gain_name in gains:
            values[gain_name] = RowValues(gain + np.arange(20) % 4 / 20, np.arange(20))
        models.append(MeasuredModel(Run(name, seed, recipe), "", 1000, values, gains))
    together = {
        gain: {name: asdict(one) for name, one in by.items()}
        for gain, by in correlations(models, np.arange(20) % 2).items()
    }
    plain = [
        one.stored
        | {"paradigm": one.run.variant if one.run.variant in ("judge", "critic") else "Naive-RM"}
        for one in models
    ]
    write_json(
        file,
        {
            "models": plain,
            "correlations": together,
            "variants": variants,
            "missing": ["judge, seed 2"],
        },
    )
