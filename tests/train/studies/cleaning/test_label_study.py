"""What the study makes of margins: decisions, suspects, reasons, tables, and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.errors import UserError
from mmrm.data.preparation.decisions import read_decisions
from mmrm.data.preparation.mixing import Mixture
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.cleaning.fold_models import CleanedRecipe, margin_of
from mmrm.train.studies.cleaning.folds import read_records
from mmrm.train.studies.cleaning.label_study import (
    JudgedLabels,
    Thresholds,
    judged_labels,
    rank_share,
    study_result,
    write,
)
from mmrm.train.studies.cleaning.suspects_page import suspects_page
from tests.data.mixtures import mixture, project, row
from tests.train.test_clean import written_recipe

SOURCES = ("first", "second")
WRONG = (3, 7, 45)
"""The records with a large negative margin."""


def small_mixture(folder: Path) -> Mixture:
    """Return two sources of 40 pairs, a list, a tie and two records that contradict one another."""
    sources = []
    for name in SOURCES:
        rows = [row(f"{name} {number}") for number in range(38)]
        rows.append(row(f"{name} twice", chosen="a <b>", rejected="b"))
        rows.append(row(f"{name} twice", chosen="b", rejected="a <b>"))
        sources.append(project(folder, name, rows))
    return mixture(folder, sources)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    """Give the records of `small_mixture`."""
    return small_mixture(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def labels(found: Mixture) -> JudgedLabels:
    """Give the labels with margins that are large for all records, and negative for WRONG."""
    records = read_records(found)
    margins = np.random.default_rng(0).normal(2.0, 0.4, len(records.records))
    margins[list(WRONG)] *= -1
    margins[10] = np.nan
    return judged_labels(records, margins, Thresholds(leave_out=0.5, flip=0.9))


def test_wrong_and_contradictory_labels_are_suspects(labels: JudgedLabels) -> None:
    assert [index for index, decision in enumerate(labels.decisions) if decision != "keep"] == list(
        WRONG
    )
    suspects = labels.suspects
    assert set(suspects[:3]) == set(WRONG)
    assert set(suspects[3:]) == {38, 39, 78, 79}
    assert "prefer the other response" in labels.reasons(3)[0]
    assert labels.reasons(38) == ["Another record prefers the other one of two responses."]
    assert labels.suspect(38)["contradicted"] is True
    assert labels.suspect(3)["row"] == 3
    assert labels.suspect(45)["source"] == "second"


def test_writing_decides_about_each_record_once(
    found: Mixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decided about all records for each suspect, which did not end with a million records."""
    decided: list[float] = []
    decision = Thresholds.decision

    def noted(thresholds: Thresholds, probability: float) -> Any:
        decided.append(probability)
        return decision(thresholds, probability)

    monkeypatch.setattr(Thresholds, "decision", noted)
    records = read_records(found)
    margins = np.full(len(records.records), 2.0)
    margins[list(WRONG)] *= -1
    recipe = written_recipe(tmp_path)
    cleaned = CleanedRecipe(recipe, (), 2, tmp_path, read_recipe(recipe))
    judged = judged_labels(records, margins, Thresholds(leave_out=0.5, flip=0.9))
    write(study_result(judged, cleaned), judged, tmp_path)
    suspects_page(judged, found, "mine", 5, is_blind=False)
    assert len(decided) == len(records.records)


def test_the_files_are_read_by_a_recipe(labels: JudgedLabels, tmp_path: Path) -> None:
    recipe = written_recipe(tmp_path)
    cleaned = CleanedRecipe(recipe, (), 2, tmp_path, read_recipe(recipe))
    result = study_result(labels, cleaned)
    write(result, labels, tmp_path)
    decisions = read_decisions([str(tmp_path / name) for name in ("flip.jsonl", "leave_out.jsonl")])
    assert len(decisions.by_key) == 3
    lines = (tmp_path / "suspects.jsonl").read_text().splitlines()
    assert len(lines) == 7
    figures = json.loads((tmp_path / "labels.json").read_text())
    first, second = figures["sources"]
    assert (first["source"], first["records"], first["not_judged"]) == ("first", 40, 1)
    assert first["flip"] + first["leave_out"] == 2
    assert (second["on_cycle"], second["contradicted"]) == (2, 2)
    assert first["error_rate"]["low"] <= 2 / 39 <= first["error_rate"]["high"]
    assert figures["planted"] == []
    assert "labels by source" in (tmp_path / "labels.md").read_text()


