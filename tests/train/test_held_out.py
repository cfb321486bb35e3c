"""The held-out loss is the mean over judgement tokens, however they are packed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data.mixture import Mixture, MixtureConfig
from data.sources.shapes import ShapesConfig
from eval.scoring import Packed
from models.backbone import load_language_model
from models.config import BackboneConfig
from tests.models import tiny
from tests.train import worker
from tests.train.ranks import run_ranks
from train.held_out import held_out_loss
from train.judgements import JudgementEncoder


def test_it_is_the_mean_over_tokens_of_records_with_a_rationale(tmp_path: Path) -> None:
    model = load_language_model(BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")).eval()
    mixture = Mixture(MixtureConfig(sources=[ShapesConfig(type="shapes", level="demo", rows=5, text_only=0.4)]))
    records = [mixture[index] for index in range(5)]
    records.append(replace(records[0], rationale=None))
    encode, encoder = JudgementEncoder(tiny.encoder(), "short"), tiny.encoder()
    total, tokens = 0.0, 0
    for index in range(5):
        batch = encoder.pack([encode.encode(records[index], 1 if index % 2 == 0 else 2).group])
        with torch.no_grad():
            log_p = model(**batch.label_inputs())
        total, tokens = total - float(log_p.sum()), tokens + len(log_p)
    for budget in (1, 4096):
        packed = Packed(encoder, torch.device("cpu"), budget)
        assert held_out_loss(model, encode, records, packed) == pytest.approx(total / tokens, rel=1e-4)


def test_the_cold_start_with_the_lowest_held_out_loss_is_the_best(tmp_path: Path) -> None:
    recipe = worker.prepare(tmp_path)
    changes = [
        f"backbone.path={tmp_path}/backbone",
        "method={type: language_model, target: judgement, template: short}",
        "data.validation=4",
        "evaluation.best_metric=held_out/loss",
        "evaluation.judging={max_new_tokens: 2}",
        "optim.learning_rate=0.1",  # too high, so that the loss rises, too
        "output.save_every_steps=1",
        "output.keep_checkpoints=9",
    ]
    run_ranks(tmp_path / "log", worker.recipe_run, [str(recipe), *changes], "sft", ranks=1)
    state = json.loads((worker.ended(tmp_path / "run") / "trainer_state.json").read_text(encoding="utf-8"))
    found = {line["step"]: line["eval_held_out/loss"] for line in state["log_history"] if "eval_held_out/loss" in line}
    lowest = min((step for step in found if step), key=lambda step: found[step])
    highest = max((step for step in found if step), key=lambda step: found[step])
    assert found[lowest] < found[highest]
    assert (tmp_path / "run" / "best").resolve().name == f"checkpoint-{lowest}"
