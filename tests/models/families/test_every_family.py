"""What has to hold for every family: loading and saving, freezing, adapters, processors, sizes, judges."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.preference import text
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.models.backbone import (
    freeze,
    load_critic,
    load_encoder,
    load_language_model,
    load_scalar,
    not_quantised,
)
from mmrm.models.config import BackboneConfig, CritiqueConfig
from mmrm.models.encoder import assistant_turn
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.registry import FAMILIES, PUBLISHED
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.packed_batch import patches_of
from mmrm.train.recipe.sections import LoraConfig
from mmrm.train.runs.model import add_adapters
from mmrm.train.supervised.optimizer import part_of, token_wise_modules
from tests.models import exactness, stock, tiny
from tests.models.elsewhere import run_elsewhere
from tests.models.exactness import assert_exact
from tests.models.families.arrangements import reward_model
from tests.models.families.parameters import every_family

LOADERS: dict[str, Any] = {
    "scalar": load_scalar,
    "critic": load_critic,
    "generative": load_language_model,
}
TOTALS = {
    "Qwen/Qwen2-VL-2B-Instruct": 2_208_985_600,
    "Qwen/Qwen2-VL-7B-Instruct": 8_291_375_616,
    "Qwen/Qwen2-VL-72B-Instruct": 73_405_560_320,
    "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen/Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
}
"""What the model cards on the hub state."""


@pytest.fixture(params=every_family())
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def at(folder: Path, **changes: Any) -> BackboneConfig:
    return BackboneConfig(path=str(folder), dtype="float32", **changes)


def case(family: str) -> stock.Case:
    prompt: Any = {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": "What?"}],
    }
    turns = [
        tiny.encoder(family).render([prompt, text("assistant", answer)])
        for answer in ("Red", "A blue circle")
    ]
    return [tiny.picture(80, 56)], turns


@pytest.mark.parametrize("released", [False, True])
def test_both_key_layouts_load_every_tensor_and_the_current_one_is_written(
    tmp_path: Path, family: str, released: bool
) -> None:
    folder = tiny.checkpoint(tmp_path / "start", released=released, family=family)
    wanted = tiny.language_model(family=family).state_dict()
    for load in LOADERS.values():
        model = load(at(folder))
        found = model.state_dict()
        assert not [
            name
            for name in found.keys() & wanted.keys()
            if not torch.equal(found[name], wanted[name])
        ]
        model.save_pretrained(tmp_path / "saved")
        names = load_file(tmp_path / "saved" / "model.safetensors").keys()
        assert {name.split(".")[0] for name in names} <= {"model", "head", "lm_head"}
        again = load(at(tmp_path / "saved"))
        assert all(torch.equal(tensor, found[name]) for name, tensor in again.state_dict().items())


def test_a_checkpoint_is_the_judge_that_it_was_trained_to_be(tmp_path: Path, family: str) -> None:
    start = tiny.checkpoint(tmp_path / "start", family=family)
    for kind, load in LOADERS.items():
        extra = {"critique": CritiqueConfig()} if kind == "critic" else {}
        load(at(start), **extra).save_pretrained(tmp_path / kind)
        tiny.encoder(family).save_pretrained(tmp_path / kind)
        judge = load_judge(tmp_path / kind, Runtime(torch.device("cpu")))
        assert judge.rank("What?", ["Red", "Blue"]).values if kind == "scalar" else judge
    architecture = json.loads((tmp_path / "generative" / "config.json").read_text())[
        "architectures"
    ]
    assert architecture == [tiny.stock_class(family).__name__]


ELSEWHERE = """
import sys, torch
from transformers import AutoModelForSequenceClassification, AutoProcessor
folder, image, scores, tests = sys.argv[1:]
sys.path.append(tests)
import exactness
exactness.compute_in_float64()
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
assert not any(name.split(".")[0] == "models" for name in sys.modules), "the repository was imported"
messages = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "What?"}]}]
torch.save(torch.tensor(model.score(processor, messages, ["Red", "A blue circle"])), scores)
"""


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_remote_code_scores_the_same_elsewhere(tmp_path: Path, family: str) -> None:
    model, encoder = reward_model(tmp_path / "start", family), tiny.encoder(family)
    model.save_pretrained(tmp_path / "saved")
    encoder.save_pretrained(tmp_path / "saved")
    tiny.picture(80, 56).save(tmp_path / "picture.png")
    with torch.no_grad():
        wanted: Any = model(
            **encoder.pack([encoder.encode(*case(family), "end_of_turn")]).score_inputs()
        )
    arguments = [str(tmp_path / name) for name in ("saved", "picture.png", "scores")]
    arguments.append(str(Path(exactness.__file__).parent))
    run_elsewhere(ELSEWHERE, arguments, tmp_path)
    found: Tensor = torch.load(tmp_path / "scores")
    assert_exact(found, wanted)


def test_every_parameter_is_in_exactly_one_part_and_counted_there(
    tmp_path: Path, family: str
) -> None:
    folder, seen = tiny.checkpoint(tmp_path, family=family), set[str]()
    shape = shape_of(str(folder))
    assert shape is not None
    parts = shape.count()
    sizes = {
        "vision_tower": parts.vision_tower,
        "projector": parts.projector,
        "language_model": parts.language_model + parts.lm_head,
    }
    for part, size in sizes.items():
        model: Any = load_language_model(at(folder))
        freeze(model, [part])
        frozen = {
            name: one.numel() for name, one in model.named_parameters() if not one.requires_grad
        }
        assert sum(frozen.values()) == size, part
        assert not seen & frozen.keys()
        assert {part_of(name) for name in frozen} == {
            "language" if part == "language_model" else "vision"
        }
        seen |= frozen.keys()
    assert seen == {name for name, _ in model.named_parameters()}


def test_adapters_and_quantisation_take_the_language_models_projections_alone(
    tmp_path: Path, family: str
) -> None:
    from transformers.quantizers.quantizers_utils import should_convert_module

    folder = tiny.checkpoint(tmp_path, family=family)
    model: Any = load_scalar(at(folder), ScoreHeadConfig(layers=1))
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    layers = {name for name in linear if name.startswith("model.language_model.layers.")}
    assert {
        name for name in linear if should_convert_module(name, not_quantised(FAMILIES[family]))
    } == layers
    adapted: Any = add_adapters(
        model, LoraConfig(rank=2, alpha=4), has_head=True, has_master_weights=False
    )
    learned = {name: one.numel() for name, one in adapted.named_parameters() if one.requires_grad}
    assert {
        name.split(".lora_")[0].removeprefix("base_model.model.")
        for name in learned
        if ".lora_" in name
    } == layers
    shape = shape_of(str(folder))
    assert shape is not None
    assert (
        sum(size for name, size in learned.items() if ".lora_" in name)
        == 2 * shape.count().parameters_per_lora_rank
    )


def test_tokens_come_from_the_tokenizer_and_patches_fit_the_tower(
    tmp_path: Path, family: str
) -> None:
    folder = tiny.checkpoint(tmp_path, family=family)
    encoder = load_encoder(at(folder, max_pixels=32 * 32 * 6))
    assert encoder.end_of_turn == assistant_turn(encoder.tokenizer, encoder.turn_rules)["end"]
    [image] = encoder.encode(*case(family), None).images
    assert patches_of(image).shape == (image.patches, encoder.vision.patch_size)
    images, known = (
        FAMILIES[family].images,
        json.loads((file := folder / "preprocessor_config.json").read_text()),
    )
    assert (
        images.limits(known) == {"min_pixels": 784, "max_pixels": 28 * 28 * 16}
        or not images.attends_in_runs
    )
    if not images.attends_in_runs:
        return  # test_internvl.py
    older = {
        name: value for name, value in known.items() if name not in ("min_pixels", "max_pixels")
    }
    file.write_text(
        json.dumps(older | {"size": {"shortest_edge": 65536, "longest_edge": 16777216}})
    )
    made = load_encoder(at(folder, max_pixels=32 * 32 * 6)).image_processor(
        images=[tiny.picture(400, 300)], return_tensors="pt"
    )
    assert int(made["image_grid_thw"].prod()) <= 32 * 32 * 6 / known["patch_size"] ** 2, (
        "the recipe's limits decide"
    )
    file.write_text(json.dumps(known | {"patch_size": 8}))
    with pytest.raises(
        UserError,
        match=rf"patches of 8 pixels.* takes {known['patch_size']},.*Use this backbone.s prepro",
    ):
        load_encoder(at(folder))


def test_all_layers_that_are_compiled_are_there(family: str) -> None:
    config = tiny.config(family)
    with torch.device("meta"):
        backbone = FAMILIES[family].parts().scalar.stock(config)
    vision = tiny.VISION[family]
    blocks = vision.get("depth") or vision["num_hidden_layers"]
    # A layer has an MLP and two norms, and two more in a family that also normalises results. Experts
    # are not compiled.
    [*children] = backbone.language_model.layers[0].children()
    per_layer = len(children) - 1  # all but its attention
    assert per_layer == (5 if family == "glm4v" else 3)
    if FAMILIES[family].experts is not None:
        per_layer -= 1
    layers = config.text_config.num_hidden_layers
    assert len(list(token_wise_modules(backbone))) == per_layer * layers + 1 + 3 * blocks


@pytest.mark.parametrize("path", PUBLISHED)
def test_a_released_shape_has_the_parameters_of_transformers_own_model(path: str) -> None:
    shape = PUBLISHED[path]
    family = next(row for row in FAMILIES.values() if path in row.published)
    parts, config = shape.count(), shape.config()
    if path in TOTALS:
        assert parts.backbone + parts.lm_head == TOTALS[path]
    with torch.device("meta"):
        backbone = family.parts().scalar.stock(config)
    assert sum(one.numel() for one in backbone.parameters()) == parts.backbone
    assert sum(one.numel() for one in backbone.language_model.parameters()) == parts.language_model
    assert family.head_size(config.text_config) == shape.head_size


def test_a_sliding_window_is_refused_where_a_family_has_one(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, family="qwen2_vl")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["layer_types"] = ["full_attention", "sliding_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="sliding-window"):
        load_scalar(at(folder))


def test_an_encoder_travels_to_the_processes_that_load_data(family: str) -> None:
    encoder = tiny.encoder(family)

    copy = pickle.loads(pickle.dumps(encoder))

    tree = encoder.encode(*case(family), None)
    assert copy.encode(*case(family), None).segments == tree.segments