def articles(page: str) -> list[dict[str, str]]:
    """Return the attributes of each record on a page."""
    records = []
    for tag in re.findall(r"<article [^>]*>", page):
        records.append(dict(re.findall(r'data-(\w+)="([^"]*)"', tag)))
    return records


def test_the_page_shows_the_suspects_and_escapes_their_texts(
    found: Mixture, labels: JudgedLabels
) -> None:
    page = suspects_page(labels, found, "mine", 5, is_blind=False)
    shown = articles(page)
    assert [record["row"] for record in shown] == [
        str(labels.records.records[index].row) for index in labels.suspects[:5]
    ]
    assert all(record["first"] == "keep" for record in shown)
    assert "a &lt;b&gt;" in page
    assert "a <b>" not in page
    assert "5 of 7 suspicious records" in page
    assert "prefer the other response" in page


def test_a_blind_page_hides_labels_and_mixes_in_other_pairs(
    found: Mixture, labels: JudgedLabels
) -> None:
    page = suspects_page(labels, found, "mine", 200, is_blind=True)
    shown = articles(page)
    assert len({record["key"] for record in shown}) == 14
    sides = {record["first"] for record in shown}
    assert sides == {"keep", "flip"}
    for text in ("prefer the other", "chosen", "rejected", "Label right"):
        assert text not in page
    # The first response on the page is the chosen one exactly if `first` keeps the label.
    bodies = re.findall(r'data-letter="(\w)".*?<div class="body"[^>]*>(.*?)</div>', page, re.S)
    by_key = {f"{key:016x}": index for index, key in enumerate(labels.records.keys.tolist())}
    for number, record in enumerate(shown):
        chosen = found[by_key[record["key"]]].chosen.text
        first_text = bodies[2 * number][1].replace("&lt;", "<").replace("&gt;", ">")
        assert (first_text == chosen) == (record["first"] == "keep")


def test_too_few_margins_are_refused(found: Mixture) -> None:
    records = read_records(found)
    margins = np.full(len(records.records), np.nan)
    margins[:19] = 1.0
    with pytest.raises(UserError, match="19 of 80 records"):
        judged_labels(records, margins, Thresholds(0.5, 0.9))


@pytest.mark.parametrize(
    ("ranks", "scores", "margin"),
    [
        ([0, 1], [2.0, -1.0], 3.0),
        ([0, 0, 1], [2.0, 4.0, 1.0], 2.0),
        ([0, 1, 2], [3.0, 1.0, 2.0], (2.0 + 1.0 - 1.0) / 3),
    ],
)
def test_the_margin_of_a_list_is_the_mean_over_its_pairs(
    ranks: list[int], scores: list[float], margin: float
) -> None:
    assert margin_of(ranks, scores) == pytest.approx(margin)


def test_the_rank_share_is_that_of_all_pairs() -> None:
    generator = np.random.default_rng(0)
    margins = generator.integers(-3, 4, 40).astype(np.float64)
    margins[5] = np.nan
    is_wrong = generator.random(40) < 0.4
    points: list[Any] = []
    for wrong in margins[is_wrong & np.isfinite(margins)]:
        for right in margins[~is_wrong & np.isfinite(margins)]:
            points.append(0.5 * (wrong == right) + (wrong < right))
    assert rank_share(margins, is_wrong) == pytest.approx(np.mean(points))
    assert rank_share(margins, np.zeros(40, bool)) is None
