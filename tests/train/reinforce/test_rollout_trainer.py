"""RL runs of a tiny model: alone and on two ranks under ZeRO, on mixed batches, interrupted, and with broken numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]
from torch import nn

from mmrm.eval.reporting.run_content import read_rollouts
from mmrm.models.encoder import Encoder
from mmrm.train.reinforce.rollout_trainer import roll_out
from mmrm.train.reinforce.rollouts import Prompt
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
  advantages: {{type: stable_reinforce, filter: null}}
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
HELD_OUT = (
    "data.validation=4",
    "evaluation.judging={max_new_tokens: 2}",
    "evaluation.best_metric=held_out/accuracy",
)
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
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        if ranks > 1
        else []
    )
    command = [
        sys.executable,
        *launcher,
        str(Path(__file__).parents[1].joinpath("reinforce_worker.py")),
        json.dumps(runs),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    done = subprocess.run(
        command,
        cwd=CLONE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found: list[dict[str, Any]] = json.loads(line.removeprefix("RESULT "))
    return found


def curve(run: dict[str, Any], names: Sequence[str] = FIGURES) -> list[dict[str, float]]:
    """Return the figures of every step that decide whether two runs are the same."""
    return [
        {name: line[name] for name in names if name in line}
        for line in run["log"]
        if "loss" in line
    ]


def same(one: list[dict[str, float]], two: list[dict[str, float]], tolerance: float = 1e-4) -> None:
    """Assert that two curves agree."""
    assert len(one) == len(two)
    for first, second in zip(one, two, strict=True):
        assert first == pytest.approx(second, rel=tolerance, abs=tolerance)


@pytest.mark.slow
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
        one(
            f"output.folder={tmp_path / 'kl'}",
            "method.kl_coefficient=0.1",
            "method.kl_in=reward",
            "method.kl_form=k1",
        ),
        one(
            f"output.folder={tmp_path / 'lora'}",
            "optim.lora={rank: 2}",
            "method.kl_coefficient=0.1",
        ),
        one(f"output.folder={tmp_path / 'spoilt'}", reward="endless"),
        one(
            f"output.folder={tmp_path / 'judged'}",
            "optim.max_steps=3",
            *HELD_OUT,
            reward="judgement",
        ),
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
    plain, truncated, dropped = (found["log"][0] for found in weighted)
    assert not [name for name in plain if name.startswith(("importance/", "sampling/"))]
    assert truncated["importance/truncated_tokens"] == pytest.approx(1 / 3)
    assert truncated["sampling/importance_sampling_ratio/max"] == 3.0
    assert dropped["importance/dropped_judgements"] == pytest.approx(1 / 3)
    assert 0 < dropped["grad_norm"] < plain["grad_norm"]
    evaluated = [line for line in judged["log"] if "eval_held_out/accuracy" in line]
    assert [line["step"] for line in evaluated] == [0, 3]
    assert (
        len((tmp_path / "judged" / "validation.jsonl").read_text(encoding="utf-8").splitlines())
        == 4
    )
    assert next(line for line in judged["log"] if "reward" in line)["rewards/format"] == 0.0
    problems: list[str] = []
    stages = read_rollouts(tmp_path / "judged", problems)
    assert not problems
    assert [(stage["step"], stage["prompts"]) for stage in stages] == [(1, 8), (2, 8), (3, 8)]
    assert stages[0]["shown"][0]["judgements"] == 3
    assert "Which response is better?" in stages[0]["shown"][0]["request"]
    # The tables hold the advantages that were trained on: standardised over the batch.
    advantages = parquet.read_table(
        tmp_path / "whole" / "completions" / "completions_00001.parquet"
    )["advantage"].to_numpy()
    assert advantages.mean() == pytest.approx(0.0, abs=1e-5)
    assert advantages.std() == pytest.approx(1.0, rel=1e-3)


def rollouts_by_step(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the prompts and sampled texts in each of a run's rollout tables, sorted."""
    texts_by_table = {}
    for file in sorted((folder / "completions").glob("*.parquet")):
        rows = parquet.read_table(file).to_pylist()
        texts = [(json.dumps(row["prompt"]), json.dumps(row["completion"])) for row in rows]
        texts_by_table[file.name] = sorted(texts)
    return texts_by_table


