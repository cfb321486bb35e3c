"""Promise 1: packed scores and gradients are the padded stock model's."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmrm.data.preference import Message, text
from mmrm.models.activations import set_checkpointing
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig, CheckpointingMode, StoredRead
from mmrm.models.encoder import Span
from mmrm.models.families.registry import FAMILIES
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.packed_batch import filler_tree
from mmrm.models.portable.reward import ScalarReward
from tests.models import stock, tiny
from tests.models.exactness import assert_exact, float64
from tests.models.families.parameters import every_family

ANSWERS = [
    "A red square.",
    "Blue",
    "A blue circle is in the picture, and a red square; what else?",
    "",
    "A red square",
]


def question(pictures: int, words: str) -> Message:
    """Return a turn of the user about some pictures."""
    content: Any = [{"type": "image"} for _ in range(pictures)] + [{"type": "text", "text": words}]
    return {"role": "user", "content": content}


def conversation(pictures: int, words: str, answer: str) -> tuple[Span, ...]:
    prompt = question(pictures, words)
    return tiny.encoder().render([prompt, text("assistant", answer)], loss=True)


def case(pictures: int, answers: int, seed: int = 0) -> stock.Case:
    images = [tiny.picture(60 + 37 * (i + seed), 90 + 20 * seed, seed + i) for i in range(pictures)]
    words = "What is in the picture?" * (1 + seed)
    return images, [conversation(pictures, words, answer) for answer in ANSWERS[:answers]]


def two_questions() -> stock.Case:
    """Return two questions about two images, the first with two answers."""
    images, answered = case(2, 2)
    return images, [*answered, conversation(2, "How many circles are there?", ANSWERS[0])]


def other_beginnings() -> stock.Case:
    """Return conversations that differ before their image, which several roots or branches show."""
    images, [usual] = case(1, 1)
    judged = [
        tiny.encoder().render(
            [text("system", system), question(1, "What?"), text("assistant", "A")]
        )
        for system in ("Judge with care, and say what you see.", "Judge with care and at once.")
    ]
    unmarked = (Span("What is this? "), *usual)
    return images, [usual, *judged, unmarked]


def image_in_the_response() -> stock.Case:
    """Return a conversation about an image whose response shows another image."""
    shown: Message = {
        "role": "assistant",
        "content": [{"type": "text", "text": "See: "}, {"type": "image"}],
    }
    images, _ = case(2, 1)
    return images, [tiny.encoder().render([question(1, "Turn it"), shown], loss=True)]


CASES = {
    "text only": [case(0, 2)],
    "one image": [case(1, 2)],
    "several images": [case(3, 2)],
    "one continuation": [case(1, 1)],
    "many continuations": [case(1, 5)],
    "two questions": [two_questions()],
    "other beginnings": [other_beginnings()],
    "image in the response": [image_in_the_response(), case(1, 2)],
    "mixed": [case(0, 3, 1), case(1, 2, 0), case(2, 1, 2), case(0, 1, 3), case(1, 5, 1)],
}


@pytest.fixture(scope="module", params=every_family())
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ScalarReward:
    """Return a model in float64."""
    with float64():
        folder: Path = tiny.checkpoint(tmp_path_factory.mktemp("backbone"), family=request.param)
        loaded: ScalarReward = load_scalar(
            BackboneConfig(path=str(folder), dtype="float32"), ScoreHeadConfig(width=24)
        )
        tiny.stir(loaded.head, 0.5)
        loaded.eval()
        return loaded


def packed_scores(
    model: ScalarReward, cases: list[stock.Case], read: StoredRead = "end_of_turn"
) -> Tensor:
    family = model.config.model_type
    encoder = tiny.encoder(family)
    trees = [
        encoder.encode(images, tiny.written_for(family, turns), read) for images, turns in cases
    ]
    scores = model(**encoder.pack(trees).score_inputs())
    assert isinstance(scores, Tensor)
    return scores


def padded(model: ScalarReward, cases: list[stock.Case]) -> dict[str, Tensor]:
    return stock.padded_inputs(cases, family=model.config.model_type)


def stock_scores(
    model: ScalarReward, backbone: Any, inputs: dict[str, Tensor], offset: int = 0
) -> Tensor:
    """Return the paper's head, written out, on the stock hidden state at the last token (minus `offset`)."""
    last = inputs["attention_mask"].sum(1) - 1 - offset
    pooled = stock.hidden_states(backbone, inputs)[torch.arange(len(last)), last]
    first, bias, second = model.head.parameters()
    return F.linear(F.silu(F.linear(pooled, first, bias)), second)[:, 0]


