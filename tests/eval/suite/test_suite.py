"""A result by hand: every figure of four rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import Benchmark, Origin, Record, ScoringRule
from mmrm.eval.benchmarks.multimodal_rewardbench import MULTIMODAL_REWARDBENCH
from mmrm.eval.candidates import Example, Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.intervals import share_interval, wilson
from mmrm.eval.results.result import Result, figures, outcomes
from mmrm.eval.suite.suite import evaluate
from tests.eval.make import example, png, votes


def refuse(records: Sequence[Record | None]) -> dict[str, object]:
    raise PredictionsError("this rule cannot")


def no_records(examples: Sequence[Example], verdicts: Sequence[Scores]) -> list[Record]:
    return []


PLAIN = Benchmark(
    name="plain",
    load=MULTIMODAL_REWARDBENCH.load,
    check_location=MULTIMODAL_REWARDBENCH.check_location,
    formats={"lines": no_records},
    rules={
        "count": ScoringRule("how many", "lines", lambda records: {"micro": len(records)}),
        "refuses": ScoringRule("no", "lines", refuse),
    },
    item=lambda example: str(example.row["item"]),
    official_note="in official order",
)
ORIGIN = Origin("somewhere", ("row 9: no frames",), ("a note",))
EXAMPLES = [
    example("a", 0, ("longer", "short"), "x", item=1),
    example("b", 1, ("longer", "short"), "x", item=1),
    example("c", 0, ("same!", "size!"), "x", item=2),
    example("d", 0, ("longer", "short"), "y", images=(png(),), item=2),
]
SCORES = [Scores(pair) for pair in ((2.0, 1.0), (3.0, 1.0), (1.0, 1.0), (0.5, 0.0))]


def test_every_figure_by_hand() -> None:
    result = evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(), ORIGIN)
    assert (result.micro.n, result.micro.right, result.micro.ties, result.micro.unparsable) == (
        4,
        2,
        1,
        0,
    )
    assert (result.micro.accuracy, result.micro.half) == (0.5, 0.625)
    # The rows are of two items: right are one of the first and one of the second.
    assert (result.micro.items, result.micro.n) == (2, 4)
    credits, items = np.array([1.0, 0.0, 0.0, 1.0]), np.array([0, 0, 1, 1])
    expected = share_interval(credits, items)
    assert (result.micro.low, result.micro.high) == (expected.low, expected.high)
    independent = evaluate(EXAMPLES, SCORES, replace(PLAIN, item=None), ProtocolConfig(), ORIGIN)
    assert (independent.micro.low, independent.micro.high) == wilson(2, 4)
    assert (independent.micro.items, independent.micro.effective_n) == (None, None)
    assert {name: group.accuracy for name, group in result.groups.items()} == {"x": 1 / 3, "y": 1.0}
    assert result.macro == pytest.approx((1 / 3 + 1) / 2)
    assert list(result.sources) == ["source"]
    assert result.clusters is not None
    assert (result.clusters.n, result.clusters.right) == (2, 0)
    assert {
        name: baseline.micro.accuracy
        for name, baseline in result.baselines.items()
        if name != "random"
    } == {
        "longest": 0.5,
        "shortest": 0.25,
        "first": 0.75,
    }
    assert result.baselines["longest"].micro.ties == 1
    assert result.calibration is not None
    assert result.margins is not None
    assert sum(result.margins.counts) == 4
    assert result.worst == ("b",)
    assert result.votes is None
    assert result.length.prefers_longer == 1.0
    assert result.length.longer_is_better == pytest.approx(2 / 3)


def test_the_result_says_what_it_is_of() -> None:
    protocol = ProtocolConfig(order="winner_first", images="grey")
    result = evaluate(EXAMPLES, SCORES, PLAIN, protocol, ORIGIN)
    assert (result.benchmark, result.origin, result.unavailable) == (
        "plain",
        "somewhere",
        ("row 9: no frames",),
    )
    assert result.notes[0] == "a note"
    assert "scores 100 %" in result.notes[1]
    assert result.notes[2:] == ("Ablation: images grey.", "3 of 4 rows carry no image.")
    assert "images: grey" in result.label
    assert (
        evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(order="official"), ORIGIN).notes[-1]
        == "in official order"
    )


def test_ties_enter_the_headline_as_the_protocol_says() -> None:
    found = {
        ties: evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(ties=ties), ORIGIN).micro.accuracy
        for ties in ("wrong", "half", "right")
    }
    assert found == {"wrong": 0.5, "half": 0.625, "right": 0.75}


def test_published_rules_are_labelled_and_one_that_fails_says_why() -> None:
    published = evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(), ORIGIN).published
    assert published["count"] == {"rules": "count", "about": "how many", "micro": 0}
    assert published["refuses"] == {
        "rules": "refuses",
        "about": "no",
        "not_computed": "this rule cannot",
    }


def test_votes_of_a_pairwise_judge() -> None:
    verdicts = [
        votes(0, 0, 0, 0),
        votes(0, 1, 1, 1),
        votes(0, 1, 0, None),
        votes(None, None, None, None),
    ]
    result = evaluate(EXAMPLES, verdicts, PLAIN, ProtocolConfig(votes=2), ORIGIN)
    assert (result.micro.right, result.micro.ties, result.micro.unparsable) == (2, 1, 1)
    assert result.votes is not None
    assert (result.votes.votes, result.votes.unparsable) == (16, 5)
    assert result.votes.agreement == pytest.approx((1 + 0.75 + 2 / 3) / 3)
    assert result.votes.names_first == pytest.approx(8 / 11)
    assert result.votes.order is not None
    assert (result.votes.order.pairs, result.votes.order.consistent, result.votes.order.first) == (
        5,
        3,
        2,
    )
    assert {
        rounds: (figure.right, figure.ties) for rounds, figure in result.votes.accuracy_at.items()
    } == {1: (1, 2), 2: (2, 1)}
    assert result.calibration is None
    assert result.margins is None
    assert result.worst[0] == "c"


def test_a_judge_that_follows_the_position_is_all_ties_in_both_orders_and_all_right_with_the_winner_first() -> (
    None
):
    both = evaluate(EXAMPLES, [votes(0, 1)] * 4, PLAIN, ProtocolConfig(), ORIGIN)
    assert (both.micro.ties, both.micro.accuracy) == (4, 0.0)
    assert both.votes is not None
    assert both.votes.order is not None
    assert both.votes.order.rate == 0.0
    first = [votes(one.better, order=(one.better,)) for one in EXAMPLES]
    assert (
        evaluate(
            EXAMPLES, first, PLAIN, ProtocolConfig(order="winner_first"), ORIGIN
        ).micro.accuracy
        == 1.0
    )


@pytest.mark.parametrize(
    "verdicts",
    [
        SCORES,
        [votes(0, 1), votes(None, 0), votes(1, 1), votes(0, 0)],
        [Scores((math.nan, 1.0))] * 4,
    ],
)
def test_a_result_survives_json(verdicts: list[Scores]) -> None:
    result = evaluate(EXAMPLES, verdicts, PLAIN, ProtocolConfig(), ORIGIN)
    assert Result.model_validate_json(result.model_dump_json()) == result


def test_rows_without_a_finite_score_are_in_no_diagnosis_but_in_every_figure() -> None:
    verdicts = [*SCORES[:3], Scores((math.nan, 0.0))]
    result = evaluate(EXAMPLES, verdicts, PLAIN, ProtocolConfig(), ORIGIN)
    assert (result.micro.n, result.micro.unparsable, result.groups["y"].accuracy) == (4, 1, 0.0)
    assert result.margins is not None
    assert sum(result.margins.counts) == 3
    assert sum(entry.n for entry in result.length.bins) == 3


def seconds_to_evaluate(num_rows: int) -> float:
    """Return the processor time of an evaluation, the shortest of three."""
    examples = [
        example(str(row), 0, ("a" * (row % 7), "b" * (row % 5)), f"g{row % 6}", item=row // 3)
        for row in range(num_rows)
    ]
    verdicts = [Scores((row % 3, row % 2)) for row in range(num_rows)]
    seconds = []
    for _ in range(3):
        begun = time.thread_time()
        evaluate(examples, verdicts, PLAIN, ProtocolConfig(), ORIGIN)
        seconds.append(time.thread_time() - begun)
    return min(seconds)


@pytest.mark.slow
def test_the_time_of_an_evaluation_grows_with_the_rows() -> None:
    """Four times as many rows take four times as long; what is quadratic would take sixteen times."""
    assert seconds_to_evaluate(20_000) < 9 * seconds_to_evaluate(5_000)


def test_figures_come_in_first_seen_order() -> None:
    found = outcomes(EXAMPLES, SCORES, ProtocolConfig())
    assert list(figures(found, "wrong", ["z", "a", "z", "m"])) == ["z", "a", "m"]


def test_rows_that_show_one_image_or_prompt_are_one_item() -> None:
    """Forty rows of ten questions: as many right, and an interval of ten observations."""
    shared = [
        example(str(row // 4), images=(png(size=(8, 6 + row // 4)),) if row < 20 else ())
        for row in range(40)
    ]
    verdicts = [Scores((float(row // 4 < 7), 0.5)) for row in range(40)]
    benchmark = replace(PLAIN, item=None)
    found = evaluate(shared, verdicts, benchmark, ProtocolConfig(), ORIGIN)
    assert (found.micro.n, found.micro.accuracy, found.micro.items) == (40, 0.7, 10)
    assert found.micro.effective_n == pytest.approx(9, abs=0.1)
    apart = evaluate(
        [example(str(row)) for row in range(40)], verdicts, benchmark, ProtocolConfig(), ORIGIN
    )
    assert apart.micro.low is not None
    assert found.micro.low is not None
    assert found.micro.low < apart.micro.low - 0.1
    assert found.calibration is not None
    assert apart.calibration is not None
    assert (found.calibration.ece, found.calibration.floor) == (
        apart.calibration.ece,
        apart.calibration.floor,
    )
    assert (found.calibration.high or 0) > (apart.calibration.high or 0)


def test_items_that_share_an_image_are_not_independent() -> None:
    """Acc+ of four items, two of which show one picture."""
    shared = [
        example(str(row), images=(png(size=(8, 6 + row // 2)),), item=row) for row in range(4)
    ]
    verdicts = [Scores((float(row < 2), 0.5)) for row in range(4)]
    found = evaluate(shared, verdicts, PLAIN, ProtocolConfig(), ORIGIN)
    assert found.clusters is not None
    assert (found.clusters.n, found.clusters.items) == (4, 2)


@pytest.mark.parametrize(
    ("judged", "protocol", "chance"),
    [
        (Scores((1.0, 0.0)), ProtocolConfig(), 0.5),
        (votes(0, 0), ProtocolConfig(), 0.25),
        (votes(0, 0), ProtocolConfig(ties="half"), 0.5),
        (votes(0, 0), ProtocolConfig(ties="right"), 0.75),
        (votes(0, 0, 0, 0), ProtocolConfig(votes=2), 5 / 16),
        (votes(0), ProtocolConfig(order="winner_first"), 0.5),
    ],
)
def test_the_chance_of_a_judge_is_that_of_a_coin_for_each_judgement(
    judged: Scores, protocol: ProtocolConfig, chance: float
) -> None:
    found = evaluate([example("a")], [judged], replace(PLAIN, item=None), protocol, ORIGIN)
    assert found.chance == chance


def test_coins_reach_the_chance_that_is_shown() -> None:
    generator = np.random.default_rng(0)
    examples = [example(str(row)) for row in range(4000)]
    judged = [votes(*(int(side) for side in generator.integers(2, size=2))) for _ in examples]  # type: ignore[arg-type]
    found = evaluate(examples, judged, replace(PLAIN, item=None), ProtocolConfig(), ORIGIN)
    assert found.micro.accuracy == pytest.approx(found.chance, abs=0.025)
    assert found.micro.half == pytest.approx(0.5, abs=0.025)
