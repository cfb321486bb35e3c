"""A user's own benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from eval.benchmarks.benchmark import Location
from eval.benchmarks.preference_folder import PREFERENCE_FOLDER, load
from eval.protocol import ProtocolConfig
from eval.running.evaluation import baseline, evaluate
from tests.eval.make import png


def write(folder: Path, **change: Any) -> Location:
    (folder / "cat.png").write_bytes(png())
    record = {"images": ["cat.png"], "prompt": "which?", "chosen": "the black one", "rejected": "no", "category": "colour"}
    rows = [{**record, "prompt": f"which {place}?"} for place in range(40)]
    rows[7].update(change)
    (folder / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return Location(location=str(folder))


def test_a_folder_of_preference_records_is_a_benchmark(tmp_path: Path) -> None:
    found = load(write(tmp_path, category="shape", source="mine"))
    assert [found.examples[7].group, found.examples[7].source] == ["shape", "mine"]
    assert {example.responses[example.better] for example in found.examples} == {"the black one"}
    assert 8 < sum(example.better for example in found.examples) < 32
    assert found.examples[0].prompt[0]["content"][-1] == {"type": "text", "text": "which 0?"}
    result = evaluate(found.examples, baseline("longest", found.examples), PREFERENCE_FOLDER, ProtocolConfig(), found.origin)
    assert result.micro.accuracy == 1.0
    assert result.published["plain"]["groups"]["colour"] == {"n": 39, "right": 39, "accuracy": 1.0}
    assert result.notes == ()


def test_records_that_cannot_be_used_are_listed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 of 40 records cannot be used:\n  .*none.png"):
        load(write(tmp_path, images=["none.png"]))
    with pytest.raises(UserError, match="rejected"):
        load(write(tmp_path, rejected="  "))
    with pytest.raises(UserError, match="both responses are the same text"):
        load(write(tmp_path, rejected="the black one"))
    assert len(load(Location(location=str(tmp_path), limit=5)).examples) == 5


def test_records_without_a_category_are_no_total(tmp_path: Path) -> None:
    assert load(write(tmp_path, category=None)).examples[7].group == "uncategorised"


def test_it_has_no_place_on_the_hub() -> None:
    with pytest.raises(UserError, match="required is the path"):
        load(Location())
