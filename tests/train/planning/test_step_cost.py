"""The cost of a step: bytes as DeepSpeed's own collectives move them, computation by hand, and what the dry run says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.packing.bins import PATCH_COST
from mmrm.train.planning import step_cost as cost
from mmrm.train.planning.dry_run import show
from mmrm.train.planning.memory import per_rank, trained
from mmrm.train.planning.step_cost import MFU, NODE, PEAK, Collectives, collectives, step_cost
from mmrm.train.recipe.deepspeed_config import stage
from mmrm.train.recipe.parsing import read_recipe
from tests.train.shipped import RECIPES

COUNT = Path(__file__).with_name("count_collectives.py")
BASEREWARD = next(path for path in RECIPES if path.stem == "basereward")


def counted(*command: str) -> tuple[Collectives, float, float]:
    """Return what a command counts, the bytes of its weights, and those that its tensors hold."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    weights, held = found.pop("weights"), found.pop("held")
    return Collectives(**found), weights, held


PRETENDED = [
    ("zero0", 8),
    ("zero1", 64),
    ("zero2", 8),
    ("zero2", 512),
    ("zero3", 8),
    ("zero3", 64),
    ("zero3", 512),
]
PRETENDED += [("zero3_hpz", 8), ("zero3_hpz", 64), ("zero3_hpz", 512)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), PRETENDED)
def test_bytes_are_those_that_deepspeed_moves_and_holds_on_pretended_ranks(
    name: str, ranks: int
) -> None:
    found, weights, held = counted(sys.executable, str(COUNT), name, "3", str(ranks))
    wanted = collectives(stage(name), 3, weights, weights, hpz=name == "zero3_hpz" and ranks > NODE)
    for kind in ("reduced", "gathered", "scattered", "gathered_inside"):
        assert getattr(found, kind) == pytest.approx(
            getattr(wanted, kind), rel=0.05, abs=0.01 * weights
        )
    recipe = read_recipe(BASEREWARD)
    shape = shape_of(recipe.backbone.path)
    assert shape is not None
    share = weights / 2 / trained(recipe, shape)[0]
    bucket = 2 * 512 * 512
    assert (
        -0.05 * held
        <= held - per_rank(recipe, shape, name, ranks).device * share
        <= bucket + 0.05 * held
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_bytes_are_those_that_deepspeed_moves_on_two_real_ranks(name: str) -> None:
    # The launcher takes port 29500 unless it is `--standalone`, and another test may have it.
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2"]
    found, weights, _ = counted(*torchrun, str(COUNT), name, "2")
    assert found == collectives(stage(name), 2, weights, weights)


def test_frozen_weights_are_gathered_and_not_reduced() -> None:
    assert collectives(3, 2, 100.0, 10.0) == Collectives(gathered=400.0, scattered=20.0)
    assert collectives(1, 2, 100.0, 10.0) == Collectives(reduced=10.0, gathered=10.0)
    assert Collectives(1.0, 1.0, 1.0).received(2) == 2.0


def test_the_step_of_basereward_by_hand() -> None:
    recipe = read_recipe(BASEREWARD)
    shape = shape_of(recipe.backbone.path)
    assert shape is not None
    one, many = step_cost(recipe, shape, 8), step_cost(recipe, shape, 64)
    work = 6 * (
        6.525e9 * (640 + 530) + 0.677e9 * 2560
    )  # the recipe's images have at most 640 tokens
    assert one.compute == pytest.approx(16 * work / (PEAK * MFU), rel=0.01)
    adapters = step_cost(read_recipe(BASEREWARD, ["optim.lora.rank=64"]), shape, 8)
    frozen = 4 * 6.525e9 * (640 + 530) + 2 * 0.677e9 * 2560
    assert adapters.compute == pytest.approx(16 * frozen / (PEAK * MFU), rel=0.01)
    assert (one.rows, many.rows) == (3, 1)  # 7 records of 2,194 each fit into a row of 16,384
    assert many.received["zero3"] == pytest.approx(63 / 64 * 3 * 2 * 7.76e9, rel=0.01)
    assert many.received["zero3_hpz"] == pytest.approx((63 / 64 * 2 + 7 / 8) * 2 * 7.76e9, rel=0.01)
    assert many.waiting["zero3_hpz"] == pytest.approx(
        2 * 7.76 * (63 / 64 * 2 / 50 + 7 / 8 / 450), rel=0.01
    )
    assert one.waiting["zero3"] < one.compute
    assert many.waiting["zero3"] > many.compute


def test_the_dry_run_says_where_the_network_holds_a_run_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(read_recipe(BASEREWARD), 1, Console(width=200))
    said = capsys.readouterr().out
    assert "From 64 GPUs on the network is the bottleneck: 0.92 s for 0.45 s of computation" in said
    assert "deepspeed=zero3_hpz, 0.64 s and 4 GiB a GPU" in said
    assert "deepspeed=zero1" not in said  # a single row: the stages move as much
    show(read_recipe(BASEREWARD, ["optim.records_per_step=512"]), 1, Console(width=200))
    assert (
        "a larger optim.records_per_step, deepspeed=zero1, 0.92 s and 30 GiB a GPU"
        in capsys.readouterr().out
    )
    show(
        read_recipe(BASEREWARD, ["deepspeed=zero1", "optim.records_per_step=4096"]),
        1,
        Console(width=200),
    )
    assert "is the bottleneck" not in capsys.readouterr().out


def test_rows_are_filled_as_the_packer_does() -> None:
    assert cost.PATCH_COST == PATCH_COST
