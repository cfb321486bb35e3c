"""The scalar model as others use it: padded batches, and as remote code in a process without this repository."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import pipeline

from mmrm.data.preference import text
from mmrm.models.backbone import load_critic, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig, HeadConfig, Read
from mmrm.models.encoder import Span
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.reward import ACTIVATIONS, RewardHead, ScalarRewardModel
from tests.models import exactness, stock, tiny
from tests.models.elsewhere import run_elsewhere
from tests.models.exactness import assert_exact


def cases() -> list[stock.Case]:
    encoder = tiny.encoder()
    found = []
    for pictures, answers in (
        (1, ("A red square.", "Blue")),
        (0, ("Yes, it is a picture.",)),
        (2, ("Red", "A circle")),
    ):
        content: Any = [{"type": "image"}] * pictures + [{"type": "text", "text": "What is it?"}]
        turns = [
            encoder.render([{"role": "user", "content": content}, text("assistant", answer)])
            for answer in answers
        ]
        found.append(([tiny.picture(60 + 30 * i, 80, i) for i in range(pictures)], turns))
    return found


def reward_model(folder: Path, read: Read = "end_of_turn") -> ScalarRewardModel:
    model: ScalarRewardModel = load_scalar(
        BackboneConfig(path=str(tiny.checkpoint(folder)), dtype="float32"),
        ScoreHeadConfig(read=read),
    )
    tiny.stir(model.head, 0.5)
    model.eval()
    return model


def packed(model: ScalarRewardModel) -> Tensor:
    encoder = tiny.encoder()
    read = model.config.reward_head["read"]
    trees = [encoder.encode(images, turns, read) for images, turns in cases()]
    scores = model(**encoder.pack(trees).score_inputs())
    assert isinstance(scores, Tensor)
    return scores


def followed_by(text: str, which: slice = slice(None)) -> list[stock.Case]:
    """Return the cases with `text` after every conversation, of which only `which` spans stay."""
    return [(images, [(*turn[which], Span(text)) for turn in turns]) for images, turns in cases()]


def padded_with(token: int, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return inputs | {"input_ids": inputs["input_ids"].where(inputs["attention_mask"].bool(), token)}


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "following", ["", "\n", "\n\n and more", "<|endoftext|>", "\n<|im_start|>assistant\n"]
)
def test_a_padded_batch_gives_the_packed_scores_whatever_follows(
    tmp_path: Path, side: str, following: str
) -> None:
    model = reward_model(tmp_path)
    inputs = stock.padded_inputs(followed_by(following), side)
    logits = model(**inputs).logits
    assert logits.shape == (5, 1)
    assert logits.dtype == torch.float32
    assert_exact(logits[:, 0], packed(model))
    padded_by_ends = padded_with(model.config.assistant_turn["end"], inputs)
    assert_exact(model(**padded_by_ends).logits, logits)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("side", ["left", "right"])
def test_last_token_is_the_last_of_the_row(tmp_path: Path, side: str) -> None:
    model = reward_model(tmp_path, "last_token")
    logits = model(**stock.padded_inputs(followed_by("\n"), side)).logits
    assert_exact(logits[:, 0], packed(model))
    assert not torch.allclose(
        model(**stock.padded_inputs(cases(), side)).logits[:, 0], packed(model), atol=1e-3
    )


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_a_checkpoint_from_before_reads_where_it_read(tmp_path: Path) -> None:
    reward_model(tmp_path, "last_token").save_pretrained(tmp_path / "saved")
    tiny.encoder().save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "config.json"
    settings = json.loads(file.read_text())
    file.write_text(
        json.dumps(
            {
                k: v
                for k, v in settings.items()
                if k not in ("assistant_turn", "num_labels", "id2label")
            }
        )
    )
    again = load_scalar(
        BackboneConfig(path=str(tmp_path / "saved"), dtype="float32"), fresh_head=False
    ).eval()
    assert again.config.reward_head["read"] == "last_response_token"
    assert again.config.num_labels == 1
    logits = again(**stock.padded_inputs(cases(), "left")).logits[:, 0]
    assert_exact(logits, packed(again))
    again.config.reward_head["read"] = "end_of_turn"
    assert not torch.allclose(logits, packed(again), atol=1e-3)


@pytest.mark.parametrize("read", ["end_of_turn", "last_token"])
@pytest.mark.parametrize(
    "which",
    [slice(0, 0), slice(1, 2), slice(0, 1), slice(0, 2)],
    ids=["nothing", "bare text", "no answer", "cut off answer"],
)
def test_a_row_without_a_whole_answer_is_refused(tmp_path: Path, read: Read, which: slice) -> None:
    model = reward_model(tmp_path, read)
    inputs = stock.padded_inputs([*cases()[1:2], ([], [(*cases()[1][1][0][which], Span("-"))])])
    with pytest.raises(ValueError, match=r"rows \[1\] hold no whole answer"):
        model(**inputs)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_weights_without_a_tokenizer_go_by_their_config(tmp_path: Path) -> None:
    tiny.language_model().save_pretrained(tmp_path)
    model = load_scalar(BackboneConfig(path=str(tmp_path), dtype="float32")).eval()
    tiny.stir(model.head, 0.5)
    logits = model(**stock.padded_inputs(followed_by("\n"))).logits
    assert_exact(logits[:, 0], packed(model))


def refused_images() -> dict[str, dict[str, Any]]:
    """Return inputs whose images are not those that their conversations speak of."""
    good = stock.padded_inputs(cases()[::2])
    patches, grid, ids = good["pixel_values"], good["image_grid_thw"], good["input_ids"]
    image, video = (tiny.config().image_token_id, tiny.config().video_token_id)
    bare = {name: good[name] for name in ("input_ids", "attention_mask")}
    first = int(grid[0].prod())
    return {
        "no pixels": bare,
        "no grid": bare | {"pixel_values": patches},
        "no pixels for the grid": bare | {"image_grid_thw": grid},
        "one image fewer": good | {"pixel_values": patches[first:], "image_grid_thw": grid[1:]},
        "one image more": good
        | {
            "pixel_values": torch.cat([patches[:first], patches]),
            "image_grid_thw": torch.cat([grid[:1], grid]),
        },
        "too few patches": good | {"pixel_values": patches[4:]},
        "other order": good | {"image_grid_thw": grid.flip(0)},
        "images without placeholders": good | {"input_ids": ids.where(ids != image, 5)},
        "video tokens": good | {"input_ids": ids.where(ids != image, video)},
        "a video": good | {"pixel_values_videos": patches, "video_grid_thw": grid},
    }


@pytest.mark.parametrize("name", refused_images())
def test_images_other_than_the_placeholders_are_refused(tmp_path: Path, name: str) -> None:
    inputs = refused_images()[name]
    with pytest.raises(ValueError, match="video" if "video" in name else "image placeholders"):
        reward_model(tmp_path)(**inputs)
    critic = load_critic(BackboneConfig(path=str(tmp_path), dtype="float32"))
    for call in (
        critic.score,
        critic,
        critic.generate,
        load_language_model(BackboneConfig(path=str(tmp_path), dtype="float32")),
    ):
        with pytest.raises(ValueError, match="video" if "video" in name else "image placeholders"):
            call(**inputs)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_several_rows_need_a_mask_and_one_does_not(tmp_path: Path) -> None:
    model = reward_model(tmp_path)
    inputs = stock.padded_inputs([(images, turns[:1]) for images, turns in cases()[:1]])
    del inputs["attention_mask"]
    assert_exact(model(**inputs).logits[0], packed(model)[:1])
    with pytest.raises(ValueError, match="attention_mask"):
        model(input_ids=stock.padded_inputs(cases()[1:2] * 2)["input_ids"])


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
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
    assert_exact(model(**inputs, response_mask=mask).logits[:, 0], packed(model))
    mask[1] = 0
    with pytest.raises(ValueError, match="response_mask"):
        model(**inputs, response_mask=mask)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_text_callers_get_the_packed_scores(tmp_path: Path) -> None:
    """TRL's GRPOTrainer with `reward_funcs=model` does the first, transformers' pipeline the second."""
    model, tokenizer, encoder = (
        reward_model(tmp_path),
        copy.deepcopy(tiny.tokenizer()),
        tiny.encoder(),
    )
    answers = ("A red square.", "Blue", "Yes, it is a picture.")
    chats = [(text("user", "What is it?"), text("assistant", answer)) for answer in answers]
    wanted = model(
        **encoder.pack(
            [encoder.encode([], [encoder.render(chat) for chat in chats], "end_of_turn")]
        ).score_inputs()
    )
    texts = [tokenizer.apply_chat_template(list(chat), tokenize=False) for chat in chats]
    rows = tokenizer(
        text=texts,
        return_tensors="pt",
        padding=True,
        padding_side="right",
        add_special_tokens=False,
    )
    assert_exact(model(**rows).logits[:, 0], wanted)
    for side, pad in (("left", "<|endoftext|>"), ("right", "<|im_end|>")):
        tokenizer.padding_side, tokenizer.pad_token = side, pad
        found = pipeline("text-classification", model=model, tokenizer=tokenizer, batch_size=2)(
            texts
        )
        assert_exact([one["score"] for one in found], wanted.tolist())


SCRIPT = """
import sys, torch
from transformers import AutoModelForSequenceClassification
folder, again, inputs, scores, tests = sys.argv[1:]
sys.path.append(tests)
import exactness
exactness.compute_in_float64()
load = AutoModelForSequenceClassification.from_pretrained
model = load(folder, trust_remote_code=True, num_labels=1, dtype=torch.float32).eval()
assert not any(name.split(".")[0] == "mmrm" for name in sys.modules), "the repository was imported"
with torch.no_grad():
    found = model(**torch.load(inputs)).logits
    model.save_pretrained(again)
    repeated = load(again, trust_remote_code=True, dtype=torch.float32).eval()(**torch.load(inputs)).logits
