"""In bf16 packed rows are no further from float64 than the stock model's own padded rows are: scores, critiques, judgements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2_5_VLForConditionalGeneration

from mmrm.data.preference import Message, Response, text
from mmrm.data.prompts import with_critique
from mmrm.models import generation
from mmrm.models.backbone import load_critic, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from tests.models import stock, tiny
from tests.models.exactness import assert_exact, assert_no_worse, float64
from tests.models.families.parameters import every_family

pytestmark = pytest.mark.slow


WORDS = (
    "red",
    "a blue circle",
    "what is in the picture?",
    "the square is left of it",
    "no",
    "a picture of a red square.",
)
END: int = tiny.tokenizer().convert_tokens_to_ids("<|im_end|>")
SCRIPT: list[int] = tiny.tokenizer()("a red square and a blue circle")["input_ids"]
BIAS = 100.0


def cases(kind: str) -> list[stock.Case]:
    """Return prompts with six responses each, on up to two pictures."""
    found = []
    for number in range(10):
        pictures = [tiny.picture(60 + 20 * i, 90, seed=number + i) for i in range(number % 3)]
        content: Any = [{"type": "image"} for _ in pictures] + [
            {"type": "text", "text": WORDS[number % 6] * (1 + number)}
        ]
        prompt: tuple[Message, ...] = ({"role": "user", "content": content},)
        answers = [" ".join(WORDS[(i + k * number) % 6] for k in range(1 + i)) for i in range(6)]
        turns = [
            with_critique(prompt, Response.of_text("A red square."), "judge it.", answer)
            if kind == "critic"
            else (*prompt, text("assistant", answer))
            for answer in answers
        ]
        found.append((pictures, [tiny.encoder().render(turn, loss=True) for turn in turns]))
    return found


def ours(kind: str, folder: Path, dtype: Any, family: str) -> tuple[Tensor, ...]:
    config = BackboneConfig(path=str(folder), dtype=dtype)
    load: Any = {"scalar": load_scalar, "critic": load_critic, "judge": load_language_model}[kind]
    model = load(config, **({} if kind == "judge" else {"fresh_head": False})).eval()
    encoder = tiny.encoder(family)
    batch = encoder.pack(
        [
            encoder.encode(pictures, tiny.written_for(family, turns), "end_of_turn")
            for pictures, turns in cases(kind)
        ]
    )
    inputs = {
        "scalar": batch.score_inputs,
        "critic": batch.joint_inputs,
        "judge": batch.label_inputs,
    }[kind]()
    found = model(**inputs)
    return with_gradient(model.model, found if kind == "critic" else (found,))


def theirs(
    kind: str, folder: Path, head: list[Tensor], dtype: torch.dtype, family: str
) -> tuple[Tensor, ...]:
    """Return what plain transformers makes of padded rows: the head on the last token, log-probabilities of the answers."""
    model = (
        tiny.stock_class(family)
        .from_pretrained(folder, attn_implementation="sdpa", dtype=dtype)
        .eval()
    )
    inputs = stock.padded_inputs(cases(kind), family=family)
    inputs = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    hidden = stock.hidden_states(model.model, inputs)
    ends = inputs["attention_mask"].sum(1) - 1
    answers: list[Tensor] = []
    for i, turn in enumerate(turn for _, turns in cases(kind) for turn in turns):
        labels = torch.tensor(tiny.tokenizer()(turn[-2].text + turn[-1].text)["input_ids"])
        logits = model.lm_head(hidden[i, int(ends[i]) - len(labels) : int(ends[i])]).float()
        answers.append(logits.log_softmax(1).gather(1, labels[:, None])[:, 0])
    if kind == "judge":
        return with_gradient(model.model, (torch.cat(answers),))
    first, bias, second = (tensor.to(dtype) for tensor in head)
    inner = F.silu(F.linear(hidden[torch.arange(len(ends)), ends], first, bias))
    scores = F.linear(inner, second)[:, 0].float()
    return with_gradient(
        model.model, (scores,) if kind == "scalar" else (scores, torch.cat(answers))
    )


def with_gradient(backbone: nn.Module, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the values, and the backbone's gradient of a sum in which each of them counts differently."""
    sums = [(value * torch.linspace(-1.0, 2.0, len(value))).mean() for value in values]
    torch.autograd.backward(torch.stack(sums).sum())
    gradients = [
        parameter.grad.flatten().float()
        for _, parameter in sorted(backbone.named_parameters())
        if parameter.grad is not None
    ]
    return (*(value.detach() for value in values), torch.cat(gradients))


