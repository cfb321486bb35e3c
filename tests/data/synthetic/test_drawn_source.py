"""The sources `shapes_drawn` and `shapes_edited`: their keys, what they refuse, and their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from mmrm.data.sources.registry import AnySource
from mmrm.data.synthetic.drawn_source import PicturesConfig

TYPES = ("shapes_drawn", "shapes_edited")


def config(type_name: str, **keys: Any) -> PicturesConfig:
    """Return the source as a recipe with these keys has it."""
    adapter: TypeAdapter[Any] = TypeAdapter(AnySource)
    source = adapter.validate_python({"type": type_name, "level": "demo", "rows": 20, **keys})
    assert isinstance(source, PicturesConfig)
    return source


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize(
    ("keys", "lists", "ties"),
    [({}, True, True), ({"responses": 2}, False, True), ({"ties": False}, True, False)],
)
def test_a_source_states_whether_it_gives_lists_and_ties(
    type_name: str, tmp_path: Path, keys: dict[str, Any], lists: bool, ties: bool
) -> None:
    settings = config(type_name, **keys)
    assert (settings.gives_lists, settings.gives_ties) == (lists, ties)
    source = settings.open(tmp_path)
    records = [source.record(index) for index in range(len(source))]
    assert len(records) == 20
    assert any(len(record.responses) > 2 for record in records) == lists
    assert any(len(set(record.ranks)) < len(record.ranks) for record in records) == ties
    has_prompt_image = [len(record.images) == 1 for record in records]
    assert has_prompt_image == [type_name == "shapes_edited"] * 20


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"level": "easy"}, "'easy' is not in the generated data set"),
        ({"split": "test"}, "'test' is not in the generated data set"),
        ({"responses": 1}, "greater than or equal to 2"),
        ({"responses": 5}, "less than or equal to 4"),
    ],
)
def test_settings_that_are_refused(type_name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(type_name, **keys)


@pytest.mark.parametrize("type_name", TYPES)
def test_the_fingerprint_changes_with_the_seed(type_name: str, tmp_path: Path) -> None:
    first = config(type_name, seed=0).open(tmp_path)
    second = config(type_name, seed=1).open(tmp_path)
    assert first.revision == second.revision
    assert first.fingerprint() != second.fingerprint()
