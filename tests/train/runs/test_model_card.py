"""A model card says what a checkpoint is, and the best one goes to the hub without what only a resume needs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from ruamel.yaml import YAML

from mmrm.data.errors import ImageError
from mmrm.data.images import decode
from mmrm.data.preference import text
from mmrm.data.storage.manifest import COMPLETE
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.results.run_folder import CARD as JUDGE_CARD
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from mmrm.train.checkpoints.rotation import point_link
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.model_card import (
    CARD,
    FOR_RESUME,
    RunOrigin,
    metadata,
    model_card,
    push,
    read_results,
    use,
    write_cards,
    write_reference,
)
from mmrm.train.runs.provenance import DataFingerprints, recipe_yaml
from tests.models import tiny
from tests.train import worker
from tests.train.minimal import write
from tests.train.shipped import RECIPES
from tests.train.worker import ended

DATA: DataFingerprints = {"shapes": {"revision": "abc", "fingerprint": "f00d", "rows": 1234}}
ORIGIN = RunOrigin(DATA, {"shapes": "Apache-2.0"}, {"mmrm": "1.2.3", "torch": "2.11.0"})


def about(folder: Path, *changes: str) -> Recipe:
    return read_recipe(write(folder), changes)


def front_matter(card: str) -> Any:
    return YAML(typ="safe").load(card.split("---")[1])


def test_a_card_says_step_base_method_data_and_recipe(tmp_path: Path) -> None:
    known = about(tmp_path, "method.zero_coefficient=0.1")
    card = model_card(known, ORIGIN, "5 of 20", {})
    assert "# test, step 5 of 20" in card
    assert "naive: Bradley-Terry + 0.1 x (chosen + rejected)^2" in card
    assert "| shapes | 1,234 | Apache-2.0 | f00d |" in card
    assert "| torch | 2.11.0 |" in card
    assert "No benchmark was evaluated at this step." in card
    recipe = re.findall(r"```yaml\n(.*?)```", card, re.DOTALL)[0]
    assert read_recipe(write(tmp_path, recipe, "again.yaml")) == known


def test_a_card_says_what_the_head_computes(tmp_path: Path) -> None:
    card = model_card(about(tmp_path), ORIGIN, "5 of 20", {})
    assert "its reward head computes one score." in card
    head = "head={type: attributes, names: [right, short], weights: {right: 2, short: 0.5}}"
    card = model_card(about(tmp_path, head), ORIGIN, "5 of 20", {})
    assert "the attributes right, short; responses are ranked by 2 x right + 0.5 x short." in card
    assert "`model.score_columns` all of them by name: right, short." in card


@pytest.mark.slow
def test_figures_stand_with_their_interval_and_counts(runs: Path, tmp_path: Path) -> None:
    results = read_results(ended(runs / "2-zero2"))
    micro = results["vl_rewardbench"].micro
    assert micro.accuracy is not None
    assert micro.low is not None
    assert micro.high is not None
    figures = f"{100 * micro.accuracy:.1f} [{100 * micro.low:.1f}, {100 * micro.high:.1f}]"
    card = (ended(runs / "2-zero2") / CARD).read_text(encoding="utf-8")
    assert micro.half is not None
    assert (
        f"| **vl_rewardbench** | {figures} | 7 | {micro.ties} | {100 * micro.half:.1f} | 0 |"
        in card
    )
    assert all(f"| {group} |" in card for group in results["vl_rewardbench"].groups)
    assert "step 6 of 6" in card
    assert "vl_rewardbench (embedded): each response scored by itself, ties wrong" in card
    assert "both orders" not in card


def saved(folder: Path, log: list[dict[str, float]], **scores: list[list[float]]) -> Path:
    """Return a checkpoint that logged `log` and gave each benchmark's rows `scores`; its backbone brought a scale of its own."""
    for benchmark, rows in scores.items():
        (folder / "eval" / benchmark).mkdir(parents=True)
        lines = [json.dumps({"scores": row}) for row in [*rows, None]]
        (folder / "eval" / benchmark / "predictions.jsonl").write_text("\n".join(lines))
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "mean": 7.0, "std": 7.0, "reference_scores": {}})
    )
    return folder


