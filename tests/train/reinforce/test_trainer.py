"""RL runs of a tiny model: alone and on two ranks under ZeRO, on mixed batches, interrupted, and with broken numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from eval.reporting.rollouts import rollouts
from tests.models import tiny

CLONE = Path(__file__).resolve().parents[3]
RECIPE = """\
backbone: {{path: {backbone}, dtype: float32, max_pixels: 12544}}
data:
  sources:
    - {{type: shapes, level: demo, rows: 64, text_only: 0.5}}
method:
  type: stable_reinforce
  template: short
  num_generations: 3
  steps_per_rollout: 2
  max_new_tokens: 5
  rollouts_shown: 0
  advantages: {{filter: null}}
optim:
  learning_rate: 1.0e-3
  records_per_step: 4
  max_steps: 4
  schedule: constant
  warmup_ratio: 0.0
  activation_checkpointing: false
output: {{folder: {folder}, save_every_steps: 3, log_every_steps: 1, keep_checkpoints: 9}}
workers: 0
"""
HELD_OUT = ("data.validation=4", "evaluation.judging={max_new_tokens: 2}", "evaluation.best_metric=held_out/accuracy")
FIGURES = ("loss", "reward", "grad_norm", "largest_log_ratio", "entropy")
SUMS = ("loss", "reward", "grad_norm")
"""Figures that do not depend on how a step is divided into passes."""


def recipe(folder: Path) -> Path:
    """Write a recipe for a tiny checkpoint into `folder`."""
    backbone = folder / "backbone"
    if not backbone.exists():
        tiny.checkpoint(backbone)
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(backbone=backbone, folder=folder / "run"), encoding="utf-8")
    return path


def train(*runs: dict[str, Any], ranks: int = 1) -> list[dict[str, Any]]:
    """Run the worker and return what it printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, str(Path(__file__).parents[1].joinpath("reinforce_worker.py")), json.dumps(runs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    done = subprocess.run(command, cwd=CLONE, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found: list[dict[str, Any]] = json.loads(line.removeprefix("RESULT "))
    return found


def curve(run: dict[str, Any], names: Sequence[str] = FIGURES) -> list[dict[str, float]]:
    """Return the figures of every step that decide whether two runs are the same."""
    return [{name: line[name] for name in names if name in line} for line in run["log"] if "loss" in line]


def same(one: list[dict[str, float]], two: list[dict[str, float]], tolerance: float = 1e-4) -> None:
    """Assert that two curves agree."""
    assert len(one) == len(two)
    for first, second in zip(one, two, strict=True):
        assert first == pytest.approx(second, rel=tolerance, abs=tolerance)


def test_a_run_alone_resumed_split_and_spoilt(tmp_path: Path) -> None:
    path = recipe(tmp_path)

    def one(*overrides: str, **more: Any) -> dict[str, Any]:
        return {"recipe": str(path), "overrides": list(overrides), **more}

    # vLLM's double runs on texts, where one pad or many make no difference.
    texts = "data.sources=[{type: shapes, level: demo, rows: 64, text_only: 1.0}]"
    vllm = ["optim.max_steps=2", "method.engine=vllm_colocate", texts]
    weighed = [
        one(f"output.folder={tmp_path / mode}", *vllm, f"method.importance_correction={mode}")
        for mode in ("none", "token_truncate", "sequence_mask")
    ]
    cut = tmp_path / "cut" / "checkpoint-3"
    whole, _, resumed, small, single, kl, lora, spoilt, judged, *weighted = train(
        one(f"output.folder={tmp_path / 'whole'}"),
        one(f"output.folder={cut.parent}", "optim.max_steps=3"),
        one(f"output.folder={cut.parent}", f"output.resume={cut}"),
        one(f"output.folder={tmp_path / 'small'}", "method.pairs_per_pass=4"),
        one(f"output.folder={tmp_path / 'single'}", "method.num_generations=1"),
        one(f"output.folder={tmp_path / 'kl'}", "method.kl_coefficient=0.1", "method.kl_in=reward", "method.kl_form=k1"),
        one(f"output.folder={tmp_path / 'lora'}", "optim.lora={rank: 2}", "method.kl_coefficient=0.1"),
        one(f"output.folder={tmp_path / 'spoilt'}", reward="endless"),
        one(f"output.folder={tmp_path / 'judged'}", "optim.max_steps=3", *HELD_OUT, reward="judgement"),
        *weighed,
    )
    assert [line["reward"] for line in whole["log"] if "reward" in line]
    assert curve(whole)[0]["grad_norm"] > 0
    assert curve(whole)[1]["largest_log_ratio"] > 0  # the second step on one batch of rollouts
    # The buffer was half used at the cut: the last step comes from it, not from new rollouts.
    same(curve(resumed)[-1:], curve(whole)[-1:])
    assert "reward" not in curve(resumed)[-1]
    # How many pairs share a pass changes memory, not the result.
    same(curve(small, SUMS), curve(whole, SUMS))
    assert len(curve(single)) == 4
    assert kl["log"][0]["kl"] == 0.0
    assert lora["log"][2]["kl"] > 0.0
    assert "Not finite at step 1" in spoilt["error"]
    assert list((tmp_path / "spoilt").glob("non-finite-step-1-rank-0.pt"))
    assert (tmp_path / "whole" / "checkpoint-3" / "preprocessor_config.json").exists()
    # One judgement of three has weights far above the cap.
    plain, truncated, dropped = (found["log"][0] for found in weighted)
    assert not [name for name in plain if name.startswith(("importance/", "sampling/"))]
    assert truncated["importance/truncated_tokens"] == pytest.approx(1 / 3)
    assert truncated["sampling/importance_sampling_ratio/max"] == 3.0
    assert dropped["importance/dropped_judgements"] == pytest.approx(1 / 3)
    assert 0 < dropped["grad_norm"] < plain["grad_norm"]
    evaluated = [line for line in judged["log"] if "eval_held_out/accuracy" in line]
    assert [line["step"] for line in evaluated] == [0, 3]
    assert len((tmp_path / "judged" / "validation.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert next(line for line in judged["log"] if "reward" in line)["rewards/format"] == 0.0
    problems: list[str] = []
    stages = rollouts(tmp_path / "judged", problems)
    assert not problems
    assert [(stage["step"], stage["prompts"]) for stage in stages] == [(1, 8), (2, 8), (3, 8)]
    assert stages[0]["shown"][0]["judgements"] == 3
    assert "Which response is better?" in stages[0]["shown"][0]["request"]
    # The tables hold the advantages that were trained on: standardised over the batch.
    advantages = parquet.read_table(tmp_path / "whole" / "completions" / "completions_00001.parquet")["advantage"].to_numpy()
    assert advantages.mean() == pytest.approx(0.0, abs=1e-5)
    assert advantages.std() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("deepspeed", ["zero2", "zero3"])
def test_two_ranks_take_the_steps_that_one_takes(tmp_path: Path, deepspeed: str) -> None:
    path = recipe(tmp_path)
    # Ranks divide a rollout batch before its steps do, so that only with one step a batch do both runs see the same steps.
    overrides = ["optim.max_steps=2", "method.steps_per_rollout=1", "method.kl_coefficient=0.1"]
    alone = {"recipe": str(path), "overrides": [*overrides, f"output.folder={tmp_path / 'alone'}"]}
    both = {"recipe": str(path), "overrides": [*overrides, f"output.folder={tmp_path / 'both'}", f"deepspeed={deepspeed}"]}
    wanted, found = train(alone)[0], train(both, ranks=2)[0]
    same(curve(found, SUMS), curve(wanted, SUMS), tolerance=1e-3)
