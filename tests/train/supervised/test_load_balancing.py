"""The load-balancing loss of a packed row is the stock model's on its conversations apart, and travels like any other loss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import load_balancing_loss_func

from mmrm.data.errors import UserError
from mmrm.models.activations import set_checkpointing
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig, CheckpointingMode
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.segments import Output, Segment, SegmentTree
from mmrm.models.portable.reward import ScalarReward
from mmrm.train.recipe.sections import LoraConfig
from mmrm.train.runs.model import add_adapters
from mmrm.train.supervised.load_balancing import RouterWatch, router_figures, router_load
from mmrm.train.supervised.steps import TrainingExample, make_row
from tests.models import stock, tiny
from tests.models.exactness import assert_exact
from tests.models.families.arrangements import arrangement, reward_model, stock_cases
from tests.train import worker
from tests.train.ranks import run_ranks

NAME = "qwen3_vl_moe"
TOTALS = torch.ones(2)


def packed_loss(model: Any, watch: RouterWatch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the load-balancing loss of a random row, and its sums for the log, for a step of this row alone."""
    encoder = tiny.encoder(NAME)
    prompts = arrangement(random.Random(seed), NAME)
    examples = [
        TrainingExample(encoder.encode_conversations(conversations, "end_of_turn", "a record"))
        for conversations in prompts
    ]
    row = make_row(examples, encoder.pack)
    with watch.record():
        model(**row.batch.score_inputs())
    loss, sums = watch.loss(row, row.totals())
    assert isinstance(loss, Tensor)
    return loss, sums


