"""Sources that give all responses of a prompt as one record, and sources that keep ties."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, Response, text_responses, validate
from mmrm.data.sources.project import project_row
from tests.data.sources.fixtures import (
    RED,
    image_struct,
    left_out,
    open_source,
    record,
    source_of,
    write_images,
    write_jsonl,
    write_parquet,
)
from tests.data.sources.test_image_sets import FOUR, as_columns
from tests.data.sources.test_judged_sets import ARENA, critic_row
from tests.data.sources.test_text_sets import completion, talk


def ultrafeedback_row(*completions: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": "evol_instruct",
        "instruction": "Why?",
        "models": [],
        "completions": list(completions),
        "correct_answers": ["None"],
        "incorrect_answers": ["None"],
    }


def test_ultrafeedback_gives_all_responses_with_their_ratings(tmp_path: Path) -> None:
    rows = [
        ultrafeedback_row(
            completion("a", *"4444"),
            completion("b", *"1111"),
            completion("c", *"5555"),
            completion("d", *"3555"),
        ),
        # Without the honesty, which is unknown for b, the means are 3 and 4.
        ultrafeedback_row(completion("a", *"3533"), completion("b", "4", "N/A", "4", "4")),
        ultrafeedback_row(completion("a", *"3333"), completion("b", *"3333")),
        ultrafeedback_row(completion("a", *"3333"), completion("b", *["N/A"] * 4)),
    ]
    write_jsonl(tmp_path / "set" / "evol_instruct.jsonl", rows)
    source = source_of(tmp_path, "ultrafeedback", pairs="none")
    assert len(source) == 4

    whole = record(source)
    assert whole.responses == text_responses("c", "d", "a", "b")
    assert whole.ranks == (0, 1, 2, 3)
    assert whole.attributes == {
        "helpfulness": (5.0, 3.0, 4.0, 1.0),
        "honesty": (5.0, 5.0, 4.0, 1.0),
        "instruction_following": (5.0, 5.0, 4.0, 1.0),
        "truthfulness": (5.0, 5.0, 4.0, 1.0),
    }
    assert (whole.margin, whole.category) == (None, "evol_instruct")

    partly_rated = record(source, 1)
    assert (partly_rated.responses, partly_rated.ranks) == (text_responses("b", "a"), (0, 1))
    assert isnan(partly_rated.attributes["honesty"][0])
    assert partly_rated.attributes["honesty"][1] == 5.0
    assert partly_rated.margin == 1.0

    assert [left_out(source, row) for row in (2, 3)] == ["tie", "no_pair"]
    tie = record(source_of(tmp_path, "ultrafeedback", pairs="none", ties="keep"), 2)
    assert (tie.responses, tie.ranks, tie.margin) == (text_responses("a", "b"), (0, 0), 0.0)


@pytest.mark.parametrize("stored", ["list", "columns"])
def test_vlfeedback_gives_all_responses_with_their_ratings(stored: str, tmp_path: Path) -> None:
    row = {
        "id": "LLaVAMed-1",
        "prompt": "Describe.",
        "models": list("wxyz"),
        "completions": FOUR if stored == "list" else as_columns(FOUR),
        "image": image_struct(),
    }
    write_parquet(tmp_path / "set" / "train-00000-of-00001.parquet", [row])
    found = record(source_of(tmp_path, "vlfeedback", pairs="none"))
    assert found.responses[0].text == "a"
    assert found.ranks[0] == 0
    assert found.images == (RED,)
    assert sorted(found.attributes) == [
        "Ethical Considerations",
        "Helpfulness",
        "Visual Faithfulness",
    ]
    assert all(len(values) == len(found.responses) for values in found.attributes.values())
    position_of_d = found.responses.index(Response.of_text("d"))
    values_of_d = [values[position_of_d] for values in found.attributes.values()]
    assert sum(map(isnan, values_of_d)) == 1


def test_ties_between_rated_responses_are_kept_as_pairs(tmp_path: Path) -> None:
    row = ultrafeedback_row(*(completion(text, *"3333") for text in "abc"))
    write_jsonl(tmp_path / "set" / "evol_instruct.jsonl", [row])
    every = source_of(tmp_path, "ultrafeedback", pairs="all", ties="keep", minimum_gap=2)
    found = [record(every, index) for index in range(3)]
    assert [tie.responses for tie in found] == [
        text_responses(*pair) for pair in ("ab", "ac", "bc")
    ]
    assert {(tie.ranks, tie.margin) for tie in found} == {((0, 0), 0.0)}
    hardest = record(source_of(tmp_path, "ultrafeedback", ties="keep"))
    assert (hardest.responses, hardest.ranks) == (text_responses("a", "b"), (0, 0))


def test_a_gap_between_pairs_is_refused_without_pairs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only pairs have a gap"):
        source_of(tmp_path, "vlfeedback", pairs="none", minimum_gap=1)


BATTLE = {
    "conversation_a": talk("What?", "A square."),
    "conversation_b": talk("What?", "A cat."),
    "winner": "tie",
    "language": "English",
    "image": image_struct(),
}
HELPSTEER3 = {
    "domain": "code",
    "context": talk("Write it."),
    "response1": "one",
    "response2": "two",
    "overall_preference": 0,
}
BINARIZED = {
    "chosen": talk("Hi", "Yes"),
    "rejected": talk("Hi", "No"),
    "score_chosen": 7.0,
    "score_rejected": 7.0,
}
TIES: list[tuple[str, str, dict[str, Any], tuple[str, str], float | None]] = [
    ("helpsteer3", "preference/train.jsonl", HELPSTEER3, ("one", "two"), 0.0),
    (
        "mm_rlhf",
        "dpo_pairs.jsonl",
        {
            "image": "one.png",
            "prompt": "<image>\nWhat?",
            "chosen": "A.",
            "rejected": "B.",
            "is_tie": True,
        },
        ("A.", "B."),
        None,
    ),
    (
        "llava_critic",
        "pairwise/train-00000-of-00001.parquet",
        critic_row(ARENA, "[[A=B]]"),
        ("Red.", "Blue."),
        None,
    ),
    (
        "wildvision_battle",
        "test-00000-of-00001.parquet",
        BATTLE,
        ("A square.", "A cat."),
        None,
    ),
    (
        "ultrafeedback_binarized",
        "train_prefs-00000-of-00001.parquet",
        BINARIZED,
        ("Yes", "No"),
        0.0,
    ),
]


@pytest.mark.parametrize(("kind", "file", "row", "responses", "margin"), TIES)
def test_ties_are_kept_if_the_recipe_keeps_them(
    kind: str,
    file: str,
    row: dict[str, Any],
    responses: tuple[str, str],
    margin: float | None,
    tmp_path: Path,
) -> None:
    write_images(tmp_path / "set", one=RED)
    write = write_parquet if file.endswith(".parquet") else write_jsonl
    write(tmp_path / "set" / file, [row])
    assert left_out(source_of(tmp_path, kind), 0) == "tie"
    source = source_of(tmp_path, kind, ties="keep")
    found = record(source)
    assert (found.responses, found.ranks) == (text_responses(*responses), (0, 0))
    assert found.margin == margin
    assert found.rationale is None
    assert source.fingerprint() != source_of(tmp_path, kind).fingerprint()


LISTED: dict[str, Any] = {"prompt": "Which colour?", "responses": ["White.", "Black.", "Red."]}


def project_source(folder: Path, *rows: Any, **settings: Any) -> Any:
    path = write_jsonl(folder / "mine.jsonl", list(rows))
    return open_source(folder / "cache", type="project", path=str(path), **settings)


def test_a_project_file_lists_responses_with_ranks_or_ratings(tmp_path: Path) -> None:
    ratings = {"correctness": [0, 5, 0], "style": [2, 4.5, None]}
    rows = [
        LISTED | {"ranks": [3, 1, 3]},
        LISTED | {"ratings": ratings},
        LISTED | {"ranks": [2, 1, 0], "ratings": ratings, "category": "colour"},
    ]
    source = project_source(tmp_path, *rows, pairs="none")
    ranked, rated, both = (record(source, index) for index in range(3))
    assert (ranked.responses, ranked.ranks) == (
        text_responses("Black.", "White.", "Red."),
        (0, 1, 1),
    )
    assert ranked.attributes == {}
    # `style` is unknown of one response, so that the correctness alone ranks them.
    assert (rated.responses, rated.ranks) == (text_responses("Black.", "White.", "Red."), (0, 1, 1))
    assert rated.attributes["correctness"] == (5.0, 0.0, 0.0)
    assert rated.attributes["style"][:2] == (4.5, 2.0)
    assert isnan(rated.attributes["style"][2])
    assert (both.responses, both.ranks) == (text_responses("Red.", "Black.", "White."), (0, 1, 2))
    assert both.attributes["correctness"] == (0.0, 5.0, 0.0)
    assert both.category == "colour"


def test_a_project_file_of_lists_gives_the_best_and_the_worst_by_default(tmp_path: Path) -> None:
    rows = [
        LISTED | {"ranks": [1, 0, 2], "ratings": {"style": [3, 2, 1]}},
        LISTED | {"ranks": [1, 1, 1]},
        {"prompt": "?", "chosen": "a", "rejected": "b", "responses": None, "ranks": None},
    ]
    source = project_source(tmp_path, *rows)
    found = record(source)
    assert (found.responses, found.ranks) == (text_responses("Black.", "Red."), (0, 1))
    assert found.attributes == {"style": (2.0, 1.0)}
    assert found.is_pair
    assert left_out(source, 1) == "tie"
    assert record(source, 2).responses == text_responses("a", "b")
    kept = record(project_source(tmp_path / "kept", *rows, ties="keep"), 1)
    assert (kept.responses, kept.ranks) == (text_responses("White.", "Red."), (0, 0))


def test_lists_in_parquet_and_under_other_names_are_read(tmp_path: Path) -> None:
    rows = [
        {"question": "?", "answers": ["a", "b"], "ratings": {"x": [1, 2], "y": None}},
        {"question": "?", "answers": ["a", "b"], "ratings": {"x": None, "y": [2.0, None]}},
    ]
    path = write_parquet(tmp_path / "mine.parquet", rows)
    source = open_source(
        tmp_path / "cache",
        type="project",
        path=str(path),
        columns={"prompt": "question", "responses": "answers"},
    )
    assert record(source).responses == text_responses("b", "a")
    assert record(source).attributes == {"x": (2.0, 1.0)}
    assert left_out(source, 1) == "no_pair"


def test_every_response_counts_towards_the_limit_of_characters(tmp_path: Path) -> None:
    row = {"prompt": "?", "responses": ["a", "b" * 50, "c"], "ranks": [0, 1, 2]}
    limits = {"characters": 40}
    source = project_source(tmp_path, row, pairs="none", limits=limits)
    with pytest.raises(RecordError, match="53 characters; at most 40 are read"):
        source.record(0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (LISTED, "neither 'ranks' nor 'ratings'"),
        (LISTED | {"ranks": [0, 1]}, "a whole number for each of the 3 responses"),
        (LISTED | {"ranks": [0, 1, 1.5]}, "a whole number for each of the 3 responses"),
        (LISTED | {"ranks": [0, True, 2]}, "a whole number for each of the 3 responses"),
        (LISTED | {"ranks": [0, 1, 2], "chosen": "a"}, "holds 'chosen' beside responses"),
        (LISTED | {"ratings": {"x": [1, 2]}}, "the rating 'x' is .* each of the 3 responses"),
        (LISTED | {"ratings": {"x": [1, 2, "3"]}}, "the rating 'x' is"),
        (LISTED | {"ratings": {"x": [1, 2, 10**400]}}, "the rating 'x' is"),
        (LISTED | {"responses": ["a"], "ranks": [0]}, "1 responses; required are 2 to 64"),
        (LISTED | {"responses": ["a", 3], "ranks": [0, 1]}, "response 2 is a int"),
        (LISTED | {"responses": ["a", "<image>"], "ranks": [0, 1]}, "response 2"),
        ({"prompt": "?", "ranks": [0, 1]}, "there is no 'responses'"),
    ],
)
def test_a_wrong_list_names_its_record(row: Any, message: str, tmp_path: Path) -> None:
    source = project_source(tmp_path, row, pairs="none")
    with pytest.raises(RecordError, match=f"project:0: .*{message}"):
        source.record(0)


@pytest.mark.parametrize(
    "original",
    [
        Preference("a:0", (), text_responses("x", "y", "z"), ranks=(0, 1, 1)),
        Preference(
            "a:0", (), text_responses("x", "y"), ranks=(0, 0), margin=0.0, chosen_critique="Good."
        ),
        Preference(
            "a:0", (), text_responses("x", "y"), attributes={"n": (float("nan"), 2.0)}, source="s"
        ),
        Preference("a:0", (), text_responses("x", "y"), margin=1.5, category="c"),
    ],
)
def test_a_record_comes_back_from_the_projects_format(original: Preference, tmp_path: Path) -> None:
    prompt = record(project_source(tmp_path, LISTED | {"ranks": [0, 1, 2]})).prompt
    written = Preference(
        identity="project:0",
        prompt=prompt,
        responses=original.responses,
        ranks=original.ranks,
        margin=original.margin,
        attributes=original.attributes,
        chosen_critique=original.chosen_critique,
        source=original.source,
        category=original.category,
    )
    row = json.loads(json.dumps(project_row(validate(written), None)))
    assert ("chosen" in row) == (original.is_pair and not original.attributes)
    read = record(project_source(tmp_path / "again", row, pairs="none", ties="keep"))
    # NaN differs from itself, so the texts are compared.
    assert repr(read) == repr(written)
