"""Rows with a ranking: right, tie and wrong, best of N, pairs, Kendall's tau-b, and what pairs keep."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.errors import UserError
from mmrm.data.preference import text_responses
from mmrm.eval.benchmarks.benchmark import Origin
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.candidates import BenchmarkRow, Candidates, RankedExample, Scores, Vote
from mmrm.eval.judges.tournament import comparisons, scores_from_votes
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.eval.results.predictions import difference, read_predictions, write_predictions
from mmrm.eval.results.predictions_protocol import protocol_of
from mmrm.eval.results.ranking import kendall_tau_b, ranking_figures
from mmrm.eval.results.result import Result, items_of, outcomes, read_result
from mmrm.eval.results.summary_table import results_table
from mmrm.eval.suite.baselines import BASELINES, baseline_scores
from mmrm.eval.suite.fingerprint import rows_digest
from mmrm.eval.suite.suite import evaluate, write_result
from tests.eval.make import example

RANKINGS = BENCHMARKS["mm_rlhf_rankings"]


def ranked(key: str, ranks: tuple[int, ...], group: str = "group") -> RankedExample:
    """Return a row whose responses have these ranks, and lengths 1, 2, 3 and so on."""
    pair = example(key, group=group, id=key)
    return RankedExample(
        key=key,
        images=(),
        prompt=pair.prompt,
        responses=text_responses(*["x" * (index + 1) for index in range(len(ranks))]),
        identity=f"test:{key}",
        ranks=ranks,
        group=group,
        source="source",
        row={"id": key},
    )


def tournament(row: Candidates, order: list[int]) -> Scores:
    """Return the votes of a judge that always names the response that is earlier in `order`."""
    votes = []
    for comparison in comparisons(row):
        named = min(comparison.shown, key=order.index)
        votes.append(Vote(comparison.shown, named, f"says {named}"))
    return scores_from_votes(row, votes)


@pytest.mark.parametrize(
    ("ranks", "values", "outcome"),
    [
        ((0, 1, 1, 1), (3, 2, 1, 0), "right"),
        ((0, 1, 1, 1), (3, 3, 1, 0), "tie"),
        ((0, 1, 1, 1), (2, 3, 1, 0), "wrong"),
        # Every best response has to be above every other one.
        ((0, 0, 1), (3, 2, 1), "right"),
        ((0, 0, 1), (3, 1, 2), "wrong"),
        ((1, 2, 0, 0), (0, 9, 3, 9), "wrong"),
        # The order of the others does not matter.
        ((0, 2, 1), (3, 2, 1), "right"),
        ((0, 1, 1), (3, math.nan, 1), "unparsable"),
        ((0, 1, 1), (3, -math.inf, 1), "unparsable"),
    ],
)
def test_a_row_is_right_if_every_best_response_beats_every_other_one(
    ranks: tuple[int, ...], values: tuple[float, ...], outcome: str
) -> None:
    found = outcomes([ranked("a", ranks)], [Scores(values)], ProtocolConfig())
    flags = {
        "right": found.correct,
        "tie": found.tie,
        "unparsable": found.unparsable,
        "wrong": ~found.correct & ~found.tie & ~found.unparsable,
    }
    assert [name for name, flag in flags.items() if flag[0]] == [outcome]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_a_ranking_of_two_is_scored_as_a_pair(rows: list[tuple[bool, int, int]]) -> None:
    pairs = [example(str(n), 1 if is_second else 0) for n, (is_second, *_) in enumerate(rows)]
    rankings = [replace(ranked(pair.key, pair.ranks), responses=pair.responses) for pair in pairs]
    scores = [Scores((float(first), float(second))) for _, first, second in rows]
    protocol = ProtocolConfig()
    of_pairs = outcomes(pairs, scores, protocol)
    of_rankings = outcomes(rankings, scores, protocol)
    for name in ("right", "wrong", "unread", "margin"):
        np.testing.assert_array_equal(getattr(of_pairs, name), getattr(of_rankings, name))
    for name in BASELINES:
        if name != "random":  # a shuffle draws otherwise than a coin
            assert baseline_scores(name, pairs) == baseline_scores(name, rankings)


def test_a_judge_that_compares_holds_a_tournament_for_each_vote() -> None:
    row = ranked("a", (1, 0, 1))
    protocol = ProtocolConfig(votes=2, order="official")
    (shown,) = with_presentations([row], protocol)
    one_round = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    assert list(shown.presentations) == one_round * 2
    scores = tournament(shown, order=[1, 2, 0])
    assert scores.values == (0.0, 1.0, 0.5)
    found = outcomes([row], [scores], protocol)
    assert (found.correct[0], found.margin[0]) == (True, 0.5)
    with pytest.raises(UserError, match="holds no scores and 6 votes"):
        outcomes([row], [tournament(row, [0, 1, 2])], protocol)


def test_the_first_rounds_of_votes_count_alone() -> None:
    row = ranked("a", (0, 1, 1))
    protocol = ProtocolConfig(votes=2)
    (shown,) = with_presentations([row], protocol)
    right_votes = tournament(shown, [0, 1, 2]).votes[:6]
    wrong_votes = tournament(shown, [2, 1, 0]).votes[6:]
    scores = scores_from_votes(shown, [*right_votes, *wrong_votes])
    assert outcomes([row], [scores], protocol, rounds=1).correct[0]
    assert outcomes([row], [scores], protocol).tie[0]
    unread = [replace(vote, named=None) for vote in right_votes + wrong_votes]
    unread_scores = scores_from_votes(shown, unread)
    assert outcomes([row], [unread_scores], protocol).unparsable[0]
    figures = ranking_figures([row], [unread_scores], "half", items_of([row]))
    assert (figures.best.unparsable, figures.best.ties, figures.pairs) == (1, 0, 0.0)


def test_kendall_tau_b_by_hand_and_by_its_definition() -> None:
    assert kendall_tau_b((0, 1, 2, 3), (4, 3, 2, 1)) == 1
    assert kendall_tau_b((0, 1, 2, 3), (1, 2, 3, 4)) == -1
    assert kendall_tau_b((0, 0, 1), (2, 2, 1)) == pytest.approx(1)
    assert kendall_tau_b((0, 1, 2), (1, 1, 1)) == 0
    assert kendall_tau_b((0, 1, 2), (1, math.nan, 1)) == 0
    # Two of three pairs in order, one reversed
    assert kendall_tau_b((0, 1, 2), (3, 1, 2)) == pytest.approx(1 / 3)
    stats = pytest.importorskip("scipy.stats")
    for values in permutations((1.0, 2.0, 2.0, 5.0)):
        expected = stats.kendalltau([0, -1, -1, -2], values).statistic
        assert kendall_tau_b((0, 1, 1, 2), values) == pytest.approx(expected)


def test_ranking_figures_by_hand() -> None:
    rows = [ranked("a", (0, 1, 1, 2), "g"), ranked("b", (0, 0, 1), "h"), ranked("c", (1, 0), "h")]
    scores = [
        Scores((3.0, 4.0, 1.0, 0.0)),  # the best response is second
        Scores((3.0, 0.0, 1.0)),  # a best response is first, and the other one last
        Scores((1.0, 1.0)),
    ]
    figures = ranking_figures(rows, scores, "wrong", items_of(rows))
    assert figures.responses == 9
    assert figures.chance == pytest.approx((1 / 4 + 1 / 3 + 1 / 2) / 3)
    assert figures.best_chance == pytest.approx((1 / 4 + 2 / 3 + 1 / 2) / 3)
    assert (figures.best.right, figures.best.ties, figures.best.n) == (1, 1, 3)
    assert figures.best_groups["h"].accuracy == 0.5
    # 4 of 5, 1 of 2, and a tie that is wrong
    assert figures.pairs == pytest.approx((4 / 5 + 1 / 2 + 0) / 3)
    half = ranking_figures(rows, scores, "half", items_of(rows))
    assert half.pairs == pytest.approx((4 / 5 + 1 / 2 + 1 / 2) / 3)


def test_a_random_order_has_the_stated_chance() -> None:
    row = ranked("a", (0, 1, 0, 1, 2))
    orders = [tuple(map(float, order)) for order in permutations(range(5))]
    found = outcomes([row] * len(orders), [Scores(order) for order in orders], ProtocolConfig())
    figures = ranking_figures([row], [Scores(orders[0])], "wrong", items_of([row]))
    assert found.correct.mean() == pytest.approx(figures.chance) == 1 / math.comb(5, 2)


@pytest.mark.parametrize("compares", [False, True])
def test_an_evaluation_is_written_read_compared_and_printed(compares: bool, tmp_path: Path) -> None:
    rows = [ranked(str(number), (1, 0, 2)) for number in range(6)]
    protocol = ProtocolConfig(votes=2 if compares else 1)
    results = []
    for name, order in (("good", [1, 0, 2]), ("bad", [0, 1, 2])):
        scores = [Scores(tuple(-float(order.index(index)) for index in range(3))) for _ in rows]
        if compares:
            scores = [tournament(row, order) for row in with_presentations(rows, protocol)]
        result = evaluate(rows, scores, RANKINGS, protocol, Origin("here"))
        folder = tmp_path / name
        write_result(result, folder / "mm_rlhf_rankings.json")
        write_predictions(rows, scores, RANKINGS, protocol, folder / "mm_rlhf_rankings")
        assert read_result(folder / "mm_rlhf_rankings.json") == result
        results.append(result)
    good, bad = results
    assert (good.micro.accuracy, bad.micro.accuracy) == (1.0, 0.0)
    assert good.chance == pytest.approx(1 / 3)
    assert good.calibration is None
    assert good.ranking is not None
    assert (good.ranking.kendall, good.ranking.pairs) == (1.0, 1.0)
    if compares:
        assert good.votes is not None
        assert (good.votes.agreement, good.votes.names_first) == (None, 0.5)
        assert good.votes.order is not None
        assert good.votes.order.rate == 1.0
        assert good.votes.accuracy_at[1].accuracy == 1.0
    files = [tmp_path / name / "mm_rlhf_rankings" / "predictions.jsonl" for name in ("good", "bad")]
    lines = [read_predictions(file) for file in files]
    assert lines[0][0]["ranks"] == [1, 0, 2]
    assert len(lines[0][0]["votes"]) == (12 if compares else 0)
    assert protocol_of(files[0], lines[0]).label == good.description
    assert difference(lines[0], lines[1]).mean == 1.0
    table = results_table({"mm_rlhf_rankings": good}, title="", baselines=True)
    assert "  best of N" in [cells[0] for cells in table.rows]
    assert "chance 33.3 %" in table.notes[1]


def test_results_and_rows_of_pairs_are_stored_as_before() -> None:
    pairs = [example("a", 1), example("b", 0, official_first=1)]
    scores = [Scores((0.0, 1.0)), Scores((0.0, 1.0))]
    benchmark = BENCHMARKS["preference_folder"]
    result = evaluate(pairs, scores, benchmark, ProtocolConfig(), Origin("here"))
    assert "ranking" not in result.model_dump(mode="json")
    assert Result.model_validate_json(json.dumps(result.model_dump(mode="json"))) == result
    # The digest of the code before rows could have rankings
    assert rows_digest(pairs) == (
        "0f842f0c25ba3a1ac4bf6821ce34f0df11bdb9966253a7f60f73fb5000a49910"
    )


def test_the_name_of_a_row_does_not_depend_on_the_listed_order(tmp_path: Path) -> None:
    row = ranked("a", (1, 0, 2))
    listed_otherwise: BenchmarkRow = replace(
        row, responses=tuple(reversed(row.responses)), ranks=(2, 0, 1)
    )
    other_ranks = replace(row, ranks=(0, 1, 2))
    names: list[Any] = []
    for number, listed in enumerate((row, listed_otherwise, other_ranks)):
        folder = tmp_path / str(number)
        write_predictions([listed], [Scores((1.0, 2.0, 3.0))], RANKINGS, ProtocolConfig(), folder)
        names.append(read_predictions(folder / "predictions.jsonl")[0]["content"])
    assert names[0] == names[1] != names[2]
    assert rows_digest([row]) != rows_digest([other_ranks])
