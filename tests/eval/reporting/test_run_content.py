"""Which rollouts a report shows: early, halfway and late, the first prompt and the telling ones, each judgement once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrm.eval.reporting.run_content import JUDGEMENTS, PROMPTS, read_rollouts, read_run
from tests.eval.made_run import make_run, rollout_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "completions").mkdir()
    for step in (5, 20, 100, 1000, 2000):
        rollout_table(tmp_path / "completions" / f"completions_{step:05d}.parquet", step)
    return tmp_path


def read(folder: Path) -> list[dict[str, Any]]:
    problems: list[str] = []
    found = read_rollouts(folder, problems)
    assert not problems
    return found


def test_the_first_the_middle_and_the_last_table_are_shown(folder: Path) -> None:
    assert [stage["step"] for stage in read(folder)] == [5, 100, 2000]


def test_fewer_tables_than_stages_are_shown_once_each_and_none_are_no_problem(
    tmp_path: Path,
) -> None:
    assert read(tmp_path) == []
    (tmp_path / "completions").mkdir()
    rollout_table(tmp_path / "completions" / "completions_00007.parquet", 7)
    assert [stage["step"] for stage in read(tmp_path)] == [7]


def test_the_first_prompt_comes_first_then_those_with_unequal_rewards(folder: Path) -> None:
    late = read(folder)[-1]
    assert late["prompts"] == 6
    assert len(late["shown"]) == PROMPTS
    assert late["shown"][0]["record"] == "record-0"
    assert "record-5" not in [
        one["record"] for one in late["shown"]
    ]  # all of its judgements are right
    assert late["shown"][1]["right"] == 2


def test_judgements_are_shown_once_with_their_number_from_the_best_paid_to_the_worst(
    folder: Path,
) -> None:
    one = next(asked for asked in read(folder)[-1]["shown"] if asked["record"] == "record-3")
    assert (one["judgements"], one["right"], one["winner"]) == (8, 4, 2)
    assert len(one["shown"]) == JUDGEMENTS
    assert (
        one["different"] == 8
    )  # right and wrong texts of eight judgements, five different openings
    assert [judged["earned"] for judged in one["shown"]] == sorted(
        (judged["earned"] for judged in one["shown"]), reverse=True
    )
    assert [one["shown"][0][name] for name in ("result", "consistency", "format")] == [
        1.0,
        1.0,
        1.0,
    ]
    assert one["shown"][-1]["advantage"] == -0.5
    assert one["request"].startswith("Question 3?\nResponse 1: ")


def test_equal_judgements_are_counted(tmp_path: Path) -> None:
    (tmp_path / "completions").mkdir()
    rollout_table(
        tmp_path / "completions" / "completions_00001.parquet", 0, prompts=2, judgements=12
    )
    second = read(tmp_path)[0]["shown"][1]  # one right, eleven wrong with five openings
    assert (second["different"], second["right"]) == (6, 1)
    assert [judged["times"] for judged in second["shown"] if judged["result"]] == [1]
    assert [judged["times"] for judged in second["shown"]] == [1, 2, 2, 2]


def test_a_table_that_was_cut_off_is_named(folder: Path) -> None:
    broken = folder / "completions" / "completions_02000.parquet"
    broken.write_bytes(broken.read_bytes()[:200])
    problems: list[str] = []
    assert [stage["step"] for stage in read_rollouts(folder, problems)] == [5, 100]
    assert len(problems) == 1
    assert str(broken) in problems[0]


def test_a_run_brings_its_rollouts(tmp_path: Path) -> None:
    assert [stage["step"] for stage in read_run(make_run(tmp_path, 12)).rollouts] == [0, 100, 200]
