"""Predictions written, read back, compared and scored."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.candidates import Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.intervals import paired_difference
from mmrm.eval.results.predictions import contents, difference, predictions_in, write_predictions
from tests.eval.make import example, png, votes

BENCHMARK = BENCHMARKS["mm_rlhf_rewardbench"]
EXAMPLES = [
    example("a", 1, id="i", image="mcq/1.png"),
    example("b", id="i", image="mcq/1.png"),
    example("c", id="j", image="long/2"),
]
VERDICTS = [
    Scores((0.25, 0.75), texts=("bad", "good")),
    Scores((math.nan, 1.0)),
    Scores((1.0, 1.0)),
]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_predictions_are_written_in_our_format_and_the_official_one(tmp_path: Path) -> None:
    write_predictions(EXAMPLES, VERDICTS, BENCHMARK, ProtocolConfig(), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "official.jsonl",
        "predictions.jsonl",
    ]
    own, official = (
        lines(tmp_path / "run" / name) for name in ("predictions.jsonl", "official.jsonl")
    )
    assert [record["key"] for record in own] == ["a", "b", "c"]
    assert [
        (record["correct"], record["tie"], record["unparsable"], record["credit"]) for record in own
    ] == [
        (True, False, False, 1.0),
        (False, False, True, 0.0),
        (False, True, False, 0.0),
    ]
    assert (own[0]["margin"], own[0]["critiques"], own[1]["scores"]) == (
        0.5,
        ["bad", "good"],
        [None, 1.0],
    )
    assert [record["rewards"] for record in official] == [[0.75, 0.25], [0, 1], [1.0, 1.0]]
    assert official[0]["image"] == "mcq/1.png"


def test_votes_are_written_with_their_text_and_order(tmp_path: Path) -> None:
    write_predictions(EXAMPLES[:1], [votes(0, None)], BENCHMARK, ProtocolConfig(), tmp_path)
    (record,) = lines(tmp_path / "predictions.jsonl")
    assert record["votes"] == [
        {"text": "says 0", "first": 0, "names": 0},
        {"text": "says None", "first": 1, "names": None},
    ]
    assert (record["scores"], record["critiques"]) == (None, None)


def test_the_difference_of_two_checkpoints_is_of_the_same_rows_in_any_order() -> None:
    first = [{"key": str(row), "credit": float(row % 2)} for row in range(50)]
    second = [{"key": str(row), "credit": 0.0} for row in range(50)][::-1]
    found = difference(first, second)
    assert (found.mean, found.distinguishable) == (0.5, True)
    assert difference(first, first[::-1]).mean == 0
    with pytest.raises(ValueError, match="50 and 49 rows, of which 49 are in both"):
        difference(first, second[1:])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"key": "1", "credit": 1.0}, "the row '1' is there twice"),
        (
            {"key": "2", "credit": math.nan},
            "its credit nan; required are a text and a number from 0",
        ),
        ({"key": "2", "credit": math.inf}, "its credit inf"),
        ({"key": "2", "credit": 2.0}, "its credit 2.0"),
        ({"key": "2", "credit": True}, "its credit True"),
        ({"key": "2"}, "its credit None"),
        ({"credit": 1.0}, "its key is None"),
        ({"key": ["2"], "credit": 1.0}, r"its key is \['2'\]"),
    ],
)
def test_rows_that_occur_twice_and_credits_that_are_none_are_refused(
    broken: dict[str, Any], message: str
) -> None:
    rows = [{"key": "1", "credit": 1.0}]
    for pair in (([*rows, broken], rows), (rows, [*rows, broken])):
        with pytest.raises(ValueError, match=message):
            difference(*pair)


def test_two_copies_of_a_benchmark_are_compared_by_what_their_rows_show(tmp_path: Path) -> None:
    """The keys differ, for they name the image's path; so does the order of the responses."""
    one, two = (tmp_path / name / "1.png" for name in ("a", "b"))
    for file in (one, two):
        file.parent.mkdir()
        file.write_bytes(png())
    first = [
        example("a", 0, images=(one,), question="what?"),
        example("b", 1, ("x", "y"), images=(one,), question="what?"),
        example("b-2", 1, ("x", "y"), images=(one,), question="what?"),
    ]
    second = [
        example("c", 1, ("y", "x")[::-1], images=(two,), question="what?"),
        example("d", 1, ("two", "one"), images=(two,), question="what?"),
    ]
    second.append(example("e", 0, ("y", "x"), images=(two,), question="what?"))
    assert contents(first) == [contents(second)[row] for row in (1, 0, 2)]
    (tmp_path / "b" / "1.png").write_bytes(png("blue"))
    assert not set(contents(first)) & set(contents(second))
    assert contents([example("a", 0)]) != contents([example("a", 1)])
    rows = (
        [{"key": "a", "content": "x", "credit": 1.0}],
        [{"key": "b", "content": "x", "credit": 0.0}],
    )
    assert difference(*rows).mean == 1.0


def test_predictions_are_found_in_a_file_a_folder_a_checkpoint_and_a_run(tmp_path: Path) -> None:
    def written(place: str) -> Path:
        file = tmp_path / place / "vl" / "predictions.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        return file

    ninth, tenth = written("run/checkpoint-9/eval"), written("run/checkpoint-10/eval")
    (tmp_path / "run" / "checkpoint-11").mkdir()
    assert (
        predictions_in(ninth) == predictions_in(tmp_path / "run" / "checkpoint-9") == {"vl": ninth}
    )
    assert predictions_in(tmp_path / "run") == {"vl": tenth}
    (tmp_path / "run" / "best").symlink_to("checkpoint-9")
    assert predictions_in(tmp_path / "run")["vl"].resolve() == ninth
    assert predictions_in(tmp_path / "nowhere") == {}


def test_rows_of_one_item_count_as_dependent_in_a_comparison(tmp_path: Path) -> None:
    """Sixty rows of twenty images: the difference is the same, and its interval that of twenty clusters."""
    examples = [
        example(
            str(row), images=(png(size=(8, 6 + row // 3)),), id=str(row), image=f"mcq/{row}.png"
        )
        for row in range(60)
    ]
    first = [Scores((float(row % 12 < 9), 0.5)) for row in range(60)]
    second = [Scores((float(row % 12 < 3), 0.5)) for row in range(60)]
    for name, verdicts in (("first", first), ("second", second)):
        write_predictions(examples, verdicts, BENCHMARK, ProtocolConfig(), tmp_path / name)
    one, other = (lines(tmp_path / name / "predictions.jsonl") for name in ("first", "second"))
    assert len({record["item"] for record in one}) == 20
    found = difference(one, other)
    credits = [np.array([record["credit"] for record in records]) for records in (one, other)]
    expected = paired_difference(credits[0], credits[1], np.arange(60) // 3)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    for record in [*one, *other]:
        del record["item"]  # as earlier versions wrote it
    earlier = difference(one, other)
    independent = paired_difference(credits[0], credits[1])
    assert (earlier.low, earlier.high) == pytest.approx((independent.low, independent.high))
    assert (difference(one, other, 10).high or 0.0) > (earlier.high or 0.0)