def weigh(scores: Tensor) -> Tensor:
    return (scores * torch.linspace(-1, 2, len(scores), device=scores.device)).sum()


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", CASES)
def test_scores_and_gradients_equal_the_padded_stock_models(model: ScalarReward, name: str) -> None:
    cases = CASES[name]
    backbone = stock.backbone(model.model)
    model.zero_grad()
    wanted = stock_scores(model, backbone, padded(model, cases))
    torch.autograd.backward(weigh(wanted))
    head_gradients = stock.gradients(model.head)

    model.zero_grad()
    found = packed_scores(model, cases)
    torch.autograd.backward(weigh(found))

    assert_exact(found, wanted)
    assert_exact(stock.gradients(model.head), head_gradients)
    for name, parameter in model.model.named_parameters():
        assert parameter.grad is not None, (
            f"{name} took no part: its hooks would not fire under ZeRO"
        )
    assert_exact(stock.gradients(model.model), stock.gradients(backbone))
    assert max(float(p.grad.abs().max()) for p in backbone.language_model.parameters()) > 1e-2


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_last_token_is_the_newline_after_the_end_of_turn(model: ScalarReward) -> None:
    cases = [case(1, 3), case(0, 2)]
    # A template that does not write the end of the last turn writes no newline after it.
    newline = "" if FAMILIES[model.config.model_type].turn_rules.added_end else "\n"
    backbone = stock.backbone(model.model)
    as_templated = []
    for images, turns in cases:
        templated_turns = [(*turn, Span(newline)) for turn in turns]
        as_templated.append((images, templated_turns))
    wanted = stock_scores(model, backbone, padded(model, as_templated))
    assert_exact(packed_scores(model, cases, "last_token"), wanted)
    wanted = stock_scores(model, backbone, padded(model, cases), offset=1)
    assert_exact(packed_scores(model, cases, "last_response_token"), wanted)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_mean_is_the_mean_over_the_response(model: ScalarReward) -> None:
    cases = [case(1, 3)]
    inputs = padded(model, cases)
    hidden = stock.hidden_states(stock.backbone(model.model), inputs)
    lengths = [len(tiny.tokenizer()(answer)["input_ids"]) for answer in ANSWERS[:3]]
    ends = inputs["attention_mask"].sum(1) - 1
    pooled = torch.stack(
        [hidden[i, e - n : e].mean(0) for i, (e, n) in enumerate(zip(ends, lengths, strict=True))]
    )
    assert_exact(packed_scores(model, cases, "mean"), model.scores(pooled))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_a_filler_changes_neither_scores_nor_gradients(model: ScalarReward) -> None:
    family = model.config.model_type
    encoder = tiny.encoder(family)
    images, turns = case(1, 2)
    trees = [
        encoder.encode(images, tiny.written_for(family, turns), "end_of_turn"),
        encoder.encode(*case(0, 2), "end_of_turn"),
    ]
    model.zero_grad()
    wanted = model(**encoder.pack(trees).score_inputs())
    torch.autograd.backward(weigh(wanted))
    gradients = stock.gradients(model)
    model.zero_grad()
    found = model(**encoder.pack([trees[0], filler_tree(encoder.vision), trees[1]]).score_inputs())
    torch.autograd.backward(weigh(found))
    assert_exact(found, wanted)
    assert_exact(stock.gradients(model), gradients)


@pytest.mark.usefixtures("float64")
def test_a_row_of_filler_reaches_every_parameter_with_gradient_zero(model: ScalarReward) -> None:
    model.zero_grad()
    scores = model(**tiny.encoder(model.config.model_type).pack([]).score_inputs())
    assert scores.shape == (0,)
    torch.autograd.backward(scores.sum())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", ["linear", "attention", "full"])
def test_checkpointing_gives_the_same_gradients(
    model: ScalarReward, mode: CheckpointingMode
) -> None:
    packed_scores(model, CASES["mixed"])
    model.zero_grad()
    torch.autograd.backward(weigh(packed_scores(model, CASES["mixed"])))
    gradients = stock.gradients(model)
    set_checkpointing(model, mode)
    model.train()
    model.zero_grad()
    torch.autograd.backward(weigh(packed_scores(model, CASES["mixed"])))
    set_checkpointing(model, "none")
    model.eval()
    assert_exact(stock.gradients(model), gradients)


def test_scores_are_fp32_in_a_bf16_model(model: ScalarReward) -> None:
    half = copy.deepcopy(model).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = packed_scores(half, [case(1, 2)])
    assert scores.dtype == torch.float32
    hidden = torch.randn(4, 32, dtype=torch.bfloat16)
    first, bias, second = (parameter.float() for parameter in half.head.parameters())
    wanted = F.linear(F.silu(F.linear(hidden.float(), first, bias)), second)[:, 0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(half.scores(hidden), wanted)
