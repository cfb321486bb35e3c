"""Labels of a packed row give the stock model's language-model loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from mmrm.data.preference import text
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.models.portable import language_model
from tests.models import stock, tiny
from tests.models.exactness import assert_exact

ANSWERS = ("A red square.", "A red circle", "Blue", "A")


def cases() -> list[stock.Case]:
    encoder = tiny.encoder()
    found = []
    for pictures, answers in ((1, ANSWERS), (0, ANSWERS[:1]), (2, ANSWERS[:2])):
        content: Any = [{"type": "image"}] * pictures + [{"type": "text", "text": "What is it?"}]
        prompt: Any = {"role": "user", "content": content}
        turns = [
            encoder.render([prompt, text("assistant", answer)], loss=True) for answer in answers
        ]
        found.append(([tiny.picture(60 + 30 * i, 80, i) for i in range(pictures)], turns))
    return found


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("chunk", [1024, 5])
def test_labels_give_the_stock_loss_and_gradients(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_model, "CHUNK", chunk)
    folder = tiny.checkpoint(tmp_path)
    model = load_language_model(BackboneConfig(path=str(folder), dtype="float32")).eval()
    encoder = tiny.encoder()
    batch = encoder.pack([encoder.encode(images, turns, None) for images, turns in cases()])
    found = model(**batch.label_inputs())
    torch.autograd.backward(-found.mean())

    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, attn_implementation="sdpa"
    ).eval()
    inputs = stock.padded_inputs(cases())
    labels = torch.full_like(inputs["input_ids"], -100)
    owners = []
    for i, turn in enumerate(turn for _, turns in cases() for turn in turns):
        answer = tiny.tokenizer()(turn[-2].text + turn[-1].text)["input_ids"]
        end = int(inputs["attention_mask"][i].sum())
        labels[i, end - len(answer) : end] = torch.tensor(answer)
        owners += [i] * len(answer)
    kinds = (inputs["input_ids"] == plain.config.image_token_id).int()
    wanted = plain(**inputs, mm_token_type_ids=kinds, labels=labels).loss
    torch.autograd.backward(wanted)

    assert batch.label_owners.tolist() == owners
    assert batch.labels.tolist() == labels[labels != -100].tolist()
    assert found.dtype == torch.float32
    assert_exact(-found.mean(), wanted)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert_exact(stock.gradients(model), stock.gradients(plain))


def test_a_row_of_filler_has_no_label_and_reaches_every_parameter(tmp_path: Path) -> None:
    model = load_language_model(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")
    )
    found = model(**tiny.encoder().pack([]).label_inputs())
    assert found.shape == (0,)
    torch.autograd.backward(found.sum())
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_the_same_model_still_generates_from_padded_prompts(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path)
    model = load_language_model(BackboneConfig(path=str(folder), dtype="float32")).eval()
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, attn_implementation="sdpa"
    ).eval()
    inputs = stock.padded_inputs(cases(), side="left")
    kinds = (inputs["input_ids"] == plain.config.image_token_id).int()
    options: dict[str, Any] = {
        "max_new_tokens": 4,
        "min_new_tokens": 4,
        "do_sample": False,
        "mm_token_type_ids": kinds,
    }
    assert torch.equal(model.generate(**inputs, **options), plain.generate(**inputs, **options))
