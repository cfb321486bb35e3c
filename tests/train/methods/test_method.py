"""What a run asks of its method: token budgets, costs, and what is printed of the data."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from mmrm.data.images import PatchTokens
from mmrm.eval.judges.checkpoint import TOKEN_BUDGET
from mmrm.models.packing.bins import PATCH_COST
from mmrm.train.methods import method
from mmrm.train.methods.language_model.method import LanguageModelMethod
from mmrm.train.methods.method import Method
from mmrm.train.methods.naive.method import NaiveMethod
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.supervised.budget import FIRST_BUDGET, LOWERED
from mmrm.train.supervised.steps import expected_costs
from tests.data.mixtures import mixture, project, row
from tests.data.sources.fixtures import png, write_jsonl
from tests.models import tiny
from tests.train.minimal import MINIMAL, write

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "shapes" / "naive.yaml"
SHAPES: dict[str, Any] = {"type": "shapes", "level": "demo", "rows": 5}


def naive(*changes: str) -> NaiveMethod:
    recipe: Any = read_recipe(RECIPE, changes)
    method = NaiveMethod(recipe, tiny.encoder(), Console(quiet=True))
    method.setup()
    return method


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_evaluation_in_a_run_packs_as_one_of_its_checkpoint_does(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method, "device", lambda: torch.device(device))
    found = naive("optim.token_budget=auto")
    assert found.packed().token_budget == TOKEN_BUDGET[device]
    assert found.token_budget() == FIRST_BUDGET
    assert naive("optim.token_budget=777").packed().token_budget == 777


@pytest.mark.parametrize(
    ("deepspeed", "device", "begin"),
    [("zero3", "cuda", FIRST_BUDGET), ("zero3", "cpu", 9000), ("zero2", "cuda", 9000)],
)
def test_under_zero3_rows_begin_small_because_it_cannot_repeat_a_step(
    deepspeed: str, device: str, begin: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(method, "device", lambda: torch.device(device))
    found = naive("optim.token_budget=9000", f"deepspeed={deepspeed}", f"output.folder={tmp_path}")
    assert found.token_budget() == begin
    (tmp_path / LOWERED).write_text("500")
    assert found.token_budget() == 500


def test_records_that_were_left_out_are_printed_with_the_reasons(tmp_path: Path) -> None:
    rows = [row("<image> first"), row("second"), row("third"), row("<image> fourth")]
    sources = [project(tmp_path, "one", rows), project(tmp_path, "two", [row("fifth")])]
    text = io.StringIO()
    config = mixture(tmp_path, sources).config
    recipe, encoder = (
        SimpleNamespace(data=config),
        SimpleNamespace(image_tokens=PatchTokens(784, 3136)),
    )
    stub: Any = SimpleNamespace(
        recipe=recipe, encoder=encoder, console=Console(file=text, width=125)
    )
    Method.open_mixture(stub)
    assert text.getvalue() == "one: 2 of 4 records left out: markers 2\n"


def test_a_run_prints_the_difficulties_that_its_curriculum_orders(tmp_path: Path) -> None:
    rows = [row(f"q {number}", difficulty=number % 3 or None) for number in range(6)]
    sources = [project(tmp_path, "one", rows)]
    text = io.StringIO()
    stub: Any = SimpleNamespace(
        recipe=SimpleNamespace(
            data=mixture(tmp_path, sources, curriculum={"order": "easy_first"}).config
        ),
        encoder=SimpleNamespace(image_tokens=PatchTokens(784, 3136)),
        console=Console(file=text, width=125),
    )
    Method.open_mixture(stub)
    assert text.getvalue() == "one: records by difficulty: 2 of 1, 2 of 2; 2 without one\n"


@pytest.fixture
def sources(tmp_path: Path) -> list[dict[str, Any]]:
    """Return four records, the second of them with a picture of 4 x 2 tokens and the last one long."""
    (tmp_path / "wide.png").write_bytes(png("grey", (112, 56)))
    rows = [row("a"), row("b", images=["wide.png"]), row("c"), row("long " * 400)]
    return [
        {"type": "project", "name": "some", "path": str(write_jsonl(tmp_path / "some.jsonl", rows))}
    ]


def test_costs_count_text_image_tokens_and_patches(
    sources: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = mixture(tmp_path, sources)
    text_tokens, image_tokens = found.lengths().T
    assert image_tokens.tolist() == [0, 8, 0, 0]
    assert 500 < text_tokens[3] < 2000
    costs = expected_costs(found)
    assert costs == pytest.approx(text_tokens + 8 * np.array([0, 1, 0, 0]) * (1 + 4 * PATCH_COST))


def test_a_generated_record_is_taken_for_an_average_one(
    sources: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = mixture(tmp_path, [*sources, SHAPES]).lengths()
    assert found.shape == (9, 2)
    assert found[4:] == pytest.approx(np.tile(found[:4].mean(axis=0), (5, 1)))
    alone = expected_costs(mixture(tmp_path, [SHAPES]))
    assert len(alone) == 5
    assert len(set(alone.tolist())) == 1


@pytest.mark.parametrize(
    ("target", "both"), [("judgement", True), ("judgement", False), ("lessons", False)]
)
def test_judgements_are_asked_for_under_two_indices_each_and_lessons_are_all_alike(
    sources: list[dict[str, Any]], tmp_path: Path, target: str, both: bool
) -> None:
    config = (
        mixture(tmp_path, sources).config.model_dump(mode="json")
        if target == "judgement"
        else {"sources": [SHAPES]}
    )
    changes = [
        f"data={config}".replace("None", "null").replace("True", "true").replace("False", "false")
    ]
    changes.append(
        f"method={{type: language_model, target: {target}, both_orders: {str(both).lower()}}}"
    )
    recipe: Any = read_recipe(write(tmp_path, MINIMAL), [*changes, "optim.records_per_step=1"])
    found = LanguageModelMethod(recipe, tiny.encoder(), Console(quiet=True))
    found.setup()
    if target == "lessons":
        assert found.costs is None
        return
    assert found.mixture is not None
    assert found.costs is not None
    order, pairs = found.records.order(0), expected_costs(found.mixture)
    assert len(found.costs.records) == 8 > int(order.max())
    assert [found.costs.records[index] for index in order] == [pairs[index // 2] for index in order]
