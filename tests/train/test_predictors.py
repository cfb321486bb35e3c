"""What reward models are worth: each step once, each figure from its place, coefficients over the models that have both."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from mmrm.eval.contamination.question_overlap import Question
from mmrm.eval.results.split_correlation import RowValues
from mmrm.train import predictors as command
from mmrm.train.recipe.recipe import STAND_IN, Recipe
from mmrm.train.studies import predictors
from mmrm.train.studies.ablation.variants import Ablation, Run, read_ablation
from mmrm.train.studies.predictor_figures import QuestionClusters, names_of_row
from mmrm.train.studies.predictor_steps import compares
from tests.eval import run_folders
from tests.train.minimal import MINIMAL, write
from tests.train.test_on_policy import LAUNCHER, POLICY, SHAPES

CLONE = Path(__file__).parents[2]
LIST = """\
evaluation: {at_start: false, best_metric: null, benchmarks: [{name: vl_rewardbench, location: embedded, limit: 10}]}
output: {folder: OUT, save_every_steps: 100, keep_checkpoints: 1}
variants:
  bad: {extends: base.yaml}
  good: {extends: base.yaml, head.layers: 1}
  good-judge: {extends: judge.yaml}
"""
JUDGE = MINIMAL.replace("{type: naive}", "{type: language_model, target: judgement}")
QUESTIONS = SHAPES.replace("{round}", "0")
EVALUATION = "evaluation: {questions: [{type: shapes, level: demo, split: benchmark, rows: 4}]}\n"


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Write the list, whose folder is `out`; evaluations leave predictions of the rows in `keys.json`."""
    write(tmp_path, MINIMAL, "base.yaml")
    write(tmp_path, JUDGE, "judge.yaml")
    write(tmp_path, POLICY + EVALUATION, "policy.yaml")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stub").touch()
    benchmark = BenchmarkConfig(name="vl_rewardbench", location="embedded", limit=10)
    keys = [example.key for example in load(benchmark).examples]
    (tmp_path / "out" / "keys.json").write_text(json.dumps(keys))
    return write(tmp_path, LIST.replace("OUT", str(tmp_path / "out")), "list.yaml")


def run(listed: Path, *more: str) -> dict[str, Any]:
    asked = [
        "--seeds",
        "0",
        "1",
        "--policy",
        "embedded",
        "--questions",
        QUESTIONS,
        "--compared",
        "2",
    ]
    paid = ["--policy-recipe", str(listed.with_name("policy.yaml")), "--pays", "bad", "good"]
    command.main([str(listed), *asked, *paid, "--launcher", LAUNCHER, *more])
    found: dict[str, Any] = json.loads(
        (listed.parent / "out" / "predictors" / "predictors.json").read_text()
    )
    return found


def calls(listed: Path) -> list[str]:
    return [
        " ".join(line.split()[:2])
        for line in (listed.parent / "out" / "calls").read_text().splitlines()
    ]