def same_as_trl(run: dict[str, Any], folder: Path) -> None:
    """Assert that the advantages of a run by GRPO are those that trl computed from its rewards."""
    # A rollout batch is sampled for two steps, and every step writes the table of its batch.
    for step, by_trl in zip((1, 3), run["trl_advantages"], strict=True):
        file = folder / "completions" / f"completions_{step:05d}.parquet"
        found = parquet.read_table(file)["advantage"].to_pylist()
        assert found == pytest.approx(by_trl, rel=1e-4, abs=1e-4)
        assert max(map(abs, found)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps_per_rollout", "pairs_per_pass", "advantages"),
    [
        (1, 1, "{filter: 1.0}"),
        (2, 1, "{filter: null}"),
        (4, 2, "{normalisation: group, filter: null}"),
        (2, 2, "{type: grpo}"),
        (2, 1, "{type: rloo}"),
    ],
)
def test_two_ranks_train_each_step_on_the_questions_of_one_rank(
    tmp_path: Path, steps_per_rollout: int, pairs_per_pass: int, advantages: str
) -> None:
    """Texts are sampled with a seed for each question, so that both runs have the same rollouts.

    A rank that is alone accumulates gradients over one pair at a time.
    """
    overrides = [
        f"method.steps_per_rollout={steps_per_rollout}",
        f"method.advantages={advantages}",
    ]
    path = str(recipe(tmp_path))
    alone = {"recipe": path, "overrides": [*overrides, f"output.folder={tmp_path / 'alone'}"]}
    overrides.append(f"method.pairs_per_pass={pairs_per_pass}")
    both = {"recipe": path, "overrides": [*overrides, f"output.folder={tmp_path / 'both'}"]}
    run_alone = train(alone)[0]
    if "grpo" in advantages:
        same_as_trl(run_alone, tmp_path / "alone")
    figures_alone = curve(run_alone, SUMS)
    figures_both = curve(train(both, ranks=2)[0], SUMS)
    assert rollouts_by_step(tmp_path / "both") == rollouts_by_step(tmp_path / "alone")
    assert len(figures_alone) == 4
    same(figures_both, figures_alone, tolerance=1e-4)


@pytest.mark.slow
def test_layers_keep_their_mode_of_checkpointing_when_texts_have_been_sampled(
    tmp_path: Path,
) -> None:
    """For sampling, trl switches checkpointing off, and afterwards on in a mode of its own."""
    path = recipe(tmp_path)
    (run,) = train(
        {
            "recipe": str(path),
            "overrides": [
                f"output.folder={tmp_path / 'run'}",
                "optim.max_steps=1",
                "optim.activation_checkpointing=offloaded",
            ],
        }
    )
    assert run["keeps_inputs_on_host"]


@pytest.mark.slow
@pytest.mark.parametrize("deepspeed", ["zero2", "zero3"])
def test_two_ranks_take_the_steps_that_one_takes(tmp_path: Path, deepspeed: str) -> None:
    path = recipe(tmp_path)
    overrides = ["optim.max_steps=2", "method.kl_coefficient=0.1"]
    alone = {"recipe": str(path), "overrides": [*overrides, f"output.folder={tmp_path / 'alone'}"]}
    both = {
        "recipe": str(path),
        "overrides": [*overrides, f"output.folder={tmp_path / 'both'}", f"deepspeed={deepspeed}"],
    }
    wanted, found = train(alone)[0], train(both, ranks=2)[0]
    same(curve(found, SUMS), curve(wanted, SUMS), tolerance=1e-3)


TERMS = (
    "method.rewards=[{type: result}, {type: agreement}, {type: calibration},"
    " {type: length, free_tokens: 2}]"
)