LOG = [
    {"step": 10, "reward_mean": 1.5, "reward_spread": 0.5, "num_rewards": 128.0},
    {"step": 12, "eval_x/accuracy": 0.5},
]
TRAINED = {"mean": 1.5, "std": 0.5, "n": 128, "source": "training records up to step 10"}
BOTH = {"mean": 3.0, "std": 5**0.5, "n": 4, "source": "a, b at this save"}
HELD = {"mean": 2.0, "std": 1.0, "n": 2, "source": "held_out at this save"}


@pytest.mark.parametrize(
    ("scores", "log", "expected"),
    [
        ({"a": [[0.0, 2.0]], "b": [[4.0, 6.0]]}, LOG, BOTH),
        ({"a": [[0.0, 2.0]], "held_out": [[1.0, 3.0]]}, LOG, HELD),
        ({}, LOG, TRAINED),
        ({}, [], None),
        ({"a": [[0.0, 0.0]]}, [], None),
    ],
)
@pytest.mark.parametrize("method", ["naive", "critic"])
def test_others_find_the_scale_of_the_scores(
    tmp_path: Path, method: str, scores: Any, log: Any, expected: dict[str, Any] | None
) -> None:
    folder = saved(tmp_path / "checkpoint-12", log, **scores)
    write_cards(about(tmp_path, f"method={{type: {method}}}"), ORIGIN, folder, "12 of 12")
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert found["model_type"] == "qwen2_5_vl"
    assert found["reference_scores"] == (None if expected is None else pytest.approx(expected))
    assert (found.get("mean"), found.get("std")) == tuple(
        (expected or {}).get(name) for name in ("mean", "std")
    )
    card = (folder / CARD).read_text(encoding="utf-8")
    assert ("OpenRLHF" in card) == (expected is not None)
    assert expected is None or f"over {expected['n']} scores of\n{expected['source']}." in card


def test_a_judgements_model_has_no_scores_and_its_config_stays(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint-12", [])
    write_cards(
        about(tmp_path, "method={type: language_model, target: lessons}"),
        ORIGIN,
        folder,
        "12 of 12",
    )
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["mean"] == 7.0


def test_a_model_with_a_scale_loads_and_keeps_it(tmp_path: Path) -> None:
    load_scalar(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")
    ).save_pretrained(tmp_path / "saved")
    tiny.encoder().save_pretrained(tmp_path / "saved")
    write_reference(tmp_path / "saved", BOTH)
    model = load_scalar(
        BackboneConfig(path=str(tmp_path / "saved"), dtype="float32"), fresh_head=False
    )
    assert (model.config.mean, model.config.reference_scores) == (3.0, BOTH)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["none", "zero2", "zero3"])
