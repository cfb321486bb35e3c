"""What only Qwen3.5 has: recurrent layers, a block of thoughts in answers, tensors that are not loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmrm.data.errors import CheckpointError, RecordError
from mmrm.data.preference import text
from mmrm.models import compatibility
from mmrm.models.activations import set_checkpointing
from mmrm.models.backbone import load_critic, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig, CheckpointingMode, SamplingConfig
from mmrm.models.encoder import Encoder, Span
from mmrm.models.families import qwen3_5
from mmrm.models.families.qwen3_5_layers import PackedGatedDeltaNet
from mmrm.models.families.registry import FAMILIES, family_of
from mmrm.models.generation import WritingCost
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.attention import AttentionPlan
from mmrm.models.portable.turns import apply_template
from mmrm.train.recipe.sections import LoraConfig
from mmrm.train.runs.model import add_adapters
from tests.models import stock, tiny
from tests.models.exactness import assert_exact
from tests.models.families.arrangements import reward_model

FAMILY = "qwen3_5"
QUESTION = text("user", " What is it? ")


def at(folder: Path) -> BackboneConfig:
    return BackboneConfig(path=str(folder), dtype="float32")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny.encoder(FAMILY)


def rendered(encoder: Encoder, *turns: Any) -> str:
    return "".join(span.text for span in encoder.render(turns))


@pytest.mark.parametrize(
    "turns",
    [
        (QUESTION, text("assistant", "Red.\n")),
        (QUESTION, text("assistant", "Red"), text("user", "Sure?"), text("assistant", " Yes ")),
        (QUESTION, text("assistant", "Red"), text("assistant", "Blue")),
        (text("system", "Judge."), QUESTION, text("assistant", "")),
    ],
)
def test_a_conversation_is_what_the_template_writes(
    encoder: Encoder, turns: tuple[Any, ...]
) -> None:
    expected = encoder.tokenizer.apply_chat_template(
        list(turns), tokenize=False, enable_thinking=False
    )

    assert rendered(encoder, *turns) == expected.rstrip("\n")


def test_a_conversation_begins_with_its_own_generation_prompt(encoder: Encoder) -> None:
    prompt = rendered(encoder, QUESTION)

    assert prompt == apply_template(
        encoder.tokenizer, [QUESTION], encoder.turn_rules, open_turn=True
    )
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert rendered(encoder, QUESTION, text("assistant", "Red")).startswith(prompt)


def test_a_response_is_marked_without_its_block_of_thoughts(encoder: Encoder) -> None:
    spans = encoder.render((QUESTION, text("assistant", " Red\n")), loss=True)

    assert [span.text for span in spans if span.response] == ["Red"]
    assert [span.text for span in spans if span.loss] == ["Red", "<|im_end|>"]


@pytest.mark.parametrize(
    "turns",
    [
        (QUESTION, text("assistant", "a</think>b")),
        (QUESTION, text("assistant", "a</think>b"), text("user", "Sure?"), text("assistant", "c")),
    ],
)
def test_an_answer_with_the_mark_of_thoughts_is_left_out(
    encoder: Encoder, turns: tuple[Any, ...]
) -> None:
    with pytest.raises(RecordError, match="rewrites the assistant's text 'a</think>b'"):
        encoder.render(turns)


def test_predictions_of_several_tokens_are_not_loaded_and_nothing_else_is_left_out(
    tmp_path: Path,
) -> None:
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "mtp.norm.weight": torch.zeros(2)}, weights, {"format": "pt"})
    for load in (load_scalar, load_critic, load_language_model):
        load(at(folder))

    save_file({**tensors, "other.norm.weight": torch.zeros(2)}, weights, {"format": "pt"})
    with pytest.raises(ValueError, match=r"1 unexpected: other\.norm\.weight"):
        load_scalar(at(folder))


def test_layers_of_another_kind_are_refused(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["layer_types"] = ["linear_attention", "full_attention", "conv"]
    file.write_text(json.dumps(config))

    with pytest.raises(CheckpointError, match=r"layers of the types \['conv'\]"):
        load_scalar(at(folder))


def test_the_sparse_models_are_refused() -> None:
    with pytest.raises(CheckpointError, match="packed rows of both together were not verified"):
        family_of("qwen3_5_moe")


def test_a_plan_that_does_not_reach_the_recurrent_layers_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stock text model drops a plan on the way to these layers, without an error."""
    assert compatibility._plan_reaches_recurrent_layers(FAMILY)
    parts = qwen3_5.parts()
    [text_class, _] = parts.plan_classes
    without_text_model = {
        stock_class: own_class
        for stock_class, own_class in parts.plan_classes.items()
        if stock_class is not text_class
    }
    stale = qwen3_5.FAMILY.__class__(
        **{**vars(qwen3_5.FAMILY), "parts": lambda: parts._replace(plan_classes=without_text_model)}
    )
    monkeypatch.setitem(FAMILIES, FAMILY, stale)

    with pytest.raises(RuntimeError, match=r"no longer reaches the recurrent layers of Qwen3\.5"):
        compatibility.check_transformers.__wrapped__(FAMILY)


