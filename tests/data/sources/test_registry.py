"""The registry of sources, and what each of its classes answers before a source is opened."""

import json
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from mmrm.data.config.registry import installed_rows
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.sources.registry import SOURCES, AnySource
from mmrm.data.sources.shared.source import SourceConfig

CLASSES = installed_rows(SOURCES)


def source(**keys: Any) -> SourceConfig:
    """Return a source as a recipe with these keys has it."""
    adapter: TypeAdapter[SourceConfig] = TypeAdapter(AnySource)
    return adapter.validate_python(keys)


def test_every_row_is_a_source_of_that_name() -> None:
    assert CLASSES.keys() == SOURCES.keys()
    for name, kind in CLASSES.items():
        assert get_args(kind.model_fields["type"].annotation) == (name,)
        if not isinstance(SOURCES[name], str):
            assert kind.__module__ == f"mmrm.data.sources.{name}"


def test_only_the_embedded_world_is_a_wing() -> None:
    wings = [name for name, row in SOURCES.items() if isinstance(row, str)]
    assert wings == ["shapes", "shapes_drawn", "shapes_edited", "shapes_motion", "shapes_rated"]


@pytest.mark.parametrize(
    ("attribute", "names"),
    [
        ("has_critiques", ["mm_rlhf", "project", "shapes", "shards"]),
        ("has_rationales", ["project", "r1_reward", "shapes", "shards"]),
        ("has_answers", ["questions", "shapes", "shapes_motion", "shapes_rated"]),
    ],
)
def test_types_of_records_with_more_than_two_responses(attribute: str, names: list[str]) -> None:
    assert [name for name, kind in CLASSES.items() if getattr(kind, attribute)] == names


@pytest.mark.parametrize(
    ("keys", "gives_lists", "gives_ties"),
    [
        ({"type": "ultrafeedback"}, False, False),
        ({"type": "ultrafeedback", "pairs": "none"}, True, False),
        ({"type": "vlfeedback", "pairs": "none", "ties": "keep"}, True, True),
        ({"type": "vlfeedback", "ties": "keep"}, False, True),
        ({"type": "helpsteer2", "ties": "keep"}, False, True),
        ({"type": "helpsteer3", "ties": "keep"}, False, True),
        ({"type": "mm_rlhf"}, False, False),
        ({"type": "mm_rlhf", "ties": "keep"}, False, True),
        ({"type": "project", "path": "x"}, False, False),
        ({"type": "project", "path": "x", "pairs": "none", "ties": "keep"}, True, True),
        ({"type": "shards", "path": "x"}, False, False),
        ({"type": "shards", "path": "x", "pairs": "none", "ties": "keep"}, True, True),
    ],
)
def test_a_source_tells_whether_its_records_may_be_lists_or_ties(
    keys: dict[str, Any], gives_lists: bool, gives_ties: bool
) -> None:
    config = source(**keys)
    assert (config.gives_lists, config.gives_ties) == (gives_lists, gives_ties)


def test_later_keys_at_their_default_are_in_no_digest() -> None:
    """A run from before these keys is resumed only if its data have the same digest."""
    settings = json.loads(source(type="project", path="x").settings)
    assert not settings.keys() & {"columns", "pairs", "ties"}
    assert json.loads(source(type="ultrafeedback").settings)["pairs"] == "hardest"
    assert "ties" not in json.loads(source(type="ultrafeedback").settings)
    kept = source(type="project", path="x", ties="keep", columns={"prompt": "question"})
    assert json.loads(kept.settings).keys() >= {"columns", "ties"}
    section = MixtureConfig.model_validate(
        {"sources": [{"type": "helpsteer3"}, {"type": "project", "path": "x"}]}
    )
    assert (
        section.digest == "68d87dfa38f2f2ca6d83f9eb19343b6d82da76cc3374bfdffbe26413a60bc96c"
    )  # as version 7adca354 computed it


def test_only_questions_have_no_responses() -> None:
    assert [name for name, kind in CLASSES.items() if not kind.has_responses] == ["questions"]


COUNTED = (None, "counted at the first reading")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"type": "shapes", "level": "demo", "rows": 640}, (640, "generated")),
        (
            {"type": "shapes", "level": "demo", "rows": 640, "cap": 100, "repeat": 1.5},
            (150, "generated, capped"),
        ),
        ({"type": "rlaif_v"}, (83_132, "stated by its card")),
        ({"type": "rlaif_v", "cap": 10**6, "repeat": 0.5}, (41_566, "stated by its card")),
        ({"type": "trl", "hub": "trl-lib/rlaif-v", "cap": 9}, (9, "stated by its card, capped")),
        ({"type": "rlaif_v", "path": "copy"}, COUNTED),
        ({"type": "ultrafeedback"}, (63_967, "stated by its card")),
        ({"type": "ultrafeedback", "pairs": "none"}, (63_967, "stated by its card")),
        # Two of its 20,324 rows are one record.
        ({"type": "helpsteer2"}, (10_162, "stated by its card")),
        ({"type": "ultrafeedback", "pairs": "all"}, COUNTED),
        ({"type": "vlfeedback", "cap": 5}, COUNTED),
    ],
)
def test_expected_rows(keys: dict[str, Any], expected: tuple[int | None, str]) -> None:
    assert source(**keys).expected_rows() == expected


def test_half_of_a_generated_source_can_be_withheld() -> None:
    assert source(type="shapes", level="demo", rows=641).max_validation() == 320
    assert source(type="rlaif_v").max_validation() is None


def test_paths_of_a_source() -> None:
    local = source(type="povid", path="pairs.json", images="coco")
    assert local.input_paths() == {"path": "pairs.json", "images": "coco"}
    assert (local.location, local.is_on_hub) == ("pairs.json", False)
    remote = source(type="rlaif_v")
    assert remote.input_paths() == {}
    assert (remote.location, remote.is_on_hub) == ("openbmb/RLAIF-V-Dataset", True)
    generated = source(type="shapes", level="demo", rows=1)
    assert generated.input_paths() == {}
    assert (generated.location, generated.is_on_hub) == (None, False)
