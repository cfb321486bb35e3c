"""Parameter counts equal transformers' own, and memory follows the ZeRO paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextModel

from mmrm.models import activations as activation_modes
from mmrm.models.config import CheckpointingMode
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.family import Shape
from mmrm.models.families.registry import FAMILIES, PUBLISHED
from mmrm.models.packing.sequence_group import SequenceGroup, make_group
from mmrm.models.packing.sequence_parallel import divide_sequences
from mmrm.train.planning.machines import need
from mmrm.train.planning.memory import (
    GIB,
    NF4_WIDTH,
    activations,
    checkpoint_bytes,
    head_parameters,
    offloaded_inputs,
    per_rank,
    trained,
)
from mmrm.train.planning.step_cost import record_flop, step_cost
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.speed.workload import SHAPES, PairSize, pair_tree, vision_tokens
from tests.models.shapes_only import shapes_of
from tests.train.minimal import write
from tests.train.shipped import RECIPES
from tools.measure_peak_memory import peak

BASEREWARD = next(path for path in RECIPES if path.stem == "basereward")

TOTALS = {"3B": 3_754_622_976, "7B": 8_292_166_656, "32B": 33_452_718_336, "72B": 73_410_777_344}
"""What the model cards on the hub state."""

SEVEN = "backbone.path=Qwen/Qwen2.5-VL-7B-Instruct"


def seven(folder: Path, *overrides: str) -> tuple[Recipe, Shape]:
    shape = shape_of("Qwen/Qwen2.5-VL-7B-Instruct")
    assert shape is not None
    return read_recipe(write(folder), [SEVEN, "backbone.dtype=bfloat16", *overrides]), shape


@pytest.mark.parametrize("size", TOTALS)
def test_published_sizes(size: str) -> None:
    parts = PUBLISHED[f"Qwen/Qwen2.5-VL-{size}-Instruct"].count()
    assert parts.backbone + parts.lm_head == TOTALS[size]


@pytest.mark.parametrize("tied", [False, True])
def test_counts_equal_the_stock_models(tmp_path: Path, tied: bool) -> None:
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 100,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    }
    vision = {
        "hidden_size": 24,
        "depth": 2,
        "num_heads": 2,
        "intermediate_size": 40,
        "out_hidden_size": 32,
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config)
    config.to_json_file(tmp_path / "config.json", use_diff=False)
    shape = shape_of(str(tmp_path))
    assert shape is not None
    parts = shape.count()
    visual = model.model.visual
    projector = sum(p.numel() for p in visual.merger.parameters())
    assert parts.projector == projector
    assert parts.vision_tower == sum(p.numel() for p in visual.parameters()) - projector
    assert parts.language_model == sum(p.numel() for p in model.model.language_model.parameters())
    assert parts.backbone + parts.lm_head == sum(p.numel() for p in model.parameters())
    linear = [m for n, m in model.model.language_model.named_modules() if n.endswith("_proj")]
    assert parts.parameters_per_lora_rank == sum(m.in_features + m.out_features for m in linear)


def test_the_released_layout_is_read_too(tmp_path: Path) -> None:
    released = {
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 11008,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "vision_config": {
            "hidden_size": 1280,
            "in_chans": 3,
            "depth": 32,
            "intermediate_size": 3420,
            "spatial_patch_size": 14,
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(released))
    assert shape_of(str(tmp_path)) == PUBLISHED["Qwen/Qwen2.5-VL-3B-Instruct"]
    assert shape_of("someone/unknown") is None


def test_the_head_counts_weights_and_biases() -> None:
    from mmrm.models.heads.gaussian_head import GaussianHeadConfig
    from mmrm.models.heads.score_head import ScoreHeadConfig

    assert head_parameters(10, ScoreHeadConfig(layers=2)) == 10 * 10 + 10 + 10 + 1
    assert head_parameters(10, ScoreHeadConfig(layers=3, width=4)) == 10 * 4 + 4 + 4 * 4 + 4 + 4 + 1
    assert head_parameters(10, ScoreHeadConfig(layers=1)) == 11
    assert head_parameters(10, GaussianHeadConfig(type="gaussian", layers=1)) == 2 * 10 + 2
    several_widths = GaussianHeadConfig(type="gaussian", layers=3, width=[4, 3])
    assert head_parameters(10, several_widths) == 10 * 4 + 4 + 4 * 3 + 3 + 3 * 2 + 2


def test_what_is_trained(tmp_path: Path) -> None:
    recipe, shape = seven(tmp_path)
    parts, head = shape.count(), head_parameters(shape.hidden_size, recipe.head)
    assert trained(recipe, shape) == (parts.backbone + head, parts.backbone + head)
    frozen, _ = seven(tmp_path, "backbone.freeze=[vision_tower, projector]")
    assert trained(frozen, shape)[1] == parts.language_model + head
    lora, _ = seven(tmp_path, "optim.lora={rank: 8}")
    assert trained(lora, shape)[1] == 8 * parts.parameters_per_lora_rank + head
    critic, _ = seven(tmp_path, "method={type: critic}")
    assert trained(critic, shape)[0] == parts.backbone + parts.lm_head + head


def on_device_and_host(
    recipe: Recipe, shape: Shape, deepspeed: str, ranks: int
) -> tuple[float, float]:
    memory = per_rank(recipe, shape, deepspeed, ranks)
    return memory.device, memory.host


def test_memory_is_divided_as_the_stages_say(tmp_path: Path) -> None:
    recipe, shape = seven(tmp_path)
    total = trained(recipe, shape)[0]
    per_parameter = {
        name: per_rank(recipe, shape, name, 4).device / total
        for name in ("zero0", "zero1", "zero2", "zero3")
    }
    assert per_parameter == pytest.approx(
        {"zero0": 16, "zero1": 4 + 12 / 4, "zero2": 2 + 16 / 4, "zero3": 18 / 4}
    )
    assert per_rank(recipe, shape, "none", 4).device / total == pytest.approx(16)
    device, host = on_device_and_host(recipe, shape, "zero2_offload", 4)
    assert (device / total, host / total) == pytest.approx((2 + 4 / 4, 16 / 4))
    device, host = on_device_and_host(recipe, shape, "zero3_offload", 4)
    assert (device, host / total) == pytest.approx((0, 22 / 4))


def test_fp32_adapters_and_reference_models(tmp_path: Path) -> None:
    recipe, shape = seven(tmp_path, "backbone.dtype=float32")
    assert per_rank(recipe, shape, "zero0", 1).device == pytest.approx(
        16 * trained(recipe, shape)[0]
    )
    device, host = on_device_and_host(recipe, shape, "zero2_offload", 4)
    assert (device / trained(recipe, shape)[0], host / trained(recipe, shape)[0]) == pytest.approx(
        (4, 16 / 4)
    )
    quantised, _ = seven(tmp_path, "optim.lora={rank: 8, quantise: nf4}")
    total, learned = trained(quantised, shape)
    layers = shape.count().language_model - shape.vocab_size * shape.hidden_size
    assert per_rank(quantised, shape, "zero2", 1).device == pytest.approx(
        NF4_WIDTH * layers + 2 * (total - learned - layers) + 18 * learned
    )
    # The vision tower, the projector and the embedding stay in 16 bits: 2.3 GiB in place of 0.6.
    in_16_bits = 2 * (total - learned - layers)
    assert in_16_bits / GIB == pytest.approx(2.28, abs=0.01)
    adapters, _ = seven(tmp_path, "optim.lora={rank: 8}")
    assert per_rank(adapters, shape, "none", 1).device == pytest.approx(
        2 * (total - learned) + 16 * learned
    )
    with_reference, _ = seven(tmp_path, "method={type: stable_reinforce, kl_coefficient: 1e-3}")
    without, _ = seven(tmp_path, "method={type: stable_reinforce}")
    memory = [per_rank(r, shape, "zero2", 1).device for r in (without, with_reference)]
    assert memory[1] - memory[0] == pytest.approx(2 * trained(without, shape)[0])


MOST_LAYERS = 16
"""Layers of the language model with which activations are counted. More layers keep the same each."""
COUNTED: list[tuple[str, CheckpointingMode]] = [
    ("3b", "none"),
    ("3b", "linear"),
    ("7b", "attention"),
    ("7b", "full"),
    ("Qwen/Qwen2-VL-2B-Instruct", "none"),
    ("Qwen/Qwen2-VL-2B-Instruct", "linear"),
    ("Qwen/Qwen3-VL-2B-Instruct", "none"),
    ("Qwen/Qwen3-VL-2B-Instruct", "linear"),
    ("Qwen/Qwen3-VL-2B-Instruct", "attention"),
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", "full"),
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", "linear"),
    ("Qwen/Qwen3-VL-235B-A22B-Instruct", "none"),
    ("OpenGVLab/InternVL3-2B-hf", "none"),
    ("OpenGVLab/InternVL3-2B-hf", "linear"),
    ("OpenGVLab/InternVL3_5-8B-HF", "full"),
    ("lkhl/VideoLLaMA3-2B-Image-HF", "none"),
    ("lkhl/VideoLLaMA3-2B-Image-HF", "linear"),
    ("zai-org/GLM-4.1V-9B-Thinking", "none"),
    ("zai-org/GLM-4.1V-9B-Thinking", "linear"),
    ("nvidia/Cosmos3-Edge", "none"),
    ("nvidia/Cosmos3-Edge", "linear"),
    ("nvidia/Cosmos3-Edge", "full"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "checkpointing"), COUNTED)
def test_activations_are_those_of_the_kernels(
    size: str, checkpointing: CheckpointingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward run on tensors without values, and what is alive at the peak is counted.

    Where deepstack adds to the tokens of images, it asks for values; here it adds to none.
    """
    for text_model in (Qwen3VLTextModel, Qwen3VLMoeTextModel):
        monkeypatch.setattr(
            text_model, "_deepstack_process", lambda model, hidden, mask, features: hidden.clone()
        )
    whole_shape = (SHAPES | PUBLISHED)[size]
    num_layers = min(MOST_LAYERS, whole_shape.num_hidden_layers)
    shape = replace(whole_shape, num_hidden_layers=num_layers)
    monkeypatch.setitem(PUBLISHED, "fewer layers", shape)
    family = next(row for row in FAMILIES.values() if isinstance(shape, row.shape))
    recipe = read_recipe(
        BASEREWARD, ["deepspeed=zero2", f"optim.activation_checkpointing={checkpointing}"]
    )
    shapes = shapes_of(family.parts().scalar, "fewer layers", checkpointing=checkpointing)
    sizes = (
        ((40, 40, 8), (4, 1000, 8))
        if shape.images.attends_in_runs
        else ((64, 40, 8), (32, 1000, 8))
    )  # sides of whole tiles
    for image, question, pairs in sizes:
        size_of_pair = PairSize(image, image, question, (200, 200))
        vision = vision_tokens(shapes.model.config)
        # Images of different seeds, because equal ones go through the vision tower once.
        trees = [pair_tree(size_of_pair, vision, seed) for seed in range(pairs)]
        counted = peak(shapes, trees, training=True, later=True) * GIB
        counted -= 2 * sum(parameter.nbytes for parameter in shapes.model.parameters())
        wanted = activations(
            recipe, shape, sum(one.tokens for one in trees), sum(one.patches for one in trees)
        )
        print(f"{size}: {wanted / GIB:.3f} GiB by the formula, {counted / GIB:.3f} counted")
        assert wanted == pytest.approx(counted, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["7b", "Qwen/Qwen3-VL-2B-Instruct"])
