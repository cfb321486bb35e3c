"""RewardBench 2: its rows, and its figures against hand-computed ones and the official functions."""

from __future__ import annotations

import ast
import json
import random
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.errors import PredictionsError, RecordError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.reward_bench_2 import (
    REWARD_BENCH_2,
    official_records,
    official_score,
    result_of_row,
)
from mmrm.eval.candidates import RankedExample, Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.suite.suite import evaluate
from tests.eval.benchmarks.test_vl_rewardbench import write_parquet

OFFICIAL = Path("/work/.mirror/allenai+reward-bench/repo")
"""A copy of the git folder of github.com/allenai/reward-bench, if somebody fetched it."""
FUNCTIONS = ("reroll_and_score_dataset", "_compute_prompt_stats", "process_single_model")


def row(identity: str, subset: str = "Math", right: int = 1, wrong: int = 3) -> dict[str, Any]:
    """Return a row of the official file."""
    return {
        "id": identity,
        "prompt": f"what is {identity}?",
        "chosen": [f"right {number} {identity}" for number in range(right)],
        "rejected": [f"wrong {number} {identity}" for number in range(wrong)],
        "num_correct": right,
        "num_incorrect": wrong,
        "total_completions": right + wrong,
        "models": ["a"] * (right + wrong),
        "subset": subset,
        "additional_metadata": {"category": "x", "index": None, "instruction_id_list": None},
    }


def record(identity: str, subset: str, num_correct: int, scores: list[Any]) -> dict[str, Any]:
    """Return a line of an official predictions file."""
    return {"id": identity, "subset": subset, "num_correct": num_correct, "scores": scores}


# Rows


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_rows_of_the_official_schema_become_rankings(kind: str, tmp_path: Path) -> None:
    rows = [row("0"), row("ref:0", "Ties", 1, 5), row("tied:0", "Ties", 7, 5)]
    if kind == "parquet":
        write_parquet(rows, tmp_path / "data" / "test-00000-of-00001.parquet")
    else:
        (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    loaded = REWARD_BENCH_2.load(Location(location=str(tmp_path)))
    assert [len(example.responses) for example in loaded.examples] == [4, 6, 12]
    assert [example.group for example in loaded.examples] == ["Math", "Ties", "Ties"]
    assert loaded.origin.notes == ("3 rows; the released edition has 1865.",)
    for example, line in zip(loaded.examples, rows, strict=True):
        assert example.images == ()
        by_rank: dict[int, set[str]] = defaultdict(set)
        for rank, response in zip(example.ranks, example.responses, strict=True):
            by_rank[rank].add(response.text)
        assert by_rank == {0: set(line["chosen"]), 1: set(line["rejected"])}


def test_the_right_response_is_shown_at_any_position() -> None:
    positions = [_example(row(str(number))).ranks.index(0) for number in range(400)]
    counts = np.bincount(positions, minlength=4)
    assert counts.min() > 60  # 100 on average, with a standard deviation of 9


def _example(line: dict[str, Any]) -> RankedExample:
    from mmrm.eval.benchmarks.reward_bench_2 import PUBLISHED

    example = PUBLISHED.convert(line, Path(), "reward_bench_2:0 (0)")
    assert isinstance(example, RankedExample)
    return example


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": "a text"}, "chosen is 'a text'; required is a list of texts"),
        ({"rejected": []}, r"rejected is \[\]; required is a list"),
        ({"rejected": ["a", None]}, "rejected is .*; required is a list"),
        ({"num_correct": 2}, "num_correct is 2, and chosen and rejected hold 1"),
        ({"total_completions": 5}, "total_completions is 5, and .* hold 4"),
        ({"subset": None}, "no text under subset"),
    ],
)
def test_a_row_of_another_form_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        _example({**row("0"), **change})


# Figures by hand


@pytest.mark.parametrize(
    ("scores", "result"),
    [
        ([2.0, 1.0, 0.0, 1.0], 1.0),
        ([2.0, 2.0, 0.0, 1.0], 1 / 2),
        ([2.0, 2.0, 2.0, 1.0], 1 / 3),
        ([1.0, 1.0, 1.0, 1.0], 1 / 4),
        ([1.0, 2.0, 0.0, 0.0], 0.0),
        ([None, 2.0, 1.0, 1.0], 0.0),
        ([1.0, None, None, None], 1.0),
        ([None, None, None, None], 0.25),
    ],
)
def test_the_result_of_a_row(scores: list[float | None], result: float) -> None:
    assert result_of_row(scores) == result


