"""Formats whose columns have other names in the user's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preparation.mixing import MixtureConfig
from tests.data.mixtures import everything, mixture
from tests.data.sources.fixtures import (
    RED,
    image_struct,
    open_source,
    record,
    write_images,
    write_jsonl,
    write_parquet,
)

ROW: dict[str, Any] = {
    "id": 7,
    "question": "What is this?",
    "better": "A red square.",
    "worse": "A cat.",
    "photo": "red.png",
    "strength": 2,
}
COLUMNS = {
    "prompt": "question",
    "chosen": "better",
    "rejected": "worse",
    "images": "photo",
    "margin": "strength",
}


@pytest.mark.parametrize("kind", ["project", "trl"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_columns_with_other_names_are_read(kind: str, suffix: str, tmp_path: Path) -> None:
    write_images(tmp_path, red=RED)
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        write_jsonl(path, [ROW])
    else:
        write_parquet(path, [ROW | {"photo": image_struct(RED)}])
    found = record(open_source(tmp_path / "c", type=kind, path=str(path), columns=COLUMNS))
    assert (found.chosen.text, found.rejected.text, found.margin) == (
        "A red square.",
        "A cat.",
        2.0,
    )
    assert [part["type"] for part in found.prompt[0]["content"]] == ["image", "text"]
    assert len(found.images) == 1


def test_a_column_that_is_not_listed_has_the_name_of_the_format(tmp_path: Path) -> None:
    row = {"prompt": "not this one", "question": "Q", "chosen": "A", "rejected": "B", "id": 1}
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    columns = {"prompt": "question"}
    found = record(open_source(tmp_path / "c", type="project", path=str(path), columns=columns))
    assert found.prompt[0]["content"] == [{"type": "text", "text": "Q"}]
    assert (found.chosen.text, found.rejected.text) == ("A", "B")
    with pytest.raises(RecordError, match=r"unknown keys 'id', 'question'.*columns: \{prompt:"):
        open_source(tmp_path / "c", type="project", path=str(path)).record(0)


@pytest.mark.parametrize("kind", ["project", "trl"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ["prompt", "chosen", "images"])
def test_a_name_that_the_file_does_not_have_is_refused_with_the_names_that_it_has(
    kind: str, suffix: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{suffix}"
    (write_jsonl if suffix == "jsonl" else write_parquet)(path, [ROW] * 3)
    columns = COLUMNS | {name: "misspelt"}
    with pytest.raises(UserError) as caught:
        open_source(tmp_path / "c", type=kind, path=str(path), columns=columns)
    assert "'misspelt'" in str(caught.value)
    for present in ROW:
        assert present in str(caught.value)


def test_a_column_of_a_few_rows_counts_if_the_first_row_has_it(tmp_path: Path) -> None:
    row = {"question": "Q", "chosen": "A", "rejected": "B"}
    columns = {"prompt": "question", "margin": "strength"}
    settings = {"type": "project", "path": str(tmp_path / "a.jsonl"), "columns": columns}
    rows: list[Any] = [row] * 300
    rows[1] = row | {"strength": 1}
    write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match=r"in 100 of 300 rows.*null into the first row"):
        open_source(tmp_path / "c", **settings)
    rows[0] = row | {"strength": None}
    write_jsonl(tmp_path / "a.jsonl", rows)
    source = open_source(tmp_path / "c", **settings)
    assert [source.record(index).margin for index in range(3)] == [None, 1.0, None]


def test_a_name_that_the_format_does_not_have_is_refused() -> None:
    source = {"type": "project", "path": "a.jsonl", "columns": {"query": "question"}}
    with pytest.raises(ValidationError, match=r"'query' is no column of this format.*prompt"):
        MixtureConfig.model_validate({"sources": [source]})


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("project", "5baeee46706f9c681be45e93ba7670fc5f5485dfe6ab48d5156ddf94728ec3a6"),
        ("trl", "402193a7bf7f67b916e890c6d75ed7cb7e39aa9df4ffccacd9a9a2c542816c36"),
    ],
)
def test_the_digest_of_data_without_columns_is_that_of_earlier_versions(
    kind: str, digest: str
) -> None:
    source: dict[str, Any] = {"type": kind, "path": "/data/a.jsonl"}
    plain = MixtureConfig.model_validate({"sources": [source]})
    assert plain.digest == digest
    assert "columns" not in plain.sources[0].settings
    renamed = MixtureConfig.model_validate({"sources": [source | {"columns": COLUMNS}]})
    other = MixtureConfig.model_validate(
        {"sources": [source | {"columns": COLUMNS | {"prompt": "query"}}]}
    )
    assert len({plain.digest, renamed.digest, other.digest}) == 3
    assert MixtureConfig.model_validate_json(renamed.model_dump_json()) == renamed


def test_a_mixture_is_trained_on_renamed_columns(tmp_path: Path) -> None:
    rows = [ROW | {"photo": None, "question": f"What is {number}?"} for number in range(30)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    source = {"type": "project", "path": str(path), "columns": COLUMNS}
    records = list(everything(mixture(tmp_path, [source])))
    assert {found.chosen.text for found in records} == {"A red square."}
    assert len(records) == 30
