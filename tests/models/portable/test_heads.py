"""Reward heads of every type: packed rows, padded batches, `model.score`, saving, and other processes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict
from torch import Tensor
from transformers import pipeline

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import text
from mmrm.models.backbone import load_scalar, not_quantised
from mmrm.models.config import BackboneConfig
from mmrm.models.families.registry import FAMILIES
from mmrm.models.portable.head_columns import columns_of
from mmrm.models.portable.reward import ScalarReward
from mmrm.train.recipe.sections import LoraConfig
from mmrm.train.runs.model import add_adapters
from tests.models import exactness, stock, tiny
from tests.models.elsewhere import run_elsewhere
from tests.models.exactness import assert_exact
from tests.models.families.parameters import every_family
from tests.models.heads.examples import HEADS, reward_model

RESPONSES = ["Red", "A blue circle", "Yes, it is a picture."]


def conversations(family: str) -> stock.Case:
    """Return a picture, and a conversation about it for each response."""
    prompt = text("user", "What is it?", 1)
    encoder = tiny.encoder(family)
    turns = [encoder.render([prompt, text("assistant", response)]) for response in RESPONSES]
    return [tiny.picture(80, 56)], turns


def packed(model: ScalarReward) -> Tensor:
    """Return the model's result for a packed row of all responses."""
    encoder = tiny.encoder(model.config.model_type)
    tree = encoder.encode(*conversations(model.config.model_type), "end_of_turn")
    result: Tensor = model(**encoder.pack([tree]).score_inputs())
    return result


@pytest.mark.parametrize("name", HEADS)
def test_a_new_head_starts_at_zero(tmp_path: Path, name: str) -> None:
    tiny.checkpoint(tmp_path)
    model = load_scalar(BackboneConfig(path=str(tmp_path), dtype="float32"), HEADS[name]).eval()
    assert packed(model).abs().max() == 0


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("family", every_family())
def test_packed_and_padded_columns_and_their_gradients_are_equal(
    tmp_path: Path, family: str, name: str
) -> None:
    model = reward_model(tmp_path, name, family)
    num_columns = len(HEADS[name].columns)
    columns = packed(model)
    shape = (len(RESPONSES),) if num_columns == 1 else (len(RESPONSES), num_columns)
    assert columns.shape == shape
    columns.square().sum().backward()  # type: ignore[no-untyped-call]
    packed_gradients = {key: one.grad for key, one in model.head.named_parameters()}
    model.zero_grad()

    logits = model(**stock.padded_inputs([conversations(family)], family=family)).logits
    assert logits.shape == (len(RESPONSES), num_columns)
    assert_exact(logits, columns.reshape(-1, num_columns))
    logits.square().sum().backward()
    for key, parameter in model.head.named_parameters():
        assert parameter.grad is not None
        gradient = packed_gradients[key]
        assert gradient is not None
        assert_exact(gradient, parameter.grad)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", HEADS)
def test_score_and_score_columns_are_the_packed_ones(tmp_path: Path, name: str) -> None:
    model = reward_model(tmp_path, name)
    processor = SimpleNamespace(tokenizer=tiny.tokenizer(), image_processor=tiny.image_processor())
    arguments: Any = (processor, "What is it?", RESPONSES, [tiny.picture(80, 56)], 2)
    columns = packed(model).reshape(len(RESPONSES), -1)
    found = model.score_columns(*arguments)
    assert tuple(found) == HEADS[name].columns
    for index, values in enumerate(found.values()):
        assert_exact(values, columns[:, index].tolist())
    ranking_scores = columns_of(HEADS[name].model_dump()).ranking_scores(columns)
    assert_exact(model.score(*arguments), ranking_scores.tolist())


@pytest.mark.parametrize("name", HEADS)
def test_a_saved_head_is_loaded_with_its_columns(tmp_path: Path, name: str) -> None:
    model = reward_model(tmp_path / "start", name)
    model.save_pretrained(tmp_path / "saved")
    tiny.encoder().save_pretrained(tmp_path / "saved")
    saved = BackboneConfig(path=str(tmp_path / "saved"), dtype="float32")
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert settings["reward_head"] == HEADS[name].model_dump()
    assert settings["num_labels"] == len(HEADS[name].columns)
    for head in (None, HEADS[name]):
        again = load_scalar(saved, head, fresh_head=False)
        assert again.config.num_labels == len(HEADS[name].columns)
        for key, tensor in again.head.state_dict().items():
            assert torch.equal(tensor, model.head.state_dict()[key])
    if len(HEADS[name].columns) > 1:
        assert again.config.id2label == dict(enumerate(HEADS[name].columns))
    others = [head for other, head in HEADS.items() if other != name]
    for head in others:
        with pytest.raises(CheckpointError, match="is a reward model with the head"):
            load_scalar(saved, head)


