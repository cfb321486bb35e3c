"""The model card: what it says is what the run knows, and the code on it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from transformers import TrainerControl, TrainerState, TrainingArguments

from data.preference import text
from models.encoder import Encoder
from tests.models import tiny
from tests.train import worker
from tests.train.minimal import write
from tests.train.worker import ended
from train.model_card import CARD, About, WriteCard, metadata, model_card, use
from train.parsing import read_recipe
from train.summary import read_results

DATA = {"shapes": {"revision": "abc", "fingerprint": "f00d", "rows": 1234}}


def about(folder: Path, *changes: str) -> About:
    return About(read_recipe(write(folder), changes), DATA, steps=20)


def front_matter(card: str) -> Any:
    return YAML(typ="safe").load(card.split("---")[1])


def test_a_card_says_step_base_method_data_and_recipe(tmp_path: Path) -> None:
    known = about(tmp_path, "method.zero_coefficient=0.1")
    card = model_card(known, 5, {})
    assert "# test, step 5 of 20" in card
    assert "naive: Bradley-Terry + 0.1 x (chosen + rejected)^2" in card
    assert "| shapes | 1,234 | f00d |" in card
    assert "No benchmark was evaluated at this step." in card
    recipe = re.findall(r"```yaml\n(.*?)```", card, re.DOTALL)[0]
    assert read_recipe(write(tmp_path, recipe, "again.yaml")) == known.recipe


def test_figures_stand_with_their_interval_and_counts(runs: Path, tmp_path: Path) -> None:
    results = read_results(ended(runs / "2-zero2"))
    micro = results["vl_rewardbench"].micro
    assert micro.accuracy is not None
    assert micro.low is not None
    assert micro.high is not None
    figures = f"{100 * micro.accuracy:.1f} [{100 * micro.low:.1f}, {100 * micro.high:.1f}]"
    card = (ended(runs / "2-zero2") / CARD).read_text(encoding="utf-8")
    assert micro.half is not None
    assert f"| **vl_rewardbench** | {figures} | 7 | {micro.ties} | {100 * micro.half:.1f} | 0 |" in card
    assert all(f"| {group} |" in card for group in results["vl_rewardbench"].groups)
    assert "step 6 of 6" in card
    assert "vl_rewardbench (embedded)" in card


def test_the_code_on_a_card_scores_as_training_did(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = ended(runs / "2-zero3")
    code = re.findall(r"```python\n(.*?)```", (checkpoint / CARD).read_text(encoding="utf-8"), re.DOTALL)[0]
    monkeypatch.chdir(checkpoint)
    names: dict[str, Any] = {}
    exec(code, names)
    picture = tiny.picture(50, 60)
    found = [names["score"](picture, "What is it?", answer) for answer in ("A square.", "Nothing at all.")]
    encoder = Encoder(names["tokenizer"], names["image_processor"], tiny.encoder().config, tiny.encoder().vision.window)
    prompt: Any = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
    conversations = [encoder.render((prompt, text("assistant", answer))) for answer in ("A square.", "Nothing at all.")]
    group = encoder.encode([picture], conversations, "end_of_turn")
    from models.backbone import load_scalar
    from models.config import BackboneConfig

    model = load_scalar(BackboneConfig(path=str(checkpoint), dtype="float32"), fresh_head=False).eval()
    with torch.no_grad():
        assert found == pytest.approx(model(**encoder.pack([group]).score_inputs()).tolist(), abs=1e-5)


def test_the_hub_is_told_of_a_base_that_it_knows(tmp_path: Path) -> None:
    known = about(tmp_path, "backbone.path=Qwen/Qwen2.5-VL-3B-Instruct").recipe
    assert front_matter(model_card(About(known, DATA, 1), 1, {})) == {
        "library_name": "transformers",
        "base_model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "tags": ["reward-model", "vision-language"],
    }
    assert "base_model" not in metadata(about(tmp_path).recipe)
    worker.prepare(tmp_path)
    assert "base_model" not in metadata(about(tmp_path, f"backbone.path={tmp_path}/base").recipe)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], ["AutoModelForSequenceClassification"]),
        (["head.read=mean"], ["AutoModelForSequenceClassification", "response_mask"]),
        (["backbone.system_prompt=Be strict."], ["AutoModelForSequenceClassification", "'Be strict.'"]),
        (["method={type: critic}"], ["AutoModelForImageTextToText"]),
        (["method={type: language_model, target: lessons}"], ["Qwen2_5_VLForConditionalGeneration"]),
        (["optim.lora={rank: 4}"], ["train/merge.py"]),
    ],
)
def test_every_kind_of_checkpoint_says_how_it_is_loaded(tmp_path: Path, changes: list[str], said: list[str]) -> None:
    found = use(about(tmp_path, *changes).recipe)
    assert [part in line for part, line in zip(said, found, strict=True)] == [True] * len(said)


def test_the_first_rank_writes_the_card(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    for first in (False, True):
        state = TrainerState(global_step=3, is_world_process_zero=first)
        WriteCard(about(tmp_path)).on_save(arguments, state, TrainerControl())
        assert (tmp_path / "checkpoint-3" / CARD).exists() == first
