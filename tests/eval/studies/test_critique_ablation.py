"""The tables of the critique ablation."""

from __future__ import annotations

from typing import Any

from mmrm.eval.results.result import Accuracy
from mmrm.eval.studies.critique_ablation import critiques_table, judges_table

ACCURACY = Accuracy(n=4, right=2, ties=1, unparsable=0, accuracy=0.5, low=0.1, high=0.9, half=0.625)
FIGURES: dict[str, Any] = {
    "checkpoint": "runs/critic",
    "world": "shapes, split benchmark, seed 0",
    "judges": {
        "no critique": {"accuracy": ACCURACY, "cost": {"seconds_per_judgement": 0.01}},
        "own critique": {
            "accuracy": ACCURACY,
            "cost": {
                "seconds_per_judgement": 0.5,
                "generated_tokens_per_second": 123.4,
                "truncated": 0.0125,
            },
        },
    },
    "by_truth": {"both critiques true": ACCURACY},
    "critiques": {
        "all": {"n": 12, "readable": 10, "verdict": 8, "fact": 7, "both": 6},
        "of wrong responses": {"n": 0, "readable": 0, "verdict": 0, "fact": 0, "both": 0},
    },
}


def test_a_judge_that_writes_has_a_speed_and_a_share_cut_off() -> None:
    rows = judges_table(FIGURES).rows
    assert rows[0] == ("no critique", "50.0 [10.0, 90.0]", "1", "0.0100", "–", "–")
    assert rows[1][3:] == ("0.5000", "123", "1.2 %")
    assert rows[2][0] == "  own, both critiques true: n = 4"


def test_shares_of_no_critiques_are_zero() -> None:
    everything, nothing = critiques_table(FIGURES).rows
    assert everything == ("all", "12", "83.3 %", "66.7 %", "58.3 %", "50.0 %")
    assert nothing == ("of wrong responses", "0", *["0.0 %"] * 4)
