"""Registries of plug-ins: rows that are classes, rows that are import paths, and wings that are absent."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import ValidationError

from mmrm.data.config.registry import OneOf, installed_sections, is_installed
from mmrm.data.config.section import Section
from mmrm.data.config.validation import sections


class Shape(Section):
    """The base class of the sections below."""


class Circle(Shape):
    """A row of the core."""

    type: Literal["circle"]
    radius: int = 1


class Square(Shape):
    """Another row of the core."""

    type: Literal["square"]
    side: int = 1


SHAPES: dict[str, type[Section] | str] = {
    "circle": Circle,
    "square": f"{__name__}:Square",
    "hexagon": "mmrm.no_such_wing.config:Hexagon",
}


class Drawing(Section):
    """A section with registered sections, itself and as items of a list."""

    first: Annotated[Shape, OneOf(SHAPES)]
    others: tuple[Annotated[Shape, OneOf(SHAPES)], ...] = ()


class SingleDrawing(Section):
    """A section whose registry has one installed row."""

    first: Annotated[Shape, OneOf({"circle": Circle, "hexagon": "mmrm.no_such_wing.config:H"})]


def test_a_row_is_chosen_by_its_type() -> None:
    drawing = Drawing.model_validate({"first": {"type": "square"}, "others": ({"type": "circle"},)})
    assert type(drawing.first) is Square
    assert type(drawing.others[0]) is Circle


def test_a_type_of_an_absent_wing_is_refused_with_the_installed_ones() -> None:
    with pytest.raises(ValidationError, match="'circle', 'square'"):
        Drawing.model_validate({"first": {"type": "hexagon"}})


def test_a_registry_with_one_installed_row_reads_it() -> None:
    drawing = SingleDrawing.model_validate({"first": {"type": "circle"}})
    assert type(drawing.first) is Circle
    with pytest.raises(ValidationError, match="circle"):
        SingleDrawing.model_validate({"first": {"type": "square"}})


def test_error_messages_find_the_sections_of_a_registry() -> None:
    names = [(".".join(place), section.__name__) for place, section in sections(Drawing)]
    assert names == [
        ("", "Drawing"),
        ("first", "Circle"),
        ("first", "Square"),
        ("others", "Circle"),
        ("others", "Square"),
    ]


def test_only_the_absence_of_the_row_itself_counts_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wing whose own import fails must not vanish without a word."""
    package = tmp_path / "broken_wing"
    package.mkdir()
    (package / "__init__.py").write_text("import a_library_that_is_missing\n", encoding="utf-8")
    (package / "config.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_installed("mmrm.no_such_wing.config:Hexagon")
    assert not is_installed("mmrm.data.no_such_module:Hexagon")
    assert is_installed("mmrm.data.errors:UserError")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_missing"):
        is_installed("broken_wing.config:Section")
    sys.modules.pop("broken_wing", None)


def test_sections_keep_the_order_of_the_registry() -> None:
    assert installed_sections(SHAPES) == [Circle, Square]
