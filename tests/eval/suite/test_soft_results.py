"""Soft verdicts go from votes into result, predictions, table, page and card. Hard ones leave everything as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mmrm.data.errors import CheckpointError, UserError
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Example, RankedExample, Scores, Side, SoftVerdict, Vote, won_shares
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.eval.judges.endpoint.judge import load_endpoint_judge
from mmrm.eval.protocol import ProtocolConfig, presentations
from mmrm.eval.reporting.run_charts import diagnosis
from mmrm.eval.results.predictions import read_predictions, write_predictions
from mmrm.eval.results.result import Result, read_result
from mmrm.eval.results.statistics import area_under_curve
from mmrm.eval.results.summary_table import comparison_table, results_table, soft_sentence
from mmrm.eval.suite.suite import evaluate, headline_figures, write_result
from mmrm.train.runs.model_card import figures
from tests.eval.make import example
from tests.eval.suite.test_suite import ORIGIN, PLAIN

BENCHMARK = replace(PLAIN, item=None)
SOFT = ProtocolConfig(verdicts="soft")


def soft_scores(
    row: Example | RankedExample,
    firsts: Sequence[float],
    named: Sequence[int | None] | None = None,
    protocol: ProtocolConfig = SOFT,
) -> Scores:
    """Return scores of votes with the given P(response shown first is better), in order.

    A text names the likelier response unless `named` says otherwise, and is unreadable with None.
    """
    votes: list[Vote] = []
    for number, (shown, first) in enumerate(zip(presentations(row, protocol), firsts, strict=True)):
        name: int | None = shown[0] if first >= 0.5 else shown[1]
        if named is not None:
            name = named[number]
        votes.append(Vote(shown, name, f"text {number}", SoftVerdict(first, 0.75, name is None)))
    return Scores(
        values=won_shares(len(row.responses), votes),
        votes=tuple(votes),
        texts=tuple(vote.text for vote in votes),
    )


ROWS = [example(str(number), 0 if number < 3 else 1) for number in range(4)]
FIRSTS = [
    (0.875, 0.125),  # P(response 0) 0.875 twice: right in both orders
    (0.75, 0.625),  # 0.75 and 0.375: right on average, the words disagree
    (0.375, 0.875),  # 0.375 and 0.125: wrong
    (0.25, 0.75),  # 0.25 twice, and response 1 is better: right
]
BETTER = [0.875, 0.5625, 0.25, 0.75]
"""P(better) of each row."""
VERDICTS = [soft_scores(row, firsts) for row, firsts in zip(ROWS, FIRSTS, strict=True)]


def evaluated(
    rows: Sequence[Example] = ROWS,
    verdicts: Sequence[Scores] = VERDICTS,
    protocol: ProtocolConfig = SOFT,
) -> Result:
    return evaluate(rows, verdicts, BENCHMARK, protocol, ORIGIN)


def test_every_figure_by_hand() -> None:
    result = evaluated()
    assert (result.micro.right, result.micro.ties, result.micro.unparsable) == (3, 0, 0)
    assert result.chance == 0.5
    soft = result.soft
    assert soft is not None
    assert (soft.judgements, soft.opened, soft.mass) == (8, 0, 0.75)
    assert soft.first == pytest.approx(np.mean(FIRSTS))
    assert soft.order is not None
    # In the second row, both orders prefer the response shown first.
    assert (soft.order.pairs, soft.order.consistent, soft.order.first) == (4, 3, 1)
    assert (soft.pairs, soft.left_out) == (4, 0)
    assert soft.brier == pytest.approx(np.mean([(1 - p) ** 2 for p in BETTER]))
    confidences = [0.875, 0.5625, 0.75, 0.75]
    assert soft.overconfidence == pytest.approx(np.mean(confidences) - 0.75)
    # Margins 0.75, 0.125, -0.5, 0.5 against their negatives: 4 + 3 + 1.5 + 3.5 of 16.
    assert soft.auc == pytest.approx((4 + 3 + 1.5 + 3.5) / 16)
    # The words: right, tie, wrong, right.
    assert (soft.hard.right, soft.hard.ties, soft.hard.half) == (2, 1, 0.625)
    # Shares 1, 0, -1, 1 against -1, 0, 1, -1: 3.5 + 2.5 + 1 + 3.5 of 16.
    assert soft.hard_auc == pytest.approx((3.5 + 2.5 + 1 + 3.5) / 16)
    assert result.calibration is not None
    by_bin = {round(bin.low_edge, 2): bin for bin in result.calibration.bins if bin.n}
    assert [by_bin[edge].n for edge in (0.55, 0.75, 0.85)] == [1, 2, 1]
    # The votes' own figures are about the words.
    assert result.votes is not None
    assert result.votes.order is not None
    assert (result.votes.order.pairs, result.votes.order.consistent) == (4, 3)
    assert result.votes.agreement == pytest.approx((1 + 0.5 + 1 + 1) / 4)


def test_unreadable_words_have_a_soft_verdict() -> None:
    verdict = soft_scores(ROWS[0], (0.9, 0.3), (None, None))
    result = evaluated(ROWS[:1], [verdict])
    assert (result.micro.right, result.micro.unparsable) == (1, 0)
    assert result.soft is not None
    assert result.soft.opened == 2
    assert result.soft.hard.unparsable == 1
    assert result.votes is not None
    assert result.votes.unparsable == 2


def test_rounds_are_averaged_over_their_rationales() -> None:
    protocol = ProtocolConfig(verdicts="soft", votes=2)
    verdict = soft_scores(ROWS[0], (0.3, 0.9, 1.0, 0.0), protocol=protocol)
    assert verdict.values == pytest.approx((0.6, 0.4))
    result = evaluated(ROWS[:1], [verdict], protocol)
    assert result.votes is not None
    # P(better) is 0.2 after one round and 0.6 after two.
    assert [result.votes.accuracy_at[rounds].accuracy for rounds in (1, 2)] == [0, 1]


def test_probabilities_that_are_no_numbers_are_unparsable_and_counted() -> None:
    broken = soft_scores(ROWS[1], (math.nan, 0.3))
    result = evaluated(ROWS[:2], [VERDICTS[0], broken])
    assert result.micro.unparsable == 1
    assert result.soft is not None
    assert (result.soft.pairs, result.soft.left_out) == (1, 1)
    assert "1 pairs without finite probabilities are left out." in soft_sentence(result.soft)
    only_broken = evaluated(ROWS[1:2], [broken])
    assert (only_broken.soft, only_broken.calibration) == (None, None)


def ranked(*ranks: int) -> RankedExample:
    row = ROWS[0]
    responses = tuple(replace(row.responses[0]) for _ in ranks)
    return RankedExample(
        row.key, row.images, row.prompt, responses, row.identity, ranks, "group", "source", {}
    )


def test_rows_with_a_ranking_compare_mean_probabilities() -> None:
    row = ranked(0, 1, 1)
    # Pairs 0-1, 0-2 and 1-2, each in both orders.
    verdict = soft_scores(row, (0.9, 0.3, 0.4, 0.4, 0.5, 0.5))
    assert verdict.values == pytest.approx((0.65, 0.35, 0.5))
    benchmark = replace(PLAIN, item=None, ranked=True, formats={}, rules={})
    result = evaluate([row], [verdict], benchmark, SOFT, ORIGIN)
    assert result.micro.right == 1
    assert result.soft is not None
    assert (result.soft.pairs, result.soft.judgements) == (2, 6)
    # The two other responses are equally good, so their pair is in no figure.
    assert result.soft.brier == pytest.approx((0.2**2 + 0.5**2) / 2)
    unread = soft_scores(row, (0.9, 0.3, 0.6, 0.4, 0.5, 0.5), (None,) * 6)
    found = evaluate([row], [unread], benchmark, SOFT, ORIGIN)
    assert found.ranking is not None
    assert (found.ranking.best.right, found.ranking.best.unparsable) == (1, 0)
    assert found.soft is not None
    assert found.soft.hard.unparsable == 1
    # The words may name other responses than the probabilities prefer.
    contrary = soft_scores(row, (0.9, 0.3, 0.6, 0.4, 0.5, 0.5), (1, 1, 2, 2, 1, 2))
    found = evaluate([row], [contrary], benchmark, SOFT, ORIGIN)
    assert found.micro.right == 1
    assert found.soft is not None
    assert (found.soft.hard.right, found.soft.hard_auc) == (0, 0.0)


def test_soft_verdicts_are_required_by_a_soft_protocol_alone() -> None:
    without: list[Scores] = []
    for scores in VERDICTS:
        hard_votes = tuple(replace(vote, soft=None) for vote in scores.votes)
        without.append(replace(scores, votes=hard_votes))
    with pytest.raises(UserError, match="the judge's votes have none"):
        evaluated(ROWS, without)
    assert evaluated(ROWS, without, ProtocolConfig()).soft is None
    # Judges that score are the same under both.
    scalar = [Scores((1.0, 0.5))] * len(ROWS)
    soft = evaluated(ROWS, scalar)
    hard = evaluated(ROWS, scalar, ProtocolConfig())
    assert (soft.micro, soft.margins, soft.soft) == (hard.micro, hard.margins, None)


def test_an_endpoint_refuses_soft_verdicts() -> None:
    config = EndpointConfig(type="endpoint", url="http://127.0.0.1:9/v1", model="m")
    endpoint = load_endpoint_judge(Path(), None, config)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="verdicts is soft, and an endpoint returns texts"):
        endpoint.under(SOFT, PREFERENCE_FOLDER)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rationale": "none"}, "`rationale` is none, and a hard verdict is read from the text"),
        ({"rationale": "none", "verdicts": "soft", "votes": 3}, "`votes` is 3, and verdicts"),
        ({"verdicts": "softly"}, "'hard' or 'soft'"),
    ],
)
def test_protocols_that_contradict_themselves(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ProtocolConfig(**settings)


def test_hard_verdicts_leave_no_trace(tmp_path: Path) -> None:
    """Protocol, result and predictions of hard verdicts have the keys and texts of before."""
    hard = ProtocolConfig()
    before = {"order": "both", "votes": 1, "images": "real", "ties": "wrong", "seed": 0}
    assert hard.model_dump() == before
    assert json.loads(hard.model_dump_json()) == before
    assert hard.label == "both orders, 1 vote, ties wrong, all rows, seed 0"
    assert SOFT.with_hard_verdicts == hard
    assert ProtocolConfig.model_validate(SOFT.model_dump()) == SOFT
    votes = [replace(scores, votes=hard_votes(scores)) for scores in VERDICTS]
    result = evaluated(ROWS, votes, hard)
    assert "soft" not in result.model_dump(mode="json")
    assert not any("probability" in note or "soft" in note.lower() for note in result.notes)
    write_predictions(ROWS, votes, BENCHMARK, hard, tmp_path)
    [row, *_] = read_predictions(tmp_path / "predictions.jsonl")
    assert "probabilities" not in row
    assert row["votes"][0] == {"text": "text 0", "first": 0, "names": 0}


def hard_votes(scores: Scores) -> tuple[Vote, ...]:
    return tuple(replace(vote, soft=None) for vote in scores.votes)


def test_the_label_names_soft_verdicts_for_judges_that_compare() -> None:
    assert "1 vote, soft verdicts, ties" in SOFT.label
    none = ProtocolConfig(verdicts="soft", rationale="none")
    assert "soft verdicts without a rationale" in none.label
    assert "soft" not in SOFT.in_words("all rows", pairwise=False)


def test_results_predictions_tables_pages_and_cards_show_soft_verdicts(tmp_path: Path) -> None:
    result = evaluated()
    assert result.soft is not None
    write_result(result, tmp_path / "soft" / "plain.json")
    assert read_result(tmp_path / "soft" / "plain.json") == result
    write_predictions(ROWS, VERDICTS, BENCHMARK, SOFT, tmp_path / "soft" / "plain")
    rows = read_predictions(tmp_path / "soft" / "plain" / "predictions.jsonl")
    assert rows[0]["probabilities"] == pytest.approx([0.875, 0.125])
    assert rows[0]["scores"] is None  # published rules read the words
    assert rows[0]["margin"] == pytest.approx(0.75)
    assert rows[0]["votes"][1] == {
        "text": "text 1",
        "first": 1,
        "names": 0,
        "probability_first": 0.125,
        "mass": 0.75,
        "opened": False,
    }
    sentence = soft_sentence(result.soft)
    assert sentence.startswith(
        "Soft verdicts: both orders prefer the same response in 75.0 % of 4 pairs of judgements; AUC"
    )
    assert "accuracy of the words 50.0" in sentence
    table = results_table({"plain": result}, title="", baselines=False)
    assert f"plain: {sentence}" in table.notes
    order = "Both orders name the same response in 75.0 % of 4 pairs of judgements."
    assert f"plain: {order}" in table.notes
    charts, sentences = diagnosis(result)
    assert sentence in sentences
    assert [chart.title for chart in charts][:2] == ["Calibration", "Margins"]
    assert "P(better) of the preferred response" in charts[0].x.label
    card = "\n".join(figures({"plain": result}))
    assert sentence in card
    assert order in card
    logged = headline_figures({"plain": result})
    assert logged["plain/auc"] == result.soft.auc
    assert logged["plain/brier"] == result.soft.brier
    assert logged["plain/hard_accuracy"] == 0.5

    # A comparison with a judge that scores has both on one scale.
    scalar = [Scores((1.0, 0.0)), Scores((2.0, 0.0)), Scores((3.0, 0.0)), Scores((0.0, 3.0))]
    write_predictions(ROWS, scalar, BENCHMARK, SOFT, tmp_path / "scalar" / "plain")
    notes = comparison_table(tmp_path / "scalar", tmp_path / "soft").notes
    assert "plain: AUC of the margins 1.000 (4 rows) and 0.750 (4 rows)" in notes
    votes = [replace(scores, votes=hard_votes(scores)) for scores in VERDICTS]
    write_predictions(ROWS, votes, BENCHMARK, ProtocolConfig(), tmp_path / "hard" / "plain")
    notes = comparison_table(tmp_path / "hard", tmp_path / "soft").notes
    assert "plain: AUC of the margins – (no margins) and 0.750 (4 rows)" in notes
    notes = comparison_table(tmp_path / "hard", tmp_path / "scalar").notes
    assert not any("AUC" in note for note in notes)


def test_the_area_is_that_of_the_roc_curve() -> None:
    """Each margin of a better response is a positive case, and minus it is a negative case."""
    margins = np.random.default_rng(0).normal(0.4, 1, 101).round(1)
    above = (margins[:, None] > -margins).mean()
    equal = (margins[:, None] == -margins).mean()
    found = area_under_curve(margins)
    assert found.mean == pytest.approx(above + equal / 2)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.mean < found.high
    assert area_under_curve(7 * margins).mean == found.mean
    assert area_under_curve(-margins).mean == pytest.approx(1 - found.mean)
    assert area_under_curve(np.ones(5)).mean == 1.0
    assert area_under_curve(np.zeros(5)).mean == 0.5


def test_the_interval_of_the_area_covers_the_truth_and_grows_with_clusters() -> None:
    generator = np.random.default_rng(1)
    truth = 0.8023  # Φ(2 · 0.6 / √2), of two normal margins with mean 0.6
    num_covered = 0
    for _ in range(200):
        estimate = area_under_curve(generator.normal(0.6, 1, 60))
        assert estimate.low is not None
        assert estimate.high is not None
        num_covered += estimate.low <= truth <= estimate.high
    assert num_covered >= 180
    margins = generator.normal(0.6, 1, 60)
    repeated = area_under_curve(np.repeat(margins, 4), np.repeat(np.arange(60), 4))
    alone = area_under_curve(np.repeat(margins, 4))
    assert repeated.low is not None
    assert alone.low is not None
    assert repeated.low < alone.low


def test_a_tie_of_probabilities_prefers_neither() -> None:
    side: Side = 0
    verdict = soft_scores(example("tie", side), (0.5, 0.5), (0, 1))
    result = evaluated([example("tie", side)], [verdict])
    assert result.micro.ties == 1
    assert result.soft is not None
    assert result.soft.order is not None
    assert (result.soft.order.pairs, result.soft.order.rate) == (0, None)