exactness.assert_exact(repeated, found)
torch.save(found, scores)
try:
    load(folder + "-broken", trust_remote_code=True)
except ValueError as error:
    assert "missing: model.visual.patch_embed.proj.weight" in str(error), error
else:
    raise SystemExit("an incomplete checkpoint was loaded")
"""


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_remote_code_scores_the_same_elsewhere(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = reward_model(tmp_path / "start")
    model.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved-broken")
    tensors = load_file(tmp_path / "saved-broken" / "model.safetensors")
    del tensors["model.visual.patch_embed.proj.weight"]
    save_file(tensors, tmp_path / "saved-broken" / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    named = settings["auto_map"]
    assert named == {"AutoModelForSequenceClassification": "reward.ScalarRewardModel"}
    assert settings["num_labels"] == 1
    assert settings["problem_type"] == "regression"
    end = settings["assistant_turn"]["end"]
    assert tiny.tokenizer().convert_ids_to_tokens(end) == "<|im_end|>"

    inputs = stock.padded_inputs(cases())
    torch.save(inputs, tmp_path / "inputs.pt")
    arguments = [str(tmp_path / name) for name in ("saved", "again", "inputs.pt", "scores.pt")]
    arguments.append(str(Path(exactness.__file__).parent))
    run_elsewhere(SCRIPT, arguments, tmp_path)
    with torch.no_grad():
        wanted = model(**inputs).logits
    assert_exact(torch.load(tmp_path / "scores.pt"), wanted)


def test_a_recipe_names_every_activation_of_the_table() -> None:
    assert set(get_args(HeadConfig.model_fields["activation"].annotation)) == set(ACTIVATIONS)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("none", torch.clone),
        ("tanh", torch.tanh),
        ("relu", F.relu),
        ("silu", F.silu),
        ("gelu", F.gelu),
    ],
)
def test_the_head_is_linear_activation_linear(
    name: str, function: Callable[[Tensor], Tensor]
) -> None:
    shape = ScoreHeadConfig(layers=2, activation=name, width=6).model_dump(exclude={"read"})  # type: ignore[arg-type]
    head = RewardHead(
        SimpleNamespace(reward_head=shape, text_config=SimpleNamespace(hidden_size=4))
    ).eval()
    tiny.stir(head, 0.5)
    hidden = torch.randn(3, 4)
    first, last = (layer for layer in head if isinstance(layer, nn.Linear))
    inner = function(F.linear(hidden, first.weight, first.bias))
    assert torch.equal(head(hidden), F.linear(inner, last.weight))


def test_dropout_comes_before_every_linear_layer_and_names_stay() -> None:
    """MM-RLHF's head: dropout, linear, tanh, dropout, linear."""
    shape = ScoreHeadConfig(layers=2, activation="tanh", width=6, dropout=0.5).model_dump(
        exclude={"read"}
    )
    head = RewardHead(
        SimpleNamespace(reward_head=shape, text_config=SimpleNamespace(hidden_size=4))
    )
    assert list(head.state_dict()) == ["0.weight", "0.bias", "3.weight"]
    tiny.stir(head, 0.5)
    first, bias, last = head.parameters()
    hidden = torch.randn(8, 4)
    torch.manual_seed(1)
    found = head(hidden)
    torch.manual_seed(1)
    inner = torch.tanh(F.linear(F.dropout(hidden, 0.5), first, bias))
    assert torch.equal(found, F.linear(F.dropout(inner, 0.5), last))
    assert torch.equal(
        head.eval()(hidden), F.linear(torch.tanh(F.linear(hidden, first, bias)), last)
    )
