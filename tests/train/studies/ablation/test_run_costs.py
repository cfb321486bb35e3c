"""What a run cost: from lines of both trainers' logs, evaluations between them left out."""

import pytest

from mmrm.train.studies.ablation.run_costs import Cost, cost

JUDGED = {"eval_judging/seconds_per_pair": 0.5, "eval_judging/tokens_per_pair": 30.0}


def test_speeds_become_seconds_and_tokens_and_the_last_evaluation_is_the_use() -> None:
    lines = [
        {"step": 0, **JUDGED, "eval_judging/tokens_per_pair": 99.0},
        {
            "step": 10,
            "records_per_second": 20.0,
            "tokens_per_second": 1000.0,
        },  # 160 pairs: 8 s, 8,000 tokens
        {
            "step": 12,
            "records_per_second": 8.0,
            "tokens_per_second": 500.0,
        },  # 32 pairs: 4 s, 2,000 tokens
        {"step": 12, **JUDGED},
        {"step": 12, "train_runtime": 100.0},
    ]
    assert cost(lines, 16) == Cost(192, 10_000 / 192, 12 / 192, 12.0, 0.5, 30.0)


def test_a_step_of_trl_is_the_mean_since_the_last_line_and_its_tokens_are_all_so_far() -> None:
    lines = [
        {"step": 2, "step_time": 3.0, "num_tokens": 500.0},
        {"step": 4, **JUDGED},
        {"step": 5, "step_time": 2.0, "num_tokens": 900.0},
    ]
    assert cost(lines, 8) == Cost(40, 900 / 40, 12 / 40, 12.0, 0.5, 30.0)


@pytest.mark.parametrize(
    "lines",
    [[{"step": 0, **JUDGED}], [{"step": 3, "records_per_second": 1.0, "tokens_per_second": 1.0}]],
)
def test_a_run_that_trained_or_judged_nothing_has_no_cost(lines: list[dict[str, float]]) -> None:
    assert cost(lines, 4) is None
