"""The scalar model as others use it: padded batches, and as remote code in a process without this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data.preference import text
from models.backbone import load_scalar
from models.config import BackboneConfig, HeadConfig, Read
from models.reward import ScalarRewardModel
from tests.models import stock, tiny


def cases() -> list[stock.Case]:
    encoder = tiny.encoder()
    found = []
    for pictures, answers in ((1, ("A red square.", "Blue")), (0, ("Yes, it is a picture.",)), (2, ("Red", "A circle"))):
        content: Any = [{"type": "image"}] * pictures + [{"type": "text", "text": "What is it?"}]
        turns = [encoder.render([{"role": "user", "content": content}, text("assistant", answer)]) for answer in answers]
        found.append(([tiny.picture(60 + 30 * i, 80, i) for i in range(pictures)], turns))
    return found


def reward_model(folder: Path, read: Read = "end_of_turn") -> ScalarRewardModel:
    model: ScalarRewardModel = load_scalar(
        BackboneConfig(path=str(tiny.checkpoint(folder)), dtype="float32"), HeadConfig(read=read)
    )
    tiny.stir(model.head, 0.5)
    model.eval()
    return model


def packed(model: ScalarRewardModel) -> Tensor:
    encoder = tiny.encoder()
    read = model.config.reward_head["read"]
    groups = [encoder.encode(images, turns, read) for images, turns in cases()]
    scores = model(**encoder.pack(groups).score_inputs())
    assert isinstance(scores, Tensor)
    return scores


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("read", ["end_of_turn", "last_token"])
def test_a_padded_batch_gives_the_packed_scores(tmp_path: Path, side: str, read: Read) -> None:
    model = reward_model(tmp_path, read)
    logits = model(**stock.padded_inputs(cases(), side)).logits
    assert logits.shape == (5, 1)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits[:, 0], packed(model), atol=1e-5)


def test_a_single_conversation_needs_no_mask(tmp_path: Path) -> None:
    model = reward_model(tmp_path)
    inputs = stock.padded_inputs([(images, turns[:1]) for images, turns in cases()[:1]])
    del inputs["attention_mask"]
    assert torch.allclose(model(**inputs).logits[0], packed(model)[0], atol=1e-5)


def test_a_mean_head_needs_to_be_told_the_response(tmp_path: Path) -> None:
    model = reward_model(tmp_path, "mean")
    inputs = stock.padded_inputs(cases())
    with pytest.raises(ValueError, match="response_mask"):
        model(**inputs)
    mask = torch.zeros_like(inputs["input_ids"])
    ends = inputs["attention_mask"].sum(1) - 1
    answers = [turn[-2].text for _, turns in cases() for turn in turns]
    for i, (end, answer) in enumerate(zip(ends.tolist(), answers, strict=True)):
        mask[i, end - len(tiny.tokenizer()(answer)["input_ids"]) : end] = 1
    assert torch.allclose(model(**inputs, response_mask=mask).logits[:, 0], packed(model), atol=1e-5)


SCRIPT = """
import sys, torch
from transformers import AutoModelForSequenceClassification
folder, again, inputs, scores = sys.argv[1:]
load = AutoModelForSequenceClassification.from_pretrained
model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
assert not any(name.split(".")[0] == "models" for name in sys.modules), "the repository was imported"
with torch.no_grad():
    found = model(**torch.load(inputs)).logits
    model.save_pretrained(again)
    repeated = load(again, trust_remote_code=True, dtype=torch.float32).eval()(**torch.load(inputs)).logits
assert torch.allclose(repeated, found, atol=1e-6)
torch.save(found, scores)
try:
    load(folder + "-broken", trust_remote_code=True)
except ValueError as error:
    assert "missing: model.visual.patch_embed.proj.weight" in str(error), error
else:
    raise SystemExit("an incomplete checkpoint was loaded")
"""


def test_remote_code_scores_the_same_elsewhere(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = reward_model(tmp_path / "start")
    model.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved-broken")
    tensors = load_file(tmp_path / "saved-broken" / "model.safetensors")
    del tensors["model.visual.patch_embed.proj.weight"]
    save_file(tensors, tmp_path / "saved-broken" / "model.safetensors", metadata={"format": "pt"})
    named = json.loads((tmp_path / "saved" / "config.json").read_text())["auto_map"]
    assert named == {"AutoModelForSequenceClassification": "reward.ScalarRewardModel"}

    inputs = stock.padded_inputs(cases())
    torch.save(inputs, tmp_path / "inputs.pt")
    arguments = [str(tmp_path / name) for name in ("saved", "again", "inputs.pt", "scores.pt")]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=tmp_path, env=environment, check=True, timeout=120)
    with torch.no_grad():
        wanted = model(**inputs).logits
    assert torch.allclose(torch.load(tmp_path / "scores.pt"), wanted, atol=1e-6)