@pytest.mark.slow
def test_two_ranks_pay_the_agreement_of_both_orders_as_one_does(tmp_path: Path) -> None:
    """A rank has both orders of its pairs, so that no reward depends on another rank's texts."""
    overrides = [TERMS, "method.num_generations=4", "optim.max_steps=2"]
    path = str(recipe(tmp_path))

    def run(folder: str, *more: str) -> dict[str, Any]:
        overrides_of_run = [*overrides, f"output.folder={tmp_path / folder}", *more]
        return {"recipe": path, "overrides": overrides_of_run, "reward": "parity"}

    found_alone, _, resumed = train(
        run("alone"),
        run("cut", "optim.max_steps=1", "output.save_every_steps=1"),
        run("cut", f"output.resume={tmp_path / 'cut' / 'checkpoint-1'}"),
    )
    found_both = train(run("both"), ranks=2)[0]
    same(curve(found_both, SUMS), curve(found_alone, SUMS))
    same(curve(resumed, SUMS)[-1:], curve(found_alone, SUMS)[-1:])
    assert rollouts_by_step(tmp_path / "both") == rollouts_by_step(tmp_path / "alone")
    first_line = found_alone["log"][0]
    assert 0 < first_line["rewards/agreement"] < 1
    assert -1 < first_line["rewards/length"] < 0
    assert 0 < first_line["rewards/calibration"] < 1
    rows = parquet.read_table(
        tmp_path / "alone" / "completions" / "completions_00001.parquet"
    ).to_pylist()
    for start in range(0, len(rows), 4):
        of_pair = rows[start : start + 4]
        # Two judgements of each pair show the better response first, and two show it second.
        assert [row["winner"] for row in of_pair] in ([1, 1, 2, 2], [2, 2, 1, 1])
        assert len({row["record"] for row in of_pair}) == 1
        assert len({json.dumps(row["prompt"]) for row in of_pair}) == 2
        named = [row["agreement"] for row in of_pair]
        assert sum(named[:2]) == sum(named[2:])


POINTS = (
    'method={type: reinforce_points, points: {opening: "", scores: {"a": 0, "b": 1, "c": 2}},'
    " num_generations: 4, steps_per_rollout: 2, max_new_tokens: 5, rollouts_shown: 0,"
    " advantages: {type: rloo}, pre_clip: null}"
)


@pytest.mark.slow
def test_a_judge_of_single_responses_is_trained_by_the_order_of_pairs(tmp_path: Path) -> None:
    """A random model writes no score, so that points are read from any text."""
    path = str(recipe(tmp_path))

    def run(folder: str, *more: str) -> dict[str, Any]:
        overrides = [POINTS, "optim.max_steps=2", f"output.folder={tmp_path / folder}", *more]
        return {"recipe": path, "overrides": overrides, "reward": "points"}

    judged = ("output.save_every_steps=2", *HELD_OUT)
    [found_alone] = train(run("alone", *judged))
    [found_both] = train(run("both", *judged), ranks=2)
    same(curve(found_both, SUMS), curve(found_alone, SUMS))
    line = next(line for line in found_alone["log"] if "reward" in line)
    assert line["rewards/order"] == pytest.approx(line["reward"])
    assert 0 < line["rollouts/tied"] < 1
    assert 0 < line["rollouts/unreadable"] < 1
    assert curve(found_alone)[0]["grad_norm"] > 0
    accuracies = [line for line in found_alone["log"] if "eval_held_out/accuracy" in line]
    assert [line["step"] for line in accuracies] == [0, 2]
    card = json.loads((tmp_path / "alone" / "checkpoint-2" / "judge.json").read_text("utf-8"))
    assert card["judge_type"] == "points"
    assert card["points"]["scores"] == {"a": 0.0, "b": 1.0, "c": 2.0}


ENCODER = tiny.encoder()
PAD, PROCESSOR = ENCODER.vision.image, ENCODER.image_processor


