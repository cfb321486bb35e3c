"""Predictions written, read back, compared and scored."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from eval.benchmarks.table import BENCHMARKS
from eval.protocol import ProtocolConfig, Verdict
from eval.results.predictions import difference, score_file, write_predictions
from tests.eval.make import example, votes

BENCHMARK = BENCHMARKS["mm_rlhf_rewardbench"]
EXAMPLES = [
    example("a", 1, id="i", image="mcq/1.png"),
    example("b", id="i", image="mcq/1.png"),
    example("c", id="j", image="long/2"),
]
VERDICTS = [Verdict(scores=(0.25, 0.75), critiques=("bad", "good")), Verdict(scores=(math.nan, 1.0)), Verdict(scores=(1.0, 1.0))]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_predictions_are_written_in_our_format_and_the_official_one(tmp_path: Path) -> None:
    write_predictions(EXAMPLES, VERDICTS, BENCHMARK, ProtocolConfig(), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["official.jsonl", "predictions.jsonl"]
    own, official = (lines(tmp_path / "run" / name) for name in ("predictions.jsonl", "official.jsonl"))
    assert [record["key"] for record in own] == ["a", "b", "c"]
    assert [(record["correct"], record["tie"], record["unparsable"], record["credit"]) for record in own] == [
        (True, False, False, 1.0),
        (False, False, True, 0.0),
        (False, True, False, 0.0),
    ]
    assert (own[0]["margin"], own[0]["critiques"], own[1]["scores"]) == (0.5, ["bad", "good"], [None, 1.0])
    assert [record["rewards"] for record in official] == [[0.75, 0.25], [0, 1], [1.0, 1.0]]
    assert official[0]["image"] == "mcq/1.png"


def test_votes_are_written_with_their_text_and_order(tmp_path: Path) -> None:
    write_predictions(EXAMPLES[:1], [votes(0, None)], BENCHMARK, ProtocolConfig(), tmp_path)
    (record,) = lines(tmp_path / "predictions.jsonl")
    assert record["votes"] == [{"text": "says 0", "first": 0, "names": 0}, {"text": "says None", "first": 1, "names": None}]
    assert (record["scores"], record["critiques"]) == (None, None)


def test_a_file_is_scored_under_rules_of_a_name(tmp_path: Path) -> None:
    write_predictions(EXAMPLES, VERDICTS, BENCHMARK, ProtocolConfig(), tmp_path)
    path = tmp_path / "official.jsonl"
    official = score_file(path, BENCHMARK)
    assert (official["rules"], official["micro"], official["acc_plus"]) == ("official", 1 / 3, 0.0)
    assert score_file(path, BENCHMARK, "ties_right")["micro"] == 2 / 3


def test_what_cannot_be_scored_is_refused_with_file_rules_and_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "image": "mcq", "rewards": [1, 0]}\n\n{"id": "b"}\n')
    with pytest.raises(ValueError, match=r"p.jsonl, under the rules 'official' \(format official\): line 2: KeyError 'rewards'"):
        score_file(path, BENCHMARK)
    with pytest.raises(ValueError, match="no rules 'mine'; there are official, ties_right"):
        score_file(path, BENCHMARK, "mine")
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match=r"p.jsonl:1: found a JSON list"):
        score_file(path, BENCHMARK)


def test_the_difference_of_two_checkpoints_is_of_the_same_rows_in_any_order() -> None:
    first = [{"key": str(row), "credit": float(row % 2)} for row in range(50)]
    second = [{"key": str(row), "credit": 0.0} for row in range(50)][::-1]
    found = difference(first, second)
    assert (found.mean, found.distinguishable) == (0.5, True)
    assert difference(first, first[::-1]).mean == 0
    with pytest.raises(ValueError, match="50 and 49 rows, of which 49 are in both"):
        difference(first, second[1:])
