"""A curriculum: which pairs are left out by their difficulty, and the order of an epoch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mmrm.data.errors import UserError
from mmrm.data.preparation.curriculum import (
    CurriculumConfig,
    easy_first,
    reasons_after_curriculum,
)
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.preparation.row_index import REASONS
from tests.data.mixtures import everything, mixture, project, row

DIFFICULTIES = [1, 2, 3, 4, None]
"""The difficulties of the annotated rows, again and again."""

DIGEST_BEFORE = "3bf46a40f2596b912851b5486de16655b19dd8d41cd42053ae7220adac447f92"
"""The digest of a section of a recipe that the version before curricula computed."""


def annotated(folder: Path, count: int = 100, **changes: Any) -> dict[str, Any]:
    """Return a source of pairs whose difficulties are those of DIFFICULTIES."""
    rows = []
    for number in range(count):
        difficulty = DIFFICULTIES[number % len(DIFFICULTIES)]
        rows.append(row(f"q {number}", difficulty=difficulty, **changes))
    return project(folder, "annotated", rows)


def drawn_difficulties(found: Mixture, epoch: int = 0, *together: int) -> list[int | None]:
    return [found[int(index)].difficulty for index in found.order(epoch, *together)]


@pytest.mark.parametrize(
    ("curriculum", "kept", "left_out"),
    [
        ({}, {1: 20, 2: 20, 3: 20, 4: 20, None: 20}, {}),
        ({"least": 2}, {2: 20, 3: 20, 4: 20}, {"too_easy": 20, "no_difficulty": 20}),
        ({"most": 3}, {1: 20, 2: 20, 3: 20}, {"too_hard": 20, "no_difficulty": 20}),
        (
            {"least": 2, "most": 2},
            {2: 20},
            {"too_easy": 20, "too_hard": 40, "no_difficulty": 20},
        ),
    ],
)
def test_what_is_not_selected_is_counted(
    curriculum: dict[str, Any],
    kept: dict[int | None, int],
    left_out: dict[str, int],
    tmp_path: Path,
) -> None:
    found = mixture(tmp_path, [annotated(tmp_path)], curriculum=curriculum)
    assert Counter(record.difficulty for record in everything(found)) == kept
    assert found.card().sources[0].left_out == left_out
    assert Counter(drawn_difficulties(found)) == kept  # an epoch has each selected pair once


def test_a_row_that_was_left_out_before_keeps_its_reason() -> None:
    reasons = np.array([REASONS.index(name) for name in ("kept", "tie", "overlap")], np.uint8)
    for difficulty in (0, 1, 9):
        difficulties = np.full(3, difficulty, np.uint16)
        config = CurriculumConfig(least=2, most=8)
        assert reasons_after_curriculum(config, difficulties, reasons)[1:].tolist() == [
            REASONS.index("tie"),
            REASONS.index("overlap"),
        ]


@given(st.lists(st.integers(0, 4), max_size=40))
def test_easy_first_sorts_what_is_known_and_moves_nothing_else(drawn: list[int]) -> None:
    difficulties = np.array(drawn, np.uint16)
    order = np.arange(len(drawn), dtype=np.int32)[::-1].copy()
    found = easy_first(order, difficulties[order])
    assert sorted(found.tolist()) == list(range(len(drawn)))
    known = [(int(difficulties[index]), -int(index)) for index in found if difficulties[index]]
    assert known == sorted(known)  # equal difficulties keep their order, which is descending
    for position, index in enumerate(order.tolist()):
        if not difficulties[index]:
            assert found[position] == index


def test_an_epoch_goes_from_easy_to_hard(tmp_path: Path) -> None:
    found = mixture(tmp_path, [annotated(tmp_path)], curriculum={"order": "easy_first"})
    for epoch in range(3):
        drawn = drawn_difficulties(found, epoch)
        assert Counter(drawn) == Counter(DIFFICULTIES * 20)
        known = [difficulty for difficulty in drawn if difficulty is not None]
        assert known == sorted(known)
    # Pairs without a difficulty are where the shuffled order has them.
    shuffled = mixture(tmp_path, [annotated(tmp_path)])
    places = [difficulty is None for difficulty in drawn_difficulties(shuffled, 2)]
    assert [difficulty is None for difficulty in drawn_difficulties(found, 2)] == places
    # Pairs of equal difficulty are shuffled, and differently in each epoch.
    assert found.order(0).tolist() != found.order(1).tolist()
    assert found.card().difficulty_by_tenth == pytest.approx(
        [1, 1, 1.5, 2, 2.25, 3, 3, 3.5, 4, 4], abs=0.6
    )


def test_a_stage_goes_from_easy_to_hard_by_itself(tmp_path: Path) -> None:
    stages = [{"name": "one", "repeat": 2.0}, {"name": "two"}]
    found = mixture(
        tmp_path,
        [annotated(tmp_path, 50)],
        stages=stages,
        curriculum={"least": 2, "order": "easy_first"},
    )
    drawn = drawn_difficulties(found)
    assert drawn == [2] * 20 + [3] * 20 + [4] * 20 + [2] * 10 + [3] * 10 + [4] * 10


@pytest.mark.parametrize("together", [(4,), (4, 8)])
def test_pairs_of_one_prompt_come_together_if_they_are_equally_hard(
    together: tuple[int, ...], tmp_path: Path
) -> None:
    rows = []
    for number in range(60):
        changes = {"chosen": f"good {number}", "difficulty": 1 + number % 3}
        rows.append(row(f"q {number // 6}", **changes))
    source = project(tmp_path, "one", rows)
    found = mixture(tmp_path, [source], curriculum={"order": "easy_first"})
    order = found.order(0, *together)
    assert [found[int(index)].difficulty for index in order] == [1] * 20 + [2] * 20 + [3] * 20
    # Six pairs of a prompt are two of each difficulty, which follow one another.
    prompts = found.prompts[order].tolist()
    assert prompts[0::2] == prompts[1::2]


def test_the_order_depends_on_the_seed_and_the_epoch_alone(tmp_path: Path) -> None:
    """A resumed run computes the order again."""
    curriculum = {"least": 2, "order": "easy_first"}
    one = mixture(tmp_path, [annotated(tmp_path)], curriculum=curriculum)
    other = mixture(
        tmp_path, [annotated(tmp_path)], curriculum=curriculum, cache=str(tmp_path / "elsewhere")
    )
    assert one.order(3).tolist() == other.order(3).tolist()
    seeded = mixture(tmp_path, [annotated(tmp_path)], curriculum=curriculum, seed=4)
    assert one.order(3).tolist() != seeded.order(3).tolist()


def test_another_difficulty_is_another_content(tmp_path: Path) -> None:
    """A run is not resumed on records that were annotated again."""
    contents = set()
    for number, difficulty in enumerate([None, 1, 2]):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = project(folder, "one", [row("q", difficulty=difficulty)])
        contents.add(mixture(folder, [source]).card().sources[0].content)
    assert len(contents) == 3


def test_recipes_without_a_curriculum_have_the_digest_of_earlier_versions() -> None:
    source = {"type": "shapes", "level": "demo", "rows": 4}
    config = MixtureConfig.model_validate({"sources": [source]})
    assert config.digest == DIGEST_BEFORE
    assert "curriculum" not in json.loads(config.model_dump_json())
    changed = config.model_copy(update={"curriculum": CurriculumConfig(least=2)})
    assert changed.digest != config.digest


def test_the_card_counts_pairs_by_difficulty(tmp_path: Path) -> None:
    sources = [annotated(tmp_path), project(tmp_path, "other", [row("o")])]
    card = mixture(tmp_path, sources).card()
    assert [line for source in card.sources for line in source.difficulty_lines] == [
        "annotated: records by difficulty: 20 of 1, 20 of 2, 20 of 3, 20 of 4; 20 without one",
        "other: records by difficulty: none; 1 without one",
    ]
    assert len(card.difficulty_lines) == 1
    card.save(tmp_path / "card.json")
    saved = json.loads((tmp_path / "card.json").read_text())
    assert saved["sources"][0]["difficulties"]["unknown"] == 20
    assert len(saved["difficulty_by_tenth"]) == 10

    plain = mixture(tmp_path, [project(tmp_path, "plain", [row("p")])]).card()
    plain.save(tmp_path / "plain.json")
    saved = json.loads((tmp_path / "plain.json").read_text())
    assert "difficulty_by_tenth" not in saved
    assert "difficulties" not in saved["sources"][0]


def test_difficulties_that_no_record_has_are_refused(tmp_path: Path) -> None:
    plain = [project(tmp_path, "plain", [row("p")])]
    with pytest.raises(UserError, match="easy_first, and no record has a difficulty"):
        mixture(tmp_path, plain, curriculum={"order": "easy_first"})
    with pytest.raises(UserError, match=r"no record to draw.*'no_difficulty': 1"):
        mixture(tmp_path, plain, curriculum={"least": 2})
    shapes = [{"type": "shapes", "level": "demo", "rows": 4}]
    with pytest.raises(UserError, match="records of a generated source have none"):
        mixture(tmp_path, shapes, curriculum={"most": 2})
    with pytest.raises(ValidationError, match="no difficulty is between"):
        CurriculumConfig(least=3, most=2)
