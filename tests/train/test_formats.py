"""What a recipe may change about the weights: number formats, frozen parts, rates of their own; each in a run of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrm.train.supervised.optimizer import part_of
from tests.train import worker
from tests.train.ranks import run_ranks
from tests.train.worker import lines

pytestmark = pytest.mark.slow


ONE_STEP = [
    "optim.max_steps=1",
    "optim.warmup_ratio=0",
    "optim.schedule=constant",
    "output.save_every_steps=1",
]
UNEVALUATED = ["evaluation.benchmarks=[]", "evaluation.best_metric=null"]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("formats")
    worker.prepare(found)
    return found


def train(folder: Path, name: str, *changes: str) -> Path:
    """Train for a step on one rank, and return the checkpoint."""
    command = [
        str(folder / "recipe.yaml"),
        *ONE_STEP,
        *UNEVALUATED,
        *changes,
        f"output.folder={folder}/{name}",
    ]
    run_ranks(folder / "log", worker.recipe_run, command, ranks=1)
    return folder / name / "checkpoint-1"


def moved(folder: Path, checkpoint: Path) -> dict[str, float]:
    """Return how far the fastest number of each part went; the projector is a part of its own."""
    before, after = (
        load_file(folder / "base" / "model.safetensors"),
        load_file(checkpoint / "model.safetensors"),
    )
    found: dict[str, float] = {}
    for name, tensor in after.items():
        part = "projector" if ".merger." in name else part_of(name)
        found[part] = max(found.get(part, 0.0), float((tensor.float() - before[name]).abs().max()))
    return found


def test_every_part_goes_at_its_own_rate(folder: Path) -> None:
    """The first step of AdamW moves a number by its learning rate, whatever its gradient."""
    rates = [
        "optim.learning_rate=1e-3",
        "optim.head_learning_rate=4e-3",
        "optim.vision_learning_rate=2e-4",
    ]
    found = moved(folder, train(folder, "rates", *rates))
    assert found == pytest.approx(
        {"vision": 2e-4, "projector": 2e-4, "language": 1e-3, "head": 4e-3}, rel=2e-2
    )


@pytest.mark.parametrize(
    "parts",
    [
        ["vision_tower"],
        ["projector"],
        ["language_model"],
        ["vision_tower", "projector", "language_model"],
    ],
)
def test_what_is_frozen_stays_and_the_rest_is_trained(folder: Path, parts: list[str]) -> None:
    stage = "zero3" if len(parts) == 3 else "none"
    checkpoint = train(
        folder, "-".join(parts), f"backbone.freeze=[{', '.join(parts)}]", f"deepspeed={stage}"
    )
    frozen = {
        {"vision_tower": "vision", "projector": "projector", "language_model": "language"}[part]
        for part in parts
    }
    assert {
        part for part, distance in moved(folder, checkpoint).items() if distance == 0.0
    } == frozen


@pytest.fixture(scope="module")
def fp32_loss(folder: Path) -> float:
    return float(lines(train(folder, "fp32"))[0]["loss"])


@pytest.mark.parametrize("stage", ["none", "zero0", "zero2", "zero3"])
def test_bf16_trains_on_a_cpu_too(folder: Path, fp32_loss: float, stage: str) -> None:
    checkpoint = train(folder, f"bf16-{stage}", "backbone.dtype=bfloat16", f"deepspeed={stage}")
    assert lines(checkpoint)[0]["loss"] == pytest.approx(fp32_loss, abs=0.05)
    formats = {tensor.dtype for tensor in load_file(checkpoint / "model.safetensors").values()}
    assert formats == {torch.float32 if stage == "none" else torch.bfloat16}


@pytest.mark.parametrize("stage", ["zero2", "zero3", "zero2_offload", "zero3_offload"])
def test_a_steps_rows_are_summed_in_fp32(folder: Path, stage: str) -> None:
    """After AdamW's first step its first moment is a tenth of the gradient: a sum in bf16 would leave numbers of bf16."""
    rows = ["optim.records_per_step=8", "optim.token_budget=1", "optim.max_grad_norm=1e9"]
    checkpoint = train(
        folder, f"sums-{stage}", "backbone.dtype=bfloat16", f"deepspeed={stage}", *rows
    )
    (part,) = checkpoint.glob("global_step1/*optim_states.pt")
    state = torch.load(part, weights_only=False)["optimizer_state_dict"]
    groups = state["optimizer_state_dict" if stage.startswith("zero3") else "base_optimizer_state"][
        "state"
    ].values()
    gradient = torch.cat([group["exp_avg"].flatten() for group in groups]) / 0.1
    gradient = gradient[gradient != 0]
    off = (gradient / gradient.bfloat16().float() - 1).abs() > 1e-5
    assert float(off.float().mean()) > 0.9


