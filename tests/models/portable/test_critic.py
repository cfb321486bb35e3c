"""The critic's model: both losses of a packed row are the padded stock model's, and checkpoints work here and elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import Message, Response
from mmrm.data.prompts import with_critique
from mmrm.models.backbone import load_critic
from mmrm.models.config import BackboneConfig, CritiqueConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.models.portable.reward import IncompleteCheckpointError
from tests.models import exactness, stock, tiny
from tests.models.elsewhere import run_elsewhere
from tests.models.exactness import assert_exact

PAIRS = (
    ("A red square.", "A red circle."),
    ("it is right.", "it is wrong, as there is no circle."),
)
HEAD = ScoreHeadConfig(activation="tanh")


def case(pictures: int, responses: tuple[str, ...], critiques: tuple[str, ...]) -> stock.Case:
    content: Any = [{"type": "image"}] * pictures + [{"type": "text", "text": "What is it?"}]
    prompt: tuple[Message, ...] = ({"role": "user", "content": content},)
    turns = [
        tiny.encoder().render(
            with_critique(prompt, Response.of_text(response), "judge the response.", critique),
            loss=True,
        )
        for response, critique in zip(responses, critiques, strict=True)
    ]
    return [tiny.picture(60 + 30 * i, 80, i) for i in range(pictures)], turns


CASES = [
    case(1, *PAIRS),
    case(0, *PAIRS),
    case(2, PAIRS[0], ("", "wrong")),
    case(1, PAIRS[0][:1], PAIRS[1][:1]),
]


def critic(folder: Path, **changes: Any) -> CriticRewardModel:
    """Return a critic with a head whose weights matter, on a fresh backbone folder."""
    backbone = BackboneConfig(path=str(tiny.checkpoint(folder, **changes)), dtype="float32")
    found: CriticRewardModel = load_critic(
        backbone, HEAD, critique=CritiqueConfig(request="judge the response.", max_new_tokens=9)
    )
    tiny.stir(found.head, 0.5)
    return found.eval()  # type: ignore[no-any-return]


def row(cases: list[stock.Case]) -> PackedBatch:
    encoder = tiny.encoder()
    return encoder.pack([encoder.encode(images, turns, "end_of_turn") for images, turns in cases])


def joint(scores: Tensor, log_probabilities: Tensor) -> Tensor:
    """Return a loss in which every score and every label counts differently."""
    weights = (
        torch.linspace(-1.0, 2.0, len(scores)),
        torch.linspace(0.5, 1.5, len(log_probabilities)),
    )
    return (scores * weights[0]).sum() - (log_probabilities * weights[1]).mean()


def reference(model: CriticRewardModel, folder: Path) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return scores, log-probabilities and gradients of the stock model with the paper's head, on a padded batch."""
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, attn_implementation="sdpa"
    ).eval()
    inputs = stock.padded_inputs(CASES)
    hidden = stock.hidden_states(plain.model, inputs)
    ends = inputs["attention_mask"].sum(1) - 1
    first, bias, second = (
        parameter.detach().clone().requires_grad_() for parameter in model.head.parameters()
    )
    scores = F.linear(
        torch.tanh(F.linear(hidden[torch.arange(len(ends)), ends], first, bias)), second
    )[:, 0]
    found = []
    for i, turn in enumerate(turn for _, turns in CASES for turn in turns):
        critique = tiny.tokenizer()(turn[-2].text + turn[-1].text)["input_ids"]
        logits = plain.lm_head(hidden[i, int(ends[i]) - len(critique) : int(ends[i])])
        found.append(logits.log_softmax(1).gather(1, torch.tensor(critique)[:, None])[:, 0])
    log_probabilities = torch.cat(found)
    torch.autograd.backward(joint(scores, log_probabilities))
    gradients = stock.gradients(plain)
    heads = {"head.0.weight": first, "head.0.bias": bias, "head.3.weight": second}
    for name, parameter in heads.items():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
    return scores.detach(), log_probabilities.detach(), gradients


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_both_losses_and_all_gradients_are_the_padded_stock_models(tmp_path: Path) -> None:
    model = critic(tmp_path)
    scores, log_probabilities, gradients = reference(model, tmp_path)
    found = model(**row(CASES).joint_inputs())
    torch.autograd.backward(joint(*found))
    assert found[0].dtype == found[1].dtype == torch.float32
    assert_exact(found[0], scores)
    assert_exact(found[1], log_probabilities)
    assert all(parameter.grad is not None for parameter in model.parameters())
    found_gradients = stock.gradients(model)
    assert_exact(found_gradients, gradients)
    assert float(found_gradients["lm_head.weight"].abs().max()) > 1e-3
    assert float(found_gradients["head.0.weight"].abs().max()) > 1e-3


def test_a_row_of_filler_reaches_every_parameter_of_both_heads(tmp_path: Path) -> None:
    model = critic(tmp_path)
    scores, log_probabilities = model(**tiny.encoder().pack([]).joint_inputs())
    assert scores.shape == log_probabilities.shape == (0,)
    torch.autograd.backward(scores.sum() + log_probabilities.sum())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_critic_is_found_by_its_config_and_scores_the_same(
    tmp_path: Path, tied: bool
) -> None:
    model = critic(tmp_path / "start", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "saved")
    again = load_critic(
        BackboneConfig(path=str(tmp_path / "saved"), dtype="float32"), fresh_head=False
    ).eval()
    assert again.config.reward_head == HEAD.model_dump()
    assert again.config.critique == {"request": "judge the response.", "max_new_tokens": 9}
    with torch.no_grad():
        wanted, found = (one(**row(CASES).joint_inputs()) for one in (model, again))
    assert_exact(found[0], wanted[0])
    assert_exact(found[1], wanted[1])


