"""A judge's chance on the page, and what its intervals are said to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mmrm.eval.candidates import Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.reporting.page import page
from mmrm.eval.reporting.run_content import read_run
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.suite.suite import evaluate, write_result
from tests.eval.make import example, png, votes
from tests.eval.suite.test_suite import ORIGIN, PLAIN


def page_of(folder: Path, verdict: Scores) -> str:
    """Return the page of a run with three checkpoints, whose forty rows are of ten images."""
    examples = [example(str(row), images=(png(size=(8, 6 + row // 4)),)) for row in range(40)]
    benchmark = replace(PLAIN, item=None)
    verdicts = [verdict] * 40
    result = evaluate(examples, verdicts, benchmark, ProtocolConfig(), ORIGIN)
    for step in (1, 2, 3):
        place = folder / f"checkpoint-{step}" / "eval"
        write_predictions(examples, verdicts, benchmark, ProtocolConfig(), place / "plain")
        write_result(result, place / "plain.json")
    return " ".join(page(read_run(folder)).split())


def test_a_judge_that_compares_has_its_chance_at_a_quarter(tmp_path: Path) -> None:
    text = page_of(tmp_path, votes(0, 0))
    assert 'class="level" x1="25.0%"' in text
    assert 'class="level" x1="50%"' not in text
    assert "chance: 25.0 %, a coin for each judgement, whose ties count as wrong" in text


def test_a_model_that_scores_has_its_chance_at_a_half(tmp_path: Path) -> None:
    text = page_of(tmp_path, Scores((1.0, 0.0)))
    assert 'class="level" x1="50.0%"' in text
    assert 'x1="25.0%"' not in text
    assert "chance: 50.0 %</li>" in text


def test_the_page_says_what_intervals_are_over(tmp_path: Path) -> None:
    text = page_of(tmp_path, Scores((1.0, 0.0)))
    assert (
        "95 % interval over rows: 40 rows of 10 items, which tell as much as 10 independent" in text
    )
    assert "hold at 95 % for all 3 pairs of checkpoints together" in text
