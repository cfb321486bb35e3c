"""The held-out loss is the mean over judgement tokens, however they are packed."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from mmrm.data.preference import Preference, text_pair
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.reporting.examples import shown_rows
from mmrm.eval.reporting.page import page
from mmrm.eval.reporting.run_content import read_run
from mmrm.eval.results.result import Result
from mmrm.models.backbone import load_language_model, load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.train.methods.language_model.method import JudgementEncoder, LanguageModelling
from mmrm.train.methods.method import SupervisedMethod
from mmrm.train.supervised.steps import ResponseEncoder
from tests.data.mixtures import mixture, project, row
from tests.data.sources.fixtures import RED, write_images
from tests.models import tiny
from tests.train import worker
from tests.train.ranks import run_ranks


def test_it_is_the_mean_over_tokens_of_records_with_a_rationale(tmp_path: Path) -> None:
    model = load_language_model(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")
    ).eval()
    world = Mixture(
        MixtureConfig(sources=[ShapesConfig(type="shapes", level="demo", rows=5, text_only=0.4)])
    )
    records = [world[index] for index in range(5)]
    records.append(replace(records[0], rationale=None))
    encode, encoder = JudgementEncoder(tiny.encoder(), "short"), tiny.encoder()
    total, tokens = 0.0, 0
    for index in range(5):
        batch = encoder.pack([encode(records[index], index % 2).tree])
        with torch.no_grad():
            log_p = model(**batch.label_inputs())
        total, tokens = total - float(log_p.sum()), tokens + len(log_p)
    for budget in (1, 4096):
        packed = Packed(encoder, torch.device("cpu"), budget)
        asked = {
            "packed": lambda packed=packed: packed,
            "objective": LanguageModelling(),
            "encode": encode,
        }
        method: Any = SimpleNamespace(
            **asked, needs_rationale=True, attribute_names=(), console=None
        )
        found = SupervisedMethod.held_out_loss(method, model, records)
        assert found == pytest.approx(total / tokens, rel=1e-4)


@pytest.mark.slow
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
    state = json.loads(
        (worker.ended(tmp_path / "run") / "trainer_state.json").read_text(encoding="utf-8")
    )
    found = {
        line["step"]: line["eval_held_out/loss"]
        for line in state["log_history"]
        if "eval_held_out/loss" in line
    }
    lowest = min((step for step in found if step), key=lambda step: found[step])
    highest = max((step for step in found if step), key=lambda step: found[step])
    assert found[lowest] < found[highest]
    assert (tmp_path / "run" / "best").resolve().name == f"checkpoint-{lowest}"


METHODS = {
    "naive": "method={type: naive, margin: true, zero_coefficient: 0.1, length_normalisation: true}",
    "critic": "method={type: critic, records_without_critique: score_only, critique_max_tokens: 3, score_warmup_steps: 9}",
}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "ranks"), [("naive", 1), ("naive", 2), ("critic", 2)])
def test_every_evaluation_scores_the_records_that_are_withheld(
    tmp_path: Path, method: str, ranks: int
) -> None:
    """Of nine records four are held out, one of them with an image whose pixels are cut off."""
    recipe, folder, base = (
        worker.prepare(tmp_path),
        tmp_path / "run",
        "backbone" if method == "critic" else "base",
    )
    write_images(tmp_path, whole=RED, cut=cut_off())
    rows = [row(f"question {n}", margin=n / 8, images=["whole.png"] * (n % 2)) for n in range(8)]
    source = project(tmp_path, "own", [*rows, row("question 8", images=["cut.png"])])
    data = {
        "sources": [source],
        "cache": str(tmp_path / "cache"),
        "workers": 1,
        "validation": 4,
        "seed": seed_of(tmp_path, source),
    }
    changes = [
        f"data={json.dumps(data)}",
        METHODS[method],
        f"backbone.path={tmp_path}/{base}",
        "optim.max_steps=2",
    ]
    changes += [
        "evaluation.benchmarks=[]",
        "evaluation.best_metric=held_out/accuracy",
        "output.save_every_steps=1",
    ]
    said = run_ranks(tmp_path / "log", worker.recipe_run, [str(recipe), *changes], ranks=ranks)
    assert "1 of 4 held-out records cannot be used. The first: own:8: " in said
    state = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8"))
    logged = {line["step"]: line for line in state["log_history"] if "eval_held_out/loss" in line}
    assert list(logged) == [0, 1, 2]
    result = Result.model_validate_json(
        (folder / "checkpoint-2" / "eval" / "held_out.json").read_text(encoding="utf-8")
    )
    assert (result.micro.n, list(result.groups)) == (3, ["own"])
    assert result.micro.low is not None
    assert result.micro.half is not None
    assert logged[2]["eval_held_out/accuracy"] == result.micro.accuracy
    assert f"held_out/loss {logged[2]['eval_held_out/loss']:.4f}" in said
    assert (folder / "best").resolve().name == f"checkpoint-{state['best_global_step']}"
    records = [
        json.loads(line)
        for line in (folder / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert all(
        record["margin"] * 8 == int(record["prompt"][0]["content"][-1]["text"][-1])
        for record in records
    )
    assert (
        len(PREFERENCE_FOLDER.load(Location(location=str(folder / "validation.jsonl"))).examples)
        == 3
    )  # as ensembles do
    report_shows_the_records(folder)
    if method == "naive":
        assert logged[0]["eval_held_out/loss"] == pytest.approx(
            loss_by_hand(tmp_path / "base", records), rel=1e-4
        )


def report_shows_the_records(folder: Path) -> None:
    """Assert that the report of a run on own pairs holds the records with both responses, scores and the loss."""
    content = read_run(folder)
    shown = shown_rows(content.shown.outcomes["held_out"], content.benchmarks, content.held_out)
    assert shown.notes == ["All 3 rows."]
    for record in shown.rows:
        assert record["turns"][-1]["text"].startswith("question ")
        assert len(record["responses"]) == 2
        assert len(record["scores"]) == 2
        has_image = int(record["turns"][-1]["text"][-1]) % 2
        assert len(record["images"]) == has_image
    html = page(content)
    assert "Loss on held-out records" in html
    assert "validation error" not in html

    (folder / "validation.jsonl").rename(folder / "moved.jsonl")
    content = read_run(folder)
    shown = shown_rows(content.shown.outcomes["held_out"], content.benchmarks, content.held_out)
    assert "there is no validation.jsonl in the run's folder" in shown.notes[-1]
    (folder / "moved.jsonl").rename(folder / "validation.jsonl")


def seed_of(folder: Path, source: dict[str, Any]) -> int:
    """Return a seed under which the last record is held out."""
    drawn = (
        mixture(folder, [source], validation=4, seed=seed).splits[0].held_out for seed in range(99)
    )
    return next(seed for seed, rows in enumerate(drawn) if 8 in rows)


def cut_off() -> bytes:
    """Return an image with a sound header whose pixels are not all there."""
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(buffer, "PNG")
    return buffer.getvalue()[:2000]


def loss_by_hand(checkpoint: Path, records: list[dict[str, Any]]) -> float:
    """Return the mean over pairs of what METHODS says of the Naive-RM, one pair at a time."""
    model = load_scalar(
        BackboneConfig(path=str(checkpoint), dtype="float32", min_pixels=784, max_pixels=3136)
    ).eval()
    encoder, losses = tiny.encoder(min_pixels=784, max_pixels=3136), []
    for record in records:
        found = Preference(
            "x",
            tuple(record["prompt"]),
            text_pair(record["chosen"], record["rejected"]),
            (RED,) * len(record.get("images", [])),
        )
        encoded = ResponseEncoder(encoder, "end_of_turn")(found)
        with torch.no_grad():
            scores = model(**encoder.pack([encoded.tree]).score_inputs()).double()
        one, two = (scores / torch.log(torch.tensor(encoded.response_tokens) + 1.0)).tolist()
        losses.append(math.log1p(math.exp(record["margin"] - one + two)) + 0.1 * (one + two) ** 2)
    return math.fsum(losses) / len(losses)
