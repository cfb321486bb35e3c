"""A record beyond a limit is an error of that record, and the recipe can move each limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import RecordError
from mmrm.data.limits import Limits
from tests.data.sources.fixtures import RED, open_source, record, write_images, write_jsonl

ROW = {"prompt": "Which?", "chosen": "This.", "rejected": "That."}
PARTS = [{"type": "text", "text": "x"}]
WIDER = {"characters": 2_000_000, "turns": 1000, "parts": 20_000, "images": 1000}


def turns(count: int, parts: int = 1) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[turn % 2], "content": PARTS * parts} for turn in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("characters", {"chosen": "x" * 500_001}),
        ("characters", {"rationale": "x" * 500_001}),
        ("characters", {"category": "x" * 500_001}),
        ("turns", {"prompt": turns(501)}),
        ("parts", {"prompt": turns(1, 10_001)}),
        ("images", {"images": ["one.png"] * 257}),
        ("images", {"images": ["gone.png"] * 70_000}),
    ],
)
def test_a_record_beyond_a_limit_says_which_key_moves_it(
    name: str, row: dict[str, Any], tmp_path: Path
) -> None:
    path = str(write_jsonl(write_images(tmp_path / "set", one=RED) / "a.jsonl", [ROW | row, ROW]))
    source = open_source(tmp_path / "c", type="project", path=path)
    with pytest.raises(
        RecordError, match=rf"^project:0: [\d,]+ {name}; at most .*`limits: {{{name}: N}}`"
    ):
        source.record(0)
    assert record(source, 1).chosen.text == "This."
    if row.get("images", [""])[0] != "gone.png":
        wider = open_source(tmp_path / "c", type="project", path=path, limits={name: WIDER[name]})
        assert record(wider).identity == "project:0"
        assert wider.fingerprint() != source.fingerprint()


def test_the_defaults_pass_what_a_recipe_may_say() -> None:
    assert Limits.model_validate(Limits().model_dump()) == Limits()
    with pytest.raises(ValueError):
        Limits(images=65_536)  # more than the row index can count