def test_a_head_of_one_score_is_saved_as_in_versions_without_types(tmp_path: Path) -> None:
    model = reward_model(tmp_path / "start", "score")
    model.save_pretrained(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert settings["reward_head"] == {
        "layers": 2,
        "activation": "silu",
        "width": 24,
        "dropout": 0.0,
        "read": "end_of_turn",
    }
    # Transformers writes the default labels to no file.
    assert "id2label" not in settings or settings["id2label"] == {"0": "LABEL_0"}
    assert list(model.head.state_dict()) == ["0.weight", "0.bias", "3.weight"]


def test_a_checkpoint_with_an_unknown_head_is_refused(tmp_path: Path) -> None:
    reward_model(tmp_path / "start", "gaussian").save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "config.json"
    settings = json.loads(file.read_text())
    settings["reward_head"]["type"] = "hexagon"
    file.write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="a reward head of type 'hexagon'"):
        load_scalar(BackboneConfig(path=str(tmp_path / "saved")), fresh_head=False)


@pytest.mark.parametrize("name", HEADS)
def test_adapters_save_the_whole_head_and_it_is_never_quantised(tmp_path: Path, name: str) -> None:
    model = reward_model(tmp_path, name)
    wanted = {key: tensor.clone() for key, tensor in model.head.state_dict().items()}
    adapted: Any = add_adapters(model, LoraConfig(rank=2), has_head=True, has_master_weights=False)
    saved = get_peft_model_state_dict(adapted)
    heads = {key.split(".head.")[1]: one for key, one in saved.items() if ".head." in key}
    assert heads.keys() == wanted.keys()
    assert all(torch.equal(heads[key], wanted[key]) for key in wanted)
    merged = adapted.merge_and_unload()
    found = merged.head.state_dict()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert "head" in not_quantised(FAMILIES[tiny.FAMILY])


SCRIPT = """
import json, sys, torch
from transformers import AutoModelForSequenceClassification, AutoProcessor
folder, image, result, tests = sys.argv[1:]
sys.path.append(tests)
import exactness
exactness.compute_in_float64()
load = AutoModelForSequenceClassification.from_pretrained
model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
assert not any(name.split(".")[0] == "mmrm" for name in sys.modules), "the repository was imported"
content = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
messages = [{"role": "user", "content": content}]
responses = ["Red", "A blue circle", "Yes, it is a picture."]
model.save_pretrained(folder + "-again")
again = load(folder + "-again", trust_remote_code=True, dtype=torch.float32).eval()
results = []
for one in (model, again):
    results.append(one.score(processor, messages, responses))
    results.append(one.score_columns(processor, messages, responses))
json.dump(results, open(result, "w"))
"""


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", HEADS)
def test_remote_code_computes_the_same_elsewhere(tmp_path: Path, name: str) -> None:
    model = reward_model(tmp_path / "start", name)
    model.save_pretrained(tmp_path / "saved")
    tiny.encoder().save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "head_columns.py").is_file()
    tiny.picture(80, 56).save(tmp_path / "picture.png")
    arguments = [str(tmp_path / file) for file in ("saved", "picture.png", "result.json")]
    arguments.append(str(Path(exactness.__file__).parent))
    run_elsewhere(SCRIPT, arguments, tmp_path)
    scores, columns, scores_again, columns_again = json.loads(
        (tmp_path / "result.json").read_text()
    )
    wanted = packed(model).detach().reshape(len(RESPONSES), -1)
    assert_exact(scores, columns_of(model.config.reward_head).ranking_scores(wanted).tolist())
    assert tuple(columns) == HEADS[name].columns
    for index, values in enumerate(columns.values()):
        assert_exact(values, wanted[:, index].tolist())
    assert (scores_again, columns_again) == (scores, columns)


@pytest.mark.parametrize("name", [name for name in HEADS if len(HEADS[name].columns) > 1])
def test_the_pipeline_of_transformers_names_the_columns(tmp_path: Path, name: str) -> None:
    model = reward_model(tmp_path, name)
    classify: Any = pipeline("text-classification", model=model, tokenizer=tiny.tokenizer())
    chat = [text("user", "What is it?"), text("assistant", "Red")]
    rendered = tiny.tokenizer().apply_chat_template(chat, tokenize=False)
    answer = {one["label"]: one["score"] for one in classify(rendered, top_k=None)}
    rows = tiny.tokenizer()(rendered, return_tensors="pt", add_special_tokens=False)
    (logits,) = model(**rows).logits.tolist()
    assert answer.keys() == set(HEADS[name].columns)
    # No sigmoid and no softmax: they are raw numbers.
    assert [answer[column] for column in HEADS[name].columns] == pytest.approx(logits, abs=1e-5)
