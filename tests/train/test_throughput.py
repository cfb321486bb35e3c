"""The variants that are compared compute the same numbers, on the workload that the targets name."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrm.models.families.registry import PUBLISHED
from mmrm.models.packing.packed_batch import pack
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.models.portable.reward import ScalarRewardModel
from mmrm.train.studies.speed.measure import (
    APART,
    COMPILED,
    INFERENCE,
    LOG_PROBABILITIES,
    SHARED,
    STOCK,
    TRAINING,
    TWO_PAIRS,
    UNSHARED,
    Bench,
    SpeedResult,
    measure,
    step_speed,
    unique_work,
)
from mmrm.train.studies.speed.throughput import results_table, with_ratios
from mmrm.train.studies.speed.workload import (
    EMBEDDED,
    FULL,
    SMALL,
    PairSize,
    Workload,
    build,
    config_of,
    judgements_tree,
    padded_inputs,
    pair_sizes,
    pair_tree,
    two_pairs,
    unshared,
    vision_tokens,
)
from mmrm.train.supervised.optimizer import (
    compile_layers,
    compiled_graphs,
    restore_layers,
    token_wise_modules,
)
from mmrm.train.throughput import main, parse
from tests.models import stock, tiny
from tests.models.exactness import assert_exact, assert_no_worse, float64

TINY = Workload((2, 5), (2, 4), (2, 6))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> CriticRewardModel:
    """Return a model in float64."""
    with float64():
        made: CriticRewardModel = build(CriticRewardModel, EMBEDDED, CPU, torch.float32)
    tiny.stir(made.head, 0.05)
    made.eval()
    return made


def bench(model: CriticRewardModel, pairs: int = 2) -> Bench:
    vision = vision_tokens(model.config)
    trees = [pair_tree(size, vision, seed) for seed, size in enumerate(pair_sizes(pairs, 1, TINY))]
    return Bench(model, trees, rate=1e9, repeats=1)


def test_the_sizes_are_those_of_the_published_workload() -> None:
    """The first pairs of seed 0, as the generator behind the targets prints them."""
    assert pair_sizes(2, 0, FULL) == [
        PairSize(78, 64, 117, (275, 80)),
        PairSize(60, 68, 82, (267, 215)),
    ]
    assert pair_sizes(3, 0, SMALL)[:2] == pair_sizes(2, 0, SMALL)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_all_variants_give_the_same_scores(model: CriticRewardModel) -> None:
    run = bench(model)
    with torch.no_grad():
        found = {
            variant: run.prepared_forward(TRAINING, variant, run.trees)()
            for variant in (STOCK, UNSHARED, SHARED)
        }
    assert found[STOCK].shape == (4,)
    assert_exact(found[UNSHARED], found[STOCK])
    assert_exact(found[SHARED], found[STOCK])
    assert float(found[STOCK].std()) > 1e-4


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_two_pairs_of_a_prompt_learn_in_one_tree_what_they_learn_in_two(
    model: CriticRewardModel,
) -> None:
    made, scores, gradients = bench(model, 4), [], []
    run = replace(made, trees=two_pairs(made.trees), pairs_per_tree=2)
    assert [len(tree.outputs) for tree in run.trees] == [4, 4]
    for variant in (APART, SHARED):
        scores.append(run.prepared_forward(TWO_PAIRS, variant, run.trees)().detach())
        model.zero_grad()
        run.measured_call(TWO_PAIRS, variant)()
        gradients.append(stock.gradients(model))
    model.eval()
    assert scores[0].shape == (8,)
    assert_exact(scores[1], scores[0])
    assert float(scores[0].std()) > 1e-4
    assert_exact(gradients[1], gradients[0])
    apart, shared = (run.measure_variant(TWO_PAIRS, variant) for variant in (APART, SHARED))
    assert with_ratios([apart, shared])[1].times_unshared == (shared.pairs_per_second or 0) / (
        apart.pairs_per_second or 1
    )


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_log_probabilities_are_those_of_every_judgement(model: CriticRewardModel) -> None:
    vision = vision_tokens(model.config)
    trees = [
        judgements_tree(size, vision, seed, 3) for seed, size in enumerate(pair_sizes(2, 1, TINY))
    ]
    run = Bench(model, trees, rate=1e9, repeats=1)
    with torch.no_grad():
        alone, shared = (
            run.prepared_forward(LOG_PROBABILITIES, variant, trees)()
            for variant in (UNSHARED, SHARED)
        )
    assert_exact(shared, alone)
    assert run.measure_variant(LOG_PROBABILITIES, SHARED).pairs_per_second is not None


def test_every_conversation_is_padded_by_itself(model: CriticRewardModel) -> None:
    run = bench(model)
    inputs, ends = padded_inputs(run.trees, vision_tokens(model.config))
    singles = unshared(run.trees)
    assert inputs["attention_mask"].sum(1).tolist() == [tree.tokens for tree in singles]
    assert ends.tolist() == [tree.tokens - 1 for tree in singles]
    assert len(inputs["pixel_values"]) == 2 * sum(tree.patches for tree in run.trees)


def test_unique_work_counts_every_token_and_patch_once(model: CriticRewardModel) -> None:
    run = bench(model, 1)
    tree = run.trees[0]
    layers = sum(p.numel() for p in model.model.language_model.layers.parameters())
    vision = sum(p.numel() for p in model.model.visual.parameters())
    last_mlp = sum(p.numel() for p in model.model.language_model.layers[-1].mlp.parameters())
    num_unread = tree.tokens - len(tree.outputs)  # a score is read at one token of each response
    assert unique_work(model, run.trees) == (
        tree.tokens * layers - num_unread * last_mlp + tree.patches * vision
    )


@pytest.mark.parametrize("name", ["3b", "7b"])
def test_the_released_shapes_have_the_parameters_of_the_released_checkpoints(name: str) -> None:
    shape = PUBLISHED[f"Qwen/Qwen2.5-VL-{name.upper()}-Instruct"]
    with torch.device("meta"):
        made = ScalarRewardModel._from_config(config_of(name))
    parts = shape.count()
    assert sum(p.numel() for p in made.model.parameters()) == parts.backbone
    assert made.config.vision_config.window_size == 112


def test_ratios_compare_the_same_task() -> None:
    results = [
        SpeedResult("training", STOCK, "none", 1.0, 0.1, 0.2, 1.0),
        SpeedResult("training", UNSHARED, "none", None, None, None, None),
        SpeedResult("training", SHARED, "none", 3.0, 0.3, 0.6, 1.0),
        SpeedResult("training", SHARED, "full", 2.0, 0.2, 0.4, 1.0),
    ]
    found = with_ratios(results)
    assert [(one.times_stock, one.times_unshared) for one in found] == [
        (1.0, None),
        (None, None),
        (3.0, None),
        (None, None),
    ]
    shown = results_table(found, "title", has_cuda=False)
    assert len(shown.rows) == 4


def test_what_does_not_fit_is_said(
    model: CriticRewardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("pretended")

    monkeypatch.setattr("mmrm.train.studies.speed.measure.measure", short)
    assert bench(model).measure_variant(TRAINING, SHARED).pairs_per_second is None


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("variant", [STOCK, UNSHARED, SHARED])
def test_pairs_that_do_not_fit_into_one_row_are_cut_and_learn_the_same(
    model: CriticRewardModel, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gradients = bench(model, 3), []
    for rows in (1, 2):
        model.zero_grad()
        run.measured_call(TRAINING, variant, rows)()
        gradients.append(stock.gradients(model))
    assert_exact(gradients[1], gradients[0])
    whole = run.prepared_forward

    def short(what: str, variant: str, trees: Sequence[SegmentTree]) -> Any:
        if len(trees) > 2:
            raise torch.OutOfMemoryError("pretended")
        return whole(what, variant, trees)

    monkeypatch.setattr(run, "prepared_forward", short)
    for what in (TRAINING, INFERENCE):
        found = run.measure_variant(what, variant)
        assert found.rows == 2
        assert found.pairs_per_second is not None


def test_a_run_writes_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mmrm.train.studies.speed.throughput.SMALL", TINY)
    monkeypatch.setattr("mmrm.train.studies.speed.throughput.matrix_rate", lambda *_: 1e9)
    main(
        [
            "--pairs",
            "1",
            "--repeats",
            "1",
            "--json",
            str(tmp_path / "found.json"),
            "--shape",
            EMBEDDED,
        ]
    )
    said = capsys.readouterr().out
    assert "packed, shared" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert {"device", "commit", "torch", "shape"} <= found["about"].keys()
    trained = [one for one in found["results"] if one["what"] == TRAINING]
    modes = {one["checkpointing"] for one in trained if one["variant"] == SHARED}
    assert modes == {"none", "linear", "attention", "full"}
    for one in found["results"]:
        assert one["mfu_with_copies"] > one["mfu"] > 0
    assert parse([]).pairs == 8


def test_the_whole_step_trains_and_is_measured() -> None:
    made: Any = build(ScalarRewardModel, EMBEDDED, CPU, torch.float32)
    assert float(made.head[-1].weight.detach().std()) > 0, "a backward pass of zeros is no measure"
    before = made.head[0].weight.detach().clone()
    found = step_speed(made, pair_sizes(4, 0, TINY), 2, workers=0)
    assert found.pop("workers") == 0
    assert found.keys() == {
        "pure_pairs_per_second",
        "pairs_per_second",
        "loader_images_per_second_and_core",
    }
    assert min(found.values()) > 0
    assert not torch.equal(before, made.head[0].weight)


def test_the_loader_is_measured_without_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        [
            "--loader",
            "--shape",
            "7b",
            "--pairs",
            "1",
            "--repeats",
            "2",
            "--json",
            str(tmp_path / "found.json"),
        ]
    )
    found = json.loads((tmp_path / "found.json").read_text())["loader"]
    assert found["patches"] == (78 * 64 + 60 * 68) / 2
    assert found["images_per_second_and_core"] > 0
    assert f"{found['images_per_second_and_core']:.1f}" in capsys.readouterr().out


def test_a_call_is_warmed_up_before_it_counts() -> None:
    calls: list[int] = []
    assert measure(lambda: calls.append(1), CPU, repeats=3)[0] >= 0
    assert len(calls) == 4


def gradients_of(model: CriticRewardModel, variant: str) -> Tensor:
    """Return the gradients of all parameters, flat and one behind the other."""
    run = bench(model)
    model.zero_grad()
    scores = run.prepared_forward(TRAINING, variant, run.trees)()
    torch.autograd.backward(scores.square().sum())
    return torch.cat([gradient.flatten() for gradient in stock.gradients(model).values()])


@pytest.mark.slow  # and not numerics: torch cannot compile under ATEN_CPU_CAPABILITY=default
def test_compiled_layers_give_the_same_gradients_under_the_same_names() -> None:
    """Compiled kernels round in another order, so that their error against float64 is compared.

    They are compiled from the names of dtypes, so that they cannot run while float32 means float64.
    """
    model: CriticRewardModel = build(CriticRewardModel, EMBEDDED, CPU, torch.float32)
    tiny.stir(model.head, 0.05)
    model.eval()
    with float64():
        exact = gradients_of(copy.deepcopy(model).double(), SHARED)
    eager = gradients_of(model, SHARED)
    names = set(model.state_dict())
    compiled = gradients_of(model, COMPILED)
    assert set(model.state_dict()) == names
    graphs = compiled_graphs()
    assert graphs > 0
    for size in (3, 4, 5):
        bench(model, size).measured_call(INFERENCE, COMPILED)()
    assert compiled_graphs() <= graphs + 8, "a new row length must not compile anew"
    restore_layers(model.model)
    assert_no_worse(compiled, eager, exact)


@pytest.mark.slow
def test_compilation_leaves_attention_alone(model: CriticRewardModel) -> None:
    kinds = {type(module).__name__ for module in token_wise_modules(model.model)}
    last = "LastQwen2MLP"  # computes the read positions alone
    assert kinds == {"Qwen2MLP", last, "Qwen2_5_VLMLP", "Qwen2_5_VLRMSNorm"}
    compile_layers(model.model)
    restore_layers(model.model)
    assert all(module._compiled_call_impl is None for module in model.modules())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_varlen_rows_give_the_padded_scores_within_bf16() -> None:
    device = torch.device("cuda", 0)
    made: CriticRewardModel = build(CriticRewardModel, EMBEDDED, device, torch.bfloat16)
    tiny.stir(made.head, 0.05)
    run = bench(made.eval())
    with torch.no_grad():
        packed = run.prepared_forward(TRAINING, SHARED, run.trees)()
        wanted = run.prepared_forward(TRAINING, STOCK, run.trees)()
    assert (
        pack(run.trees, vision_tokens(made.config)).to(device).image_grid_thw.device.type == "cpu"
    )
    assert float(wanted.std()) > 1e-4
    assert float((packed - wanted).norm()) < 0.05 * float(wanted.norm())