def test_the_scale_of_a_run_is_that_of_its_evaluation(runs: Path, stage: str) -> None:
    folder = ended(runs / f"2-{stage}")
    lines = (
        (folder / "eval" / "vl_rewardbench" / "predictions.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    scores = [score for line in lines for score in json.loads(line)["scores"]]
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["reference_scores"] == {
        "mean": pytest.approx(fmean(scores)),
        "std": pytest.approx(pstdev(scores)),
        "n": 14,
        "source": "vl_rewardbench at this save",
    }


def run_code(card: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the code on a card defines in a checkpoint's folder."""
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0]
    monkeypatch.chdir(checkpoint)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def encoded(picture: Image.Image, kind: str, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({} if orientation == 1 else {"exif": exif}))
    return buffer.getvalue()


def files() -> Iterator[bytes]:
    """Yield a picture in every mode that each format can hold, and in every orientation that it can name."""
    noise = tiny.picture(50, 60).convert("RGBA")
    noise.putalpha(tiny.picture(50, 60, 1).convert("L"))
    clear = noise.convert("RGB").convert("P")
    clear.info["transparency"] = 3
    sixteen = Image.fromarray(
        np.random.default_rng(0).integers(0, 2**16, (60, 50), dtype=np.uint16)
    )
    modes = (
        "1",
        "L",
        "LA",
        "P",
        "PA",
        "RGB",
        "RGBA",
        "RGBX",
        "CMYK",
        "YCbCr",
        "LAB",
        "HSV",
        "I",
        "F",
    )
    pictures = [
        noise,
        clear,
        sixteen,
        *(noise.convert("L" if mode in "IF" else "RGB").convert(mode) for mode in modes),
    ]
    for kind, exif in (
        ("PNG", True),
        ("JPEG", True),
        ("WEBP", True),
        ("TIFF", True),
        ("BMP", False),
        ("GIF", False),
        ("PPM", False),
    ):
        for picture in pictures:
            with suppress(OSError, ValueError):  # a mode that the format cannot hold
                yield from [encoded(picture, kind, turn) for turn in range(1, 9 if exif else 2)]


def test_the_code_on_a_card_decodes_as_evaluation_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_scalar(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")
    ).save_pretrained(tmp_path / "saved")
    tiny.encoder().save_pretrained(tmp_path / "saved")
    names = run_code(NaiveConfig.usage, tmp_path / "saved", monkeypatch)
    seen: list[Image.Image] = []

    def see(images: list[Image.Image], **options: Any) -> None:
        seen.extend(images)
        raise RuntimeError("seen")

    monkeypatch.setattr(names["processor"].image_processor, "preprocess", see)
    refused = 0
    for content in files():
        try:
            wanted = decode(content, "r")
        except ImageError:
            refused += 1
            with pytest.raises(ValueError, match="no conversion to RGB"):
                names["score"](content, "What is it?", ["A square."])
            continue
        with pytest.raises(RuntimeError, match="seen"):
            names["score"](content, "What is it?", ["A square."])
        assert (seen[-1].mode, seen[-1].size, seen[-1].tobytes()) == (
            "RGB",
            wanted.size,
            wanted.tobytes(),
        )
    assert len(seen) > 200
    assert 0 < refused < 30  # 32-bit integer, float and Lab


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [encoded(tiny.picture(50, 60), "PNG"), encoded(tiny.picture(50, 60), "JPEG", 6)]
)
def test_the_code_on_a_card_scores_as_training_did(
    content: bytes, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = ended(runs / "2-zero3")
    names = run_code((checkpoint / CARD).read_text(encoding="utf-8"), checkpoint, monkeypatch)
    found = names["score"](
        Image.open(io.BytesIO(content)), "What is it?", ["A square.", "Nothing at all."]
    )
    processor = names["processor"]
    encoder = Encoder(
        processor.tokenizer, processor.image_processor, tiny.encoder().config, tiny.config()
    )
    prompt: Any = {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}],
    }
    conversations = [
        encoder.render((prompt, text("assistant", answer)))
        for answer in ("A square.", "Nothing at all.")
    ]
    group = encoder.encode([decode(content, "r")], conversations, "end_of_turn")
    model = load_scalar(
        BackboneConfig(path=str(checkpoint), dtype="float32"), fresh_head=False
    ).eval()
    with torch.no_grad():
        assert found == pytest.approx(
            model(**encoder.pack([group]).score_inputs()).tolist(), abs=1e-5
        )


