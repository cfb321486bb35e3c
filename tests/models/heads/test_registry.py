"""The registry of reward heads: settings of recipes, and what is saved of them."""

import pytest
from pydantic import TypeAdapter, ValidationError

from mmrm.models.config import HeadConfig
from mmrm.models.heads.attributes_head import AttributesHeadConfig
from mmrm.models.heads.registry import HEADS, AnyHead
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.head_columns import HEAD_COLUMNS, columns_of
from tests.models.heads.examples import HEADS as EXAMPLES


def read(values: object) -> HeadConfig:
    """Return the section `head` of a recipe."""
    head: HeadConfig = TypeAdapter(AnyHead).validate_python(values)
    return head


def test_every_head_of_a_recipe_has_columns_in_the_remote_code() -> None:
    assert HEADS.keys() == HEAD_COLUMNS.keys() == EXAMPLES.keys()
    for name, head in EXAMPLES.items():
        assert head.type == name
        assert isinstance(head, HEADS[name])


@pytest.mark.parametrize("name", EXAMPLES)
def test_settings_and_remote_code_name_the_same_columns(name: str) -> None:
    head = EXAMPLES[name]
    assert columns_of(head.model_dump()).names == head.columns


@pytest.mark.parametrize("name", EXAMPLES)
def test_saved_settings_are_read_again(name: str) -> None:
    head = EXAMPLES[name]
    assert read(head.model_dump(mode="json")) == head


def test_a_head_without_a_type_is_a_score_and_is_saved_without_one() -> None:
    head = read({"layers": 2, "width": 7})
    assert head == ScoreHeadConfig(layers=2, width=7)
    assert head.model_dump() == {
        "layers": 2,
        "activation": "silu",
        "width": 7,
        "dropout": 0.0,
        "read": "end_of_turn",
    }
    assert columns_of(head.model_dump()).names == ("score",)


def test_an_unknown_type_in_a_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="reward head of type 'hexagon'"):
        columns_of({"type": "hexagon", "layers": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"names": ["a", "a"]}, "contains a more than once"),
        ({"names": ["a"], "layers": 3, "width": [4]}, "has 1 widths, and a head of 3 layers has 2"),
        ({"names": ["a"], "width": []}, "has 0 widths, and a head of 2 layers has 1"),
        ({"names": ["a"], "width": [0]}, "greater than or equal to 1"),
        ({"names": ["a", "std"]}, "contains std, which is the name of the standard deviation"),
        ({"names": []}, "at least 1 item"),
        ({"names": ["score", "a"]}, "the name of the weighted sum"),
        ({"names": ["a", "b"], "weights": {"a": 1.0}}, "a weight for each of a, b"),
        ({"names": ["a"], "weights": {"a": 1.0, "c": 1.0}}, "for no other name"),
        ({"names": ["a", "b"], "weights": {"a": 0.0, "b": 0.0}}, "are all 0"),
    ],
)
def test_wrong_attributes_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AttributesHeadConfig.model_validate({"type": "attributes", **values})
