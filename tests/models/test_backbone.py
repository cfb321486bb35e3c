"""Promise 2: a checkpoint loads completely or not at all, and is written in the current key layout only."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen2_5_VLForConditionalGeneration

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import text
from mmrm.models import backbone
from mmrm.models.backbone import (
    embed_patches,
    load_critic,
    load_encoder,
    load_language_model,
    load_scalar,
)
from mmrm.models.config import BackboneConfig
from mmrm.models.families.registry import FAMILIES
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.attention import PatchProjection
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.portable.reward import IncompleteCheckpointError, ScalarRewardModel
from tests.models import stock, tiny
from tests.models.exactness import assert_exact


def at(folder: Path, **changes: Any) -> BackboneConfig:
    return BackboneConfig(path=str(folder), dtype="float32", **changes)


def row() -> PackedBatch:
    encoder = tiny.encoder()
    content: Any = [{"type": "image"}, {"type": "text", "text": "What?"}]
    turns = [
        encoder.render([{"role": "user", "content": content}, text("assistant", a)])
        for a in ("Red", "A blue circle")
    ]
    return encoder.pack([encoder.encode([tiny.picture(80, 56)], turns, "end_of_turn")])


def edit(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("released", [False, True])
def test_both_key_layouts_load_every_tensor(tmp_path: Path, released: bool, tied: bool) -> None:
    folder = tiny.checkpoint(tmp_path, released=released, tie_word_embeddings=tied)
    names = load_file(folder / "model.safetensors").keys()
    assert any(name.startswith("visual.") for name in names) == released
    wanted = tiny.language_model(tie_word_embeddings=tied).state_dict()
    for model in (load_scalar(at(folder), ScoreHeadConfig()), load_language_model(at(folder))):
        found = model.state_dict()
        for name, tensor in wanted.items():
            assert name == "lm_head.weight" or torch.equal(found[name], tensor), name
    assert torch.equal(load_language_model(at(folder)).lm_head.weight, wanted["lm_head.weight"])


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("load", [load_scalar, load_language_model])
def test_what_was_loaded_is_written_in_the_current_layout_and_loads_again(
    tmp_path: Path, released: bool, load: Any
) -> None:
    model = load(at(tiny.checkpoint(tmp_path / "start", released=released))).eval()
    if isinstance(model, ScalarRewardModel):
        tiny.stir(model.head, 0.5)
    model.save_pretrained(tmp_path / "saved")
    names = load_file(tmp_path / "saved" / "model.safetensors").keys()
    assert {name.split(".")[0] for name in names} <= {"model", "head", "lm_head"}
    assert {name.split(".")[1] for name in names if name.startswith("model.")} == {
        "language_model",
        "visual",
    }
    again = load(at(tmp_path / "saved")).eval()
    batch = row()
    inputs = batch.score_inputs() if isinstance(model, ScalarRewardModel) else batch.model_inputs()
    found, wanted = (
        x if isinstance(x, Tensor) else x.logits for x in (again(**inputs), model(**inputs))
    )
    assert_exact(found, wanted)
    assert all(
        torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items()
    )


def test_loaded_models_take_both_kernels_of_this_project(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path)
    for kernel in ("auto", "sdpa", "varlen"):
        model = load_scalar(at(folder, attention=kernel))
        assert model.model.language_model.config._attn_implementation == f"shared_prefix_{kernel}"
        assert model.model.visual.config._attn_implementation == f"flash_windows_{kernel}"


def test_the_attention_of_this_project_does_not_leak_into_config_json(tmp_path: Path) -> None:
    load_scalar(at(tiny.checkpoint(tmp_path / "start"))).save_pretrained(tmp_path / "saved")
    assert "shared_prefix" not in (tmp_path / "saved" / "config.json").read_text()
    assert "flash_windows" not in (tmp_path / "saved" / "config.json").read_text()


CHANGES: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "1 missing: model.language_model.layers.1.mlp.up_proj.weight": lambda t: t.pop(
        "model.language_model.layers.1.mlp.up_proj.weight"
    ),
    "1 missing: model.visual.blocks.0.attn.qkv.bias": lambda t: t.pop(
        "model.visual.blocks.0.attn.qkv.bias"
    ),
    "1 unexpected: model.visual.extra.weight": lambda t: t.update(
        {"model.visual.extra.weight": torch.zeros(2)}
    ),
    "1 of another shape": lambda t: t.update({"model.visual.merger.mlp.0.bias": torch.zeros(3)}),
}


@pytest.mark.parametrize("message", CHANGES)
@pytest.mark.parametrize("load", [load_scalar, load_language_model])
def test_a_dropped_extra_or_misshapen_tensor_is_refused(
    tmp_path: Path, message: str, load: Any
) -> None:
    folder = edit(tiny.checkpoint(tmp_path), CHANGES[message])
    with pytest.raises(IncompleteCheckpointError, match=message):
        load(at(folder))


def test_only_the_head_may_be_missing_and_only_when_asked_for(tmp_path: Path) -> None:
    load_scalar(at(tiny.checkpoint(tmp_path / "start"))).save_pretrained(tmp_path / "saved")
    folder = edit(tmp_path / "saved", lambda tensors: tensors.pop("head.0.weight"))
    with pytest.raises(IncompleteCheckpointError, match=r"missing: head\.0\.weight"):
        load_scalar(at(folder))


def test_a_saved_head_is_kept_when_the_recipe_describes_it_and_refused_otherwise(
    tmp_path: Path,
) -> None:
    model = load_scalar(at(tiny.checkpoint(tmp_path / "start")))
    tiny.stir(model.head, 1.0)
    model.save_pretrained(tmp_path / "saved")
    again = load_scalar(at(tmp_path / "saved"), ScoreHeadConfig())
    assert all(
        torch.equal(*pair)
        for pair in zip(model.head.parameters(), again.head.parameters(), strict=True)
    )
    with pytest.raises(CheckpointError, match="Describe the head as the checkpoint has it"):
        load_scalar(at(tmp_path / "saved"), ScoreHeadConfig(width=7))


def test_a_headless_folder_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a reward model"):
        load_scalar(at(tiny.checkpoint(tmp_path)), fresh_head=False)


def test_a_language_model_is_saved_as_the_stock_class(tmp_path: Path) -> None:
    load_language_model(at(tiny.checkpoint(tmp_path / "start", released=True))).save_pretrained(
        tmp_path / "saved"
    )
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["Qwen2_5_VLForConditionalGeneration"]
    assert "auto_map" not in config
    _, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not any(info.values())


def test_a_reward_model_is_no_language_model(tmp_path: Path) -> None:
    load_scalar(at(tiny.checkpoint(tmp_path / "start"))).save_pretrained(tmp_path / "saved")
    with pytest.raises(IncompleteCheckpointError, match=r"missing: lm_head\.weight"):
        load_language_model(at(tmp_path / "saved"))


def test_hidden_layers_of_a_head_may_differ_in_width(tmp_path: Path) -> None:
    head = ScoreHeadConfig(layers=3, width=[10, 4])
    model = load_scalar(at(tiny.checkpoint(tmp_path / "start")), head)
    shapes = [tuple(parameter.shape) for parameter in model.head.parameters()]
    assert shapes == [(10, 32), (10,), (4, 10), (4,), (1, 4)]
    tiny.stir(model.head, 1.0)
    model.save_pretrained(tmp_path / "saved")
    again = load_scalar(at(tmp_path / "saved"), fresh_head=False)
    assert again.config.reward_head["width"] == [10, 4]
    for saved, loaded in zip(model.head.parameters(), again.head.parameters(), strict=True):
        assert torch.equal(saved, loaded)


def test_a_fresh_head_is_what_the_recipe_says(tmp_path: Path) -> None:
    head = ScoreHeadConfig(layers=3, activation="tanh", width=10, dropout=0.1, read="mean")
    model = load_scalar(at(tiny.checkpoint(tmp_path)), head)
    shapes = [tuple(p.shape) for p in model.head.parameters()]
    assert shapes == [
        (10, 32),
        (10,),
        (10, 10),
        (10,),
        (1, 10),
    ]  # no last bias: Bradley-Terry gives it no gradient
    assert model.config.reward_head == head.model_dump()
    first, *_, last = (p.detach() for p in model.head.parameters() if p.ndim == 2)
    assert 0 < float(first.std()) < 0.05
    assert not last.any()


def test_the_report_of_a_fresh_head_is_silent_and_any_other_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "propagate", False)  # else the root's handler hears it too
    logger.addHandler(caplog.handler)
    load_scalar(at(tiny.checkpoint(tmp_path / "start")), ScoreHeadConfig(layers=2)).save_pretrained(
        tmp_path / "saved"
    )
    assert "LOAD REPORT" not in caplog.text
    with pytest.raises(IncompleteCheckpointError, match=r"missing: lm_head\.weight"):
        load_language_model(at(tmp_path / "saved"))
    logger.removeHandler(caplog.handler)
    assert caplog.text.count("LOAD REPORT") == 1
    assert "lm_head.weight" in caplog.text


@pytest.mark.parametrize("load", [load_scalar, load_critic])
def test_a_fresh_head_ties_everything_and_a_saved_one_is_not_reset(
    tmp_path: Path, load: Any
) -> None:
    model = load(
        at(tiny.checkpoint(tmp_path / "start")), ScoreHeadConfig(layers=1, activation="none")
    )
    (single,) = model.head.parameters()
    assert tuple(single.shape) == (1, 32)
    assert not model.scores(torch.randn(5, 32)).any()
    torch.nn.init.normal_(single)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(
        next(load(at(tmp_path / "saved"), fresh_head=False).head.parameters()), single
    )


def test_bf16_is_loaded_as_bf16(tmp_path: Path) -> None:
    config = BackboneConfig(path=str(tiny.checkpoint(tmp_path)))
    assert load_scalar(config).model.language_model.norm.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("parts", "frozen"),
    [
        ([], set()),
        (["vision_tower"], {"blocks", "patch_embed"}),
        (["projector"], {"merger"}),
        (["language_model"], {"language_model", "lm_head"}),
        (["vision_tower", "projector"], {"blocks", "patch_embed", "merger"}),
    ],
)
def test_freezing_stops_the_named_parts_only(
    tmp_path: Path, parts: list[Any], frozen: set[str]
) -> None:
    model = load_language_model(at(tiny.checkpoint(tmp_path), freeze=parts))
    found: dict[str, set[bool]] = {}
    for name, parameter in model.named_parameters():
        part = name.removeprefix("model.").removeprefix("visual.").split(".")[0]
        found.setdefault(part, set()).add(parameter.requires_grad)
    assert found == {
        part: {part not in frozen}
        for part in ("blocks", "patch_embed", "merger", "language_model", "lm_head")
    }


def test_the_processor_takes_the_recipes_pixels_whatever_the_file_says(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path)
    released = {
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(released))
    encoder = load_encoder(at(folder, min_pixels=784, max_pixels=28 * 28 * 6))
    found = encoder.image_processor(images=[tiny.picture(400, 300)], return_tensors="pt")
    assert 784 <= int(found["image_grid_thw"].prod()) * 14 * 14 <= 28 * 28 * 6
    encoder.save_pretrained(tmp_path / "saved")
    again = load_encoder(at(tmp_path / "saved"), tower=at(folder))
    assert again.tokenizer.chat_template == tiny.CHAT_TEMPLATE


def test_a_tokenizer_without_template_or_tokens_is_refused(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="lacks a chat template"):
        load_encoder(at(folder))


@pytest.mark.parametrize("path", ["/no/such/folder", "./checkpoints", "a/b/c", "nothing"])
def test_a_folder_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(CheckpointError, match=f"there is no folder .*{path.removeprefix('./')}"):
        load_scalar(BackboneConfig(path=path))


def test_embedded_means_the_folder_in_this_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert Path(__file__).parents[2] / "models" / "embedded" == backbone.EMBEDDED
    monkeypatch.setattr(backbone, "EMBEDDED", tmp_path)
    assert backbone.resolve("embedded") == str(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("qwen3_5_moe", "recurrent layers"),
        ("gemma3", "see each other in both directions"),
        ("llama", "not shown to be exact"),
    ],
)
def test_another_architecture_is_refused_with_the_reason_and_what_works(
    tmp_path: Path, model_type: str, reason: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(
        CheckpointError,
        match=rf"is a '{model_type}' model: .*{reason}.*Qwen2\.5-VL \(model_type qwen2_5_vl\)",
    ):
        load_scalar(at(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (tiny.checkpoint(tmp_path) / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_scalar(at(tmp_path))


def test_missing_tokenizer_files_are_named(tmp_path: Path) -> None:
    tiny.language_model().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_encoder(at(tmp_path))


def test_a_hub_id_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for load in (load_scalar, load_language_model, load_encoder):
        with pytest.raises(
            CheckpointError, match=r"cannot be fetched from the hub.*give its folder"
        ):
            load(BackboneConfig(path="nobody/nothing"))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", [name for name in FAMILIES if "qwen" in name])
def test_patches_are_embedded_by_a_matrix_product(tmp_path: Path, family: str) -> None:
    """Output and gradients are the convolution's, whose parameters keep their names."""
    folder = tiny.checkpoint(tmp_path, family=family)
    model = load_scalar(at(folder))
    tower, names = (
        model.model.get_submodule(FAMILIES[family].tower),
        [name for name, _ in model.named_parameters()],
    )
    assert [type(one) for one in tower.modules() if isinstance(one, nn.Conv3d)] == [PatchProjection]
    patches, weights, found = (
        torch.randn(12, tiny.encoder(family).vision.patch_size),
        torch.randn(12, 1),
        [],
    )
    for kind in (PatchProjection, nn.Conv3d):
        embed_patches(model, kind)
        assert [name for name, _ in model.named_parameters()] == names
        assert type(tower.patch_embed.proj) is kind
        model.zero_grad()
        embedded = tower.patch_embed(patches)
        (embedded * weights).sum().backward()
        found.append({"embedded": embedded.detach(), **stock.gradients(tower.patch_embed)})
    assert_exact(*found)


def test_a_convolution_that_overlaps_is_refused(tmp_path: Path) -> None:
    model = load_scalar(at(tiny.checkpoint(tmp_path)))
    model.model.visual.patch_embed.proj = nn.Conv3d(3, 32, (2, 14, 14), (2, 7, 7))
    with pytest.raises(
        RuntimeError,
        match=r"transformers .*: patch_embed\.proj .* no longer moves from patch to patch",
    ):
        embed_patches(model)
