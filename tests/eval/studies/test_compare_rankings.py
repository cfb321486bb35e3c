"""`eval/compare_rankings.py`: its figures by hand, its losses, which questions count, and errors."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mmrm.eval.compare_rankings import main
from mmrm.eval.results.intervals import difference_over_seeds, share_interval
from mmrm.eval.studies.compare_rankings import (
    ALL,
    WayFigures,
    clusters_of_questions,
    estimate,
    loss,
    ranked_questions,
    ways_to_rank,
)
from tests.eval.make import png

Record = dict[str, Any]


def question(number: int, right: list[bool]) -> Record:
    """Return an answered question without scores."""
    responses = [f"answer {index}" for index in range(len(right))]
    return {"prompt": f"Question {number}?", "responses": responses, "right": right}


def scored(record: Record, scores: list[float]) -> Record:
    """Return a record as a judge of single responses scores it."""
    return {**record, "scores": scores, "judgements": len(scores), "tokens": 0}


def compared(record: Record, strengths: list[float], probability: float | None = None) -> Record:
    """Return a record as a judge that compares scores it: the stronger response is named.

    Args:
        record: The answered question.
        strengths: The strength of each response.
        probability: The probability of the stronger response; None for hard verdicts alone.
    """
    comparisons: list[Record] = []
    for first, second in permutations(range(len(strengths)), 2):
        is_first = strengths[first] > strengths[second]
        first_probability = probability
        if probability is not None and not is_first:
            first_probability = 1 - probability
        named = first if is_first else second
        comparisons.append(
            {"shown": [first, second], "named": named, "probability": first_probability}
        )
    num_judgements = len(comparisons)
    return {
        **record,
        "scores": strengths,
        "judgements": num_judgements,
        "tokens": 10 * num_judgements,
        "comparisons": comparisons,
    }


def write(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def figures_of(tmp_path: Path, *judges: str) -> dict[str, Any]:
    """Run the command, and return what it writes."""
    main([*judges, "--output", str(tmp_path / "out")])
    found: dict[str, Any] = json.loads((tmp_path / "out" / "rankings.json").read_text())
    return found


def test_the_figures_are_those_by_hand(tmp_path: Path) -> None:
    questions = [
        question(0, [True, False, False, False]),
        question(1, [True, True, False, False]),
        question(2, [False, False, False, False]),
    ]
    strengths = [[3.0, 2.0, 1.0, 0.0], [3.0, 0.0, 2.0, 1.0], [0.0, 1.0, 2.0, 3.0]]
    pairs = list(zip(questions, strengths, strict=True))
    judge = write(tmp_path / "judge.jsonl", [compared(*pair) for pair in pairs])
    reversed_scores = []
    for record, values in pairs:
        reversed_scores.append(scored(record, [-strength for strength in values]))
    points = write(tmp_path / "points.jsonl", reversed_scores)
    found = figures_of(tmp_path, f"judge={judge}", f"points={points}")

    assert (found["questions"], found["mixed_questions"], found["left_out"]) == (3, 2, 0)
    assert found["sampled"] == pytest.approx(0.25)
    ways = {(line["judge"], line["way"]): line for line in found["ways"]}
    assert [way for name, way in ways if name == "judge"] == [
        *("all, hard", "sorted, hard"),
        *("swiss 1, hard", "swiss 2, hard", "swiss 3, hard", "swiss 5, hard"),
    ]
    tournament = ways["judge", "all, hard"]
    assert (tournament["judgements"], tournament["tokens"]) == (12, 120)
    # Of the first question all three pairs are right, of the second one the pairs of answer 0.
    assert tournament["auc"]["mean"] == pytest.approx((1 + 0.5) / 2)
    assert tournament["best"]["mean"] == pytest.approx(2 / 3)
    assert tournament["gain"]["mean"] == pytest.approx(2 / 3 - 1 / 4)
    assert "loss" not in tournament
    # A judge without errors loses nothing by a sort, which needs at most 5 of the 6 pairs.
    assert ways["judge", "sorted, hard"]["loss"]["mean"] == pytest.approx(0)
    assert ways["judge", "sorted, hard"]["judgements"] <= 10
    assert ways["judge", "swiss 1, hard"]["judgements"] == 4
    assert ways["judge", "swiss 1, hard"]["tokens"] == 40
    reversed_order = ways["points", "scores"]
    assert (reversed_order["judgements"], reversed_order["tokens"]) == (4, 0)
    assert reversed_order["loss"]["mean"] == pytest.approx(2 / 3 - 1 / 3)
    assert "| points | scores | 4.0 | 0 |" in (tmp_path / "out" / "rankings.md").read_text()


def test_files_with_copies_of_the_images_are_paired(tmp_path: Path) -> None:
    paths = []
    text = {"type": "text", "text": "What is it?"}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "image.png").write_bytes(png("red"))
        record = question(0, [True, False]) | {"images": ["image.png"]}
        record["prompt"] = [{"role": "user", "content": [{"type": "image"}, text]}]
        records = [scored(record, [1.0, 0.0])]
        paths.append(write(tmp_path / name / "scored.jsonl", records))
    found = figures_of(tmp_path, f"one={paths[0]}", f"other={paths[1]}")
    assert (found["questions"], found["left_out"]) == (1, 0)


def test_answers_to_one_prompt_without_an_image_are_not_independent(tmp_path: Path) -> None:
    record = question(0, [True, False])
    other = record | {"prompt": "question  0?", "responses": ["c", "d"]}
    file = write(tmp_path / "scored.jsonl", [scored(record, [1.0, 0.0]), scored(other, [1.0, 0.0])])
    questions = ranked_questions(file, None, Console(quiet=True))
    assert clusters_of_questions(list(questions.values())).tolist() == [0, 0]


def test_three_trainings_that_choose_alike_do_not_prove_that_nothing_is_lost() -> None:
    always = np.ones((3, 50))
    clusters = np.arange(50)
    over_rows = share_interval(always[0], clusters)
    assert estimate(always, clusters) == over_rows
    assert over_rows.low is not None
    assert over_rows.low < 0.95
    figures = WayFigures("judge", ALL, always, always, always, judgements=12, tokens=0)
    found = loss(figures, replace(figures, way="sorted"), clusters, num_compared=1)
    assert found.mean == 0
    assert found.low is not None
    assert found.high is not None
    assert found.high == pytest.approx(-found.low)
    assert found.high > 0.03  # one of 50 rows in which either is better, times Student's quantile
    other_trainings = difference_over_seeds(always, always, clusters)
    assert found.high == pytest.approx(other_trainings.high)


def test_one_round_of_comparisons_loses_what_it_cannot_know() -> None:
    # In the first round, neighbours in the order of the record are compared, and the four winners
    # cannot be told apart.
    record = compared(question(0, [True] + 7 * [False]), [7.0, *map(float, range(7))])
    ways = dict(ways_to_rank(record))
    scores = np.array(ways["swiss 1, hard"].scores)
    assert int((scores == scores.max()).sum()) == 4
    assert ways["swiss 1, hard"].judgements == 8
    assert int(np.argmax(ways["swiss 3, hard"].scores)) == 0


def test_soft_verdicts_come_first_and_hard_ones_of_the_same_judgements_follow() -> None:
    record = compared(question(0, [True, False, False]), [2.0, 1.0, 0.0], probability=0.6)
    record["comparisons"][0]["named"] = None  # the verdict in which 0 is shown before 1
    ways = dict(ways_to_rank(record))
    assert next(iter(ways)) == "all, soft"
    assert ways["all, soft"].scores == pytest.approx((0.6, 0.5, 0.4))
    assert ways["all, hard"].scores == pytest.approx((3.5 / 4, 2.5 / 4, 0))


def test_intervals_are_over_trainings_from_three_on(tmp_path: Path) -> None:
    rng = random.Random(0)
    files: list[str] = []
    questions = []
    for number in range(12):
        questions.append(question(number, [rng.random() < 0.5 for _ in range(4)]))
    for training in range(3):
        records = []
        for record in questions:
            # Each training is right with a probability of its own.
            weight = 0.5 * training
            strengths = [weight * right + rng.random() for right in record["right"]]
            records.append(compared(record, strengths, probability=0.7))
        files.append(str(write(tmp_path / f"{training}.jsonl", records)))
    three = figures_of(tmp_path, f"judge={','.join(files)}")
    two = figures_of(tmp_path, f"judge={','.join(files[:2])}")
    for found, num_trainings in ((three, 3), (two, 2)):
        for line in found["ways"]:
            assert line["trainings"] == num_trainings
            for name in ("auc", "best", "gain", *(["loss"] if "loss" in line else [])):
                assert line[name]["low"] <= line[name]["mean"] <= line[name]["high"]
    # Trainings differ, so an interval over them is wider than one over questions alone.
    for name in ("auc", "gain"):
        widths = []
        for found in (three, two):
            tournament = found["ways"][0][name]
            widths.append(tournament["high"] - tournament["low"])
        assert widths[0] > widths[1]
    # Ways of one judge are paired by training, so that what its trainings share cancels.
    losses = [line["loss"] for line in three["ways"][1:]]
    gain_width = three["ways"][0]["gain"]["high"] - three["ways"][0]["gain"]["low"]
    assert min(loss["high"] - loss["low"] for loss in losses) < gain_width


def test_questions_of_one_image_are_not_independent(tmp_path: Path) -> None:
    image = "data:image/png;base64," + base64.b64encode(png("blue", (40, 30))).decode()
    widths = []
    for name, images in (("apart", []), ("together", [image])):
        records = []
        for number in range(40):
            right = [number < 20, number >= 20]
            record = question(number, right)
            # Two images: one of the questions that are answered right, one of the others.
            if images:
                record["images"] = images if number < 20 else []
            records.append(scored(record, [1.0, 0.0]))
        path = write(tmp_path / f"{name}.jsonl", records)
        best = figures_of(tmp_path, f"points={path}")["ways"][0]["best"]
        widths.append(best["high"] - best["low"])
    assert widths[1] > widths[0]


def test_images_of_another_folder_are_found_there(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(png("blue", (40, 30)))
    record = scored(question(0, [True, False]) | {"images": ["1.png"]}, [1.0, 0.0])
    path = write(tmp_path / "points.jsonl", [record, record])
    with pytest.raises(SystemExit, match="--image-root"):
        figures_of(tmp_path, f"points={path}")
    found = figures_of(tmp_path, f"points={path}", "--image-root", str(tmp_path / "images"))
    assert found["questions"] == 2


def test_questions_that_are_not_in_all_files_are_left_out(tmp_path: Path) -> None:
    records = [scored(question(number, [True, False]), [1.0, 0.0]) for number in range(4)]
    one = write(tmp_path / "one.jsonl", records[:3])
    other = write(tmp_path / "other.jsonl", [*records[1:], records[1]])
    found = figures_of(tmp_path, f"a={one}", f"b={other}")
    # Questions 1 and 2 are in both; 0, 3 and the repetition of 1 are in one file alone.
    assert (found["questions"], found["left_out"]) == (2, 3)


def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = question(0, [True, False])
    without_scores = write(tmp_path / "answers.jsonl", [record])
    without_verdicts = write(
        tmp_path / "scores.jsonl", [{**record, "scores": [1, 0]} | {"right": None}]
    )
    other = write(tmp_path / "other.jsonl", [scored(question(1, [True, False]), [1.0, 0.0])])
    points = write(tmp_path / "points.jsonl", [scored(record, [1.0, 0.0])])
    judge = compared(record, [1.0, 0.0])
    sorted_file = write(
        tmp_path / "sorted.jsonl", [judge | {"comparisons": judge["comparisons"][:1]}]
    )
    for arguments, message in (
        ([f"a={without_scores}"], "no column `scores`, which eval/score.py writes"),
        ([f"a={without_verdicts}"], "no column `right`, which eval/sample.py writes"),
        ([f"a={sorted_file}"], "1 of 2 comparisons of 2 responses were made"),
        ([f"a={points}", f"b={other}"], "no question with its answers is in all files"),
        ([f"a={points},{write(tmp_path / 'j.jsonl', [judge])}"], "was not ranked by `scores`"),
    ):
        with pytest.raises(SystemExit, match=message):
            figures_of(tmp_path, *arguments)
    for arguments, message in (
        ([f"a={points}", f"a={points}"], "a name of its own"),
        (["points.jsonl"], "should be NAME=FILE"),
    ):
        with pytest.raises(SystemExit):
            figures_of(tmp_path, *arguments)
        assert message in capsys.readouterr().err