def test_the_hub_is_told_of_a_base_that_it_knows(tmp_path: Path) -> None:
    known = about(tmp_path, "backbone.path=Qwen/Qwen2.5-VL-3B-Instruct")
    assert front_matter(model_card(known, ORIGIN, "1 of 1", {})) == {
        "library_name": "transformers",
        "base_model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "tags": ["reward-model", "vision-language"],
        "data_licences": {"shapes": "Apache-2.0"},
    }
    assert "base_model" not in metadata(about(tmp_path), ORIGIN, has_adapters=False)
    worker.prepare(tmp_path)
    assert "base_model" not in metadata(
        about(tmp_path, f"backbone.path={tmp_path}/base"), ORIGIN, has_adapters=False
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], ["AutoModelForSequenceClassification"]),
        (["method={type: critic}"], ["AutoModelForImageTextToText"]),
        (["method={type: language_model, target: lessons}"], ["AutoModelForImageTextToText"]),
        (
            ["method={type: language_model, target: judgement, template: turns}"],
            ["AutoModelForImageTextToText", '"text": "{the second response}"'],
        ),
        (["optim.lora={rank: 4}"], ["train/merge.py"]),
    ],
)
def test_every_kind_of_checkpoint_says_how_it_is_loaded(
    tmp_path: Path, changes: list[str], said: list[str]
) -> None:
    recipe = about(tmp_path, *changes)
    found = use(recipe, has_adapters=recipe.optim.lora is not None)
    assert [part in line for part, line in zip(said, found, strict=True)] == [True] * len(said)


KEPT = {
    "README.md",
    "config.json",
    "model.safetensors",
    "reward.py",
    "conversations.py",
    "processor.py",
    "images.py",
    "head_columns.py",
    "turns.py",
    "orders.py",
    "expert_layout.py",
    "decoding.py",
    "frame_sampling.py",
    "markers.py",
    "positions.py",
    "videos.py",
    "judge.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "eval",
}


class Notes:
    """A hub that only notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def upload_folder(self, **named: Any) -> None:
        """Note it."""
        self.calls.append(named)


def test_the_best_checkpoint_is_uploaded(tmp_path: Path) -> None:
    for step in (2, 4):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
        (tmp_path / "run" / f"checkpoint-{step}" / COMPLETE).touch()
    hub = Notes()
    assert push(tmp_path / "run", "me/model", hub).name == "checkpoint-4"
    point_link(tmp_path / "run" / "best", tmp_path / "run" / "checkpoint-2")
    assert push(tmp_path / "run", "me/model", hub).name == "checkpoint-2"
    assert [call["folder_path"].name for call in hub.calls] == ["checkpoint-4", "checkpoint-2"]
    assert hub.calls[0]["commit_message"] == "checkpoint-4 of run"


@pytest.mark.slow
def test_only_what_a_user_of_the_model_wants_is_uploaded(runs: Path) -> None:
    for stage in ("none", "zero2", "zero3"):
        found = {path.name for path in ended(runs / f"2-{stage}").iterdir()}
        assert {
            name for name in found if not any(fnmatch(name, pattern) for pattern in FOR_RESUME)
        } == KEPT


@pytest.mark.parametrize(
    "path",
    # Runs without a judge card are older than judges of single responses.
    [path for path in RECIPES if path.stem not in ("points", "points_medium", "points_rl")],
    ids=lambda path: path.stem,
)
def test_the_judge_card_is_what_the_recipe_of_an_older_run_gives(
    tmp_path: Path, path: Path
) -> None:
    recipe, folder = read_recipe(path), tmp_path / "checkpoint-3"
    folder.mkdir()
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert judge_card_of(folder) is None  # a recipe that stands there by itself is no run's
    (tmp_path / "provenance.json").touch()
    older = judge_card_of(folder)
    write_cards(recipe, ORIGIN, folder, "3 of 3")
    assert "step 3 of 3" in (folder / CARD).read_text(encoding="utf-8")
    (tmp_path / "recipe.yaml").unlink()
    assert (folder / JUDGE_CARD).is_file()
    assert judge_card_of(folder) == older is not None
    assert (older.method, older.backbone) == (recipe.method.type, recipe.backbone)
