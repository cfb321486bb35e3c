"""Numbers of command lines: their bounds, and that every command uses them."""

from __future__ import annotations

import ast
import math
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data import browse
from mmrm.data.display.option_numbers import COUNT, NOT_NEGATIVE, SEED, TEMPERATURE, Number
from mmrm.eval import annotate
from mmrm.eval.selection.verifier_options import add_verifier_options

CLONE = Path(__file__).resolve().parents[3]
COMMAND_FILES = [
    path for floor in ("data", "eval", "train") for path in sorted((CLONE / floor).rglob("*.py"))
]


@given(st.integers(-(10**20), 10**20))
def test_a_whole_number_is_taken_within_its_bounds_only(number: int) -> None:
    if 1 <= number <= COUNT.most:
        assert COUNT(str(number)) == number
        return
    with pytest.raises(ArgumentTypeError, match="should be a whole number from 1 to"):
        COUNT(str(number))


@given(st.floats())
def test_a_number_is_taken_within_its_bounds_only(number: float) -> None:
    if 0 <= number <= 100:
        assert TEMPERATURE(repr(number)) == number
        return
    with pytest.raises(ArgumentTypeError, match=r"should be a number from 0\.0 to 100"):
        TEMPERATURE(repr(number))


@pytest.mark.parametrize("text", ["", "x", "1.5", "nan", "inf", "9" * 5000, "-1", "\ud800"])
def test_a_text_that_is_no_number_gives_a_message(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="should be a whole number"):
        SEED(text)


@given(st.text(max_size=50))
def test_no_text_gives_another_error(text: str) -> None:
    for number_type in (COUNT, NOT_NEGATIVE, Number(-1.0, 1.0)):
        try:
            assert math.isfinite(number_type(text))
        except ArgumentTypeError:
            continue


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (browse.main, ["recipe.yaml", "--out", "page.html", "--samples", "-1"]),
        (browse.main, ["recipe.yaml", "--out", "page.html", "--samples", str(2**60)]),
        (annotate.main, ["a.yaml", "b.yaml", "--out", "c.jsonl", "--temperatures", "0", "nan"]),
        (annotate.main, ["a.yaml", "b.yaml", "--out", "c.jsonl", "--limit", "-5"]),
    ],
)
def test_a_command_refuses_numbers_beyond_the_bounds(
    main: object,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["command", *arguments])
    assert callable(main)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "should be a" in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", ["-1", "nan", "inf", "1e999"])
def test_a_tolerance_that_no_answer_can_meet_is_refused(tolerance: str) -> None:
    parser = ArgumentParser()
    add_verifier_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--tolerance", tolerance])


def test_no_option_takes_numbers_without_bounds() -> None:
    unbounded = []
    for file in COMMAND_FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            kinds = [ast.unparse(word.value) for word in node.keywords if word.arg == "type"]
            if node.func.attr == "add_argument" and kinds and kinds[0] in ("int", "float"):
                unbounded.append(f"{file.relative_to(CLONE)}:{node.lineno}")
    assert not unbounded
