"""Rows whose responses are all equally good, in the outcomes and figures of an evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mmrm.data.preference import text_responses
from mmrm.eval.benchmarks.benchmark import Origin
from mmrm.eval.benchmarks.mm_rlhf_rankings import MM_RLHF_RANKINGS
from mmrm.eval.benchmarks.rows import user_turn
from mmrm.eval.candidates import RankedExample, Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.predictions import read_predictions, write_predictions
from mmrm.eval.results.result import Result, outcomes
from mmrm.eval.suite.suite import evaluate


def ranked(name: str, *ranks: int) -> RankedExample:
    """Return a row of as many responses as ranks."""
    return RankedExample(
        key=name,
        images=(),
        prompt=user_turn(f"what is {name}?", 0),
        responses=text_responses(*("x" * (1 + index) for index in range(len(ranks)))),
        ranks=ranks,
        group="all",
        source="all",
        identity=f"mm_rlhf_rankings:0 ({name})",
        row={"id": name},
    )


def result_of(rows: list[RankedExample], *scores: tuple[float, ...]) -> Result:
    """Return the result of scores on rows."""
    all_scores = [Scores(values) for values in scores]
    return evaluate(rows, all_scores, MM_RLHF_RANKINGS, ProtocolConfig(), Origin("test"))


@pytest.mark.parametrize(
    ("scores", "right", "wrong", "unread"),
    [((1.0, 1.0), 1, 0, 0), ((1.0, 1.1), 0, 1, 0), ((1.0, math.nan), 0, 0, 1)],
)
def test_a_tied_row_is_right_if_all_scores_are_equal(
    scores: tuple[float, ...], right: int, wrong: int, unread: int
) -> None:
    outcome = outcomes([ranked("a", 0, 0)], [Scores(scores)], ProtocolConfig())
    assert (outcome.right[0], outcome.wrong[0], outcome.unread[0]) == (right, wrong, unread)
    assert not outcome.tie[0]
    assert math.isnan(outcome.margin[0])


def test_tied_rows_are_in_the_accuracy_and_not_in_figures_of_rankings() -> None:
    rows = [ranked("a", 0, 1), ranked("b", 0, 0, 0), ranked("c", 1, 0)]
    result = result_of(rows, (2.0, 1.0), (1.0, 1.0, 1.0), (2.0, 1.0))
    assert (result.micro.n, result.micro.right) == (3, 2)
    assert result.ranking is not None
    assert (result.ranking.tied, result.ranking.responses) == (1, 7)
    assert (result.ranking.best.n, result.ranking.best.right) == (2, 1)
    assert result.ranking.pairs == 0.5
    assert result.ranking.kendall == 0.0
    assert result.chance == pytest.approx((1 / 2 + 0 + 1 / 2) / 3)
    assert result.length.longer_is_better == 0.5  # of the two rows with a better response
    assert any("1 of 3 rows are equally good" in note for note in result.notes)
    assert Result.model_validate_json(result.model_dump_json()) == result


def test_rows_that_are_all_tied_have_no_ranking() -> None:
    result = result_of([ranked("a", 0, 0)], (1.0, 1.0))
    assert result.micro.accuracy == 1.0
    assert result.ranking is None


def test_results_without_tied_rows_are_written_as_before() -> None:
    result = result_of([ranked("a", 0, 1)], (2.0, 1.0))
    assert "tied" not in result.model_dump()["ranking"]


def test_a_tied_row_has_a_line_of_predictions(tmp_path: Path) -> None:
    scores = [Scores((1.0, 1.0))]
    write_predictions([ranked("a", 0, 0)], scores, MM_RLHF_RANKINGS, ProtocolConfig(), tmp_path)
    (record,) = read_predictions(tmp_path / "predictions.jsonl")
    assert (record["ranks"], record["credit"], record["margin"]) == ([0, 0], 1.0, None)