def test_inputs_of_layers_are_planned_on_the_host(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts the bytes that are copied to the host, and leaves the copies out of the peak."""
    monkeypatch.setattr(
        Qwen3VLTextModel, "_deepstack_process", lambda model, hidden, mask, features: hidden.clone()
    )
    shape = replace((SHAPES | PUBLISHED)[size], num_hidden_layers=8)
    monkeypatch.setitem(PUBLISHED, "eight layers", shape)
    host_bytes = [0]

    def count(tensor: torch.Tensor) -> Any:
        host_bytes[0] += tensor.nbytes
        return tensor.shape, tensor.dtype

    def made(kept: Any) -> torch.Tensor:
        return torch.empty(kept[0], dtype=kept[1])

    monkeypatch.setattr(activation_modes, "to_host", count)
    monkeypatch.setattr(activation_modes, "to_device", made)
    family = next(row for row in FAMILIES.values() if isinstance(shape, row.shape))
    shapes = shapes_of(family.parts().scalar, "eight layers", checkpointing="offloaded")
    vision = vision_tokens(shapes.model.config)
    trees = [pair_tree(PairSize(40, 40, 1000, (200, 200)), vision, seed) for seed in range(8)]

    counted = peak(shapes, trees, training=True, later=True) * GIB
    counted -= 2 * sum(parameter.nbytes for parameter in shapes.model.parameters())

    recipe = read_recipe(
        BASEREWARD, ["deepspeed=zero2", "optim.activation_checkpointing=offloaded"]
    )
    num_tokens = sum(tree.tokens for tree in trees)
    num_patches = sum(tree.patches for tree in trees)
    assert host_bytes[0] == offloaded_inputs(recipe, shape, num_tokens, num_patches)
    expected = activations(recipe, shape, num_tokens, num_patches)
    print(f"{size}: {expected / GIB:.3f} GiB by the formula, {counted / GIB:.3f} counted")
    assert expected == pytest.approx(counted, rel=0.05)


A3B = BASEREWARD.with_name("qwen3_vl_moe.yaml")


def test_all_experts_take_memory_and_bytes_and_those_of_a_token_take_time() -> None:
    shape = PUBLISHED["Qwen/Qwen3-VL-30B-A3B-Instruct"]
    recipe = read_recipe(A3B)
    assert trained(recipe, shape)[0] == pytest.approx(30.76e9, rel=1e-3)
    cost = step_cost(recipe, shape, 64)
    assert cost.received["zero3"] == pytest.approx(63 / 64 * 3 * 2 * 30.76e9, rel=1e-3)
    layers_of_token = 30.22e9 - 0.311e9 - 27.18e9  # without the embedding and idle experts
    assert record_flop(recipe, shape) == pytest.approx(
        6 * (layers_of_token * (640 + 530) + 0.539e9 * 2560), rel=1e-2
    )
    # The experts of a layer are larger than the embedding.
    gathered = need(recipe, shape, 8).parts["gathered weights"]
    assert gathered == 2 * 128 * 3 * 768 * 2048


def test_adapters_of_experts_are_counted_and_keep_sums() -> None:
    shape = PUBLISHED["Qwen/Qwen3-VL-30B-A3B-Instruct"]
    counts = shape.count()
    attention = read_recipe(A3B, ["optim.lora.rank=4"])
    experts = read_recipe(A3B, ["optim.lora={rank: 4, experts: true}"])
    added = trained(experts, shape)[1] - trained(attention, shape)[1]
    assert added == 4 * counts.expert_parameters_per_lora_rank == pytest.approx(157e6, rel=0.01)
    kept = [activations(recipe, shape, 100, 0) for recipe in (attention, experts)]
    assert kept[1] - kept[0] == 2 * counts.experts / 48  # one layer at a time
    whole = read_recipe(
        A3B,
        ["optim.lora={rank: 4, experts: true}", "optim.activation_checkpointing=false"],
    )
    assert activations(whole, shape, 0, 0) == 2 * counts.experts
    quantised = read_recipe(A3B, ["deepspeed=zero2", "optim.lora={rank: 4, quantise: nf4}"])
    assert per_rank(quantised, shape, "zero2", 1).weights > 2 * counts.experts


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["none", "linear", "attention", "full"])
def test_activations_of_recurrent_layers_are_those_of_long_segments(
    checkpointing: CheckpointingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with eight layers and 10 % of tolerance: padding depends on the lengths of segments."""
    shape = replace(PUBLISHED["Qwen/Qwen3.5-0.8B"], num_hidden_layers=8)
    monkeypatch.setitem(PUBLISHED, "eight layers", shape)
    family = next(row for row in FAMILIES.values() if isinstance(shape, row.shape))
    recipe = read_recipe(
        BASEREWARD, ["deepspeed=zero2", f"optim.activation_checkpointing={checkpointing}"]
    )
    shapes = shapes_of(family.parts().scalar, "eight layers", checkpointing=checkpointing)
    vision = vision_tokens(shapes.model.config)
    trees = [pair_tree(PairSize(64, 64, 1000, (200, 200)), vision, seed) for seed in range(4)]

    counted = peak(shapes, trees, training=True, later=True) * GIB
    counted -= 2 * sum(parameter.nbytes for parameter in shapes.model.parameters())

    num_tokens = sum(tree.tokens for tree in trees)
    num_patches = sum(tree.patches for tree in trees)
    expected = activations(recipe, shape, num_tokens, num_patches)
    assert expected == pytest.approx(counted, rel=0.1)


@pytest.fixture
def fake_group() -> Iterator[SequenceGroup]:
    """Yield a group of two ranks of which only this one exists, and that exchanges nothing."""
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        group = make_group(2)
        assert group is not None
        yield group
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["full", "linear"])
def test_activations_of_divided_rows_are_those_of_the_kernels(
    fake_group: SequenceGroup, checkpointing: CheckpointingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(SHAPES["7b"], num_hidden_layers=8)
    monkeypatch.setitem(PUBLISHED, "eight layers", shape)
    recipe = read_recipe(
        BASEREWARD,
        [
            "deepspeed=zero2",
            "optim.sequence_parallel=2",
            f"optim.activation_checkpointing={checkpointing}",
        ],
    )
    model_class = FAMILIES["qwen2_5_vl"].parts().scalar
    shapes = shapes_of(model_class, "eight layers", checkpointing=checkpointing)
    divide_sequences(shapes.model, fake_group.size)
    vision = vision_tokens(shapes.model.config)
    trees = [pair_tree(PairSize(32, 32, 1000, (200, 200)), vision, seed) for seed in range(8)]

    counted = peak(shapes, trees, training=True, later=True, group=fake_group) * GIB
    counted -= 2 * sum(parameter.nbytes for parameter in shapes.model.parameters())

    num_tokens = sum(tree.tokens for tree in trees)
    num_patches = sum(tree.patches for tree in trees)
    assert activations(recipe, shape, num_tokens, num_patches) == pytest.approx(counted, rel=0.05)


def test_what_is_frozen_keeps_no_activations() -> None:
    recipe = read_recipe(BASEREWARD)
    frozen = read_recipe(BASEREWARD, ["backbone.freeze=[vision_tower]"])
    shape = SHAPES["7b"]
    assert (
        activations(frozen, shape, 100, 400)
        == activations(recipe, shape, 100, 0)
        < activations(recipe, shape, 100, 400)
    )


def test_a_checkpoint_holds_weights_and_the_states_of_what_is_trained(tmp_path: Path) -> None:
    recipe, shape = seven(tmp_path)
    total, learned = trained(recipe, shape)
    assert checkpoint_bytes(recipe, shape) == 2 * total + 8 * learned
    divided = (
        seven(tmp_path, "deepspeed=zero3")[0],
        seven(tmp_path, "deepspeed=zero3", "optim.lora.rank=8")[0],
    )
    assert checkpoint_bytes(divided[0], shape) == 2 * total + 12 * learned
    assert checkpoint_bytes(divided[1], shape) == 14 * trained(divided[1], shape)[1]
    demo = read_recipe(BASEREWARD.parent / "shapes" / "naive.yaml")
    embedded = shape_of("embedded")
    assert embedded is not None
    assert checkpoint_bytes(demo, embedded) == pytest.approx(
        52.7e6, rel=0.01
    )  # as it lies on the disk
