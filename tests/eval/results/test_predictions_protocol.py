"""The protocol of a predictions file: from the result beside it, from its votes, and if the two contradict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import Origin
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.candidates import Example, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig, presentations
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import OWN, read_predictions, write_predictions
from mmrm.eval.results.predictions_protocol import order_of_votes, protocol_of
from mmrm.eval.results.summary_table import comparison_table
from mmrm.eval.suite.suite import evaluate, write_result
from tests.eval.make import example

FOLDER = BENCHMARKS["preference_folder"]
BOTH = ProtocolConfig()
WINNER_FIRST = ProtocolConfig(order="winner_first")
Judging = Callable[[Sequence[Example], ProtocolConfig], list[Scores]]


def examples() -> list[Example]:
    """Return six rows whose better response is listed first and second in turns."""
    return [
        example(
            f"row-{number}",
            1 if number % 2 else 0,
            responses=(f"one {number}", f"two {number}"),
            id=f"row-{number}",
            category="group",
        )
        for number in range(6)
    ]


def name_the_first(rows: Sequence[Example], protocol: ProtocolConfig) -> list[Scores]:
    """Return the verdicts of a judge that always names the response it is shown first."""
    return [
        Scores(votes=tuple(Vote(shown, shown[0], "1") for shown in presentations(row, protocol)))
        for row in rows
    ]


def prefer_the_better(rows: Sequence[Example], protocol: ProtocolConfig) -> list[Scores]:
    """Return the verdicts of a scalar judge that is always right."""
    return [Scores((float(row.better == 0), float(row.better == 1))) for row in rows]


def evaluated(folder: Path, protocol: ProtocolConfig, judge: Judging = name_the_first) -> Path:
    """Write the predictions and the result of an evaluation, and return the predictions file."""
    rows = examples()
    verdicts = judge(rows, protocol)
    write_predictions(rows, verdicts, FOLDER, protocol, folder / FOLDER.name)
    write_result(
        evaluate(rows, verdicts, FOLDER, protocol, Origin("here")), folder / f"{FOLDER.name}.json"
    )
    return folder / FOLDER.name / OWN


def test_a_judge_that_names_the_first_is_right_where_the_winner_is_shown_first(
    tmp_path: Path,
) -> None:
    """The figure is 1.0, and what it is worth is printed beside it."""
    found, compared = score_predictions_file(evaluated(tmp_path, WINNER_FIRST), FOLDER)
    assert found["micro"] == 1.0
    assert found["protocol"].startswith("WINNER SHOWN FIRST, 1 vote")
    lines = compared.lines()
    assert f"protocol: {found['protocol']}" in lines
    assert any("a judge that always names the first response is right" in line for line in lines)

    found, compared = score_predictions_file(evaluated(tmp_path / "both", BOTH), FOLDER)
    assert found["micro"] == 0.0
    assert found["protocol"].startswith("both orders, 1 vote")
    assert not any("SHOWN FIRST" in line for line in compared.lines())


def test_without_the_result_the_order_is_read_from_the_votes(tmp_path: Path) -> None:
    for protocol, words in (
        (BOTH, "in both orders"),
        (WINNER_FIRST, "with the better response first"),
    ):
        file = evaluated(tmp_path / protocol.order, protocol)
        file.parent.with_suffix(".json").unlink()
        found, compared = score_predictions_file(file, FOLDER)
        assert found["protocol"].startswith(f"responses shown {words}; the rest is unknown")
        assert any("SHOWN FIRST" in line for line in compared.lines()) == (protocol.order != "both")


def test_a_result_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    file = evaluated(tmp_path, WINNER_FIRST)
    evaluated(tmp_path / "both", BOTH)
    result = tmp_path / "both" / f"{FOLDER.name}.json"
    shutil.copy(result, file.parent.with_suffix(".json"))
    with pytest.raises(
        PredictionsError, match=r"with the better response first, .* protocol 'both orders"
    ):
        score_predictions_file(file, FOLDER)
    with pytest.raises(PredictionsError, match="of different evaluations"):
        comparison_table(tmp_path, tmp_path / "both")


def test_a_scalar_judge_has_no_order(tmp_path: Path) -> None:
    file = evaluated(tmp_path, BOTH, prefer_the_better)
    assert order_of_votes(read_predictions(file)) == "scores"
    assert protocol_of(file, read_predictions(file)).label.startswith(
        "each response scored by itself, ties wrong, all rows"
    )


def test_images_that_were_not_shown_are_named(tmp_path: Path) -> None:
    file = evaluated(tmp_path, ProtocolConfig(images="none"), prefer_the_better)
    assert protocol_of(file, read_predictions(file)).deviations == (
        "IMAGES NONE: the judge did not see the benchmark's images. These are no figures of the "
        "benchmark.",
    )


def test_a_single_row_does_not_tell_the_order() -> None:
    row = {"better": 0, "votes": [{"first": 0}]}
    other = {"better": 1, "votes": [{"first": 0}]}
    assert order_of_votes([row]) == "one"
    assert order_of_votes([row, row]) == "winner_first"
    assert order_of_votes([row, other]) == "one"
    assert order_of_votes([other, other]) == "loser_first"


def said(first: Path, second: Path) -> str:
    """Return what the last column of a comparison holds."""
    return "".join(row[-1] for row in comparison_table(first, second).rows)


def test_a_comparison_of_different_orders_names_both(tmp_path: Path) -> None:
    evaluated(tmp_path / "winner", WINNER_FIRST)
    evaluated(tmp_path / "both", BOTH)
    evaluated(tmp_path / "scalar", BOTH, prefer_the_better)
    assert "PROTOCOLS DIFFER: WINNER SHOWN FIRST" in said(tmp_path / "winner", tmp_path / "both")
    assert "DIFFER" not in said(tmp_path / "scalar", tmp_path / "both")

    for name in ("winner", "both"):
        (tmp_path / name / f"{FOLDER.name}.json").unlink()
    assert "PROTOCOLS DIFFER: responses shown with the better response first" in said(
        tmp_path / "winner", tmp_path / "both"
    )


def test_the_table_of_scores_holds_no_protocol_of_foreign_files(tmp_path: Path) -> None:
    """Only our own files are read with a result beside them."""
    records = [{"id": "a", "category": "x", "rewards": [1, 0]}]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found, compared = score_predictions_file(file, FOLDER)
    assert "protocol" not in found
    assert not any("protocol" in line for line in compared.lines())