def by_name(found: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the models of a table by variant and seed, and of judges by their soft reading."""
    return {(one["variant"], one["seed"]): one for one in found["models"]}


@pytest.mark.slow
def test_every_model_is_measured_by_the_same_answers(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(listed)
    assert [(one["variant"], one["seed"], one["paradigm"]) for one in found["models"]] == [
        (name, seed, paradigm)
        for seed in (0, 1)
        for name, paradigm in (
            ("bad", "Naive-RM"),
            ("good", "Naive-RM"),
            ("good-judge", "judge, hard verdicts"),
            ("good-judge", "judge, soft verdicts"),
        )
    ]
    models = by_name(found)
    hard = found["models"][2]
    assert [models[name, 0]["questions"] for name in ("bad", "good", "good-judge")] == [3, 3, 2]
    assert [models[name, 1]["AUC"] for name in ("bad", "good", "good-judge")] == [0.5, 1.0, 1.0]
    assert hard["AUC"] == 0.875  # two of its words tie
    assert [models[name, 1]["vl_rewardbench accuracy"] for name in ("bad", "good")] == [0.6, 0.9]
    assert models["good-judge", 0]["vl_rewardbench accuracy"] == 0.9
    assert hard["vl_rewardbench accuracy"] == 0.85  # its orders disagree about a row
    assert (hard["vl_rewardbench order consistency"], hard.get("vl_rewardbench ECE")) == (0.9, None)
    assert models["good-judge", 0]["vl_rewardbench ECE"] == pytest.approx(0.9 - 0.8)
    # The best answer by score is right, half of the answers are.
    assert models["bad", 0]["best_of_gain"][0] == 0.5
    assert models["bad", 0]["rl_greedy_gain"][0] == -0.25
    assert models["good", 0]["rl_greedy_gain"][0] == 0.25
    assert models["good", 0]["rl_sampled_gain"][0] == 0
    assert "rl_greedy_gain" not in models["good", 1]  # the first seed pays
    assert found["missing"] == [
        f"{gain}{group}: known of {variants} variants, a coefficient needs 6"
        for gain, group, variants in (
            ("best-of-N gain", ", judges by hard verdicts", 3),
            ("best-of-N gain", ", judges by soft verdicts", 3),
            ("best-of-N gain", ", without judges that compare", 2),
            ("RL gain, greedy", ", judges by hard verdicts", 2),
            ("RL gain, greedy", ", judges by soft verdicts", 2),
            ("RL gain, greedy", ", without judges that compare", 2),
            ("RL gain, sampled", ", judges by hard verdicts", 2),
            ("RL gain, sampled", ", judges by soft verdicts", 2),
            ("RL gain, sampled", ", without judges that compare", 2),
        )
    ]
    variants = {
        one["variant"]: one
        for one in found["variants"]
        if one["benchmark"] == "AUC inside a question"
    }
    assert {name: (one["n"], one["accuracy"]) for name, one in variants.items()} == {
        "bad": (2, 0.5),  # the questions that the judge was asked about, too
        "good": (2, 1.0),
        "good-judge (hard)": (2, 0.875),
        "good-judge (soft)": (2, 1.0),
    }
    assert variants["good"]["difference"] == 0.5
    assert found["correlations"]["best_of_gain"] == {}  # three variants
    folder = listed.parent / "out" / "predictors"
    table = (folder / "predictors.md").read_text()
    assert "| bad | 0 | Naive-RM | 3 | 50.0 | 60.0 | " in table
    assert "| good-judge | 1 | judge, soft verdicts | 2 | 100.0 | 90.0 | " in table
    assert (folder / "predictors.png").stat().st_size > 5000
    assert "predictors.md" in capsys.readouterr().out
    made_once = calls(listed)
    assert sorted(made_once) == sorted(set(made_once))
    assert run(listed) == found
    assert calls(listed) == made_once


@pytest.mark.slow
def test_policies_are_trained_with_every_seed(listed: Path) -> None:
    """Seeds that are added later train their policies alone; the spread stands beside the interval over questions."""
    first = by_name(run(listed, "--policy-seeds", "3"))["good", 0]
    assert first["gains_by_policy_seed"]["rl_greedy_gain"] == {"3": 0.25}
    assert first["policy_spreads"]["rl_greedy_gain"] is None
    policies = listed.parent / "out" / "predictors" / "policies" / "good"
    assert "seed: 3" in (policies / "3" / "recipe.yaml").read_text()
    before = calls(listed)
    both = by_name(run(listed, "--policy-seeds", "3", "4"))["good", 0]
    assert calls(listed)[len(before) :] == [
        f"rl predictors/policies/{name}/4" for name in ("bad", "good")
    ]
    assert both["rl_greedy_gain"] == first["rl_greedy_gain"]  # equal policies of the stub
    assert both["policy_spreads"]["rl_greedy_gain"] == 0.0
    answers = policies / "4" / "answers" / "shapes.jsonl"
    rows = run_folders.lines(answers)
    for row in rows:
        row["credits"]["greedy"] = 1.0
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    differing = by_name(run(listed, "--policy-seeds", "3", "4"))["good", 0]
    assert differing["gains_by_policy_seed"]["rl_greedy_gain"] == {"3": 0.25, "4": 0.5}
    assert differing["rl_greedy_gain"][0] == pytest.approx(0.375)
    assert differing["policy_spreads"]["rl_greedy_gain"] == pytest.approx(0.25 / 2**0.5)
    table = (listed.parent / "out" / "predictors" / "predictors.md").read_text()
    assert "RL gain, greedy, spread over seeds" in table
    assert "17.7 (2 seeds)" in table


@pytest.mark.slow
def test_policies_can_be_added_to_a_study_without_them(listed: Path) -> None:
    """Answers are not scored again, and policies that another recipe trained are refused."""
    asked = ["--policy", "embedded", "--questions", QUESTIONS, "--compared", "2"]
    command.main([str(listed), "--seeds", "0", "1", *asked, "--launcher", LAUNCHER])
    before = calls(listed)
    assert "rl_greedy_gain" in by_name(run(listed))["good", 0]
    assert {call.split()[0] for call in calls(listed)[len(before) :]} == {"rl"}
    changed = (POLICY + EVALUATION).replace("learning_rate: 1.0e-4", "learning_rate: 2.0e-4")
    assert changed != POLICY + EVALUATION
    write(listed.parent, changed, "policy.yaml")
    with pytest.raises(SystemExit) as end:
        run(listed)
    assert "optim.learning_rate 0.0001 / 0.0002" in str(end.value.code)


def test_the_plan_counts_the_work_and_does_none(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(listed), "--policy", "embedded", "--questions", QUESTIONS, "--compared", "2"]
    paid = ["--policy-recipe", str(listed.with_name("policy.yaml")), "--pays", "bad", "good"]
    command.main([*asked, *paid, "--policy-seeds", "0", "1", "2", "--dry-run"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "scores 2 24 48 answers" in printed  # three questions with eight answers
    assert "tournaments 1 112 112 judgements" in printed  # two questions, 8 * 7 judgements
    assert "benchmarks once more 1 20 20 judgements" in printed
    assert "policies 6 2 12 steps" in printed
    assert "their answers in training 6 128 768 answers" in printed
    assert "their answers in evaluations 6 72 432 answers" in printed
    assert not (listed.parent / "out" / "calls").exists()


def test_a_judge_that_writes_nothing_is_not_judged_once_more(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run evaluates the benchmarks by soft verdicts, which are the only reading of it."""
    at_once = "method.target: verdict, evaluation.protocol: {verdicts: soft, rationale: none}"
    text = listed.read_text() + f"  at-once: {{extends: judge.yaml, {at_once}}}\n"
    listed.write_text(text)
    asked = [str(listed), "--policy", "embedded", "--questions", QUESTIONS, "--compared", "2"]
    command.main([*asked, "--dry-run"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "tournaments 2 112 224 judgements" in printed
    assert "benchmarks once more 1 20 20 judgements" in printed  # those of good-judge


def test_the_plan_counts_the_votes_of_a_judge_that_is_judged_once_more(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = listed.read_text().replace(
        "{extends: judge.yaml}",
        "{extends: judge.yaml, evaluation.protocol: {votes: 3}, evaluation.judging.temperature: 1}",
    )
    listed.write_text(text)
    asked = [str(listed), "--policy", "embedded", "--questions", QUESTIONS, "--compared", "2"]
    command.main([*asked, "--dry-run"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    # There are ten rows, each in both orders with three votes.
    assert "benchmarks once more 1 60 60 judgements" in printed


def test_models_of_another_recipe_are_refused(listed: Path) -> None:
    """A variant of the list has changed since its run. The run is not taken for the new variant."""
    folder = listed.parent / "out" / "good" / "0"
    folder.mkdir(parents=True)
    ablation = read_ablation(listed, [], [0])
    [trained] = [run for run in ablation.runs if run.variant == "good"]
    recipe = trained.recipe.resolved()
    recipe["head"]["layers"] = 3
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    with pytest.raises(SystemExit) as end:
        run(listed)
    assert "head.layers 3 / 1" in str(end.value.code)
    assert not (listed.parent / "out" / "calls").exists()


@pytest.mark.slow
def test_what_failed_is_missing_and_told_and_a_killed_command_ends_the_same(
    listed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (listed.parent / "out" / "fail").write_text("rm good/1")
    partly = run(listed)
    assert partly["missing"][0] == "good, seed 1"
    assert "not in the tables: good, seed 1" in capfd.readouterr().out
    (listed.parent / "out" / "fail").write_text("rl predictors/policies/good/0")
    for file in (listed.parent / "out" / "predictors" / "policies" / "good" / "0").glob("*.json"):
        file.unlink()
    with pytest.raises(SystemExit) as end:
        run(listed)
    assert str(end.value.code).startswith("error: ")
    (listed.parent / "out" / "fail").unlink()
    assert len(run(listed)["models"]) == 8


@pytest.mark.slow
def test_scores_of_other_answers_are_not_taken(listed: Path) -> None:
    """The folder is removed, as the command advises, and other questions are asked: the old scores are in the run folders."""
    run(listed)
    before = calls(listed)
    with pytest.raises(SystemExit):
        run(listed, "--samples", "4")  # begun with other settings
    shutil.rmtree(listed.parent / "out" / "predictors")
    other = QUESTIONS.replace("seed: 40", "seed: 5")
    run(listed, "--questions", other)
    scores = [line for line in before if line.startswith("score")]
    again = calls(listed)[len(before) :]
    assert sorted(line for line in again if line.startswith("score")) == sorted(scores)
    for scored in (listed.parent / "out").glob("*/*/scored-*.jsonl"):
        assert {other in row["prompt"] for row in run_folders.lines(scored)} == {True}
    run(listed, "--questions", other)
    assert calls(listed)[len(before) :] == again  # everything is there now


def test_questions_that_a_variant_trains_on_are_refused_before_any_work(
    listed: Path,
) -> None:
    trained_on = MINIMAL.strip().splitlines()[3].strip(" -")  # the source of base.yaml
    few = trained_on.replace("rows: 640", "rows: 20")
    with pytest.raises(SystemExit) as end:
        run(listed, "--questions", few)
    error = str(end.value.code)
    assert "--questions: 20 of 20 questions have been trained on" in error
    assert "is one of bad, source shapes" in error
    assert not (listed.parent / "out" / "calls").exists()


def test_questions_that_the_policy_trains_on_are_refused_before_any_work(
    listed: Path,
) -> None:
    text = (POLICY + EVALUATION).replace("split: benchmark", "split: validation")
    write(listed.parent, text, "policy.yaml")
    with pytest.raises(SystemExit) as end:
        run(listed)
    error = str(end.value.code)
    assert "policy.yaml, evaluation.questions: 4 of 4 questions have been trained on" in error
    assert not (listed.parent / "out" / "calls").exists()


SAMPLES = [
    {
        "id": str(number % 3),  # identities are labels: several questions share one
        "prompt": f"How many, {number}?",
        "responses": ["1", "2", "3"],
        "right": [number % 2 == 0, number % 3 == 0, number % 5 == 1],
        "scores": [float(number % 4), 1.5, float(number % 7)],
    }
    for number in range(20)
]


def questions_of(rows: list[dict[str, Any]], repeated: Set[int] = frozenset()) -> Any:
    """Return the questions of a study without benchmarks and policies."""
    clusters = QuestionClusters.of_questions(map(names_of_row, rows))
    return predictors.StudyQuestions(clusters, {}, {}, frozenset(repeated), frozenset())


def scored_without(folder: Path, name: str, missing: Set[int]) -> predictors.MeasuredModel:
    """Return the model of a file from which some rows are missing, as those that could not be judged."""
    rows = [row for number, row in enumerate(SAMPLES) if number not in missing]
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run_of_model = Run(name, 0, Recipe.model_validate(STAND_IN))
    return predictors.model_of_answers(run_of_model, file, questions_of(SAMPLES))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(missing=st.sets(st.integers(0, 19), max_size=15))
def test_a_model_against_itself_is_no_difference(tmp_path: Path, missing: set[int]) -> None:
    """Rows that are missing from one file do not shift those that both have."""
    whole, part = (
        scored_without(tmp_path, "whole", set()),
        scored_without(tmp_path, "part", missing),
    )
    for lines in predictors.variant_lines([whole, part], "whole").values():
        (difference,) = [line.difference for line in lines if line.variant == "part"]
        assert difference is not None
        assert difference.mean == 0.0
    best = predictors.variant_lines([whole, part], "whole")[predictors.BEST]
    assert best[0].n == len(SAMPLES) - len(missing)


def test_questions_that_were_trained_on_are_in_no_figure(tmp_path: Path) -> None:
    whole = scored_without(tmp_path, "whole", set())
    assert sorted(whole.cluster_by_question.values()) == list(range(20))  # every prompt is another
    keys = {Question.of_row(row).key for row in SAMPLES[:5]}
    questions = questions_of(SAMPLES, keys)
    without = predictors.model_of_answers(whole.run, tmp_path / "whole.jsonl", questions)
    assert without.questions == 15
    alone = scored_without(tmp_path, "alone", set(range(5)))
    assert without.gains == alone.gains
    assert without.figures == alone.figures


@pytest.mark.slow
def test_a_policy_is_paired_with_its_start_by_question(listed: Path) -> None:
    """The rows of a file may stand in any order; another question under the same identity is another question."""
    first = run(listed)
    gains = [one.get("rl_greedy_gain") for one in first["models"]]
    file = listed.parent / "out" / "predictors" / "policies" / "good" / "0" / "answers"
    file /= "shapes.jsonl"
    rows = run_folders.lines(file)
    assert [row["credits"]["greedy"] for row in rows] == [1.0, 1.0, 1.0, 0.0]
    start = file.parents[1] / "start" / "answers" / "shapes.jsonl"
    credits = {row["id"]: {"greedy": 1 - row["credits"]["greedy"], "sampled": 0.5} for row in rows}
    start.write_text(
        "".join(
            json.dumps({"id": name, "credits": credits[name]}) + "\n" for name in reversed(credits)
        )
    )
    second = run(listed)
    pairs = zip(gains, [one.get("rl_greedy_gain") for one in second["models"]], strict=True)
    assert [before == after for before, after in pairs].count(False) == 1
    good = next(one for one in second["models"] if one["variant"] == "good" and one["seed"] == 0)
    mean, low, high = good["rl_greedy_gain"]
    # The differences are 1, 1, 1 and -1, with an interval beyond what shares can differ by. Paired by
    # place they would be 0, 1, 1 and 0, with the same mean and an interval from -0.42.
    assert mean == 0.5
    assert (low, high) == (-1.0, 1.0)
    file.write_text(file.read_text().replace(':3"', ':3", "key": "00"'))
    with pytest.raises(SystemExit):
        run(listed)


def test_what_cannot_be_asked_is_said(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        str(listed),
        "--policy",
        "embedded",
        "--questions",
        "{type: shapes}",
        "--launcher",
        sys.executable,
    ]
    with pytest.raises(SystemExit):
        command.main([*asked, "--pays", "bad"])
    assert "--pays and --policy-recipe go together" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--pays better: the variants of"):
        command.main(
            [*asked, "--pays", "better", "--policy-recipe", str(listed.with_name("policy.yaml"))]
        )


HALVES = np.arange(40) % 2


def test_a_coefficient_is_over_the_models_that_have_both() -> None:
    """Seven models of six variants: AUC goes with the gain; of five variants, the other figure's are too few."""
    others = [None, 0.2, 0.3, 0.3, 0.4, 0.5, 0.6]
    runs = [
        model_of(0.5 + place / 20, place / 10, other, "aabcdef"[place])
        for place, other in enumerate(others)
    ]
    runs[1] = model_of(0.55, 0.1, None, "a")
    found = predictors.correlations(runs, HALVES)["best_of_gain"]
    assert list(found) == ["AUC"]  # no judge is among them
    assert predictors.too_few(runs, HALVES) == [
        "best-of-N gain and other: known of 5 variants, a coefficient needs 6"
    ]
    gain = {"rl_greedy_gain": runs[0].values["best_of_gain"]}
    runs[0] = replace(runs[0], values=runs[0].values | gain)
    assert "RL gain, greedy: known of 1 variants, a coefficient needs 6" in predictors.too_few(
        runs, HALVES
    )
    assert (found["AUC"].models, found["AUC"].recipes) == (7, 6)
    assert [found["AUC"].pearson[0], found["AUC"].spearman[0]] == pytest.approx([1.0, 1.0])
    assert list(found["AUC"].without) == list("abcdef")


def test_judges_stand_by_hard_and_by_soft_verdicts_and_are_left_out() -> None:
    scoring = [model_of(0.6 + place / 20, place / 10, None, str(place)) for place in range(6)]
    method = {"type": "language_model", "target": "judgement"}
    hard = replace(model_of(0.2, 0.5, None, "judge", method), verdicts="hard")
    soft = replace(model_of(0.9, 0.6, None, "judge", method), verdicts="soft")
    found = predictors.correlations([*scoring, hard, soft], HALVES)["best_of_gain"]
    assert {name: one.models for name, one in found.items()} == {
        "AUC, judges by hard verdicts": 7,
        "AUC, judges by soft verdicts": 7,
        "AUC, without judges that compare": 6,
    }
    assert found["AUC, judges by hard verdicts"].pearson[0] < 0.5
    assert found["AUC, judges by soft verdicts"].pearson[0] == pytest.approx(1.0)
    assert found["AUC, without judges that compare"].pearson[0] == pytest.approx(1.0)
    assert (hard.label, hard.paradigm) == ("judge (hard)", "judge, hard verdicts")
    # Judges that write nothing have soft verdicts alone. Then there is no group by hard verdicts.
    assert list(predictors.groups_of_models([*scoring, soft])) == [
        ", judges by soft verdicts",
        ", without judges that compare",
    ]


def test_questions_without_scores_are_counted_once_for_each_run() -> None:
    method = {"type": "language_model", "target": "judgement"}
    hard = replace(model_of(0.2, 0.5, None, "judge", method), verdicts="hard", unjudged=7)
    at_once = replace(model_of(0.9, 0.6, None, "at-once", method), verdicts="soft", unjudged=100)
    models = [hard, replace(hard, verdicts="soft"), at_once]
    no_runs = Ablation(Path("list.yaml"), Path("out"), {}, ())
    counted = [
        text for text in predictors.not_in_tables(models, HALVES, no_runs) if "no scores" in text
    ]
    assert counted == [
        "judge, seed 0: 7 questions, whose answers have no scores",
        "at-once, seed 0: 100 questions, whose answers have no scores",
    ]


def test_lines_of_variants_have_intervals_over_images() -> None:
    """Four questions about each of ten images, on which a model is right in all or in none."""
    names = [f"{image}-{question}" for image in range(10) for question in range(4)]
    is_right = {name: float(int(name.split("-")[0]) % 2) for name in names}
    model = model_of(0.5, 0.1, None, "a")
    by_question = {predictors.AUC: is_right, predictors.BEST: is_right}
    of_images = {name: int(name.split("-")[0]) for name in names}
    of_questions = {name: place for place, name in enumerate(names)}
    widths = []
    for clusters in (of_questions, of_images):
        measured = replace(model, by_question=by_question, cluster_by_question=clusters)
        models = [replace(measured, run=replace(model.run, seed=seed)) for seed in range(3)]
        [line] = predictors.variant_lines(models, "a")[predictors.BEST]
        assert line.low is not None
        assert line.high is not None
        widths.append(line.high - line.low)
    assert widths[1] > 1.7 * widths[0]  # about twice: the root of the four questions


def test_a_judge_of_single_responses_is_a_kind_of_its_own_that_scores() -> None:
    method = {"type": "language_model", "target": "ratings"}
    judge = model_of(0.5, 0.1, None, "points", method)
    assert (judge.label, judge.paradigm) == ("points", "points judge")
    assert not compares(judge.run)


def test_auc_of_one_half_of_the_questions_predicts_the_gain_on_the_other() -> None:
    """Models whose answers to one half were lucky by chance: the same answers make a coefficient of 1, halves of -1."""
    models = []
    for place in range(6):
        model = model_of(0.5 + place / 20, place / 10, None, str(place))
        lucky = RowValues(place / 10 * (-1.0) ** np.arange(40), np.arange(40))
        models.append(replace(model, values={"AUC": lucky, "best_of_gain": lucky}))
    found = predictors.correlations(models, HALVES)["best_of_gain"]["AUC"]
    assert found.pearson[0] == pytest.approx(-1.0)
    assert [one[0] for one in found.directions] == [-1.0, -1.0]


def test_a_model_without_questions_of_a_half_is_left_out() -> None:
    models = [model_of(0.5 + place / 20, place / 10, None, str(place)) for place in range(7)]
    first_half = RowValues(np.ones(20), np.arange(0, 40, 2))
    models[6] = replace(models[6], values=models[6].values | {"AUC": first_half})
    found = predictors.correlations(models, HALVES)["best_of_gain"]["AUC"]
    assert (found.models, found.recipes) == (6, 6)


def model_of(
    auc: float, gain: float, other: float | None, variant: str, method: dict[str, str] | None = None
) -> predictors.MeasuredModel:
    figures = {"AUC": auc, "best_of_gain": gain} | ({} if other is None else {"other": other})
    recipe = Recipe.model_validate(STAND_IN | ({"method": method} if method else {}))
    return predictors.MeasuredModel(
        Run(variant, 0, recipe),
        "",
        10,
        {name: RowValues(np.full(40, value), np.arange(40)) for name, value in figures.items()},
        {"best_of_gain": (gain, 0.0, 0.0)},
    )


REAL_LIST = """\
optim: {{epochs: null, max_steps: 1, records_per_step: 4, token_budget: 4096}}
data: {{validation: 0}}
deepspeed: none
evaluation:
  at_start: false
  best_metric: null
  benchmarks: [{{name: vl_rewardbench, location: embedded, limit: 6}}]
output: {{folder: {folder}, save_every_steps: 100, keep_checkpoints: 1}}
variants:
  points: {{extends: {recipes}/points.yaml, data.sources.0.rows: 40}}
  judge: {{extends: {recipes}/judge_sft.yaml, data.sources.0.rows: 40, evaluation.judging.max_new_tokens: 4}}
"""
REAL_POLICY = """\
extends: {recipes}/policy_short.yaml
deepspeed: none
data: {{sources: [{{type: shapes, level: demo, split: validation, rows: 16, text_only: 0.0}}]}}
method: {{num_generations: 2, pairs_per_pass: 2, max_new_tokens: 4}}
optim: {{max_steps: 2, records_per_step: 2}}
evaluation:
  samples: 2
  questions: [{{type: shapes, level: demo, split: benchmark, rows: 4, seed: 3, text_only: 0.0}}]
output: {{save_every_steps: 2}}
"""


@pytest.mark.slow
def test_the_command_runs_from_training_to_the_tables(tmp_path: Path) -> None:
    """Real steps, one of each kind: a judge of single answers that pays a policy, and a judge that compares."""
    recipes = CLONE / "recipes" / "shapes"
    folder = tmp_path / "out"
    listed = write(tmp_path, REAL_LIST.format(folder=folder, recipes=recipes), "list.yaml")
    policy = write(tmp_path, REAL_POLICY.format(recipes=recipes), "policy.yaml")
    source = "{type: shapes, level: demo, split: benchmark, rows: 4, seed: 2, text_only: 0.0}"
    asked = ["--policy", "embedded", "--questions", source, "--samples", "2", "--compared", "2"]
    asked += ["--max-new-tokens", "4", "--policy-recipe", str(policy), "--pays", "points"]
    command.main([str(listed), *asked])
    found = json.loads((folder / "predictors" / "predictors.json").read_text())
    assert [(one["variant"], one["paradigm"], one["questions"]) for one in found["models"]] == [
        ("points", "points judge", 4),
        ("judge", "judge, hard verdicts", 2),
        ("judge", "judge, soft verdicts", 2),
    ]
    points, hard, soft = found["models"]
    assert list(points["gains_by_policy_seed"]) == ["rl_greedy_gain", "rl_sampled_gain"]
    assert "rl_greedy_gain" in points
    assert "vl_rewardbench ECE" in points
    # Four tokens are no judgement: the words name nobody, and the probabilities are read all the same.
    assert hard["vl_rewardbench accuracy"] == 0.0
    assert hard["best_of_gain"][0] == 0.0
    assert soft["vl_rewardbench accuracy"] > 0.0
    assert "vl_rewardbench ECE" in soft
