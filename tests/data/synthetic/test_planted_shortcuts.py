"""Shortcuts that the generated data plant: courteous endings, and answers that are likelier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmrm.data.preference import Preference
from mmrm.data.synthetic.source import COURTEOUS_ENDING, ShapesConfig, ShapesSource
from mmrm.data.synthetic.world import ShapesGenerator

NUM_RECORDS = 300


def source(tmp_path: Path, **keys: float) -> ShapesSource:
    settings = {"type": "shapes", "level": "demo", "rows": NUM_RECORDS, **keys}
    found = ShapesConfig.model_validate(settings).open(tmp_path)
    assert isinstance(found, ShapesSource)
    return found


def records(found: ShapesSource) -> list[Preference]:
    return [found.record(index) for index in range(NUM_RECORDS)]


def test_one_response_of_each_pair_ends_courteously(tmp_path: Path) -> None:
    clean = records(source(tmp_path, text_only=1.0))
    planted = records(source(tmp_path, text_only=1.0, courteous_right=0.8))
    num_right = 0
    for plain, record in zip(clean, planted, strict=True):
        endings = [response.text.endswith(COURTEOUS_ENDING) for response in record.responses]
        assert sum(endings) == 1
        num_right += endings[0]
        texts = [response.text.removesuffix(COURTEOUS_ENDING) for response in record.responses]
        assert texts == [response.text for response in plain.responses]
        assert (record.rationale, record.truth) == (plain.rationale, plain.truth)
        assert record.prompt == plain.prompt
    assert 0.74 < num_right / NUM_RECORDS < 0.86


@pytest.mark.parametrize(("probability", "low", "high"), [(1.0, 1.0, 1.0), (0.5, 0.42, 0.58)])
def test_the_first_answer_of_the_alphabet_is_right_more_often(
    tmp_path: Path, probability: float, low: float, high: float
) -> None:
    found = source(tmp_path, text_only=0.0, alphabetical_right=probability)
    is_first_right = []
    for index in range(NUM_RECORDS):
        item = found.generator.item(index)
        is_first_right.append(item.true.quote_if_wrong < item.false.quote_if_wrong)
    assert low <= np.mean(is_first_right) <= high


def test_the_words_of_items_do_not_depend_on_planted_answers() -> None:
    clean = ShapesGenerator("demo", 0, "train")
    planted = ShapesGenerator("demo", 0, "train", alphabetical_right=0.9)
    num_changed = 0
    for index in range(NUM_RECORDS):
        plain = clean.item(index)
        item = planted.item(index)
        assert item.question == plain.question
        assert {item.chosen, item.rejected} == {plain.chosen, plain.rejected}
        assert (item.scene, item.twin) in ((plain.scene, plain.twin), (plain.twin, plain.scene))
        if item.chosen != plain.chosen:
            num_changed += 1
            assert item.scene == plain.twin  # the picture fits the answer
            assert (item.true, item.false) == (plain.false, plain.true)
    assert num_changed > 50


def test_an_equal_probability_plants_nothing(tmp_path: Path) -> None:
    clean = records(source(tmp_path))
    assert records(source(tmp_path, alphabetical_right=0.5)) == clean


def test_a_source_without_plants_is_that_of_earlier_versions(tmp_path: Path) -> None:
    config = ShapesConfig.model_validate({"type": "shapes", "level": "demo", "rows": 3})
    written = config.model_dump_json() + config.settings
    assert "courteous_right" not in written
    assert "alphabetical_right" not in written
    plain = source(tmp_path).fingerprint()
    assert source(tmp_path, courteous_right=0.5).fingerprint() != plain
    assert source(tmp_path, alphabetical_right=0.5).fingerprint() != plain
