"""What a record will cost is known before it is read, by the index under which a run asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.packing.cost import PATCH_COST
from tests.data.mixtures import mixture, row
from tests.data.sources.fixtures import png, write_jsonl
from tests.models import tiny
from train.runs.parts import TrainingData, record_costs
from train.supervised.judgements import JudgementEncoder, JudgementRecords
from train.supervised.lessons import Lessons
from train.supervised.steps import MixtureRecords, PairEncoder, expected_costs

SHAPES: dict[str, Any] = {"type": "shapes", "level": "demo", "rows": 5}


@pytest.fixture
def sources(tmp_path: Path) -> list[dict[str, Any]]:
    """Return four records, the second of them with a picture of 4 x 2 tokens and the last one long."""
    (tmp_path / "wide.png").write_bytes(png("grey", (112, 56)))
    rows = [row("a"), row("b", images=["wide.png"]), row("c"), row("long " * 400)]
    return [{"type": "project", "name": "some", "path": str(write_jsonl(tmp_path / "some.jsonl", rows))}]


def test_costs_count_text_image_tokens_and_patches(sources: list[dict[str, Any]], tmp_path: Path) -> None:
    found = mixture(tmp_path, sources)
    text_tokens, image_tokens = found.lengths().T
    assert image_tokens.tolist() == [0, 8, 0, 0]
    assert 500 < text_tokens[3] < 2000
    costs = expected_costs(found)
    assert costs == pytest.approx(text_tokens + 8 * np.array([0, 1, 0, 0]) * (1 + 4 * PATCH_COST))


def test_a_generated_record_is_taken_for_an_average_one(sources: list[dict[str, Any]], tmp_path: Path) -> None:
    found = mixture(tmp_path, [*sources, SHAPES]).lengths()
    assert found.shape == (9, 2)
    assert found[4:] == pytest.approx(np.tile(found[:4].mean(axis=0), (5, 1)))
    alone = expected_costs(mixture(tmp_path, [SHAPES]))
    assert len(alone) == 5
    assert len(set(alone.tolist())) == 1


def test_judgements_are_asked_for_under_two_indices_each(sources: list[dict[str, Any]], tmp_path: Path) -> None:
    found, encoder = mixture(tmp_path, sources), tiny.encoder()
    pairs = record_costs(TrainingData(MixtureRecords(found, PairEncoder(encoder, "end_of_turn")), found))
    records = JudgementRecords(found, JudgementEncoder(encoder, "r1_reward"), both=True)
    costs = record_costs(TrainingData(records, found))
    assert pairs is not None
    assert costs is not None
    assert len(costs) == 8 > int(records.order(0).max())
    assert [costs[index] for index in records.order(0)] == [pairs[index // 2] for index in records.order(0)]


def test_lessons_are_all_alike() -> None:
    assert record_costs(TrainingData(Lessons.__new__(Lessons))) is None