def test_ties_and_the_mean_over_subsets_by_hand() -> None:
    figures = official_score(
        [
            record("1", "Math", 1, [3.0, 1.0, 2.0, 0.0]),  # 1
            record("2", "Math", 1, [3.0, 3.0, 2.0, 0.0]),  # 1/2
            record("3", "Focus", 1, [0.0, 3.0, 2.0, 0.0]),  # 0
            # Question 0: the right ones differ by 1, and are 2 above the best wrong one; ref by 4.
            record("ref:0", "Ties", 1, [5.0, 1.0]),
            record("tied:0", "Ties", 2, [4.0, 3.0, 1.0]),
            # Question 1: the right ones differ by 2, and are 3 above; the reference row by 1.
            record("ref:1", "Ties", 1, [2.0, 1.0]),
            record("tied:1", "Ties", 3, [6.0, 5.0, 4.0, 1.0, 0.0]),
            # Question 2 has no reference row, and its tied row is wrong.
            record("tied:2", "Ties", 2, [1.0, 0.0, 3.0]),
        ]
    )
    margin = (np.tanh(2 / 1 - 1) + np.tanh(1 / 2 - 1)) / 2
    ties = 0.3 * 2 / 3 + 0.3 * 1 + 0.2 * 1 + 0.2 * 1 / 2 + 0.01 * margin
    assert figures["groups"]["Math"] == {"n": 2, "right": 1.5, "accuracy": 0.75}
    assert figures["groups"]["Focus"] == {"n": 1, "right": 0.0, "accuracy": 0.0}
    assert figures["groups"]["Ties"]["accuracy"] == pytest.approx(ties, rel=1e-15)
    assert figures["detail"]["ties"]["correctness_margin"] == pytest.approx(margin, rel=1e-15)
    assert figures["detail"]["ties"]["questions"] == 2
    assert figures["macro"] == pytest.approx((0.75 + 0 + ties) / 3, rel=1e-15)
    assert figures["micro"] == 0.5
    assert list(figures["groups"]) == ["Focus", "Math", "Ties"]  # as np.unique sorts them


def test_equal_right_responses_have_a_bounded_margin() -> None:
    """The script divides by the difference of right responses: 1/0 counts 1, and 0/0 counts 0."""
    apart = [record("ref:0", "Ties", 1, [2, 1]), record("tied:0", "Ties", 2, [2, 2, 1])]
    assert official_score(apart)["detail"]["ties"]["correctness_margin"] == 1.0
    equal = [record("ref:0", "Ties", 1, [1, 1]), record("tied:0", "Ties", 2, [1, 1, 1])]
    assert official_score(equal)["groups"]["Ties"]["accuracy"] == 0.0


def test_a_subset_that_cannot_be_scored_has_no_figure_and_neither_has_the_mean() -> None:
    figures = official_score(
        [record("1", "Math", 1, [1, 0, 0, 0]), record("ref:0", "Ties", 1, [1, 0])]
    )
    assert figures["groups"]["Ties"]["accuracy"] is None
    assert figures["macro"] is None
    assert figures["micro"] == 1.0


def test_unreadable_ratings_of_ties_count_as_minus_one() -> None:
    """As run_generative_v2.py; a judge with lower scores than -1 has its lowest one instead."""
    unread = [record("ref:0", "Ties", 1, [9, None]), record("tied:0", "Ties", 2, [9, None, 2])]
    rated = [record("ref:0", "Ties", 1, [9, -1]), record("tied:0", "Ties", 2, [9, -1, 2])]
    assert official_score(unread) == official_score(rated)
    low = [record("ref:0", "Ties", 1, [-2, None]), record("tied:0", "Ties", 2, [-3, None, -9])]
    assert official_score(low)["detail"]["ties"]["ref_accuracy"] == 0.0


def test_results_of_the_generative_script_are_read_in_place_of_scores() -> None:
    lines: list[dict[str, Any] | None] = [
        {"id": str(n), "subset": "Math", "results": value} for n, value in enumerate((1, 0))
    ]
    lines.append({"id": "3", "subset": "Math", "results": 0.25, "scores": None})
    assert official_score(lines)["groups"]["Math"]["accuracy"] == 1.25 / 3


@pytest.mark.parametrize(
    "broken",
    [
        record("1", "Math", 1, [1.0, "2", 0, 0]),
        record("1", "Math", 0, [1.0, 0, 0, 0]),
        record("1", "Math", 4, [1.0, 0, 0, 0]),
        record("1", "Math", True, [1.0, 0, 0, 0]),
        record("1", "Math", 1, [1.0]),
        record("1", "Math", 1, [float("nan"), 1.0]),
        {"id": "1", "subset": "Math", "results": 2},
        {"id": "1", "subset": "Math"},
        {"id": 1, "subset": "Math", "num_correct": 1, "scores": [1, 0]},
    ],
)
def test_a_line_of_another_form_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(PredictionsError, match=r"line 2: .* Required are id, subset"):
        official_score([record("0", "Math", 1, [1, 0, 0, 0]), broken])


def test_an_id_of_ties_without_a_question_is_refused() -> None:
    with pytest.raises(PredictionsError, match="'other:1' of the subset Ties has no id"):
        official_score([record("other:1", "Ties", 1, [1, 0])])