def test_without_its_classes_the_model_lets_states_run_from_one_response_into_the_next(
    tmp_path: Path, encoder: Encoder
) -> None:
    """The control of the tests of exactness: their rows are no trivial ones."""
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    model: Any = load_scalar(at(folder), ScoreHeadConfig(width=24)).eval()
    tiny.stir(model.head, 0.5)
    turns = [encoder.render((QUESTION, text("assistant", answer))) for answer in ("Red", "Blue")]
    batch = encoder.pack([encoder.encode([], turns, "end_of_turn")])
    with torch.no_grad():
        expected = model(**batch.score_inputs())
        for module in model.modules():
            if isinstance(module, PackedGatedDeltaNet):
                module.__class__ = PackedGatedDeltaNet.__bases__[0]
        masks = {"full_attention": batch.plan, "linear_attention": None}
        found = model(**{**batch.score_inputs(), "attention_mask": masks})

    assert float((found - expected).abs().max()) > 0.01


def test_a_padded_batch_scores_alike_on_either_side(tmp_path: Path, encoder: Encoder) -> None:
    """The stock layers set padding to zero, which leaves state and convolution as they begin."""
    folder = tiny.checkpoint(tmp_path, family=FAMILY)
    model: Any = load_scalar(at(folder), ScoreHeadConfig(width=24)).eval()
    tiny.stir(model.head, 0.5)
    answers = ("Red", "A blue circle and a red square.")
    turns = [encoder.render((QUESTION, text("assistant", answer))) for answer in answers]
    scores = []
    for side in ("left", "right"):
        with torch.no_grad():
            padded = stock.padded_inputs([([], turns)], side, FAMILY)
            scores.append(model(**padded).logits)

    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)


def scored(model: Any, encoder: Encoder) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the scores of a row with images in prompt and response, and gradients by name."""
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    prompt = f"<|im_start|>user\n{image}What?<|im_end|>\n<|im_start|>assistant\n"
    turns = []
    for answer in ("Red", f"A blue {image} circle", "A blue square"):
        turns.append((Span(prompt), Span(answer, response=True), Span("<|im_end|>")))
    pictures = [tiny.picture(80, 56), tiny.picture(60, 60, seed=1)]
    trees = [
        encoder.encode(pictures[:1], [turns[0], turns[2]], "end_of_turn"),
        encoder.encode(pictures, [turns[1]], "end_of_turn"),
    ]
    model.zero_grad()
    scores = model(**encoder.pack(trees).score_inputs())
    torch.autograd.backward((scores * torch.tensor([1.0, -2.0, 0.5])).sum())
    found = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return scores.detach(), found


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", ["linear", "attention", "full"])
def test_activation_checkpointing_changes_no_gradient(
    tmp_path: Path, mode: CheckpointingMode
) -> None:
    encoder = tiny.encoder(FAMILY)
    model = reward_model(tmp_path, FAMILY).train()
    scores, expected = scored(model, encoder)

    set_checkpointing(model, mode)

    scores_again, found = scored(model, encoder)
    assert_exact(scores_again, scores)
    assert len(found) == len(list(model.parameters()))
    assert_exact(found, expected)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_merged_adapters_compute_what_they_compute_beside_the_weights(tmp_path: Path) -> None:
    encoder = tiny.encoder(FAMILY)
    model = reward_model(tmp_path, FAMILY)
    plain_scores, _ = scored(model, encoder)
    settings = LoraConfig(rank=2, alpha=4)
    adapted: Any = add_adapters(model, settings, has_head=True, has_master_weights=False).eval()
    adapters = {
        name: parameter for name, parameter in adapted.named_parameters() if ".lora_" in name
    }
    for parameter in adapters.values():
        tiny.stir(nn.ParameterList([parameter]), 0.3)
    scores, gradients = scored(adapted, encoder)
    assert float((scores - plain_scores).abs().max()) > 0.01
    for name in adapters:
        assert float(gradients[name].abs().max()) > 0, name

    merged = adapted.merge_and_unload()

    merged.requires_grad_(True)
    merged_scores, _ = scored(merged, encoder)
    assert_exact(merged_scores, scores)


def test_a_text_costs_the_states_of_its_recurrent_layers() -> None:
    config = tiny.config(FAMILY)
    cost = WritingCost.of(config, SamplingConfig(max_new_tokens=10))

    # Two of the three layers: 4 heads of 8 x 12 numbers in fp32, and 4 inputs of 80 channels.
    numbers = 2 * (2 * 4 * 8 * 12 + 4 * 80)
    assert cost.states == pytest.approx(numbers / (2 * 32 + 3 * 48))


def test_a_plan_keeps_the_plan_of_recurrent_layers(encoder: Encoder) -> None:
    turns = [encoder.render((QUESTION, text("assistant", answer))) for answer in ("Red", "Blue")]
    plan: AttentionPlan = encoder.pack([encoder.encode([], turns, None)]).plan

    assert plan.recurrent(4) is plan.recurrent(4)
    assert plan.parents[0] is None