def test_bf16_resumes_to_the_last_bit(folder: Path) -> None:
    run = folder / "resumed"
    command = [
        str(folder / "recipe.yaml"),
        *UNEVALUATED,
        "backbone.dtype=bfloat16",
        "deepspeed=zero2",
        f"output.folder={run}",
    ]
    command += [
        "optim.max_steps=2",
        "output.save_every_steps=1",
        "output.keep_checkpoints=2",
        "optim.token_budget=1",
    ]
    run_ranks(folder / "log", worker.recipe_run, command, ranks=1)
    (run / "checkpoint-2").rename(folder / "whole")
    run_ranks(folder / "log", worker.recipe_run, [*command, "--resume"], ranks=1)
    assert worker.difference(run / "checkpoint-2", folder / "whole") == 0.0
    assert [line["loss"] for line in lines(run / "checkpoint-2")] == [
        line["loss"] for line in lines(folder / "whole")
    ]


def test_bf16_without_deepspeed_loses_no_small_step(folder: Path) -> None:
    """A bf16 weight near 1 can change by 1/256 at the least; a step of 1e-6 must not be lost."""
    found = moved(
        folder, train(folder, "small", "backbone.dtype=bfloat16", "optim.learning_rate=1e-6")
    )
    assert found == pytest.approx(
        dict.fromkeys(["vision", "projector", "language", "head"], 1e-6), rel=0.2
    )


def test_evaluating_changes_nothing_in_training(folder: Path) -> None:
    """With dropout, so that every number drawn counts."""
    changes = [
        "optim.lora={rank: 4, dropout: 0.3}",
        "optim.max_steps=2",
        "output.save_every_steps=1",
    ]
    recipe, found = str(folder / "recipe.yaml"), []
    for name, evaluation in (("with", []), ("without", UNEVALUATED)):
        run_ranks(
            folder / "log",
            worker.recipe_run,
            [recipe, *changes, *evaluation, f"output.folder={folder}/{name}"],
            ranks=1,
        )
        found.append([line["loss"] for line in lines(folder / name / "checkpoint-2")])
    assert found[0] == found[1]


def test_lessons_are_learned_alike_on_one_rank_and_on_two(folder: Path) -> None:
    method = "method={type: language_model, target: lessons, questions: 3}"
    common = [
        str(folder / "recipe.yaml"),
        method,
        f"backbone.path={folder}/backbone",
        *UNEVALUATED,
        "optim.max_steps=2",
    ]
    found = []
    for ranks, stage in ((1, "none"), (2, "zero2")):
        command = [
            *common,
            f"deepspeed={stage}",
            f"output.folder={folder}/lessons-{stage}",
            "output.save_every_steps=2",
        ]
        run_ranks(folder / "log", worker.recipe_run, command, "sft", ranks=ranks)
        found.append(lines(folder / f"lessons-{stage}" / "checkpoint-2"))
    for one, two in zip(*found, strict=True):
        assert {name: one[name] for name in ("loss", "grad_norm", "perplexity")} == pytest.approx(
            {name: two[name] for name in ("loss", "grad_norm", "perplexity")}, rel=1e-4
        )
