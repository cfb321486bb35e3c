"""What only Cosmos3-Edge has: names of released tensors, a number beside `text_config`, answers trimmed at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mmrm.data.errors import CheckpointError, RecordError
from mmrm.data.images import image_tokens_of
from mmrm.data.preference import text
from mmrm.models.backbone import load_encoder, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import assistant_turn
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.cosmos3_edge import FAMILY as ROW
from mmrm.models.families.cosmos3_edge import Cosmos3EdgeShape
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.processor import RewardProcessor, padded_batch
from tests.models import tiny
from tests.models.families.arrangements import reward_model
from tests.models.families.counted_tokens import assert_counted_as_by_the_processor

FAMILY = "cosmos3_edge"
CONFIG = tiny.config(FAMILY)
RELEASED_NAMES = {
    "model.language_model.": "",
    ".self_attn.q_proj.": ".self_attn.to_q.",
    ".self_attn.k_proj.": ".self_attn.to_k.",
    ".self_attn.v_proj.": ".self_attn.to_v.",
    ".self_attn.o_proj.": ".self_attn.to_out.",
    ".mlp.fc1.": ".mlp.up_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
}
"""Parts of the names of the language model's tensors, and what stands for them in the released file."""
QUESTION = text("user", "What is it?")


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=3),
    st.integers(784, 20_000),
    st.integers(20_000, 10**5),
)
@settings(deadline=None, max_examples=100)
def test_tokens_that_are_counted_are_those_of_the_processor(
    sizes: list[tuple[int, int]], low: int, high: int
) -> None:
    assert_counted_as_by_the_processor(FAMILY, sizes, low, high)


def test_a_saved_config_has_the_key_by_which_its_images_are_counted(tmp_path: Path) -> None:
    CONFIG.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    counter: Any = image_tokens_of(saved, 784, 10**6)
    assert counter.enlarges_short_sides


def test_limits_that_are_saved_with_images_reach_the_processor(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    config = BackboneConfig(path=str(folder), dtype="float32", max_pixels=9 * 1024)
    processor = load_encoder(config).image_processor
    made = processor(images=[tiny.picture(400, 400)], return_tensors="pt")
    assert int(made["image_grid_thw"].prod()) == 9 * 4


def test_the_width_of_the_projector_is_read_beside_the_text_config(tmp_path: Path) -> None:
    CONFIG.save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    assert isinstance(shape, Cosmos3EdgeShape)
    assert shape.projector_hidden_size == CONFIG.projector_hidden_size == 56


def test_released_names_are_loaded_and_the_generator_is_left_out(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    released: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        released_name = name
        if name.startswith("model.language_model."):
            for current, other in RELEASED_NAMES.items():
                released_name = released_name.replace(current, other)
        released[released_name] = tensor
    released["layers.0.mlp_moe_gen.up_proj.weight"] = torch.zeros(1)
    released["layers.0.self_attn.add_q_proj.weight"] = torch.zeros(1)
    assert len(set(released) - set(tensors)) > 2 * 8
    save_file(released, file, {"format": "pt"})
    config = BackboneConfig(path=str(folder), dtype="float32")
    for model in (load_scalar(config, ScoreHeadConfig()), load_language_model(config)):
        for name, parameter in model.model.named_parameters():
            assert torch.equal(parameter, tensors[f"model.{name}"]), name
    model.save_pretrained(tmp_path / "saved")
    assert set(load_file(tmp_path / "saved" / "model.safetensors")) == set(model.state_dict())


@pytest.mark.parametrize("answer", ["Red", " Red", "Red\n", "  Red  ", " ", ""])
def test_an_answer_keeps_white_space_at_its_beginning_and_loses_that_at_its_end(
    answer: str,
) -> None:
    encoder = tiny.encoder(FAMILY)
    spans = encoder.render([QUESTION, text("assistant", answer)])
    assert "".join(span.text for span in spans) == (
        "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nWhat is it?<|im_end|>\n"
        f"<|im_start|>assistant\n<think></think>{answer.rstrip()}<|im_end|>"
    )
    earlier = encoder.render(
        [QUESTION, text("assistant", answer), QUESTION, text("assistant", "Blue")]
    )
    assert f"<think></think>{answer.rstrip()}<|im_end|>" in "".join(span.text for span in earlier)


def test_remote_code_trims_answers_as_the_encoder_does(tmp_path: Path) -> None:
    model = reward_model(tmp_path, FAMILY)
    model.config.assistant_turn = assistant_turn(tiny.tokenizer(FAMILY), ROW.turn_rules)
    processor = RewardProcessor(tiny.image_processor(family=FAMILY), tiny.tokenizer(FAMILY))
    batch = padded_batch(model.config, processor, [QUESTION], [" Red \n"], [], [])
    spans = tiny.encoder(FAMILY).render([QUESTION, text("assistant", " Red \n")])
    written = "".join(span.text for span in spans)
    assert processor.tokenizer.decode(batch["input_ids"][0]) == written


def test_an_answer_with_thoughts_is_refused() -> None:
    with pytest.raises(RecordError, match="rewrites the assistant's text 'a</think>b'"):
        tiny.encoder(FAMILY).render([QUESTION, text("assistant", "a</think>b")])


@pytest.mark.parametrize("name", ["attention_bias", "mlp_bias"])
def test_a_language_model_with_biases_is_refused(name: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    file = folder / "config.json"
    saved = json.loads(file.read_text())
    saved["text_config"][name] = True
    file.write_text(json.dumps(saved))
    config = BackboneConfig(path=str(folder), dtype="float32")
    with pytest.raises(CheckpointError, match=f"text_config.{name} is true"):
        load_scalar(config, ScoreHeadConfig())
