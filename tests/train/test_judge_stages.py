"""The stages of a judge on tiny weights: annotation by agreement, cold start, and RL with a curriculum."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import read_data_section
from mmrm.data.prompts import write_judgement
from mmrm.eval import annotate
from mmrm.train.recipe.parsing import read_recipe
from tests.data.sources.fixtures import write_jsonl
from tests.eval.endpoint_server import serve
from tests.models import tiny
from tests.train import worker
from tests.train.ranks import run_ranks

pytestmark = pytest.mark.slow

NUM_PAIRS = 24
TRIES = 3
RECIPE = """\
backbone: {{path: {backbone}, dtype: float32, min_pixels: 784, max_pixels: 3136}}
data:
  sources: [{{type: project, path: {records}}}]
  curriculum: {curriculum}
  cache: {folder}/cache
  workers: 1
method: {method}
optim:
  learning_rate: 1.0e-3
  records_per_step: 4
  max_steps: 4
  schedule: constant
  warmup_ratio: 0
  activation_checkpointing: false
output: {{folder: {folder}/{name}, save_every_steps: 2, log_every_steps: 1, keep_checkpoints: 9}}
workers: 0
"""
COLD_START = "{type: language_model, target: judgement, template: short}"
RL = (
    "{type: stable_reinforce, template: short, num_generations: 2, steps_per_rollout: 1, "
    "max_new_tokens: 4, rollouts_shown: 0, advantages: {filter: null}}"
)


def tries_needed(number: int) -> int:
    """Return the number of tries after which the double judges a pair rightly: 1 to 4, of 3."""
    return 1 + number % 4


def reply(body: dict[str, Any]) -> str:
    """Answer as a judge that names the first response until it has tried a pair often enough."""
    shown = body["messages"][0]["content"][-1]["text"]
    numbers = re.findall(r"number (\d+)", shown)
    number = int(numbers[0])
    answer: Any = 1
    if body["seed"] >= tries_needed(number):
        answer = 1 if shown.index(f"It is {number}.") < shown.index("No idea.") else 2
    return write_judgement(f"Response {answer} is better.", answer)


def write_recipe(folder: Path, name: str, **values: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(RECIPE.format(folder=folder, name=name, **values), encoding="utf-8")
    return path


def run_annotate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["annotate.py", *map(str, arguments)])
    annotate.main()


def trained_records(run: Path) -> list[list[str]]:
    """Return the records of each step of an RL run, each once, from its tables of rollouts."""
    steps = []
    for file in sorted((run / "completions").glob("*.parquet")):
        rows = parquet.read_table(file).to_pylist()
        steps.append(list(dict.fromkeys(row["record"] for row in rows)))
    return steps


def test_annotation_cold_start_and_reinforcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = tiny.checkpoint(tmp_path / "backbone")
    rows = [
        {"prompt": f"What is number {n}?", "chosen": f"It is {n}.", "rejected": "No idea."}
        for n in range(NUM_PAIRS)
    ]
    pairs = write_recipe(
        tmp_path,
        "pairs",
        backbone=backbone,
        records=write_jsonl(tmp_path / "pairs.jsonl", rows),
        curriculum="{}",
        method=RL,
    )
    annotated = tmp_path / "annotated.jsonl"

    # 1. Annotate: a pair is right after 1 to 3 tries in both orders, or never.
    with serve() as server:
        server.answers = reply
        endpoint = tmp_path / "endpoint.yaml"
        endpoint.write_text(
            f"type: endpoint\nurl: {server.url}\nmodel: double\ncache: {tmp_path}/answers\n"
        )
        run_annotate(
            monkeypatch, pairs, endpoint, "--out", annotated, "--agree", "--failures", "keep"
        )
        assert len(server.requests) == 2 * NUM_PAIRS // 4 * (1 + 2 + 3 + 3)
    printed = capsys.readouterr().out
    # asked, right at once, right later, never right, tries, orders disagree, unreadable, unusable
    assert re.search(r"project[ │]+24[ │]+6[ │]+12[ │]+6[ │]+54[ │]+36[ │]+0[ │]+0", printed)
    written = [json.loads(line) for line in annotated.read_text().splitlines()]
    assert [row["difficulty"] for row in written] == [tries_needed(n) for n in range(NUM_PAIRS)]
    assert [row.get("rationale") for row in written] == [
        None if row["difficulty"] > TRIES else "Response 1 is better." for row in written
    ]

    # 2. The cold start learns from the pairs with a rationale.
    source = {"records": annotated, "backbone": backbone}
    cold = write_recipe(
        tmp_path, "sft", curriculum="{most: 3, order: easy_first}", method=COLD_START, **source
    )
    mixture = Mixture(read_data_section(cold))
    assert mixture.card().sources[0].left_out == {"too_hard": 6}
    assert [mixture[int(index)].difficulty for index in mixture.order(0)] == (
        [1] * 6 + [2] * 6 + [3] * 6
    )
    run_ranks(tmp_path / "log", worker.recipe_run, [str(cold)], "sft", ranks=1)
    checkpoint = tmp_path / "sft" / "checkpoint-4"

    # 3. Reinforcement learning takes R1-Reward's selection, from easy to hard.
    hard = write_recipe(
        tmp_path,
        "rl",
        records=annotated,
        backbone=checkpoint,
        curriculum="{least: 2, order: easy_first}",
        method=RL,
    )
    run_ranks(tmp_path / "log", worker.recipe_run, [str(hard)], "rl", ranks=1)
    steps = trained_records(tmp_path / "rl")
    difficulty_by_record = {f"project:{n}": tries_needed(n) for n in range(NUM_PAIRS)}
    trained = [difficulty_by_record[record] for step in steps for record in step]
    assert trained == [2] * 6 + [3] * 6 + [4] * 4  # four steps of four of the 18 pairs
    assert Counter(map(len, steps)) == {4: 4}

    # A run that continues from its second step trains on the same pairs.
    changed = [f"output.folder={tmp_path / 'again'}"]
    start = ["optim.max_steps=2"]
    run_ranks(tmp_path / "log", worker.recipe_run, [str(hard), *changed, *start], "rl", ranks=1)
    assert len(trained_records(tmp_path / "again")) == 2
    resumed = [str(hard), *changed, "--resume"]
    run_ranks(tmp_path / "log", worker.recipe_run, resumed, "rl", ranks=1)
    assert trained_records(tmp_path / "again") == steps

    # 4. The cold start annotates pairs itself. Its judgements cannot be read, which is counted.
    own = tmp_path / "own.jsonl"
    limits = ["--limit", 4, "--max-tokens", 3, "--temperatures", 1.0]
    run_annotate(monkeypatch, pairs, checkpoint, "--out", own, "--agree", *limits)
    printed = capsys.readouterr().out
    assert re.search(r"project[ │]+4[ │]+0[ │]+0[ │]+4[ │]+4[ │]+0[ │]+8[ │]+0", printed)
    assert not own.exists()


def test_another_curriculum_is_no_continuation() -> None:
    """The key is one of those that a resumed run may not change."""
    recipes = Path(__file__).resolve().parents[2] / "recipes"
    plain = read_recipe(recipes / "shapes/judge_rl.yaml").resolved()
    assert "curriculum" not in plain["data"]
    changed = read_recipe(recipes / "shapes/judge_rl.yaml", ["data.curriculum={least: 2}"])
    assert changed.resolved()["data"]["curriculum"]["least"] == 2