def test_a_critic_loads_whole_or_not_at_all(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "saved"
    critic(tmp_path / "start").save_pretrained(folder)
    whole = load_file(folder / "model.safetensors")
    config = BackboneConfig(path=str(folder), dtype="float32")
    for name in ("lm_head.weight", "head.0.weight", "model.visual.merger.mlp.0.weight"):
        save_file(
            {key: value for key, value in whole.items() if key != name},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        with pytest.raises(IncompleteCheckpointError, match=f"missing: {name}"):
            load_critic(config, fresh_head=False)
    with pytest.raises(CheckpointError, match="not a reward model"):
        load_critic(BackboneConfig(path=str(tmp_path / "start"), dtype="float32"), fresh_head=False)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_it_still_generates_from_padded_prompts(tmp_path: Path) -> None:
    model = critic(tmp_path)
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path, attn_implementation="sdpa"
    ).eval()
    inputs = stock.padded_inputs(CASES, side="left")
    kinds = (inputs["input_ids"] == plain.config.image_token_id).int()
    options: dict[str, Any] = {
        "max_new_tokens": 4,
        "min_new_tokens": 4,
        "do_sample": False,
        "mm_token_type_ids": kinds,
    }
    assert torch.equal(model.generate(**inputs, **options), plain.generate(**inputs, **options))


SCRIPT = """
import sys, torch
from transformers import AutoModelForImageTextToText
folder, again, inputs, scores, tests = sys.argv[1:]
sys.path.append(tests)
import exactness
exactness.compute_in_float64()
load = AutoModelForImageTextToText.from_pretrained
model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
assert not any(name.split(".")[0] == "mmrm" for name in sys.modules), "the repository was imported"
inputs = torch.load(inputs)
kinds = (inputs["input_ids"] == model.config.image_token_id).int()
with torch.no_grad():
    found = model.score(**inputs)
    model.save_pretrained(again)
    repeated = load(again, trust_remote_code=True, dtype=torch.float32).eval().score(**inputs)
    texts = model.generate(**inputs, mm_token_type_ids=kinds, max_new_tokens=3, do_sample=False)
exactness.assert_exact(repeated, found)
torch.save((found, texts), scores)
try:
    load(folder + "-broken", trust_remote_code=True)
except ValueError as error:
    assert "missing: head.0.weight" in str(error), error
else:
    raise SystemExit("an incomplete checkpoint was loaded")
"""


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_remote_code_scores_given_critiques_and_writes_elsewhere(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = critic(tmp_path / "start")
    model.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved-broken")
    tensors = load_file(tmp_path / "saved-broken" / "model.safetensors")
    del tensors["head.0.weight"]
    save_file(tensors, tmp_path / "saved-broken" / "model.safetensors", metadata={"format": "pt"})
    named = json.loads((tmp_path / "saved" / "config.json").read_text())["auto_map"]
    assert named == {"AutoModelForImageTextToText": "critic.CriticRewardModel"}

    inputs = stock.padded_inputs(CASES, side="left")
    torch.save(inputs, tmp_path / "inputs.pt")
    arguments = [str(tmp_path / name) for name in ("saved", "again", "inputs.pt", "scores.pt")]
    arguments.append(str(Path(exactness.__file__).parent))
    run_elsewhere(SCRIPT, arguments, tmp_path)
    found, texts = torch.load(tmp_path / "scores.pt")
    kinds = (inputs["input_ids"] == model.config.image_token_id).int()
    with torch.no_grad():
        packed = model(**row(CASES).joint_inputs())[0]
        written = model.generate(
            **inputs, mm_token_type_ids=kinds, max_new_tokens=3, do_sample=False
        )
    assert_exact(found, packed)
    assert torch.equal(texts, written)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_adapters_keep_both_heads(tmp_path: Path) -> None:
    """The reward head is saved with the adapters, in full; the LM head is the base's, unchanged and not saved twice."""
    from safetensors.torch import load_file

    from mmrm.models.lora import with_adapters
    from mmrm.train.recipe.sections import LoraConfig
    from mmrm.train.runs.model import add_adapters

    model = critic(tmp_path / "start")
    backbone = BackboneConfig(path=str(tmp_path / "start"), dtype="float32")
    adapted = add_adapters(
        model, LoraConfig(rank=4, alpha=8), has_head=True, has_master_weights=False
    )
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or ".modules_to_save." in name for name in trained), trained
    for name, parameter in adapted.named_parameters():
        if name in trained:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.eval().save_pretrained(tmp_path / "adapters")  # type: ignore[operator]
    saved = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    assert {name.split("base_model.model.")[1] for name in saved if "lora_" not in name} == {
        "head.0.weight",
        "head.0.bias",
        "head.3.weight",
    }
    again = with_adapters(load_critic(backbone, HEAD), tmp_path / "adapters").eval()
    with torch.no_grad():
        wanted, found = (one(**row(CASES).joint_inputs()) for one in (adapted, again))
    assert_exact(found[0], wanted[0])
    assert_exact(found[1], wanted[1])
    assert not torch.allclose(
        found[0], critic(tmp_path / "other")(**row(CASES).joint_inputs())[0], atol=1e-2
    )