@pytest.mark.numerics
@pytest.mark.parametrize("kind", ["scalar", "critic", "judge"])
@pytest.mark.parametrize("family", every_family())
def test_bf16_is_no_further_from_fp32_than_the_stock_models(
    tmp_path: Path, family: str, kind: str
) -> None:
    mine = tmp_path / "ours"
    with float64():
        folder = tiny.checkpoint(tmp_path / "stock", family=family)
        head: list[Tensor] = []
        if kind == "judge":
            mine = folder
        else:
            load: Callable[..., Any] = load_scalar if kind == "scalar" else load_critic
            model = load(BackboneConfig(path=str(folder), dtype="float32"), ScoreHeadConfig())
            tiny.stir(model.head, 0.5)
            head = [parameter.detach() for parameter in model.head.parameters()]
            model.save_pretrained(mine)
            tiny.encoder(family).save_pretrained(mine)
        exact = theirs(kind, folder, head, torch.float32, family)
        for wanted, found in zip(exact, ours(kind, mine, "float32", family), strict=True):
            assert_exact(found, wanted)
    rows = zip(
        exact,
        theirs(kind, folder, head, torch.bfloat16, family),
        ours(kind, mine, "bfloat16", family),
        strict=True,
    )
    for wanted, stock_half, half in rows:
        assert_no_worse(half, stock_half, wanted)


def written(model: Any, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Return the logits from which `generate` chooses, (outputs, steps, V), where it is told what to write."""
    seen: list[Tensor] = []

    def told(model: Any, state: Any, *rest: Any) -> Tensor:
        seen.append(model.lm_head(state.hidden).float())
        return torch.tensor(SCRIPT[len(seen) - 1]).expand(len(state.outputs))

    monkeypatch.setattr(generation, "_choose", told)
    encoder = tiny.encoder()
    batch = encoder.pack([encoder.encode(pictures, turns, None) for pictures, turns in asked()])
    sampling = SamplingConfig(max_new_tokens=len(SCRIPT))
    generation.generate(model, batch, end=END, forbidden=[], sampling=sampling, seeds=[""] * 60)
    return torch.stack(seen, dim=1)


def written_by_stock(folder: Path, dtype: torch.dtype) -> Tensor:
    """Return the same of plain transformers, with a cache for every conversation alone."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, attn_implementation="sdpa", dtype=dtype
    ).eval()
    inputs = stock.padded_inputs(asked(), side="left")
    inputs = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    start = inputs["input_ids"].shape[1]
    found = model.generate(
        **inputs,
        mm_token_type_ids=(inputs["input_ids"] == model.config.image_token_id).int(),
        prefix_allowed_tokens_fn=lambda _, ids: [SCRIPT[len(ids) - start]],
        max_new_tokens=len(SCRIPT),
        do_sample=False,
        eos_token_id=END,
        pad_token_id=END,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.stack(found.logits, dim=1).float()


def asked() -> list[stock.Case]:
    """Return the conversations up to where the assistant writes: the user's last turn is one of six."""
    found = []
    for number, (pictures, _) in enumerate(cases("judge")):
        places: Any = [{"type": "image"} for _ in pictures]
        shown: Message = {"role": "user", "content": [*places, {"type": "text", "text": "look."}]}
        asks = [
            text("user", " ".join(WORDS[(i + k * number) % 6] for k in range(1 + i)))
            for i in range(6)
        ]
        found.append(
            (
                pictures,
                [tiny.encoder().render([shown, text("assistant", "yes"), ask]) for ask in asks],
            )
        )
    return found


@pytest.mark.numerics
def test_decoding_in_bf16_is_no_further_from_fp32_than_the_stock_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key of a head shares a large bias, as in the released weights: logits are hundreds, their differences small."""
    with float64():
        model = tiny.language_model()
        for layer in model.model.language_model.layers:
            with torch.no_grad():
                layer.self_attn.k_proj.bias *= BIAS
        model.save_pretrained(tmp_path)
        tiny.encoder().save_pretrained(tmp_path)
        exact = written_by_stock(tmp_path, torch.float32)
        loaded = load_language_model(BackboneConfig(path=str(tmp_path), dtype="float32"))
        assert_exact(written(loaded, monkeypatch), exact)
    half = load_language_model(BackboneConfig(path=str(tmp_path), dtype="bfloat16"))
    stock_half = written_by_stock(tmp_path, torch.bfloat16)
    assert_no_worse(written(half, monkeypatch), stock_half, exact)
