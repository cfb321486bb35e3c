"""The public text-only sets: each from a fixture in its own schema to one documented record."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import text_responses
from tests.data.sources.fixtures import (
    asked,
    left_out,
    record,
    source_of,
    write_jsonl,
    write_parquet,
)


def talk(*texts: str) -> list[dict[str, str]]:
    return [
        {"content": text, "role": ("user", "assistant")[number % 2]}
        for number, text in enumerate(texts)
    ]


def test_skywork_preference(tmp_path: Path) -> None:
    row = {
        "chosen": talk("Hi", "Hello", "More", "Yes"),
        "rejected": talk("Hi", "Hello", "More", "No"),
        "source": "magpie_pro",
    }
    write_parquet(tmp_path / "set" / "data" / "train-00000-of-00001.parquet", [row])
    found = record(source_of(tmp_path, "skywork_preference"))
    assert [message["role"] for message in found.prompt] == ["user", "assistant", "user"]
    assert (found.chosen.text, found.rejected.text, found.category, found.images) == (
        "Yes",
        "No",
        "magpie_pro",
        (),
    )


ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")


def completion(text: str, *ratings: str) -> dict[str, Any]:
    rated = {
        aspect: {"Rating": rating, "Rationale": "…"}
        for aspect, rating in zip(ASPECTS, ratings, strict=True)
    }
    return {"annotations": rated, "response": text, "model": "m", "overall_score": 8.0}


def test_ultrafeedback_all_and_hard(tmp_path: Path) -> None:
    four = [
        completion("a", *"5555"),
        completion("b", *"4444"),
        completion("c", *"1111"),
        completion("d", *"4444"),
    ]
    head = {
        "source": "evol_instruct",
        "instruction": "Why?",
        "models": [],
        "correct_answers": ["None"],
        "incorrect_answers": ["None"],
    }
    rows = [
        head | {"completions": four},
        head | {"completions": [completion(text, *"3333") for text in "abcd"]},
    ]
    rows.append(
        head | {"completions": [completion("a", "5", "5", "N/A", "5"), completion("b", *"4444")]}
    )
    write_jsonl(tmp_path / "set" / "evol_instruct.jsonl", rows)
    every = source_of(tmp_path, "ultrafeedback", pairs="all")
    assert len(every) == 18
    pairs = [
        (found.chosen.text, found.rejected.text)
        for found in (record(every, slot) for slot in (0, 1, 2, 3, 5))
    ]
    assert pairs == [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("d", "c")]
    assert left_out(every, 4) == "tie"
    hard = source_of(tmp_path, "ultrafeedback")
    assert len(hard) == 3
    found = record(hard)
    assert (found.chosen.text, found.rejected.text, found.margin, asked(found), found.category) == (
        "a",
        "c",
        4.0,
        ["Why?"],
        "evol_instruct",
    )
    assert left_out(hard, 1) == "tie"
    assert left_out(hard, 2) == "no_pair"


def test_ultrafeedback_binarized(tmp_path: Path) -> None:
    base = {
        "prompt": "Hi",
        "prompt_id": "1",
        "chosen": talk("Hi", "Yes"),
        "rejected": talk("Hi", "No"),
        "messages": talk("Hi", "Yes"),
    }
    scores = [(8.0, 6.5), (7.0, 7.0), (7.0, 6.5), (5.0, 6.0)]
    rows = [base | {"score_chosen": one, "score_rejected": other} for one, other in scores]
    write_parquet(tmp_path / "set" / "data" / "train_prefs-00000-of-00001.parquet", rows)
    write_parquet(tmp_path / "set" / "data" / "train_sft-00000-of-00001.parquet", rows)
    source = source_of(tmp_path, "ultrafeedback_binarized", minimum_gap=1)
    assert len(source) == 4
    found = record(source)
    assert (found.chosen.text, found.rejected.text, found.margin, asked(found)) == (
        "Yes",
        "No",
        1.5,
        ["Hi"],
    )
    assert [left_out(source, row) for row in (1, 2)] == ["tie", "small_gap"]
    with pytest.raises(
        RecordError, match=r"ultrafeedback_binarized:3: .*must not have the lower score"
    ):
        source.record(3)


def test_tulu_and_olmo(tmp_path: Path) -> None:
    base = {
        "id": "t1",
        "prompt": "Hi",
        "chosen": talk("Hi", "Hello", "More", "Yes"),
        "rejected": talk("Hi", "Hello", "More", "No"),
    }
    rows = [
        base
        | {
            "source": "ultrafeedback",
            "chosen_rating": 4.5,
            "rejected_rating": 2.0,
            "chosen_model": "x",
            "rejected_model": "y",
        }
    ]
    rows.append(rows[0] | {"chosen_rating": None})
    rows.append(rows[0] | {"rejected": talk("Hi", "Other", "More", "No")})
    write_parquet(tmp_path / "set" / "data" / "train-00000-of-00001.parquet", rows)
    for kind, margins in (("tulu_preference", (None, None)), ("olmo_preference", (2.5, None))):
        source = source_of(tmp_path, kind)
        found = record(source)
        assert (len(found.prompt), found.chosen.text, found.rejected.text, found.category) == (
            3,
            "Yes",
            "No",
            "ultrafeedback",
        )
        assert (found.margin, record(source, 1).margin) == margins
        with pytest.raises(RecordError, match=f"{kind}:2: .*differ before their last turn"):
            source.record(2)


@pytest.mark.parametrize("packed", [True, False])
def test_helpsteer3(packed: bool, tmp_path: Path) -> None:
    base: dict[str, Any] = {
        "domain": "code",
        "language": "python",
        "context": talk("Write it."),
        "response1": "one",
        "response2": "two",
    }
    rows: list[Any] = [
        base | {"overall_preference": rating, "individual_preference": []}
        for rating in (-2, 1, 0, 3, 5)
    ]
    folder = tmp_path / "set" / "preference"
    write_jsonl(folder / "train.jsonl", rows)
    if packed:
        (folder / "train.jsonl.gz").write_bytes(
            gzip.compress((folder / "train.jsonl").read_bytes())
        )
        (folder / "train.jsonl").unlink()
    write_jsonl(folder / "validation.jsonl", rows[:1])
    source = source_of(tmp_path, "helpsteer3", minimum_gap=2)
    assert len(source) == 5
    minus, three = record(source, 0), record(source, 3)
    assert (minus.chosen.text, minus.rejected.text, minus.margin, minus.category) == (
        "one",
        "two",
        2.0,
        "code",
    )
    assert (three.chosen.text, three.rejected.text, three.margin, asked(three)) == (
        "two",
        "one",
        3.0,
        ["Write it."],
    )
    assert [left_out(source, row) for row in (1, 2)] == ["small_gap", "tie"]
    with pytest.raises(RecordError, match="helpsteer3:4: 'overall_preference' is 5"):
        source.record(4)


def test_a_broken_gzip_stops(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "preference"
    folder.mkdir(parents=True)
    (folder / "train.jsonl.gz").write_bytes(
        gzip.compress(json.dumps({"x": "y" * 5000}).encode())[:-12]
    )
    with pytest.raises(UserError, match=r"train\.jsonl\.gz: the file cannot be unpacked"):
        source_of(tmp_path, "helpsteer3")


def test_shp(tmp_path: Path) -> None:
    base = {
        "post_id": "p",
        "domain": "askculinary_train",
        "history": "Why salt?",
        "human_ref_A": "one",
        "human_ref_B": "two",
    }
    cases = [
        (1, 40, 10, 4.0),
        (0, 10, 40, 4.0),
        (1, 12, 10, 1.2),
        (1, 10, 10, 1.0),
        (1, 10, 40, 4.0),
    ]
    keys = ("labels", "score_A", "score_B", "score_ratio")
    write_jsonl(
        tmp_path / "set" / "askculinary" / "train.json",
        [base | dict(zip(keys, case, strict=True)) for case in cases],
    )
    write_jsonl(tmp_path / "set" / "askculinary" / "test.json", [base])
    source = source_of(tmp_path, "shp", minimum_ratio=2)
    assert len(source) == 5
    assert [
        (record(source, row).chosen.text, record(source, row).rejected.text) for row in (0, 1)
    ] == [
        ("one", "two"),
        ("two", "one"),
    ]
    assert (asked(record(source)), record(source).margin) == (["Why salt?"], 30.0)
    assert [left_out(source, row) for row in (2, 3)] == ["small_gap", "tie"]
    with pytest.raises(RecordError, match="shp:4: 'labels' is 1"):
        source.record(4)


def helpsteer2_row(prompt: str, response: str, *ratings: Any) -> dict[str, Any]:
    aspects = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    return {"prompt": prompt, "response": response, **dict(zip(aspects, ratings, strict=True))}


@pytest.mark.parametrize("packed", [False, True])
def test_helpsteer2(packed: bool, tmp_path: Path) -> None:
    turns = "Hi\n<extra_id_1>Assistant\nHello.\n<extra_id_1>User\nMore"
    rows = [
        helpsteer2_row("c#", "one", 1, 2, 3, 4, 0),
        helpsteer2_row("c#", "two", 3, 2, 3, 3, 1),
        helpsteer2_row(turns, "yes", 4, 4, 4, 0, 0),
        helpsteer2_row(turns, "no", 3, 4, 4, 0, 0),
        helpsteer2_row("tie", "first", 2, 0, 4, 0, 0),
        helpsteer2_row("tie", "second", 2, 4, 4, 0, 0),
        helpsteer2_row("alone", "x", 2, 4, 4, 0, 0),
        helpsteer2_row("other", "y", 2, 4, 4, 0, 0),
        helpsteer2_row("range", "x", 5, 4, 4, 0, 0),
        helpsteer2_row("range", "y", 2, 4, 4, 0, 0),
        helpsteer2_row("last", "z", 2, 4, 4, 0, 0),
    ]
    path = write_jsonl(tmp_path / "set" / "train.jsonl", rows)
    write_jsonl(tmp_path / "set" / "validation.jsonl", rows[:2])
    if packed:
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    source = source_of(tmp_path, "helpsteer2")
    assert len(source) == 6
    found = record(source)
    assert (found.identity, found.responses, found.ranks, found.margin) == (
        "helpsteer2:0",
        text_responses("two", "one"),
        (0, 1),
        2.0,
    )
    assert found.attributes == {
        "helpfulness": (3.0, 1.0),
        "correctness": (2.0, 2.0),
        "coherence": (3.0, 3.0),
        "complexity": (3.0, 4.0),
        "verbosity": (1.0, 0.0),
    }
    several_turns = record(source, 1)
    assert [message["role"] for message in several_turns.prompt] == ["user", "assistant", "user"]
    assert asked(several_turns) == ["More"]
    assert several_turns.chosen.text == "yes"
    assert left_out(source_of(tmp_path, "helpsteer2", minimum_gap=2), 1) == "small_gap"
    assert left_out(source, 2) == "tie"
    tie = record(source_of(tmp_path, "helpsteer2", ties="keep"), 2)
    assert (tie.responses, tie.ranks, tie.margin) == (
        text_responses("first", "second"),
        (0, 0),
        0.0,
    )
    assert tie.attributes["correctness"] == (0.0, 4.0)
    for index, message in (
        (3, "the prompts of two successive rows differ"),
        (4, "between 0 and 4"),
        (5, "in each of two successive rows"),
    ):
        with pytest.raises(RecordError, match=f"helpsteer2:{index}: .*{message}"):
            source.record(index)
    assert len(source_of(tmp_path, "helpsteer2", split="validation")) == 1