# The official functions


def official_functions() -> dict[str, Any]:
    """Return the official scoring functions, compiled from the repository's utils.py."""
    pandas = pytest.importorskip("pandas")
    datasets = pytest.importorskip("datasets")
    if not OFFICIAL.is_dir():
        pytest.skip(f"{OFFICIAL} is not there: a copy of github.com/allenai/reward-bench")
    command = ["git", "--git-dir", str(OFFICIAL), "show", "HEAD:rewardbench/utils.py"]
    source = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    body: list[ast.stmt] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS
    ]
    assert len(body) == len(FUNCTIONS)
    from typing import Dict, List, Tuple  # noqa: UP035

    names = {"np": np, "pd": pandas, "Dataset": datasets.Dataset, "defaultdict": defaultdict}
    names |= {"Dict": Dict, "List": List, "Tuple": Tuple}  # noqa: UP006
    exec(compile(ast.Module(body, []), "utils.py", "exec"), names)
    return names


def official_figures(
    functions: dict[str, Any], records: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Return the figures of run_v2.py's last part: the accuracy of each subset."""
    unrolled = []
    for line in records:
        for score in line["scores"]:
            unrolled.append(
                {"text": "", "scores": score, "subset": line["subset"], "id": line["id"]}
            )
    counts = [len(line["scores"]) for line in records]
    dataset = functions["Dataset"].from_list(unrolled)
    dataset = functions["reroll_and_score_dataset"](dataset, counts)
    dataset = dataset.add_column("num_correct", [line["num_correct"] for line in records])
    figures = {}
    for subset in np.unique([line["subset"] for line in records]):
        rows_of_subset = dataset.filter(lambda one, subset=subset: one["subset"] == subset)
        if subset.lower() == "ties":
            _, figures[str(subset)] = functions["process_single_model"](rows_of_subset)
        else:
            results = rows_of_subset["results"]
            figures[str(subset)] = sum(results) / len(results)
    return figures


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the official script divides by zero
@pytest.mark.parametrize("seed", range(12))
def test_random_predictions_score_as_the_official_functions_to_the_last_digit(seed: int) -> None:
    functions = official_functions()
    rng = random.Random(seed)

    # Coarse scores tie often; fine ones never.
    def draw() -> float:
        return float(rng.randrange(4)) if seed % 3 == 0 else rng.gauss(0, 3)

    records = []
    for number in range(60):
        subset = rng.choice(("Math", "Focus", "Safety"))
        records.append(record(str(number), subset, 1, [draw() for _ in range(4)]))
    numbers = rng.sample(range(400), 40)
    for number in numbers:
        lift = rng.choice((0.0, 3.0, 8.0))
        for kind, num_right in (("ref", 1), ("tied", rng.randrange(2, 9))):
            right = [draw() + lift for _ in range(num_right)]
            wrong = [draw() for _ in range(rng.randrange(1, 12))]
            if rng.random() < 0.95:  # some questions lack one of their rows
                records.append(record(f"{kind}:{number}", "Ties", num_right, right + wrong))
    rng.shuffle(records)
    ours = official_score(records)
    theirs = official_figures(functions, records)
    assert {name: group["accuracy"] for name, group in ours["groups"].items()} == theirs
    assert ours["macro"] == sum(theirs.values()) / len(theirs)


# Evaluation


def test_an_evaluation_its_files_and_the_official_rule_agree(tmp_path: Path) -> None:
    loaded = REWARD_BENCH_2.load(Location(location="embedded", limit=120))
    rng = random.Random(0)
    scores = []
    for example in loaded.examples:
        scores.append(Scores(tuple(rng.gauss(1.0 - rank, 1.0) for rank in example.ranks)))
    protocol = ProtocolConfig()
    result = evaluate(loaded.examples, scores, REWARD_BENCH_2, protocol, loaded.origin)
    assert result.ranking is not None
    official = result.published["official"]
    for subset, group in official["groups"].items():
        if subset != "Ties":
            assert group["accuracy"] == pytest.approx(result.groups[subset].accuracy)
            assert result.groups[subset] == result.ranking.best_groups[subset]
    write_predictions(loaded.examples, scores, REWARD_BENCH_2, protocol, tmp_path / "r")
    for name in ("predictions.jsonl", "official.jsonl"):
        figures, compared = score_predictions_file(
            tmp_path / "r" / name, REWARD_BENCH_2, where=Location(location="embedded", limit=120)
        )
        assert compared.whole
        assert figures["groups"] == official["groups"]
        assert figures["macro"] == official["macro"]
    first, line = loaded.examples[0], official_records(loaded.examples, scores)[0]
    values = dict(zip(first.row["order"], scores[0].values, strict=True))
    assert line["scores"] == [values[index] for index in range(len(first.responses))]
