"""A run stops on all ranks at what is not finite on one, says where, and leaves its last good checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmrm.data.errors import NonFiniteError
from mmrm.train.supervised.optimizer import refuse_weights
from tests.train import worker
from tests.train.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "stage", "kind"),
    [
        ("rm", "none", "loss"),
        ("sft", "none", "loss"),
        ("rm", "none", "gradient"),
        ("rm", "zero3", "gradient"),
        ("rm", "zero2", "weights"),
        ("rm", "zero3", "weights"),
    ],
)
def test_what_is_not_finite_on_one_rank_ends_the_run(
    tmp_path: Path, entry: str, stage: str, kind: str
) -> None:
    recipe, folder = worker.prepare(tmp_path), tmp_path / "run"
    changes = [
        "evaluation.benchmarks=[]",
        "evaluation.best_metric=null",
        "output.save_every_steps=1",
        f"deepspeed={stage}",
    ]
    if entry == "sft":
        method = "method={type: language_model, target: judgement, template: short}"
        changes += [f"backbone.path={tmp_path}/backbone", method]
    said = run_ranks(
        tmp_path / "log", worker.spoilt_run, [str(recipe), *changes], entry, kind, status=1
    )
    assert "Traceback" not in said
    assert said.count("Not finite at step 3: ") == 1  # told once, by the first rank
    assert f"The last good checkpoint is {folder / 'checkpoint-2'}" in said
    assert [path.parent.name for path in folder.glob("checkpoint-*/complete")] == ["checkpoint-2"]
    assert not (folder / "checkpoint-3").exists()
    if kind == "weights":
        assert "the weights " in said
        return
    assert "rank 1: loss nan, records shapes-demo-train:" in said or kind == "gradient"
    assert ("  rank 0: loss 0." in said) == (
        kind == "gradient"
    )  # no rank is known for gradients, which are summed already
    found = sorted(path.name for path in folder.glob("non-finite-*"))
    assert found == [f"non-finite-step-3-rank-{rank}.pt" for rank in range(kind == "loss", 2)]
    records = torch.load(folder / found[-1], weights_only=True)[0]["records"]
    assert len(records) == 2
    assert ", ".join(records) in said


def test_every_weight_is_looked_at(tmp_path: Path) -> None:
    last = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), last)
    model.register_parameter(
        "whole", torch.nn.Parameter(torch.ones(2, dtype=torch.uint8), requires_grad=False)
    )
    model.register_parameter("none", torch.nn.Parameter(torch.ones(0)))
    refuse_weights(model, 4, tmp_path)
    for value in (float("nan"), float("-inf")):
        with torch.no_grad():
            last.bias[1] = value
        with pytest.raises(
            NonFiniteError, match=r"Not finite at step 4: the weights 1\.bias,.* no good checkpoint"
        ):
            refuse_weights(model, 4, tmp_path)
