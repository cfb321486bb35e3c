"""Questions with known answers, in files as they are published, and that nothing else takes them for pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, Truth
from mmrm.data.preparation.recognition import recognise
from mmrm.data.sources.questions import parsed_choices
from tests.data.mixtures import mixture
from tests.data.sources.fixtures import BLUE, RED, image_struct, write_jsonl, write_parquet


def read(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> list[Preference]:
    """Return the records of a mixture of these rows."""
    path = folder / "a.parquet"
    write_parquet(path, rows)
    found = mixture(folder, [{"type": "questions", "path": str(path), **keys}])
    return [found[place] for place in range(len(found))]


def said(record: Preference) -> str:
    return "".join(part["text"] for part in record.prompt[-1]["content"] if part["type"] == "text")


def test_columns_of_mathvista(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "pid": "1",
        "image": "images/1.jpg",
        "decoded_image": image_struct(RED),
        "unit": None,
    }
    rows = [
        row | {"query": "Hint.\nWhich?", "choices": ["big", "small"], "answer": "small"},
        row | {"query": "How many?", "choices": None, "answer": "1,200"},
        row | {"query": "Which years?", "choices": None, "answer": "[2004, 2010]"},
    ]
    keys = {"prompt": "query", "choices": "choices", "image_columns": ["decoded_image"]}
    choice, number, text = read(tmp_path, rows, **keys)
    assert choice.truth == Truth("multiple_choice", ("B",))
    assert said(choice) == "Hint.\nWhich?\nA. big\nB. small"
    assert choice.images == (RED,)
    assert choice.prompt[0]["content"][0] == {"type": "image"}
    assert number.truth == Truth("numeric", ("1,200",))
    assert text.truth == Truth("exact", ("[2004, 2010]",))
    assert choice.is_question


def test_columns_of_mmmu_pro(tmp_path: Path) -> None:
    rows = [
        {
            "question": "See <image 1> and <image 2>.",
            "options": "['$6', \"it's 7\"]",
            "answer": "B",
            "image_1": image_struct(RED),
            "image_2": image_struct(BLUE),
            "image_3": None,
            "subject": "Maths",
        }
    ]
    columns = [f"image_{number}" for number in range(1, 8)]
    (found,) = read(
        tmp_path,
        rows,
        prompt="question",
        choices="options",
        image_columns=columns,
        group="subject",
        instruction="Only the letter.",
    )
    assert found.truth == Truth("multiple_choice", ("B",))
    assert said(found) == "See <image 1> and <image 2>.\nA. $6\nB. it's 7\nOnly the letter."
    assert found.images == (RED, BLUE)
    assert found.category == "Maths"


def test_answers_of_several_forms_and_wrong_ones(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a?", "answer": ["yes", "y"]},
        {"prompt": "b?", "answer": ["no", " "]},
        {"prompt": "c?", "answer": []},
    ]
    found = mixture(
        tmp_path,
        [{"type": "questions", "path": str(write_jsonl(tmp_path / "a.jsonl", rows))}],
        bad_records={"policy": "skip", "limit": 0.9},
    )
    assert [record.truth for record in (found[place] for place in range(len(found)))] == [
        Truth("exact", ("yes", "y"))
    ]
    assert found.splits[0].left_out == {"bad_record": 2}
    with pytest.raises(ValueError, match="cannot be read as a list"):
        parsed_choices("['a'")
    with pytest.raises(ValueError, match="at most 26"):
        parsed_choices(["x"] * 27)


def test_an_answer_that_is_no_choice_is_refused(tmp_path: Path) -> None:
    rows = [{"prompt": "a?", "answer": "E", "options": ["1", "2"]}]
    with pytest.raises(UserError, match="'E' is none of the 2 choices, nor the letter of one"):
        read(tmp_path, rows, choices="options")


def test_a_file_of_questions_is_no_file_of_preferences(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "?", "answer": "!"}] * 3)
    with pytest.raises(UserError, match="no known format"):
        recognise(str(path), tmp_path / "cache")