def stock_loss(model: ScalarReward, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Return transformers' loss for the same conversations, padded, each in a row of its own, and its gradients."""
    prompts = arrangement(random.Random(seed), NAME)
    inputs = stock.padded_inputs(stock_cases(prompts, NAME), family=NAME)
    backbone = stock.backbone(model.model)
    kinds = stock.kinds(backbone.config, inputs["input_ids"])
    text = backbone.config.text_config
    logits = backbone(**inputs, **kinds, output_router_logits=True).router_logits
    loss: Tensor = load_balancing_loss_func(
        logits, text.num_experts, text.num_experts_per_tok, inputs["attention_mask"]
    )
    torch.autograd.backward(loss)
    return loss, stock.gradients(backbone)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("checkpointing", get_args(CheckpointingMode))
def test_the_loss_of_a_row_and_its_gradients_are_the_stock_models(
    tmp_path: Path, checkpointing: CheckpointingMode
) -> None:
    model = reward_model(tmp_path, NAME)
    set_checkpointing(model, checkpointing)
    model.train()
    watch = RouterWatch(model, 1.0)
    assert watch.num_layers == 2
    for seed in range(5):
        model.zero_grad()
        found, sums = packed_loss(model, watch, seed)
        torch.autograd.backward(found)
        gradients = stock.gradients(model.model)
        wanted, wanted_gradients = stock_loss(model, seed)
        assert_exact(found, wanted)
        assert_exact(gradients, wanted_gradients)
        figures = router_figures(
            {name: float(value) for name, value in sums.items()} | {"records": 4.0}
        )
        assert set(figures) == {"router/aux_loss", "router/busiest_expert"}


def test_a_token_counts_as_often_as_it_has_conversations() -> None:
    encoder = tiny.encoder(NAME)
    tree = SegmentTree(
        (
            Segment((1, 2)),
            Segment((3,), parent=0),
            Segment((4, 5), parent=1),
            Segment((6,), parent=1),
            Segment((7,), parent=0),
        ),
        (
            Output(2, reads=(1,)),
            Output(3, reads=(0,)),
            Output(3, reads=(0,)),
            Output(4, reads=(0,)),
        ),
    )
    counts = encoder.pack([tree]).conversation_counts.tolist()
    assert counts[:7] == [4, 4, 3, 1, 1, 2, 1]
    assert counts[7:] == [0] * 3  # the filler with a blank image


def test_even_routing_has_the_smallest_loss_and_one_expert_for_all_the_largest() -> None:
    even = torch.eye(4).repeat(3, 1) * 1e-3  # the four experts get three tokens each
    load = router_load([even, even], 1, torch.ones(12))
    assert float(load.loss) == pytest.approx(1.0, abs=1e-3)
    assert float(load.busiest) == pytest.approx(1.0)
    one = torch.tensor([[50.0, 0.0, 0.0, 0.0]]).repeat(12, 1)
    load = router_load([one, one], 1, torch.ones(12))
    assert (float(load.loss), float(load.busiest)) == pytest.approx((4.0, 4.0))


def test_a_filler_has_a_loss_of_zero(tmp_path: Path) -> None:
    model = reward_model(tmp_path, NAME)
    watch = RouterWatch(model, 1.0)
    row = make_row([], tiny.encoder(NAME).pack)
    with watch.record():
        model(**row.batch.score_inputs())
    loss, sums = watch.loss(row, TOTALS)
    assert float(loss) == 0.0
    assert all(float(value) == 0.0 for value in sums.values())


def test_routers_are_found_below_adapters(tmp_path: Path) -> None:
    tiny.checkpoint(tmp_path, family=NAME)
    model = load_scalar(
        BackboneConfig(path=str(tmp_path), dtype="float32"), ScoreHeadConfig(layers=1)
    )
    lora = LoraConfig(rank=2, experts=True)
    adapted: Any = add_adapters(model, lora, has_head=True, has_master_weights=False)
    watch = RouterWatch(adapted, None)
    assert (watch.num_layers, watch.coefficient) == (2, 0.001)  # transformers' own coefficient
    loss, _ = packed_loss(adapted, watch, 3)
    torch.autograd.backward(loss)
    largest = [
        float(one.grad.abs().max())
        for name, one in adapted.named_parameters()
        if "lora_B" in name and one.grad is not None
    ]
    assert max(largest) > 0


def test_a_model_without_experts_has_no_such_loss(tmp_path: Path) -> None:
    model = reward_model(tmp_path, tiny.FAMILY)
    with pytest.raises(
        UserError, match=r"router_aux_loss_coef=0\.01, but Qwen2\.5-VL has no experts"
    ):
        RouterWatch(model, 0.01)
    watch = RouterWatch(model, None)
    row = make_row([], tiny.encoder().pack)
    with watch.record():
        model(**row.batch.score_inputs())
    assert watch.loss(row, TOTALS) == (0.0, {})
    assert router_figures({"records": 1.0}) == {}


COEFFICIENT = "optim.router_aux_loss_coef=0.5"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on two ranks in every way, and once without the loss."""
    folder = tmp_path_factory.mktemp("balancing")
    recipe = str(worker.prepare(folder, NAME))
    for stage in ("none", "zero2", "zero3"):
        command = [recipe, COEFFICIENT, f"deepspeed={stage}", f"output.folder={folder}/{stage}"]
        run_ranks(folder / "log", worker.recipe_run, command)
    run_ranks(folder / "log", worker.recipe_run, [recipe, f"output.folder={folder}/without"])
    return folder


@pytest.mark.slow
def test_it_is_trained_and_logged_under_every_stage(trained: Path) -> None:
    alone, without = (worker.lines(worker.ended(trained / name)) for name in ("none", "without"))
    for stage in ("zero2", "zero3"):
        found = worker.lines(worker.ended(trained / stage))
        for name in ("loss", "grad_norm", "router/aux_loss", "router/busiest_expert"):
            wanted = [line[name] for line in alone]
            assert [line[name] for line in found] == pytest.approx(wanted, rel=1e-3), name
    # In the first step the weights are the same, and the loss differs by the balancing loss alone.
    added = alone[0]["loss"] - without[0]["loss"]
    assert added == pytest.approx(0.5 * alone[0]["router/aux_loss"], rel=1e-3)
    assert without[0]["router/aux_loss"] == pytest.approx(alone[0]["router/aux_loss"], rel=1e-3)
    assert alone[-1]["router/aux_loss"] < without[-1]["router/aux_loss"]