def request(encoder: Encoder, *sizes: tuple[int, int]) -> Prompt:
    """Return a prompt about pictures of `sizes`, one directly after the other."""
    pictures = tuple(tiny.picture(*size, seed=place) for place, size in enumerate(sizes))
    asked: Any = {
        "role": "user",
        "content": [{"type": "image"}] * len(sizes) + [{"type": "text", "text": "What is it?"}],
    }
    tree = encoder.encode(pictures, [encoder.render([asked])], None)
    return Prompt(tree, pictures, 1, "What is it?", 0, f"about {len(sizes)}")


PROMPTS = [request(ENCODER, *sizes) for sizes in ([], [(80, 60)], [(60, 80), (100, 30)])]


def expanded(ids: list[int], images: Any) -> list[int]:
    """Do what vLLM does: each image is put at the next pad that is found, whatever follows it."""
    counts = [
        int(grid.prod()) // 4
        for image in images or ()
        for grid in PROCESSOR(image, return_tensors="pt")["image_grid_thw"]
    ]
    found: list[int] = []
    for token in ids:
        found += [token] * (counts.pop(0) if token == PAD and counts else 1)
    return found


class Double:
    """Stands for trl's VLLMGeneration; `given` is what it was asked, and an engine of its own expands that."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def generate(
        self, prompts: list[list[int]], images: list[Any], num_generations: int
    ) -> tuple[Any, ...]:
        """Note what is asked, and answer with the ids that were sampled from."""
        self.given, self.images = prompts, images
        own = self.mode == "colocate"
        used = [
            expanded(ids, found) if own else ids
            for ids, found in zip(prompts, images or [None] * len(prompts), strict=True)
        ]
        return used, [[5, 6]] * len(prompts), [[[-0.5], [-0.25]]] * len(prompts), None


def trainer(mode: str, asked: list[Prompt]) -> Any:
    return SimpleNamespace(
        batch_prompts=asked,
        texts_per_prompt=2,
        use_vllm=True,
        vllm_mode=mode,
        encoder=ENCODER,
        vllm_generation=Double(mode),
        model=nn.Linear(1, 1),
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(output_dir="."),
    )


def test_a_colocated_engine_gets_one_pad_an_image_and_a_server_the_whole_runs() -> None:
    wanted = [list(one.tree.conversations()[0].ids) for one in PROMPTS for _ in range(2)]
    assert [ids.count(PAD) for ids in wanted[::2]] == [0, 6, 10]
    for mode, pads in (("colocate", [0, 1, 2]), ("server", [0, 6, 10])):
        asking = trainer(mode, PROMPTS)
        found = roll_out([], asking)
        assert found == {
            "prompt_ids": wanted,
            "completion_ids": [[5, 6]] * 6,
            "logprobs": [[-0.5, -0.25]] * 6,
        }
        assert [ids.count(PAD) for ids in asking.vllm_generation.given[::2]] == pads
        assert [len(images or ()) for images in asking.vllm_generation.images] == [0, 0, 1, 1, 2, 2]
        roll_out([], texts := trainer(mode, PROMPTS[:1]))
        assert texts.vllm_generation.images is None


def test_other_ids_than_those_trained_on_stop_the_run() -> None:
    other = replace(PROMPTS[1], images=(tiny.picture(200, 200),))
    with pytest.raises(
        RuntimeError,
        match=r"about 1: vLLM sampled from .* make backbone.min_pixels and max_pixels agree",
    ):
        roll_out([], trainer("colocate", [other]))


@pytest.mark.slow
def test_a_frozen_copy_of_the_start_reads_rubrics_on_every_rank(tmp_path: Path) -> None:
    """A random model writes no rubric: the ranks ask the reader about nothing, and go on."""
    overrides = [
        "method.template=rubric_turns",
        "method.rewards.reader={path: null}",
        "optim.max_steps=2",
    ]
    run = {"recipe": str(recipe(tmp_path)), "overrides": overrides, "reward": "judgements"}
    [found] = train(run, ranks=2)
    first, second = [line for line in found["log"] if "loss" in line]
    assert first["rewards/reader"] == 0
    assert first["rollouts/unreadable"] == 1
    assert "reward" not in second  # the second step on one batch of rollouts
